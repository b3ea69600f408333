"""A keyed pool in a SQLite file: the verbs, each one transaction."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from millpond import _fork
from millpond._sqlite import DiskFull, FileReplaced, Transaction
from millpond.errors import PoolClosed
from millpond.keyed import _questions as about
from millpond.keyed._commands import Command
from millpond.keyed._questions import A, Question
from millpond.keyed._records import (
    Batch,
    Beat,
    Claimed,
    Joiner,
    Moves,
    Order,
    Settings,
    Settle,
    Signal,
    Verdicts,
    Work,
)
from millpond.keyed._store import NothingChanged, Opened, PoolGone
from millpond.keyed.rules import Rules
from millpond.keyed.stores.sqlite import _reads
from millpond.keyed.stores.sqlite._ears import Ear, ring
from millpond.keyed.stores.sqlite._home import Home
from millpond.keyed.stores.sqlite._homes import homes
from millpond.keyed.stores.sqlite._mailboxes import SqlMailbox
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
        self._ears: list[Ear] = []
        self._home = homes.open(url)
        self._witness = Witness()

    # -- transactions -------------------------------------------------------------------------------------------------

    def _write(
        self, verb: Callable[[Rules[SqlMailbox], int], T], first: Callable[[Transaction, Pool, int], None] | None = None
    ) -> T:
        """Carry out a verb, and tell those for whom there is news; `first` is done in the same transaction."""
        home = self._at_home()
        hints: set[str] = set()
        rung: set[int] = set()

        def step(transaction: Transaction) -> T:
            hints.clear()
            pool, now = self._found(home, transaction), home.clock.now() + self.skew
            if first is not None:
                first(transaction, pool, now)
            tables = self._tables(home, transaction, pool)
            answer = verb(Rules(tables, hints.add), now)
            tables.flush()
            rung.clear()
            rung.update(ring(transaction, home.sessions.number, self._pool, hints))
            return answer

        with self._gone():
            answer = home.write(step)
        if hints:
            home.sessions.bell.ring(rung)
            home.ears.call(self._pool, hints)
        return answer

    def _tables(self, home: Home, transaction: Transaction, pool: Pool) -> SqlTables:
        return SqlTables(transaction, pool, lambda session: home.sessions.is_dead(transaction, session))

    def _found(self, home: Home, transaction: Transaction) -> Pool:
        pool = home.pools.find(transaction, self._pool)
        if pool is None:
            raise PoolGone(f"there is no pool {self._pool!r} at {self.url!r} (any more); open it again")
        return pool

    def _at_home(self) -> Home:
        home = self._home
        if home.pid != _fork.this.pid:
            self._ears.clear()  # the parent's
            home = self._home = homes.open(self.url)
        if self._is_closed:
            raise PoolClosed(f"the pool {self._pool!r} at {self.url!r} is closed in this process: open it again")
        if home.is_void:
            raise PoolGone(f"the file of {self.url!r} was deleted or replaced; open the pool again")
        return home

    @contextlib.contextmanager
    def _gone(self) -> Iterator[None]:
        """Say in the words of a store that the file was replaced, or cannot grow."""
        try:
            yield
        except FileReplaced as error:
            raise PoolGone(str(error)) from error
        except DiskFull as error:
            raise NothingChanged(str(error)) from error

    # -- the verbs ----------------------------------------------------------------------------------------------------

    def open(self, settings: Settings) -> Opened:
        if self._home.is_void and not self._is_closed and self._home.pid == _fork.this.pid:
            homes.close(self._home)
            self._home = homes.open(self.url)
            for ear in self._ears:
                self._home.listen(ear)
        home = self._at_home()

        def find(transaction: Transaction) -> Pool | None:
            return home.pools.find(transaction, self._pool)

        def make(transaction: Transaction) -> Pool:
            if find(transaction) is None:
                home.pools.make(transaction, self._pool, Origin(settings, secrets.token_hex(8)))
            return self._found(home, transaction)

        with self._gone():
            return Opened(*(home.read(find) or home.write(make)).origin)

    def time_at(self, moment: int) -> int:
        return self._at_home().clock.now() + self.skew + moment - time.time_ns() // 1000

    def dispatch(self, batch: Batch, orders: Sequence[Order]) -> Verdicts:
        return self._write(lambda rules, now: rules.dispatch(now, batch, orders))

    def apply(self, command: Command) -> str:
        return self._write(lambda rules, now: rules.apply(now, command))

    def join(self, joiner: Joiner) -> Beat:
        mine = joiner._replace(session=self._at_home().sessions.number)
        return self._write(lambda rules, now: rules.join(now, mine))

    def renew(self, worker: str, *, leaving: bool = False, version: int = 0) -> Beat | None:
        return self._write(lambda rules, now: rules.renew(now, worker, leaving=leaving, version=version), self._vouch)

    def _vouch(self, transaction: Transaction, pool: Pool, now: int) -> None:
        session = self._at_home().sessions.number
        self._witness.vouch(transaction, pool.id, session, now, pool.origin.settings.lease)

    def outer_heart(self, lease: float, stall: float, *, renews: bool) -> None:
        return None  # the kernel tells of a death, and other workers vouch for one that computes

    def leave(self, worker: str) -> None:
        self._write(lambda rules, now: rules.leave(now, worker))

    def give(self, worker: str, moves: Moves, why: str) -> int:
        return self._write(lambda rules, now: rules.give(now, worker, moves, why))

    def claim(
        self,
        worker: str,
        slots: Sequence[int],
        dead: Mapping[str, int],
        known: Iterable[int] | None = None,
        call: int = 0,
        heard: int = 0,
    ) -> Claimed:
        tokens = None if known is None else set(known)
        # Our own heartbeats may have been late, and so our word for one that computes.
        first = self._vouch if dead else None
        return self._write(lambda rules, now: rules.claim(now, worker, slots, dead, tokens, call, heard), first)

    def work(
        self,
        worker: str,
        call: int,
        settles: Sequence[Settle],
        want: int,
        per: int,
        want_residents: int = 0,
        heard: int = 0,
        spare: int = 0,
    ) -> Work:
        return self._write(
            lambda rules, now: rules.work(now, worker, call, settles, want, per, want_residents, heard, spare)
        )

    # -- looking in ---------------------------------------------------------------------------------------------------

    def ask(self, question: Question[A]) -> A:
        home = self._at_home()

        def look(transaction: Transaction) -> Any:
            pool, now = self._found(home, transaction), home.clock.now() + self.skew
            if isinstance(question, about.Members):
                return Rules(self._tables(home, transaction, pool)).beat(now)
            return _reads.answer(transaction, pool, now, question)

        with self._gone():
            answer: A = home.read(look)
            return answer

    # -- hints, end ---------------------------------------------------------------------------------------------------

    def listen(self, name: str, heard: Callable[[], None], handed: Callable[[int, Signal], None] | None = None) -> Ear:
        home = self._at_home()
        ear = Ear(self._pool, name, heard, self._deafen)
        self._ears.append(ear)
        with self._gone():
            home.listen(ear)
        return ear

    def _deafen(self, ear: Ear) -> None:
        if ear in self._ears:
            self._ears.remove(ear)
            if self._home.pid == _fork.this.pid:
                self._home.deafen(ear)

    def drop(self) -> None:
        home = self._at_home()
        with self._gone():
            home.write(lambda transaction: home.pools.drop(transaction, self._pool))

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for ear in list(self._ears):
                self._deafen(ear)
            homes.close(self._home)
