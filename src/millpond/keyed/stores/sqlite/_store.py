"""A keyed pool in a SQLite file: the verbs, each one transaction."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar, cast

from millpond import _fork
from millpond._clock import elapsed
from millpond._sqlite import DiskFull, FileReplaced, Transaction
from millpond.errors import PoolClosed
from millpond.keyed.rules import commands as do
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.commands import Command
from millpond.keyed.rules.pool import Rules
from millpond.keyed.rules.questions import A, Question
from millpond.keyed.rules.records import (
    Settings,
    Signal,
)
from millpond.keyed.stores.base import NothingChanged, Opened, PoolGone
from millpond.keyed.stores.sqlite import _reads
from millpond.keyed.stores.sqlite._file import SharedFile
from millpond.keyed.stores.sqlite._files import files
from millpond.keyed.stores.sqlite._listeners import Subscription, ring
from millpond.keyed.stores.sqlite._mailboxes import SqlMailbox
from millpond.keyed.stores.sqlite._own_workers import InnerHeart
from millpond.keyed.stores.sqlite._pool import Origin, Pool
from millpond.keyed.stores.sqlite._tables import SqlTables
from millpond.keyed.stores.sqlite._witness import Witness

T = TypeVar("T")


class SqliteStore:
    """A pool in a file that all processes of the machine share."""

    is_shared = True
    proves_death = True
    hands_over = False

    def __init__(self, url: str, pool: str) -> None:
        self.url = url
        self.skew = 0
        self._pool = pool
        self._is_closed = False
        self._subscriptions: list[Subscription] = []
        self._file = files.open(url)
        self._witness = Witness()

    # -- transactions -------------------------------------------------------------------------------------------------

    def _write(
        self, verb: Callable[[Rules[SqlMailbox], int], T], first: Callable[[Transaction, Pool, int], None] | None = None
    ) -> T:
        """Carry out a verb, and tell those for whom there is news; `first` is done in the same transaction."""
        file = self._open_file()
        hints: set[str] = set()
        rung: set[int] = set()

        def step(transaction: Transaction) -> T:
            hints.clear()
            pool, now = self._found(file, transaction), file.clock.now() + self.skew
            if first is not None:
                first(transaction, pool, now)
            tables = self._tables(file, transaction, pool)
            answer = verb(Rules(tables, hints.add), now)
            tables.flush()
            rung.clear()
            rung.update(ring(transaction, file.sessions.number, self._pool, hints))
            return answer

        with self._gone():
            answer = file.write(step)
        if hints:
            file.sessions.own.bell.ring(rung)
            file.listeners.call(self._pool, hints)
        return answer

    def _tables(self, file: SharedFile, transaction: Transaction, pool: Pool) -> SqlTables:
        return SqlTables(transaction, pool, lambda session: file.sessions.is_dead(transaction, session))

    def _found(self, file: SharedFile, transaction: Transaction) -> Pool:
        pool = file.pools.find(transaction, self._pool)
        if pool is None:
            raise PoolGone(f"there is no pool {self._pool!r} at {self.url!r} (any more); open it again")
        return pool

    def _open_file(self) -> SharedFile:
        file = self._file
        if file.pid != _fork.this.pid:
            self._subscriptions.clear()  # the parent's
            file = self._file = files.open(self.url)
        if self._is_closed:
            raise PoolClosed(f"the pool {self._pool!r} at {self.url!r} is closed in this process: open it again")
        if file.is_void:
            raise PoolGone(f"the file of {self.url!r} was deleted or replaced; open the pool again")
        return file

    @contextlib.contextmanager
    def _gone(self) -> Iterator[None]:
        """Raise as a store does when the file was replaced, or cannot grow."""
        try:
            yield
        except FileReplaced as error:
            raise PoolGone(str(error)) from error
        except DiskFull as error:
            raise NothingChanged(str(error)) from error

    # -- the verbs ----------------------------------------------------------------------------------------------------

    def open(self, settings: Settings) -> Opened:
        if self._file.is_void and not self._is_closed and self._file.pid == _fork.this.pid:
            files.give_back(self._file)
            self._file = files.open(self.url)
            for subscription in self._subscriptions:
                self._file.listen(subscription)
        file = self._open_file()

        def find(transaction: Transaction) -> Pool | None:
            return file.pools.find(transaction, self._pool)

        def make(transaction: Transaction) -> Pool:
            if find(transaction) is None:
                file.pools.make(transaction, self._pool, Origin(settings, secrets.token_hex(8)))
            return self._found(file, transaction)

        with self._gone():
            return Opened(*(file.read(find) or file.write(make)).origin)

    def time_at(self, moment: int) -> int:
        return self._open_file().clock.now() + self.skew + moment - time.time_ns() // 1000

    def do(self, command: Command[A]) -> A:
        one: Command[Any] = command
        first = None
        match one:
            case do.Join(joiner):
                file = (
                    self._open_file()
                )  # the session of the moment at which it is written: it may become another before
                return cast(
                    A,
                    self._write(
                        lambda rules, now: rules.do(now, do.Join(joiner._replace(session=file.sessions.number)))
                    ),
                )
            case do.Renew(worker):
                return cast(A, self._renew(one, worker))
            case do.Claim():
                # Our own heartbeats may have been late, and so our word for one that computes.
                first = self._vouch if one.dead else None
                if one.known is not None:
                    one = replace(one, known=set(one.known))  # the step may be taken twice
        return cast(A, self._write(lambda rules, now: rules.do(now, one), first))

    def _renew(self, command: Command[Any], worker: str) -> Any:
        """Renew the lease of a worker, with those of all others of this process."""
        sent, workers = elapsed(), self._open_file().workers
        others: list[str] = []

        def first(transaction: Transaction, pool: Pool, now: int) -> None:
            self._vouch(transaction, pool, now)
            end = now + pool.origin.settings.lease
            others[:] = workers.renew(transaction, (pool.id, self._pool), worker, end)

        answer = self._write(lambda rules, now: rules.do(now, command), first)
        workers.note(self._pool, others, sent)
        return answer

    def _vouch(self, transaction: Transaction, pool: Pool, now: int) -> None:
        session = self._open_file().sessions.number
        self._witness.vouch(transaction, pool.id, session, now, pool.origin.settings.lease)

    def outer_heart(self, lease: float, stall: float, *, renews: bool) -> InnerHeart | None:
        """Return how the other workers of this process renew the lease of one.

        The kernel tells of its death, and other processes vouch for it while this one computes and says nothing.
        """
        return InnerHeart(lambda: self._file.workers, self._pool, stall) if renews else None

    # -- looking in ---------------------------------------------------------------------------------------------------

    def ask(self, question: Question[A]) -> A:
        file = self._open_file()

        def look(transaction: Transaction) -> Any:
            pool, now = self._found(file, transaction), file.clock.now() + self.skew
            if isinstance(question, about.Members):
                return Rules(self._tables(file, transaction, pool)).beat(now)
            return _reads.answer(transaction, pool, now, question)

        with self._gone():
            answer: A = file.read(look)
            return answer

    # -- hints, end ---------------------------------------------------------------------------------------------------

    def listen(
        self, name: str, heard: Callable[[], None], handed: Callable[[int, Signal], None] | None = None
    ) -> Subscription:
        file = self._open_file()
        subscription = Subscription(self._pool, name, heard, self._unsubscribe)
        self._subscriptions.append(subscription)
        with self._gone():
            file.listen(subscription)
        return subscription

    def _unsubscribe(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            if self._file.pid == _fork.this.pid:
                self._file.unsubscribe(subscription)

    def drop(self) -> None:
        file = self._open_file()
        with self._gone():
            file.write(lambda transaction: file.pools.drop(transaction, self._pool))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for subscription in list(self._subscriptions):
                self._unsubscribe(subscription)
            files.give_back(self._file)
