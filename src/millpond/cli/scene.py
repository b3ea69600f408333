"""What the demo shows: three pools with work that comes in bursts, and a worker that is killed now and then."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator

from millpond import AsyncPool, PoolClosed, ProcessPool, Statistics, Task, ThreadPool, WorkerDied

BURST, LULL = 2.5, 1.5
KILL_EVERY = 2.5


def resize_image(seconds: float) -> None:
    """Stand for work that waits for something: a thread that sleeps."""
    time.sleep(seconds)


def count_primes(limit: int) -> int:
    """Be work that keeps a processor busy."""
    return sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in range(2, limit))


def die() -> None:
    """Be the bad luck of a process."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


async def fetch(_: int) -> None:
    """Stand for a request over the network."""
    await asyncio.sleep(random.uniform(0.01, 0.1))


class Scene:
    """The pools of the demo and the threads that feed them."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.story: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self._is_over = threading.Event()
        self.threads = ThreadPool(8, max_queued=40, when_full="block", idle_timeout=1.0, name="thumbnails")
        self.processes = ProcessPool(2, name="primes")
        self.fetches: AsyncPool | None = None
        self._feeders = [
            threading.Thread(target=feed, name=f"feeds {feed.__name__}")
            for feed in (self._feed_threads, self._feed_processes, self._kill, self._feed_asyncio)
        ]

    def __enter__(self) -> Scene:
        for feeder in self._feeders:
            feeder.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the feeding and let everything that was taken in come to its end."""
        self._is_over.set()
        for feeder in self._feeders:
            feeder.join()
        self.threads.shutdown()
        self.processes.shutdown()

    def tell(self, line: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{time.monotonic() - self.began:5.1f} s  {line}")

    def statistics(self) -> list[Statistics]:
        """Return what each pool says of itself."""
        pools = [self.threads.statistics(), self.processes.statistics()]
        return [*pools, self.fetches.statistics()] if self.fetches is not None else pools

    def _feed_threads(self) -> None:
        for size in itertools.cycle((8, 12, 4)):
            self.threads.resize(size)
            self.tell(f"thumbnails: {size} threads, a burst")
            until = time.monotonic() + BURST
            while time.monotonic() < until:
                if self._is_over.is_set():
                    return
                self.threads.go(resize_image, random.uniform(0.01, 0.06))
            if self._is_over.wait(LULL):
                return

    def _feed_processes(self) -> None:
        waiting: deque[Task[int]] = deque()
        while not self._is_over.is_set():
            while len(waiting) < 100:
                waiting.append(self.processes.submit(count_primes, random.randrange(500, 1500)))
            self._settle(waiting.popleft())
        for task in waiting:
            self._settle(task)

    def _settle(self, task: Task[int]) -> None:
        try:
            task.result()
            self.outcomes["returned"] += 1
        except WorkerDied:
            self.outcomes["lost"] += 1

    def _kill(self) -> None:
        while not self._is_over.wait(KILL_EVERY):
            try:
                error = self.processes.submit(die).exception()
            except PoolClosed:
                return
            if isinstance(error, WorkerDied):
                self.outcomes["killed"] += 1
                self.tell("primes: killed -9, 1 failed, 0 lost")

    def _feed_asyncio(self) -> None:
        asyncio.run(self._fetch_all())

    async def _fetch_all(self) -> None:
        async with AsyncPool(200, name="fetches") as self.fetches:
            self.tell("fetches: 200 at once, endless source")
            source: Iterator[int] = itertools.count()
            async for _ in self.fetches.map(fetch, source, buffersize=400):
                if self._is_over.is_set():
                    break
