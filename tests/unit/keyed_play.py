"""What tests of keyed pools share: a log that finds overlaps, a store that can be tampered with, patience."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from millpond.errors import EngineUnavailable
from millpond.keyed._pool import KeyedPool

T = TypeVar("T")

_worlds = itertools.count(1)


def fresh() -> str:
    """Return the URL of a world in memory that nobody else has."""
    return f"memory:{next(_worlds)}-{os.getpid()}"


def until(question: Callable[[], T], timeout: float = 5.0, what: str = "it") -> T:
    """Return the answer once it is true."""
    deadline = time.monotonic() + timeout
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what} did not come true in {timeout} s"
        time.sleep(0.002)


def becomes(question: Callable[[], Any], value: Any, timeout: float = 5.0) -> None:
    """Wait until the answer is this; say what it was, if it is not."""
    deadline = time.monotonic() + timeout
    while (answer := question()) != value:
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout} s it is {answer!r}, not {value!r}")
        time.sleep(0.002)


async def auntil(question: Callable[[], Any], timeout: float = 5.0) -> Any:
    """Return the answer once it is true; it may be a coroutine."""
    deadline = time.monotonic() + timeout
    while True:
        answer = question()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"it did not come true in {timeout} s"
        await asyncio.sleep(0.002)


class Log:
    """Who ran what, when; by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[str, list[Any]] = defaultdict(list)
        self.begun: list[tuple[str, Any]] = []
        self.ended: list[tuple[str, Any]] = []
        self.overlaps: list[tuple[str, list[Any]]] = []
        self.most = 0

    @contextlib.contextmanager
    def run(self, key: str, what: Any = None) -> Iterator[None]:
        with self._lock:
            here = self._now[key]
            here.append(what)
            if len(here) > 1:
                self.overlaps.append((key, list(here)))
            self.begun.append((key, what))
            self.most = max(self.most, sum(bool(one) for one in self._now.values()))
        try:
            yield
        finally:
            with self._lock:
                self._now[key].remove(what)
                self.ended.append((key, what))

    def of(self, key: str) -> list[Any]:
        """Return what ended of a key, in order."""
        with self._lock:
            return [what for one, what in self.ended if one == key]

    def started(self, key: str) -> list[Any]:
        """Return what began of a key, in order."""
        with self._lock:
            return [what for one, what in self.begun if one == key]

    def running(self, key: str) -> list[Any]:
        with self._lock:
            return list(self._now[key])


class Tampered:
    """A store whose verbs can be made to fail before or after they take effect."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.before: dict[str, Callable[..., object]] = {}
        self.after: dict[str, Callable[..., object]] = {}
        self.always_before: Callable[[str], object] | None = None
        self.always_after: Callable[[str], object] | None = None
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if name in ("listen", "close", "open") or not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if self.always_before is not None:
                self.always_before(name)
            if (hook := self.before.get(name)) is not None:
                hook(*args, **kwargs)
            result = value(*args, **kwargs)
            if (hook := self.after.get(name)) is not None:
                hook(*args, **kwargs)
            if self.always_after is not None:
                self.always_after(name)
            return result

        return call


def tamper(pool: Any) -> Tampered:
    """Put a store between a pool object (and the workers that it makes from now on) and its own."""
    home = pool._home
    home.open()
    home._store = Tampered(home._store)
    tampered: Tampered = home._store
    return tampered


def cut(*args: Any, **kwargs: Any) -> None:
    raise EngineUnavailable("cut off, by the test")


class Gate:
    """Lets handlers wait, coroutines and functions alike."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def open(self) -> None:
        self._event.set()

    def wait(self, timeout: float = 20.0) -> None:
        assert self._event.wait(timeout), "nobody opened the gate"

    async def pass_(self, timeout: float = 20.0) -> None:
        deadline = time.monotonic() + timeout
        while not self._event.is_set():
            assert time.monotonic() < deadline, "nobody opened the gate"
            await asyncio.sleep(0.002)


def slot_share(pool: KeyedPool) -> dict[str, int]:
    """Return how many slots each worker has."""
    return {one.id: one.slots for one in pool.workers()}


def settled(pool: KeyedPool, workers: int, slots: int) -> bool:
    """Tell whether so many workers have all the slots between them, fairly."""
    share = slot_share(pool)
    return len(share) == workers and sum(share.values()) == slots and min(share.values()) > 0


def key_of(pool: KeyedPool, worker: str, prefix: str = "k", avoid: tuple[str, ...] = ()) -> str:
    """Return a key that this worker owns now."""
    for number in range(100_000):
        key = f"{prefix}{number}"
        if key not in avoid and pool.owner(key).owner == worker:
            return key
    raise AssertionError(f"worker {worker} owns nothing")
