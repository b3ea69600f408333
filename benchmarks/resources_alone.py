"""One waiter, one lock, nobody else: what an acquire + release costs; and how soon a dead holder's lock is free."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import peers_locks
import peers_pools
from harness import Question, scale
from peers_locks import Peer

from millpond import ResourcePool

HOLDER = """
import sys, time
from millpond import ResourcePool
pool = ResourcePool("bench", sys.argv[1])
grant = pool.acquire()
print("held", flush=True)
time.sleep(60)
"""


def alone(peer: type[Peer], number: int = 3000) -> float:
    peer.require()
    return float(peers_locks.uncontended(peer, number=scale(number))["us_p50"])


def after_a_death() -> float:
    """Kill a holder with -9 and return how many milliseconds later a waiter has the lock; the median of some."""
    waits = []
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'pools.db'}"
        with ResourcePool("bench", url) as pool:
            pool.add("lock")
            for _ in range(max(3, scale(1000) // 50)):
                holder = subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE)
                assert holder.stdout is not None
                holder.stdout.readline()
                waits.append(_kill_while_waiting(pool, holder))
                holder.stdout.close()
                holder.wait()
    return statistics.median(waits) * 1000


def _kill_while_waiting(pool: ResourcePool, holder: subprocess.Popen[bytes]) -> float:
    killer = subprocess.Popen(["sleep", "0.05"])
    killer.wait()
    began = time.perf_counter()
    os.kill(holder.pid, signal.SIGKILL)
    with pool.acquire():
        return time.perf_counter() - began


QUESTIONS = [
    Question(
        "resources_alone",
        "acquire + release, uncontended, p50",
        {
            "millpond": lambda: alone(peers_pools.Sqlite),
            "millpond FULL": lambda: alone(peers_pools.SqliteFull, 300),
            "millpond memory": lambda: alone(peers_pools.Memory),
            "redis-py Lock": lambda: alone(peers_locks.RedisLock),
            "filelock": lambda: alone(peers_locks.FileLock),
            "portalocker": lambda: alone(peers_locks.Portalocker),
        },
        "µs",
        "redis-py Lock",
        score="value",
        must=150,
        rounds=3,
    ),
    Question(
        "resources_death",
        "a holder is killed with -9: until a waiter in another process has its lock, median",
        {"millpond": after_a_death},
        "ms",
        "millpond",
        score="value",
        must=20,
        take="median",
        rounds=3,
        note="no rival: redis-py's Lock is free when its TTL is over, or never; file locks are freed by the kernel",
    ),
]
