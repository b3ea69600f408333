"""A pool in this process: the rules behind a lock.

Pools of one name are one pool; `memory:lab` is another world than `memory:`. When its last user closes it, it is gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator

from millpond._clock import EngineTime
from millpond.errors import EngineError
from millpond.keyed.rules.commands import Command
from millpond.keyed.rules.pool import Rules
from millpond.keyed.rules.questions import A, Question
from millpond.keyed.rules.records import (
    Settings,
    Signal,
)
from millpond.keyed.stores.base import Opened, PoolGone, Subscription
from millpond.keyed.stores.memory import _reads
from millpond.keyed.stores.memory._mailboxes import MemoryMailbox
from millpond.keyed.stores.memory._tables import MemoryTables


class _Subscription:
    def __init__(
        self,
        store: MemoryStore,
        name: str,
        heard: Callable[[], None],
        handed: Callable[[int, Signal], None] | None,
    ) -> None:
        self._store, self.name, self.heard, self.handed = store, name, heard, handed

    def close(self) -> None:
        self._store._unsubscribe(self)


class MemoryStore:
    """A pool in this process."""

    is_shared = False
    proves_death = False
    hands_over = True

    def __init__(self, url: str = "memory:", closed: Callable[[], None] = lambda: None) -> None:
        self.url = url
        self.users = 0
        self._closed = closed
        self.skew = 0
        self._clock = EngineTime()
        self._lock = threading.Lock()
        self.tables: MemoryTables | None = None
        self._rules: Rules[MemoryMailbox] | None = None
        self._subscriptions: dict[str, list[_Subscription]] = {}
        self._hints: set[str] = set()
        self._handed: list[tuple[Callable[[int, Signal], None], int, Signal]] = []
        self._pid = os.getpid()

    @contextlib.contextmanager
    def _working(self) -> Iterator[tuple[Rules[MemoryMailbox], int]]:
        """Give the rules and the time; afterwards tell those for whom there is news."""
        with self._locked():
            if self._rules is None:
                raise PoolGone(f"the pool at {self.url!r} was dropped; open it again")
            yield self._rules, self._clock() + self.skew
            subscriptions = [subscription for name in self._hints for subscription in self._subscriptions.get(name, ())]
            self._hints.clear()
            handed, self._handed = self._handed, []
        for call, before, signal in handed:
            call(before, signal)
        for subscription in subscriptions:
            subscription.heard()

    def _hand(self, worker: str, before: int, signal: Signal) -> bool:
        """Hand a job to a worker that listens, as soon as the lock is free."""
        calls = [
            subscription.handed
            for subscription in self._subscriptions.get(worker, ())
            if subscription.handed is not None
        ]
        self._handed += [(call, before, signal) for call in calls]
        return bool(calls)

    def _locked(self) -> threading.Lock:
        if self._pid != os.getpid():
            raise EngineError(
                "a pool in memory belongs to the process that made it, not to a forked child; use sqlite:///file "
                "to share a pool between processes"
            )
        return self._lock

    def open(self, settings: Settings) -> Opened:
        with self._lock:
            if self.tables is None:
                self.tables = MemoryTables(settings, secrets.token_hex(8))
                self._rules = Rules(self.tables, self._hints.add, self._hand)
            return Opened(self.tables.settings, self.tables.incarnation)

    def do(self, command: Command[A]) -> A:
        with self._working() as (rules, now):
            return rules.do(now, command)

    def outer_heart(self, lease: float, stall: float, *, renews: bool) -> None:
        return None  # the pool ends with this process

    def ask(self, question: Question[A]) -> A:
        with self._locked():
            if self.tables is None:
                raise PoolGone(f"the pool at {self.url!r} was dropped; open it again")
            answer: A = _reads.answer(self.tables, self._clock() + self.skew, question)
            return answer

    def listen(
        self, name: str, heard: Callable[[], None], handed: Callable[[int, Signal], None] | None = None
    ) -> Subscription:
        subscription = _Subscription(self, name, heard, handed)
        with self._lock:
            self._subscriptions.setdefault(name, []).append(subscription)
        return subscription

    def _unsubscribe(self, subscription: _Subscription) -> None:
        with self._lock:
            subscriptions = self._subscriptions.get(subscription.name, [])
            if subscription in subscriptions:
                subscriptions.remove(subscription)
            if not subscriptions:
                self._subscriptions.pop(subscription.name, None)

    def drop(self) -> None:
        with self._lock:
            self.tables = self._rules = None

    def close(self) -> None:
        self._closed()


class _Registry:
    """The stores of this process: pools of one name and URL are one pool, for as long as one of them is open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stores: dict[tuple[str, str], MemoryStore] = {}

    def open(self, url: str, pool: str) -> MemoryStore:
        with self.lock:
            store = self.stores.setdefault((url, pool), MemoryStore(url, lambda: self.close(url, pool)))
            store.users += 1
            return store

    def close(self, url: str, pool: str) -> None:
        with self.lock:
            store = self.stores.get((url, pool))
            if store is not None:
                store.users -= 1
                if store.users == 0:
                    del self.stores[url, pool]

    def pools(self, url: str) -> list[str]:
        """Return the pools of a URL that are open in this process."""
        with self.lock:
            return sorted(pool for place, pool in self.stores if place == url)


_registry = _Registry()
open = _registry.open  # noqa: A001
pools = _registry.pools
