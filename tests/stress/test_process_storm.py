"""Storms over `ProcessPool`: random kills, pauses, resizes and cancels; nothing is lost and nothing runs twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millpond import ProcessPool, Task, WorkerDied, wait

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))
import process_calls as calls

from waiting import HANG

PROGRESS = 50
"""So many tasks end before the next kill: else a slow machine would do nothing but start workers."""


class Storm:
    """Does random things to a pool until it is told to stop."""

    def __init__(self, pool: ProcessPool, seed: int, *, kills: bool) -> None:
        self._pool = pool
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self.kills = 0
        self._kill_at = PROGRESS
        self.can_kill = kills
        self._deeds = [self.pause, self.resize, self.stop_and_go] + [self.kill] * (3 if kills else 0)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(self._random.uniform(0.002, 0.03)):
            with contextlib.suppress(ProcessLookupError):
                self._random.choice(self._deeds)()

    def _victim(self) -> int:
        # Those that are ready: killed at their start ten times in a row, they would rightly break the pool.
        victims = [worker.process.pid for worker in list(self._pool._runner.workers.all) if worker.is_ready]
        if not victims:
            raise ProcessLookupError
        return int(self._random.choice(victims))

    def kill(self) -> None:
        if (completed := self._pool.statistics().completed) >= self._kill_at:
            os.kill(self._victim(), signal.SIGKILL)
            self.kills += 1
            self._kill_at = completed + PROGRESS

    def stop_and_go(self) -> None:
        victim = self._victim()
        os.kill(victim, signal.SIGSTOP)
        time.sleep(self._random.uniform(0.0, 0.05))
        os.kill(victim, signal.SIGCONT)

    def pause(self) -> None:
        self._pool.pause()
        time.sleep(self._random.uniform(0.0, 0.005))
        self._pool.resume()

    def resize(self) -> None:
        self._pool.resize(self._random.randint(1, 4))

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def submit_some(pool: ProcessPool, generator: random.Random, out: str, number: int, storm: Storm) -> list[Task[Any]]:
    """Submit so many tasks, and more until ten workers were killed."""
    tasks: list[Task[Any]] = []
    while len(tasks) < number or (storm.can_kill and storm.kills < 10):
        x = len(tasks)
        if x >= number:
            wait_for(tasks[-100:])
        chosen: Any = pool if generator.random() < 0.9 else pool.options(key=generator.randrange(5))
        tasks.append(chosen.submit(calls.write_line, out, x))
    return tasks


def wait_for(tasks: list[Task[Any]]) -> None:
    """Wait until all have ended, as long as it takes; but some must end."""
    left = len(tasks)
    while not_done := wait(tasks, HANG).not_done:
        assert len(not_done) < left, f"{left} tasks were lost"
        left = len(not_done)


def check(tasks: list[Task[Any]], out: Path, kills: int) -> None:
    failed = {x for x, task in enumerate(tasks) if not task.cancelled() and task.exception(0) is not None}
    assert all(isinstance(tasks[x].exception(0), WorkerDied) for x in failed)
    assert len(failed) <= kills, f"{len(failed)} tasks failed by {kills} kills"
    good = [x for x, task in enumerate(tasks) if x not in failed and not task.cancelled()]
    assert [tasks[x].result(0) for x in good] == good
    ran = Counter(map(int, out.read_text().split()))
    assert not [x for x, times in ran.items() if times > 1], "tasks ran twice"
    assert not [x for x, task in enumerate(tasks) if task.cancelled() and x in ran], "cancelled tasks ran"
    assert set(good) <= set(ran), "tasks that did not run have results"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [False, True])
def test_nothing_is_lost_and_nothing_runs_twice_in_a_storm(tmp_path, kills):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    generator, out = random.Random(seed), tmp_path / "out"
    with ProcessPool(3, idle_timeout=None) as pool, Storm(pool, seed, kills=kills) as storm:
        tasks = submit_some(pool, generator, str(out), 40_000, storm)
        for task in generator.sample(tasks, 500):
            task.cancel()
        wait_for(tasks)
    check(tasks, out, storm.kills)


@pytest.mark.timeout(300)
def test_a_map_survives_a_storm_with_tries_to_spare(tmp_path):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    squares = [x * x for x in range(100_000)]
    with ProcessPool(3, retries=1000, idle_timeout=None) as pool, Storm(pool, seed, kills=True) as storm:
        while storm.kills < 10:
            assert list(pool.map(calls.square_with_pauses, range(100_000))) == squares


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_thousand_kills_lose_nothing(tmp_path):
    kills = 0
    while kills < 1_000:
        seed = random.randrange(1 << 30)
        print("seed", seed)
        out = tmp_path / f"out-{kills}"
        with ProcessPool(3, idle_timeout=None) as pool, Storm(pool, seed, kills=True) as storm:
            tasks = submit_some(pool, random.Random(seed), str(out), 20_000, storm)
            wait_for(tasks)
        check(tasks, out, storm.kills)
        kills += storm.kills
