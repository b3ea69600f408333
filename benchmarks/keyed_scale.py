"""What a job of a keyed pool costs against the keys held, the backlog and the workers; what moves; other stores.

Ours only. Jobs do nothing. Workers are processes of their own that count what they ran in memory that this process
reads, so looking costs the store nothing. To drain, the pool is paused while jobs are put; time runs from its `resume`.

usage: python benchmarks/keyed_scale.py --worker URL FILE       (a worker; used by the questions)
"""

from __future__ import annotations

import itertools
import mmap
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import harness
from harness import Question, scale

from millpond.keyed import Job, Jump, KeyedPool, Rendezvous, Retry
from millpond.keyed.rules.placement import SLOTS, Member, Placement, stable_hash
from millpond.testing._redis import redis_server

PATIENCE = 120.0
HOT = 100
HELD = (0, 1_000, 10_000, 100_000)
JOBS = 30_000
ROUNDS = 3
LOOKED_AT = 200_000
STORES = ("Redis", "SQLite", "memory")


class Tally:
    """Numbers in a file that two processes share: what was run, and what was put off."""

    def __init__(self, path: Path) -> None:
        with open(path, "a+b") as file:
            file.truncate(16)
            self._map = mmap.mmap(file.fileno(), 16)
        self.counts = memoryview(self._map).cast("Q")


def make(url: str, counts: Any) -> tuple[KeyedPool, Any, Any]:
    pool = KeyedPool("bench", url)

    @pool.job(keep_result=0)
    async def nothing(_: Job, number: int) -> None:
        counts[0] += 1

    @pool.job(keep_result=0)
    async def later(_: Job) -> None:
        counts[1] += 1
        raise Retry(3600)

    return pool, nothing, later


class Scene:
    """A pool with workers."""

    def __init__(self, url: str, folder: Path, ends: ExitStack, workers: int) -> None:
        self.pool, self.nothing, self.later = make(url, [0, 0])
        self.tallies = []
        ends.enter_context(self.pool)
        for number in range(workers):
            path = folder / f"tally-{number}"
            self.tallies.append(Tally(path))
            command = [sys.executable, str(Path(__file__).resolve()), "--worker", url, str(path)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            ends.callback(process.wait)
            ends.callback(process.kill)
        self.wait(lambda: self._is_settled(workers), 0.05)

    def _is_settled(self, workers: int) -> bool:
        """Return whether all workers are up and have their share."""
        shares = [view.slots for view in self.pool.workers()]
        return len(shares) == workers and sum(shares) == SLOTS and max(shares) <= 1.2 * SLOTS / workers

    def wait(self, is_so: Callable[[], bool], pause: float = 0.001) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {PATIENCE:.0f} s; the workers have done {self.done()}")
            time.sleep(pause)

    def done(self, which: int = 0) -> int:
        return sum(tally.counts[which] for tally in self.tallies)

    def put(self, jobs: int, keys: int) -> None:
        for start in range(0, jobs, 1000):
            self.nothing.dispatch_many(
                [(f"key-{number % keys}", number) for number in range(start, min(start + 1000, jobs))]
            )

    def hold(self, first: int, end: int) -> None:
        """Give each of so many other keys a job that waits for its second try, an hour from now."""
        target = self.done(1) + end - first
        for start in range(first, end, 1000):
            self.later.dispatch_many([(f"held-{number}",) for number in range(start, min(start + 1000, end))])
        self.wait(lambda: self.done(1) >= target, 0.01)
        time.sleep(0.2)  # for the last ones to be settled

    def drain(self, jobs: int, keys: int) -> float:
        """Return the microseconds of a job when all of them are there."""
        target = self.done() + jobs
        self.pool.admin.pause()
        self.put(jobs, keys)
        began = time.perf_counter()
        self.pool.admin.resume()
        self.wait(lambda: self.done() >= target)
        return (time.perf_counter() - began) / jobs * 1e6

    def flow(self, jobs: int, keys: int) -> float:
        """Return the microseconds of a job while they are being put and run."""
        target = self.done() + jobs
        began = time.perf_counter()
        self.put(jobs, keys)
        self.wait(lambda: self.done() >= target)
        return (time.perf_counter() - began) / jobs * 1e6


@contextmanager
def on_redis(workers: int = 1) -> Iterator[Scene]:
    with ExitStack() as ends:
        server = ends.enter_context(redis_server())
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="millpond-keyed-")))
        yield Scene(server.url, folder, ends, workers)


def work(url: str, path: str) -> None:
    pool, _, _ = make(url, Tally(Path(path)).counts)
    pool.run()


# --- runs -------------------------------------------------------------------------------------------------------------


def hot(held: int, which: int) -> float:
    """Return what a job of 100 keys costs with so many other keys held (0), or with none (1), in the same run."""
    run = harness.shared("hot", _hot)
    return float(run["per_job"][0 if which else HELD.index(held)])


def _hot() -> dict[str, Any]:
    jobs, levels = scale(JOBS), [scale(held) if held else 0 for held in HELD]
    found = []
    with on_redis() as scene:
        scene.drain(jobs, HOT)
        for before, held in itertools.pairwise([0, *levels]):
            scene.hold(before, held)
            found.append(min(scene.drain(jobs, HOT) for _ in range(1 if harness.is_smoke() else 3)))
    return {"held": levels, "per_job": found, "hot": HOT, "jobs": jobs}


def backlog(per_key: int) -> float:
    jobs = scale(JOBS)
    with on_redis() as scene:
        scene.drain(jobs // 10, HOT)
        return scene.drain(jobs, max(1, jobs // per_key))


def crowd(workers: int) -> float:
    jobs = scale(2 * JOBS)
    with on_redis(workers) as scene:
        scene.drain(jobs // 10, 1000)
        return scene.drain(jobs, 1000)


def moved(placement: Callable[[], Placement], members: int) -> list[float]:
    """Return how many slots move when one of N joins or leaves, at several places: times the ideal, a share of 1/N."""
    shares = []
    for seed in range(1 if harness.is_smoke() else 3):
        place = placement()
        whole = [Member(f"{stable_hash(f'{seed}-{number}'):016x}"[:10]) for number in range(members)]
        full = place(whole, SLOTS)
        for gone in range(0, members, max(1, members // 8)):
            rest = [*whole[:gone], *whole[gone + 1 :]]
            changed = sum(one != other for one, other in zip(full, place(rest, SLOTS), strict=True))
            shares.append(changed * members / SLOTS)
    return shares


def moves(name: str, members: int) -> dict[str, Any]:
    def measure() -> dict[str, Any]:
        shares = moved({"rendezvous": Rendezvous, "jump": Jump}[name], members)
        return {"mean": statistics.mean(shares), "worst": max(shares), "least": min(shares), "cases": len(shares)}

    return harness.shared(f"moves-{name}-{members}", measure)


def sqlite(synchronous: str) -> float:
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="millpond-keyed-")))
        scene = Scene(f"sqlite:///{folder}/pool.db?synchronous={synchronous}", folder, ends, 1)
        scene.flow(scale(1000), 1000)
        return scene.flow(scale(20_000), 1000)


def memory() -> float:
    counts = [0, 0]
    pool, nothing, _ = make("memory:", counts)
    jobs = scale(JOBS)
    with pool, pool.worker():
        began = time.perf_counter()
        for start in range(0, jobs, 1000):
            nothing.dispatch_many([(f"key-{number % 1000}", number) for number in range(start, start + 1000)][:jobs])
        while counts[0] < jobs:
            time.sleep(0.001)
        return (time.perf_counter() - began) / jobs * 1e6


def looking(store: str) -> dict[str, float]:
    """Return the milliseconds of looking into a pool with very many keys, a job of each waiting."""

    def measure() -> dict[str, float]:
        with ExitStack() as ends:
            folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="millpond-keyed-")))
            url = {"memory": "memory:", "SQLite": f"sqlite:///{folder}/pool.db"}.get(store)
            pool, nothing, _ = make(url or ends.enter_context(redis_server()).url, [0, 0])
            ends.enter_context(pool)
            for start in range(0, scale(LOOKED_AT), 1000):
                nothing.dispatch_many([(f"key-{number}", number) for number in range(start, start + 1000)])
            half = pool.jobs(limit=scale(LOOKED_AT) // 2).next
            calls: dict[str, Callable[[], object]] = {
                "statistics": pool.statistics,
                "jobs": lambda: pool.jobs(after=half, limit=100),
                "keys": lambda: pool.keys(limit=100),
            }
            return {name: statistics.median(_milliseconds(call) for _ in range(9)) for name, call in calls.items()}

    return harness.shared(f"looking-{store}", measure)


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


# --- questions --------------------------------------------------------------------------------------------------------

NOTE = "ours only; a worker is a process with its defaults; Redis without persistence, all on one machine"


def question(key: str, title: str, sides: dict[str, Callable[..., float]], unit: str, **more: Any) -> Question:
    more = {"reference": "", "score": "value", "rounds": ROUNDS, "note": NOTE, **more}
    return Question(f"keyed_{key}", title, sides, unit, take="median", **more)


NONE_HELD = "millpond, none held"
QUESTIONS = [
    question(
        "hot",
        f"Redis: jobs of {HOT} keys, with other keys held beside them (a job of each waits for its retry): per job",
        {"millpond": lambda held: hot(held, 0), NONE_HELD: lambda held: hot(held, 1)},
        "µs",
        score="times",
        reference=NONE_HELD,
        params=[{"held": held} for held in HELD[1:]],
        must=0.8,
        aim=0.95,
    ),
    question(
        "backlog",
        f"Redis: {JOBS:,} jobs wait, so many for each key: per job",
        {"millpond": backlog},
        "µs",
        params=[{"per_key": number} for number in (1000, 100, 10, 1)],
    ),
    question(
        "workers",
        f"Redis: {2 * JOBS:,} jobs of 1,000 keys wait, for so many worker processes: per job",
        {"millpond": crowd},
        "µs",
        params=[{"workers": number} for number in (1, 4, 2)],
    ),
    question(
        "moves",
        "slots that move when one of N joins or leaves, at any place: times the ideal, 1/N",
        {
            "millpond": lambda members: moves("rendezvous", members)["mean"],
            "millpond, at worst": lambda members: moves("rendezvous", members)["worst"],
            "jump": lambda members: moves("jump", members)["mean"],
        },
        "",
        params=[{"members": number} for number in (64, 32, 16, 8, 4, 2)],
        must=1.3,
        aim=1.1,
        rounds=1,
        note="4096 slots, 3 sets of members, 8 places in each",
    ),
    question(
        "sqlite",
        "SQLite: from a process that puts 20,000 jobs of 1,000 keys to one that runs them: per job",
        {"millpond": sqlite},
        "µs",
        params=[{"synchronous": mode} for mode in ("FULL", "NORMAL")],
        must=200,
        aim=100,
    ),
    *(
        question(
            f"looking_{what}",
            f"{LOOKED_AT:,} keys with a job each: {title}",
            {"millpond": lambda store, what=what: looking(store)[what]},
            "ms",
            params=[{"store": store} for store in STORES],
            must=must,
            rounds=1,
            note="no worker; median of 9; Redis without persistence, all on one machine",
        )
        for what, title, must in (
            ("statistics", "statistics()", 20),
            ("jobs", "a page of 100 jobs from the middle", 100),
            ("keys", "a page of 100 keys", 100),
        )
    ),
    question("memory", f"memory store, one process: {JOBS:,} jobs put and run: per job", {"millpond": memory}, "µs"),
]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    else:
        sys.exit(__doc__)
