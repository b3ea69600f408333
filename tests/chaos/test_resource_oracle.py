"""The oracle of the resource storm keeps its books right, wherever the storm's own signals strike."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from resource_worker import Worker


class Sleepless(random.Random):
    def random(self) -> float:
        return 1.0


class StandIn:
    """A grant of a pool that nobody else uses."""

    units: ClassVar = {"disk-1": 1, "disk-2": 1}
    token = 7


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    pool: Any = None
    made = Worker(pool, tmp_path, "worker", seed=1)
    made.random = Sleepless()
    yield made
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def devices_open() -> list[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.exists(link) and "device-" in os.readlink(link)]


@pytest.mark.timeout(120, method="thread")  # the alarm is needed here
def test_the_books_are_right_after_each_of_two_thousand_interrupts(worker: Worker, tmp_path: Path) -> None:
    grant: Any = StandIn()
    signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0002)
    for _ in range(2000):
        try:
            worker.is_armed = True
            while True:
                worker.use(grant)
        except KeyboardInterrupt:  # and no other follows: it is no longer armed
            pass
        assert worker.in_use == set()
        assert not worker.guard.locked()
        assert devices_open() == []
    assert not (tmp_path / "violations").exists()
