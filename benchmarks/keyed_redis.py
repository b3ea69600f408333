"""Keyed pools on Redis beside queues that run a job at least once: taskiq, SAQ, dramatiq, streaq; and RQ's bulk call.

One run is one program with a server of its own that persists nothing (see `keyed_peers.py`, which says what is asked);
the sides take turns, and questions about the same run share it. Jobs do nothing but note that they were done, which
costs about 3 µs each and is in all figures.

A rival whose environment cannot be made, or that needs a newer Redis, is skipped, and the results say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import harness
import keyed_peers
from harness import RIVALS, Question, Skip
from keyed_peers import MILLPOND, PEERS, Peer

OURS = "millpond"
KEPT, TASKS = "millpond, results kept", "millpond, AsyncKeyedPool"
ROUNDS = 3


def ours(**changes: Any) -> Peer:
    return replace(MILLPOND, **changes)


SIDES: Mapping[str, Peer] = {
    OURS: MILLPOND,
    KEPT: ours(name=KEPT, surroundings={"KEYED_KEEP": "60"}),
    TASKS: ours(name=TASKS, surroundings={"KEYED_FACE": "async"}),
    **PEERS,
}


# --- runs -------------------------------------------------------------------------------------------------------------


def run_of(question: str, peer: Peer) -> dict[str, Any]:
    """Measure a side, or read what was measured before; raise `Skip` if it cannot be."""
    place = re.sub(r"\W+", "-", f"{question}-{peer.name}-{peer.keys}")
    run = harness.shared(place, lambda: _measure(question, peer))
    if "skipped" in run:
        raise Skip(run["skipped"])
    if not peer.requirements:
        if question != "death":  # what ended a moment before, and was not reported yet, is run again
            assert run.get("done_twice", 0) == 0, f"a job ran twice: {run}"
        assert run.get("overlaps", 0) == run.get("inversions", 0) == 0, f"jobs of a key overlapped or lost order: {run}"
    return run


def _measure(question: str, peer: Peer) -> dict[str, Any]:
    is_smoke = harness.is_smoke()
    if is_smoke and not peer.is_there:
        return {"skipped": "a smoke run makes no environment"}
    try:
        peer.python()
    except (RuntimeError, OSError) as error:
        return {"skipped": f"its environment cannot be made: {str(error).strip().splitlines()[-1]}"}
    return keyed_peers.measure(question, peer, is_smoke)


def _deaths() -> dict[str, Any]:
    """Kill a worker of every rival, all at once: it is a minute of waiting."""
    rivals = [peer for peer in PEERS.values() if "death" in peer.questions]
    with ThreadPoolExecutor(len(rivals)) as pool:
        return dict(
            zip((peer.name for peer in rivals), pool.map(lambda peer: _measure("death", peer), rivals), strict=True)
        )


def _death(side: str) -> dict[str, Any]:
    if side == OURS:
        return run_of("death", MILLPOND)
    run: dict[str, Any] = harness.shared("deaths", _deaths)[side]
    harness.keep(run)
    if "skipped" in run:
        raise Skip(run["skipped"])
    return run


# --- figures, of which less is better ---------------------------------------------------------------------------------


def per_job(name: str) -> Callable[[dict[str, Any]], float]:
    """Return microseconds for a job, from jobs for a second."""
    return lambda run: 1e6 / float(run[name])


def field(name: str) -> Callable[[dict[str, Any]], float]:
    return lambda run: float(run[name])


def elsewhere(run: dict[str, Any]) -> float:
    """Return after how long the jobs of the dead had begun elsewhere; as long as was waited if some had not."""
    if run["under_way"] and run["begun_elsewhere"] == run["under_way"]:
        return float(run["begun_elsewhere_after_s"])
    return float(run["limit_s"])


def sides(question: str, read: Callable[[dict[str, Any]], float], *also: str) -> dict[str, Callable[..., float]]:
    """Return who answers a question, with how."""
    names = [OURS, *also, *(name for name, peer in PEERS.items() if question in peer.questions)]
    return {name: lambda peer=SIDES[name]: read(run_of(question, peer)) for name in names}


def bulk_sides() -> dict[str, Callable[..., float]]:
    """As for `drain`, whose runs have it already; RQ can only put."""

    def figure(peer: Peer, per_key: int) -> float:
        question = "drain" if "drain" in peer.questions else "bulk"
        return per_job("put_per_s")(run_of(question, backlog(peer, per_key)))

    names = [OURS, KEPT, *(name for name, peer in PEERS.items() if "bulk" in peer.questions)]
    return {name: lambda per_key, peer=SIDES[name]: figure(peer, per_key) for name in names}


def drain_sides() -> dict[str, Callable[..., float]]:
    def figure(peer: Peer, per_key: int) -> float:
        return per_job("jobs_per_s")(run_of("drain", backlog(peer, per_key)))

    names = [OURS, KEPT, *(name for name, peer in PEERS.items() if "drain" in peer.questions)]
    return {name: lambda per_key, peer=SIDES[name]: figure(peer, per_key) for name in names}


def backlog(peer: Peer, per_key: int) -> Peer:
    """Return the same with so many jobs for each key; the rivals know no keys."""
    return peer if peer.requirements else replace(peer, keys=peer.jobs // per_key)


# --- questions --------------------------------------------------------------------------------------------------------

DEPTHS = [{"per_key": 1}, {"per_key": 60}]
NOTE = (
    "Redis without persistence, all on one machine; one worker process of each, its own concurrency; versions and "
    "settings of each side are in the details"
)
TUNED = "dramatiq takes part with its defaults and with 2 threads that fetch 100 jobs ahead"


def question(key: str, title: str, sides: dict[str, Callable[..., float]], unit: str, **more: Any) -> Question:
    smoke = {"bulk": (OURS, "rq"), "latency_p50": (OURS, TASKS)}.get(key, (OURS,))
    more = {"reference": RIVALS, "rounds": ROUNDS, "note": NOTE, "smoke": smoke, **more}
    return Question(f"keyed_{key}", f"Redis: {title}", sides, unit, take="median", **more)


QUESTIONS = [
    question(
        "drain",
        "jobs that do nothing, queued before the worker starts: per job",
        drain_sides(),
        "µs",
        params=DEPTHS,
        must=12,
        aim=25,
        note=f"{NOTE}; {TUNED}",
    ),
    question("bulk", "putting many jobs: per job", bulk_sides(), "µs", params=DEPTHS, must=8, aim=15),
    question(
        "latency_p50",
        "from dispatch to start, a job every 5 ms, p50",
        sides("latency", field("p50_ms"), TASKS),
        "ms",
        must=1,
        aim=1 / 0.7,
    ),
    question(
        "latency_p99",
        "from dispatch to start, a job every 5 ms, p99",
        sides("latency", field("p99_ms"), TASKS),
        "ms",
        must=1,
        aim=1 / 0.7,
    ),
    question(
        "contended",
        "50 keys, bursts of 40 jobs of 2 ms, 2 workers, one job of a key at a time: per job",
        sides("contended", per_job("jobs_per_s")),
        "µs",
        reference="dramatiq",
        must=10,
        aim=30,
        note=f"{NOTE}; dramatiq with its mutex",
    ),
    question(
        "disorder",
        "the same: jobs that overlapped with another of their key, or began after a later one",
        sides("contended", lambda run: float(run["overlaps"] + run["inversions"])),
        "",
        score="value",
        must=0,
    ),
    question(
        "idle",
        "memory of a worker that waits (all its processes)",
        sides("memory", field("rss_mb")),
        "MB RSS",
        score="value",
        must=45,
        aim=35,
        rounds=1,
    ),
    question(
        "death",
        "kill -9 of one of two workers, defaults: until all it was running has begun elsewhere",
        {name: lambda name=name: elsewhere(_death(name)) for name in sides("death", elsewhere)},
        "s",
        score="value",
        must=10,
        aim=5,
        rounds=1,
        note=f"{NOTE}; nothing else is put meanwhile; {keyed_peers.LIMIT:.0f} means not within that time (SAQ takes "
        "about 107 s, taskiq 10 minutes); the rivals' workers are killed at the same time, beside each other",
    ),
]
