"""`memory:`: pools of this process, for threads, tasks and tests.

Pools of one name are one pool; `memory:lab` is another world than `memory:`. When the last pool object of a world is
closed, the world is gone. Everything is done in the caller's thread, under one lock; a timer ends what is over.

Ctrl-C may strike anywhere in the main thread, also in the middle of a step. So what counts is the journal: a step
that is not in it did not happen, and a state that was left half-changed is built again from it. What the journal
holds beyond `told`, nobody has heard yet: whoever comes next tells it, and one who is interrupted sees to it that
somebody comes.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from millpond._clock import EngineTime, elapsed
from millpond._events import logger
from millpond._interrupts import shielded
from millpond.resources import _timers
from millpond.resources._engine import AUDIT, DONE, Question, Ticket, Watcher
from millpond.resources._rules.commands import Command, Reply, Tick
from millpond.resources._rules.records import Holder
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.wire import Entry, freeze, thaw

T = TypeVar("T")


class _Pool:
    """A pool, with the journal from which it can be built again: what each step changed, and whom to answer."""

    def __init__(self) -> None:
        self._replica: Replica | None = Replica()
        self._base = freeze(Replica().state)
        self._base_version = 0
        self._journal: list[tuple[Entry | None, Callable[[], None]]] = []
        self._told = 0
        self.watchers: list[Watcher] = []
        self.is_telling = False

    @property
    def replica(self) -> Replica:
        """The state of now."""
        if self._replica is None:
            replica = Replica(thaw(self._base), self._base_version)
            for entry, _ in self._journal:
                if entry is not None:
                    replica.follow(entry)
            self._replica = replica
        return self._replica

    def decide(self, command: Command, now: int, done: Callable[[Reply | Exception], None]) -> None:
        """Apply a command and have it answered, wholly or not at all."""
        replica = self.replica
        try:
            reply, entry = replica.decide(command, now)
            self._journal.append((entry, lambda: done(reply)))
        except BaseException:
            self._replica = None
            raise

    def news(self) -> tuple[Entry | None, Callable[[], None]] | None:
        """Return the first step that nobody has heard of."""
        return self._journal[self._told] if self._told < len(self._journal) else None

    def was_told(self) -> None:
        """Take note that it is known."""
        self._journal[self._told] = (self._journal[self._told][0], _nobody)
        self._told += 1

    def shorten(self) -> None:
        """Begin the journal anew when it is much longer than the state, and all of it is told."""
        replica = self.replica
        size = len(replica.state.requests) + len(replica.state.resources)
        if len(self._journal) > 1000 + 4 * size:
            self._base, self._base_version, self._journal, self._told = freeze(replica.state), replica.version, [], 0


def _nobody() -> None:
    """Answer nobody: it was done."""


class MemoryEngine:
    """An engine whose pools are gone with the process. `clock` is for tests."""

    is_shared = False
    audit_every = AUDIT

    def __init__(self, url: str = "memory:", clock: Callable[[], int] | None = None) -> None:
        self.url = url
        self.users = 0
        self.session = "1"
        self.holder = Holder("process", "", socket.gethostname(), os.getpid())
        self._clock = clock or EngineTime()
        self._lock = threading.RLock()
        self._pools: dict[str, _Pool] = {}
        self._timer: _timers.Timer | None = None
        self._timer_at: float | None = None

    def apply(self, pool: str, command: Command, done: Callable[[Reply | Exception], None], *, block: bool) -> Ticket:
        """Run a command, here and now."""
        try:
            with self._lock:
                here = self._pool(pool)
                here.decide(command, self._clock(), done)
                self._set_timer(here.replica)
            self._tell(here)
        except BaseException:
            _timers.call_at(0.0, self.tick)
            raise
        return DONE

    def ask(self, pool: str, question: Question[T], done: Callable[[T | Exception], None], *, block: bool) -> Ticket:
        """Ask a question, here and now."""
        try:
            with self._lock:
                answer = question.answer(self._pool(pool).replica, self._clock())
        except Exception as error:
            done(error)
        else:
            done(answer)
        return DONE

    def watch(self, pool: str, watcher: Watcher, *, own: bool = False) -> Callable[[], None]:
        """Notify of every entry of the pool from now on."""
        with self._lock:
            here = self._pool(pool)
            here.watchers = [*here.watchers, watcher]

        def stop() -> None:
            with self._lock:
                here = self._pool(pool)  # maybe one that came after it under this name
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
            if self._timer is not None:
                self._timer.cancel()
            self._pools.clear()

    def tick(self) -> None:
        """End what is over, in all pools."""
        with self._lock:
            self._timer_at = None
            pools = list(self._pools.values())
            for pool in pools:
                pool.decide(Tick(), self._clock(), lambda reply: None)
                self._set_timer(pool.replica)
        for pool in pools:
            self._tell(pool)

    def _pool(self, name: str) -> _Pool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool()
        return pool

    def _tell(self, pool: _Pool) -> None:
        """Notify of what is new: one thread at a time, in order, with no lock held while it calls."""
        mine = False
        try:
            with self._lock:
                if pool.is_telling:
                    return  # whoever is telling goes on until nothing is left
                pool.is_telling = mine = True
            while True:
                with self._lock:
                    step, watchers = pool.news(), pool.watchers
                    if step is None:
                        mine = pool.is_telling = False
                        pool.shorten()
                        return
                shielded(partial(_tell_one, pool, watchers, *step))  # those who listen need not fear Ctrl-C
        finally:
            if mine:  # interrupted: others may wait for what is still to be told
                pool.is_telling = False
                _timers.call_at(0.0, lambda: self._tell(pool))

    def _set_timer(self, replica: Replica) -> None:
        due = replica.state.due()
        if due is None:
            return
        at = elapsed() + max(0, due - self._clock()) / 1_000_000
        if self._timer_at is not None and self._timer_at <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = _timers.call_at(at, self.tick)


def _tell_one(pool: _Pool, watchers: Sequence[Watcher], entry: Entry | None, answer: Callable[[], None]) -> None:
    if entry is not None:
        for watcher in watchers:
            try:
                watcher([entry])
            except Exception:
                logger.exception("a watcher failed")
    try:
        answer()
    except Exception:
        logger.exception("an answer was not taken")
    pool.was_told()


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
