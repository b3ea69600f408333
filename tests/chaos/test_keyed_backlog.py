"""A worker is killed while the other one is busy with a backlog: its keys do not wait until that is done.

True defaults: 4096 slots, a lease of 5 s; the survivor runs 3,000 jobs at once.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from keyed_backlog import POOL

from millpond import KeyedPool
from millpond.testing._redis import redis_server
from waiting import HANG, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROGRAM = Path(__file__).with_name("keyed_backlog.py")
STORES = ["sqlite", "redis"]
KEYS = 50
"""Keys of the dead that have a job."""


@contextlib.contextmanager
def two_workers(store: str, folder: Path) -> Iterator[tuple[KeyedPool, list[subprocess.Popen[bytes]]]]:
    """Two workers that share the slots; each has a log of its own."""
    with contextlib.ExitStack() as ends:
        url = f"sqlite:///{folder}/pools.db" if store == "sqlite" else ends.enter_context(redis_server()).url
        pool = ends.enter_context(KeyedPool(POOL, url))
        workers = []
        for index in range(2):
            worker = subprocess.Popen([sys.executable, str(PROGRAM), url, str(folder / f"log-{index}")])
            ends.callback(worker.wait)
            ends.callback(worker.kill)
            workers.append(worker)
        until(lambda: [each.slots > 1500 for each in pool.workers()] == [True, True], "they share the slots")
        yield pool, workers


def seconds_until_taken_over(store: str, folder: Path, jobs: int) -> float:
    """Return how long it took until the keys of the dead ran elsewhere, amid a backlog that does not come to its end."""
    with two_workers(store, folder) as (pool, (victim, survivor)):
        owned = {int(each.label.rpartition(":")[2]): each.id for each in pool.workers()}
        slots = pool.slots()
        owners = {key: slots[pool._connection.address(key)[0]].owner for key in map(str, range(8000))}
        theirs, ours = ([key for key, owner in owners.items() if owner == owned[one.pid]] for one in (victim, survivor))
        busy = ours[:3000]
        work = pool.declare_job("work", keep_result=0)
        done = pool.statistics().done_total

        def fill() -> None:
            work.dispatch_many([(busy[number % len(busy)], True) for number in range(10_000)])

        for _ in range(jobs // 10_000):
            fill()
        until(lambda: pool.statistics().done_total > done + 1000, "the survivor is at it")
        victim.kill()
        killed = time.monotonic()
        work.dispatch_many([(key, False) for key in theirs[:KEYS]])
        log = folder / "log-1"

        def is_taken_over() -> bool:
            if pool.statistics().jobs < jobs // 2:  # so that it goes on, however late the lease ends on a busy machine
                fill()
            return log.exists() and len(log.read_text().split()) == KEYS

        until(is_taken_over, "its keys run elsewhere", 2 * HANG)
        return time.monotonic() - killed


@pytest.mark.parametrize("store", STORES)
def test_keys_of_a_dead_worker_run_while_the_survivor_still_has_a_backlog(store: str, tmp_path: Path) -> None:
    took = seconds_until_taken_over(store, tmp_path, 100_000)
    print(f"{store}: {took:.1f} s")


@pytest.mark.soak
@pytest.mark.parametrize("store", STORES)
def test_with_300_000_jobs_before_them_they_run_within_10_seconds(store: str, tmp_path: Path) -> None:
    took = seconds_until_taken_over(store, tmp_path, 300_000)
    print(f"{store}: {took:.1f} s")
    assert took <= 10.0
