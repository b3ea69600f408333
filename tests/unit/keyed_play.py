"""What tests of keyed pools share: a log that finds overlaps, a store that can be tampered with, a clock that stands."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millpond._clock import elapsed
from millpond.errors import EngineUnavailable
from millpond.keyed.client._sync.pool import KeyedPool
from millpond.keyed.client.bridge import Working
from millpond.keyed.rules import commands as do
from millpond.keyed.rules.placement import Member, Rendezvous
from millpond.keyed.rules.records import Settings
from millpond.keyed.stores.memory import MemoryStore
from millpond.keyed.worker import heartbeat, membership
from millpond.keyed.worker import worker as worker_module
from waiting import HANG, auntil, until

SLOTS = Settings().slots
_rendezvous = Rendezvous()
LONG = 600.0
"""Seconds that no test lasts: a lease or a drain that does not end however slow the machine is."""

_worlds = itertools.count(1)


def fresh() -> str:
    """Return the URL of a world in memory that nobody else has."""
    return f"memory:{next(_worlds)}-{os.getpid()}"


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


def named(command: do.Command[Any]) -> str:
    """Return what a command is called in tests."""
    verbs = (do.Dispatch, do.Join, do.Renew, do.Leave, do.Give, do.Claim, do.Work)
    return type(command).__name__.lower() if isinstance(command, verbs) else "apply"


class Tampered:
    """A store whose verbs can be made to fail before or after they take effect.

    A question has the name of its class, a command the same in small letters: `work`, `renew`, …; what people do is
    `apply`. Hooks are called with what the command holds.
    """

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
            verb, told = name, args
            if name == "ask":
                verb = type(args[0]).__name__
            elif name == "do":
                verb, told = named(args[0]), tuple(args[0])
            self.calls.append(verb)
            if self.always_before is not None:
                self.always_before(verb)
            if (hook := self.before.get(verb)) is not None:
                hook(*told, **kwargs)
            result = value(*args, **kwargs)
            if (hook := self.after.get(verb)) is not None:
                hook(*told, **kwargs)
            if self.always_after is not None:
                self.always_after(verb)
            return result

        return call


def tamper(pool: Any) -> Tampered:
    """Put a store between a pool object (and the workers that it makes from now on) and its own."""
    home = pool._connection
    home.open()
    home._store = Tampered(home._store)
    tampered: Tampered = home._store
    return tampered


def cut(*args: Any, **kwargs: Any) -> None:
    raise EngineUnavailable("cut off, by the test")


class Clock:
    """The time that workers and their store in memory see: it stands still until the test says otherwise.

    So leases end when a test wants it, and never because a machine is slow. Threads still wake by the real clock.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pool: KeyedPool) -> None:
        store: Any = pool._connection.store
        store = getattr(store, "inner", store)
        if not isinstance(store, MemoryStore):
            pytest.skip("only the time of a store in memory can stand still")
        self._lease = pool._connection.settings.lease / 1_000_000
        self._now, begun, start = elapsed(), elapsed(), store._clock()
        store._clock = lambda: start + round((self._now - begun) * 1_000_000)  # type: ignore[assignment]
        for module in (heartbeat, membership, worker_module):
            monkeypatch.setattr(module, "elapsed", lambda: self._now)

    def advance(self, leases: float) -> None:
        """Advance the time by a part of a lease."""
        self._now += leases * self._lease

    def cut_off(self, worker: Working, leases: float = 0.9) -> None:
        """End the lease of a worker that cannot renew; it still holds in the store. Return when nothing runs."""
        assert worker._worker is not None
        membership, runner = worker._worker._membership, worker._worker._runner
        assert membership is not None
        self.advance(leases)
        until(lambda: membership.is_over and runner.is_idle, "the end of what ran")

    def let_pass(self, leases: float, *workers: Working) -> None:
        """Advance the time in small steps; these workers renew their leases meanwhile."""
        for _ in range(round(4 * leases)):
            self.advance(0.25)
            for each in workers:
                until(lambda each=each: self.is_renewed(each), "a renewal")  # type: ignore[misc]

    def is_renewed(self, worker: Working) -> bool:
        """Ask a worker to renew its lease; return whether it has."""
        assert worker._worker is not None
        worker._worker._heartbeat.wake()
        membership = worker._worker._membership
        return membership is not None and membership.left() > 0.79 * self._lease


def skip(pool: KeyedPool, seconds: float) -> None:
    """Advance the clock of the store by so much."""
    store: Any = pool._connection.store
    store.skew += round(seconds * 1_000_000)


def beat_often(worker: Working) -> None:
    """Renew a worker's lease, however long it is, ten times a second."""
    assert worker._worker is not None
    heart = worker._worker._heartbeat
    heart._period = lambda: 0.1  # type: ignore[method-assign]
    heart.wake()


class Gate:
    """Lets handlers wait, coroutines and functions alike."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def open(self) -> None:
        self._event.set()

    def wait(self) -> None:
        assert self._event.wait(HANG), "nobody opened the gate"

    async def pass_(self) -> None:
        await auntil(self._event.is_set, "an open gate")


def slot_share(pool: KeyedPool) -> dict[str, int]:
    """Return how many slots each worker has."""
    return {one.id: one.slots for one in pool.workers()}


def settled(pool: KeyedPool, workers: int, slots: int) -> bool:
    """Return whether so many workers have all the slots between them, and none is to move any more."""
    share = slot_share(pool)
    if len(share) != workers or sum(share.values()) != slots or not min(share.values()):
        return False
    members = [Member(one.id, one.weight) for one in pool.workers() if not one.is_leaving]
    placement = pool._connection.placement or _rendezvous
    return [one.owner for one in pool.slots()] == list(placement(members, slots))


def key_of(pool: KeyedPool, worker: str, prefix: str = "k", avoid: tuple[str, ...] = ()) -> str:
    """Return a key that this worker owns now."""
    for number in range(100_000):
        key = f"{prefix}{number}"
        if key not in avoid and pool.owner(key).owner == worker:
            return key
    raise AssertionError(f"worker {worker} owns nothing")
