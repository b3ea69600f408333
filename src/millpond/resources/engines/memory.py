"""`memory:`: pools of this process, for threads, tasks and tests.

Pools of one name are one pool; `memory:lab` is another world than `memory:`. When the last pool object of a world is
closed, the world is gone. Everything is done in the caller's thread, under one lock; an appointment ends what is over.

Ctrl-C may strike anywhere in the main thread, also in the middle of a step. So what counts is the journal: a step
whose entry is not in it did not happen, and a state that was left half-changed is built again from it. What the
journal holds beyond `told`, nobody has heard yet: whoever comes next tells it.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from millpond._clock import EngineTime, elapsed
from millpond._events import logger
from millpond.resources import _alarm
from millpond.resources._commands import Command, Reply, Tick
from millpond.resources._engine import DONE, Question, Ticket, Watcher
from millpond.resources._records import Holder
from millpond.resources._replica import Replica
from millpond.resources._wire import Entry, freeze, thaw

T = TypeVar("T")


class _Pool:
    """A pool, with the journal from which it can be built again."""

    def __init__(self) -> None:
        self._replica: Replica | None = Replica()
        self._base = freeze(Replica().state)
        self._base_version = 0
        self._journal: list[Entry] = []
        self.told = 0
        self.answers: deque[Callable[[], None]] = deque()
        self.watchers: list[Watcher] = []
        self.is_telling = False

    @property
    def replica(self) -> Replica:
        """The state of now."""
        if self._replica is None:
            replica = Replica(thaw(self._base), self._base_version)
            for entry in self._journal:
                replica.follow(entry)
            self._replica = replica
        return self._replica

    def decide(self, command: Command, now: int) -> Reply:
        """Apply a command, wholly or not at all."""
        replica = self.replica
        try:
            reply, entry = replica.decide(command, now)
            if entry is not None:
                self._journal.append(entry)
        except BaseException:
            self._replica = None
            raise
        return reply

    def news(self) -> list[Entry]:
        """Return what nobody has heard yet."""
        return self._journal[self.told - self._base_version :]

    def shorten(self) -> None:
        """Begin the journal anew when it is much longer than the state."""
        replica = self.replica
        size = len(replica.state.requests) + len(replica.state.resources)
        if self.told == replica.version and len(self._journal) > 1000 + 4 * size:
            self._base, self._base_version, self._journal = freeze(replica.state), replica.version, []


class MemoryEngine:
    """An engine whose pools are gone with the process. `clock` is for tests."""

    proves_death = True  # the process that holds is the process that knows
    is_shared = False

    def __init__(self, url: str = "memory:", clock: Callable[[], int] | None = None) -> None:
        self.url = url
        self.users = 0
        self.session = "1"
        self.holder = Holder("process", "", socket.gethostname(), os.getpid())
        self._clock = clock or EngineTime()
        self._lock = threading.RLock()
        self._pools: dict[str, _Pool] = {}
        self._alarm: _alarm.Appointment | None = None
        self._alarm_at: float | None = None

    def apply(self, pool: str, command: Command, done: Callable[[Reply | Exception], None], *, block: bool) -> Ticket:
        """Run a command, here and now."""
        with self._lock:
            here = self._pool(pool)
            reply = here.decide(command, self._clock())
            here.answers.append(lambda: done(reply))
            self._set_alarm(here.replica)
        self._tell(here)
        return DONE

    def read(self, pool: str, question: Question[T], done: Callable[[T | Exception], None], *, block: bool) -> Ticket:
        """Ask a question, here and now."""
        try:
            with self._lock:
                answer = question(self._pool(pool).replica, self._clock())
        except Exception as error:
            done(error)
        else:
            done(answer)
        return DONE

    def watch(self, pool: str, watcher: Watcher, *, own: bool = False) -> Callable[[], None]:
        """Tell every entry of the pool from now on."""
        with self._lock:
            here = self._pool(pool)
            here.watchers = [*here.watchers, watcher]

        def stop() -> None:
            with self._lock:
                here.watchers = [one for one in here.watchers if one is not watcher]

        return stop

    def accept(self, pool: str, request: str, token: int, until: int) -> bool:
        """Leave it to a claim, which costs nothing here."""
        return False

    def pools(self) -> list[str]:
        """Return the names of the pools in which there is anything."""
        with self._lock:
            return sorted(name for name, pool in self._pools.items() if pool.replica.version)

    def drop(self, pool: str) -> None:
        """Forget a pool; its watchers hear of whatever comes after it under this name."""
        with self._lock:
            old = self._pools.pop(pool, None)
            if old is not None:
                self._pool(pool).watchers = old.watchers

    def close(self) -> None:
        """Give up one use; with the last one everything is gone."""
        with _registry_lock:
            self.users -= 1
            if self.users > 0:
                return
            if _open.get(self.url) is self:
                del _open[self.url]
        with self._lock:
            if self._alarm is not None:
                self._alarm.cancel()
            self._pools.clear()

    def tick(self) -> None:
        """End what is over, in all pools."""
        with self._lock:
            self._alarm_at = None
            pools = list(self._pools.values())
            for pool in pools:
                pool.decide(Tick(), self._clock())
                self._set_alarm(pool.replica)
        for pool in pools:
            self._tell(pool)

    def _pool(self, name: str) -> _Pool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool()
        return pool

    def _tell(self, pool: _Pool) -> None:
        """Tell what is new: one thread at a time, in order, with no lock held while it talks."""
        with self._lock:
            if pool.is_telling:
                return  # whoever is telling goes on until nothing is left
            pool.is_telling = True
        try:
            while True:
                with self._lock:
                    news, answers, watchers = pool.news(), len(pool.answers), pool.watchers
                    if not news and not answers:
                        pool.is_telling = False
                        pool.shorten()
                        return
                _tell_all(watchers, news)
                pool.told += len(news)
                for _ in range(answers):
                    pool.answers[0]()  # first given, then forgotten: twice does no harm, and none is lost to Ctrl-C
                    pool.answers.popleft()
        finally:
            pool.is_telling = False

    def _set_alarm(self, replica: Replica) -> None:
        due = replica.state.due()
        if due is None:
            return
        at = elapsed() + max(0, due - self._clock()) / 1_000_000
        if self._alarm_at is not None and self._alarm_at <= at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = _alarm.call_at(at, self.tick)


def _tell_all(watchers: Sequence[Watcher], entries: Sequence[Entry]) -> None:
    if entries:
        for watcher in watchers:
            try:
                watcher(entries)
            except Exception:
                logger.exception("a watcher failed")


_open: dict[str, MemoryEngine] = {}
_registry_lock = threading.Lock()


def open(url: str) -> MemoryEngine:  # noqa: A001
    """Open a world, or share it."""
    with _registry_lock:
        engine = _open.get(url)
        if engine is None:
            engine = _open[url] = MemoryEngine(url)
        engine.users += 1
        return engine


def _forget_in_child() -> None:
    """Start empty in a forked child: it holds nothing of what its parent holds."""
    global _registry_lock
    _registry_lock = threading.Lock()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
