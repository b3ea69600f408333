"""The local pools of the demo: threads, processes and coroutines of this process, with a little work for each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing import resource_tracker

from millpond import AsyncPool, ProcessPool, Statistics, ThreadPool

BURST, LULL = 2.0, 1.0


def resize_image(seconds: float) -> None:
    """Stand for work that waits for something: a thread that sleeps."""
    time.sleep(seconds)


def count_primes(limit: int) -> int:
    """Keep a processor busy for a moment."""
    return sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in range(2, limit))


async def fetch(_: int) -> None:
    """Stand for a request over the network."""
    await asyncio.sleep(random.uniform(0.05, 0.5))


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start threads that Ctrl-C passes by, and so the processes that these start.

    One that is still importing would print a traceback into the terminal.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which lets signals through again in whatever thread it is started by
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Rate:
    """How many tasks per second a pool has done lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=16)

    def note(self, completed: int) -> float:
        """Take in a count; return the rate."""
        now = time.monotonic()
        self._seen.append((now, completed))
        began, before = self._seen[0]
        return (completed - before) / (now - began) if now > began else 0.0


class LocalPools:
    """Three pools, and the threads that feed them. The pools of threads and coroutines are there at once."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._threads = ThreadPool(8, max_queued=40, when_full="block", idle_timeout=1.0, name="thumbnails")
        self._processes = ProcessPool(2, name="primes")
        self._fetches: AsyncPool | None = None
        self._rates: dict[str, Rate] = {}
        feeds = (self._feed_threads, self._feed_processes, self._feed_asyncio)
        self._feeders = [threading.Thread(target=feed, name=f"demo{feed.__name__}", daemon=True) for feed in feeds]
        with _without_interrupts():
            for feeder in self._feeders:
                feeder.start()

    def close(self) -> None:
        """Stop feeding, and end the pools."""
        self._is_over.set()
        for feeder in self._feeders:
            feeder.join()
        self._threads.shutdown(cancel_futures=True)
        self._processes.shutdown(cancel_futures=True)

    def look(self) -> list[tuple[Statistics, float]]:
        """Return what each pool says of itself, and how many tasks it does in a second."""
        pools = (self._threads, self._processes, self._fetches)
        found = [pool.statistics() for pool in pools if pool is not None]
        return [(one, self._rates.setdefault(one.name, Rate()).note(one.completed)) for one in found]

    def _feed_threads(self) -> None:
        while not self._is_over.wait(LULL):
            until = time.monotonic() + BURST
            while time.monotonic() < until and not self._is_over.is_set():
                self._threads.go(resize_image, random.uniform(0.02, 0.1))

    def _feed_processes(self) -> None:
        while not self._is_over.wait(0.05):
            self._processes.go(count_primes, random.randrange(200, 800))

    def _feed_asyncio(self) -> None:
        asyncio.run(self._fetch_all())

    async def _fetch_all(self) -> None:
        async with AsyncPool(100, name="fetches") as self._fetches:
            async for _ in self._fetches.map(fetch, itertools.count(), buffersize=100):
                if self._is_over.is_set():
                    break
