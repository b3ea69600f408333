"""100 waiters in 4 processes over 10 resources, nothing held for any time; and 8 processes at one lock held for 1 ms.

A run gives all figures of a side at once, so the questions share runs: the first that needs them makes them, and leaves
them in a file for the others. Each figure is the median of three runs.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import peers_locks
import peers_pools
from harness import Question
from peers_locks import Peer

import millpond

Figure = Callable[[dict[str, Any]], float]
RUNS = 3
PEERS: dict[str, type[Peer]] = {
    "millpond": peers_pools.AsyncSqlite,
    "millpond FULL": peers_pools.AsyncSqliteFull,
    "millpond threads": peers_pools.Sqlite,
    "redis-py Lock": peers_locks.AsyncRedisLock,
    "redis-py Lock 0.01": peers_locks.AsyncRedisLockQuick,
    "filelock": peers_locks.FileLock,
    "portalocker": peers_locks.Portalocker,
}
NOTE = (
    "a pool gives whichever resource is free, a waiter at plain locks picks one of the ten at random; pollers that "
    "come back at once take the lock again before others notice, which is quick and unfair"
)


def runs_of(workload: str, peer: type[Peer]) -> list[dict[str, Any]]:
    """Run a workload, or read what a question before this one measured."""
    peer.require()
    source = zlib.crc32(millpond.__file__.encode())  # compare.py measures two
    kept = Path(tempfile.gettempdir()) / f"millpond-bench-{os.getppid()}-{source}-{workload}-{peer.__name__}.json"
    if not kept.exists():
        work = getattr(peers_locks, workload)
        found = [smoke(work, peer)] if harness._smoke else [work(peer, seconds=4.0) for _ in range(RUNS)]
        kept.write_text(json.dumps(found))
    runs: list[dict[str, Any]] = json.loads(kept.read_text())
    assert all(run["overlaps"] == 0 for run in runs), f"{peer.name} gave a lock to two at once"
    return runs


def smoke(work: Callable[..., dict[str, Any]], peer: type[Peer]) -> dict[str, Any]:
    """Run a workload of two processes until there is something to be seen: half a second may be too short for that."""
    for seconds in (0.5, 2.0, 8.0, 32.0):
        run = work(peer, seconds=seconds, processes=2)
        if run["grants_per_s"] and run["handover_ms"] is not None:
            break
    return run


def sides(workload: str, figure: Figure, *names: str) -> dict[str, Callable[..., float]]:
    def side(peer: type[Peer]) -> Callable[..., float]:
        return lambda: statistics.median(figure(run) for run in runs_of(workload, peer))

    return {name: side(PEERS[name]) for name in names or PEERS}


def question(
    key: str, title: str, workload: str, figure: Figure, unit: str, must: float | None, **more: Any
) -> Question:
    chosen = sides(workload, figure, *more.pop("peers", ()))
    reference = more.pop("reference", "redis-py Lock")
    return Question(
        key, title, chosen, unit, reference, score="value", must=must, take="median", rounds=1, note=NOTE, **more
    )


def per_grant(run: dict[str, Any]) -> float:
    return 1e6 / run["grants_per_s"]


CROWD = "100 waiters in 4 processes over 10 resources, zero hold: "
QUESTIONS = [
    question("resources_grant", CROWD + "per grant, NORMAL", "crowd", per_grant, "µs", 100),
    question("resources_grant_full", CROWD + "per grant, FULL", "crowd", per_grant, "µs", 333, subject="millpond FULL"),
    question("resources_handoff", CROWD + "hand-off, p50", "crowd", lambda run: run["handover_ms"]["p50"], "ms", 1.0),
    question(
        "resources_handoff_p99", CROWD + "hand-off, p99", "crowd", lambda run: run["handover_ms"]["p99"], "ms", 5.0
    ),
    question(
        "resources_handoff_full",
        CROWD + "hand-off, p50, FULL",
        "crowd",
        lambda run: run["handover_ms"]["p50"],
        "ms",
        3.0,
        subject="millpond FULL",
        peers=("millpond FULL", "redis-py Lock"),
    ),
    question(
        "resources_handoff_full_p99",
        CROWD + "hand-off, p99, FULL",
        "crowd",
        lambda run: run["handover_ms"]["p99"],
        "ms",
        10.0,
        subject="millpond FULL",
        peers=("millpond FULL", "redis-py Lock"),
    ),
    question(
        "resources_fairness", CROWD + "max/min grants per waiter", "crowd", lambda run: run["ratio_waiters"], "", 1.10
    ),
    question(
        "resources_lock_fairness",
        "8 processes at one lock, held 1 ms: max/min grants per process",
        "contended",
        lambda run: run["ratio_processes"],
        "",
        1.10,
    ),
    question(
        "resources_lock_wait",
        "8 processes at one lock, held 1 ms: longest wait",
        "contended",
        lambda run: run["wait_ms"]["max"],
        "ms",
        None,
    ),
]
