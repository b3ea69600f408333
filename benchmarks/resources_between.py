"""Resource pools between machines, on Redis and on PostgreSQL, beside the locks that people use there.

The crowd is that of `resources_crowd`: 100 waiters in 4 processes over 10 resources, nothing held for any time. All
processes are on one machine, as are the server and, for a pool, the companion that decides: they share its cores.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import harness
import peers_locks
import peers_pools
import peers_servers
from harness import Question
from peers_locks import Peer
from resources_alone import HOLDER, _kill_while_waiting, alone
from resources_crowd import CROWD, NOTE, Figure, per_grant, runs_of

from millpond import AsyncResourcePool, ResourcePool

REDIS: dict[str, type[Peer]] = {
    "millpond": peers_pools.AsyncRedis,
    "millpond threads": peers_pools.Redis,
    "redis-py Lock": peers_locks.AsyncRedisLock,
    "redis-py Lock 0.01": peers_locks.AsyncRedisLockQuick,
    "python-redis-lock": peers_servers.PythonRedisLock,
    "pottery": peers_servers.Pottery,
}
POSTGRES: dict[str, type[Peer]] = {
    "millpond": peers_pools.AsyncPostgres,
    "millpond threads": peers_pools.Postgres,
    "pg_advisory_lock": peers_servers.AdvisoryLock,
}
WAITERS, RESOURCES, KINDS = 10_000, 1_000, 50


def crowd(key: str, title: str, peers: dict[str, type[Peer]], figure: Figure, unit: str, must: float) -> Question:
    def side(peer: type[Peer]) -> Callable[..., float]:
        return lambda: statistics.median(figure(run) for run in runs_of("crowd", peer))

    sides = {name: side(peer) for name, peer in peers.items()}
    reference = list(peers)[2]
    return Question(
        key, CROWD + title, sides, unit, reference, score="value", must=must, take="median", rounds=1, note=NOTE
    )


def after_a_death(peer: type[Any]) -> float:
    """Kill a holder with -9 and return how many milliseconds later another machine has the lock; the median of some."""
    waits = []
    with peer.server() as server:
        here, there = (f"{server.url}?machine={name}" for name in ("here", "there"))
        with ResourcePool("bench", here) as pool:
            pool.add("lock")
            for _ in range(3 if harness.is_smoke() else 20):
                holder = subprocess.Popen([sys.executable, "-c", HOLDER, there], stdout=subprocess.PIPE)
                assert holder.stdout is not None
                holder.stdout.readline()
                waits.append(_kill_while_waiting(pool, holder))
                holder.stdout.close()
                holder.wait()
    return statistics.median(waits) * 1000


def ten_thousand(peer: type[Any]) -> float:
    """Run 10,000 tasks that want 1,000 resources of 50 kinds, each once; return microseconds per grant."""
    waiters = harness.scale(WAITERS)
    with peer.server() as server:
        return asyncio.run(_ten_thousand(server.url, waiters)) / waiters * 1e6


async def _ten_thousand(url: str, waiters: int) -> float:
    async with AsyncResourcePool("bench", url) as pool:
        for number in range(max(KINDS, harness.scale(RESOURCES))):
            await pool.add(f"board-{number}", labels={"kind": str(number % KINDS)})

        async def want(number: int) -> None:
            async with pool.acquire({"kind": str(number % KINDS)}):
                pass

        began = time.perf_counter()
        await asyncio.gather(*(want(number) for number in range(waiters)))
        return time.perf_counter() - began


def handoff(quantile: str) -> Figure:
    return lambda run: float(run["handover_ms"][quantile])


def fairness(run: dict[str, Any]) -> float:
    return float(run["ratio_waiters"])


def one(key: str, title: str, sides: dict[str, Callable[..., float]], unit: str, must: float, **more: Any) -> Question:
    reference = more.pop("reference", next(iter(sides)))
    return Question(key, title, sides, unit, reference, score="value", must=must, **more)


QUESTIONS = [
    crowd("between_redis_grant", "per grant, on Redis", REDIS, per_grant, "µs", 1e6 / 6000),
    crowd("between_redis_handoff", "hand-off, p50, on Redis", REDIS, handoff("p50"), "ms", 0.8),
    crowd("between_redis_handoff_p99", "hand-off, p99, on Redis", REDIS, handoff("p99"), "ms", 4.0),
    crowd("between_redis_fairness", "max/min grants per waiter, on Redis", REDIS, fairness, "", 1.05),
    crowd("between_postgres_grant", "per grant, on PostgreSQL", POSTGRES, per_grant, "µs", 1e6 / 4000),
    crowd("between_postgres_handoff", "hand-off, p50, on PostgreSQL", POSTGRES, handoff("p50"), "ms", 0.8),
    crowd("between_postgres_handoff_p99", "hand-off, p99, on PostgreSQL", POSTGRES, handoff("p99"), "ms", 4.0),
    crowd("between_postgres_fairness", "max/min grants per waiter, on PostgreSQL", POSTGRES, fairness, "", 1.05),
    one(
        "between_redis_alone",
        "acquire + release, uncontended, p50, on Redis",
        {
            "millpond": lambda: alone(peers_pools.Redis),
            "redis-py Lock": lambda: alone(peers_locks.RedisLock),
            "python-redis-lock": lambda: alone(peers_servers.PythonRedisLock),
            "pottery": lambda: alone(peers_servers.Pottery, 300),
        },
        "µs",
        250,
        reference="redis-py Lock",
    ),
    one(
        "between_postgres_alone",
        "acquire + release, uncontended, p50, on PostgreSQL",
        {
            "millpond": lambda: alone(peers_pools.Postgres, 1000),
            "pg_advisory_lock": lambda: alone(peers_servers.AdvisoryLock),
        },
        "µs",
        1500,
        reference="pg_advisory_lock",
        note="an advisory lock writes nothing and is gone with its connection; a grant is one commit, release another",
    ),
    one(
        "between_death",
        "a holder is killed with -9: until a waiter on another machine has its lock, median",
        {
            "millpond": lambda: after_a_death(peers_pools.Redis),
            "millpond postgres": lambda: after_a_death(peers_pools.Postgres),
        },
        "ms",
        500,
        take="median",
        note="no rival: a lock with a TTL is free when that is over, an advisory lock when the server misses a client",
    ),
    one(
        "between_waiters",
        "10,000 tasks want 1,000 resources of 50 kinds: per grant",
        {
            "millpond": lambda: ten_thousand(peers_pools.Redis),
            "millpond postgres": lambda: ten_thousand(peers_pools.Postgres),
        },
        "µs",
        500,
        take="median",
        rounds=1,
    ),
]
