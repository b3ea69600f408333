"""The session of this process in a file, and the watch over those of the others. One for each part that uses the file.

Ours is a number, backed by a lock on the live file, with a bell by which the others reach us. Somebody may bury it by
mistake, or replace the live file under our feet: then we take another number, or another file (`mend`). So nobody else
keeps `number`, `bell`, `live` or `deaths`: they are asked for here each time. Numbers are never used twice, not by
ourselves either: whoever has buried one no longer watches over it, and has removed its bell.

The others are read in the file (`meet`). What differs between the parts is handed in:

    read     which sessions concern this part: their numbers and passports; None for one whose row somebody has struck
    begin    what this part notes of a new session, in the transaction that makes it; and whose place it takes, if any

How the dead are buried is the part's own business: it asks who they are (`dead`), and says when it is done (`forget`).

Locks. Each method may be called by any thread; `mend` inside the gate, and with whatever keeps others from using the
live file and the number meanwhile. None of them reads or writes the file with the lock of this object held.
"""

from __future__ import annotations

import selectors
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from millpond._events import logger
from millpond._sqlite._bell import Bell
from millpond._sqlite._database import Database, Transaction
from millpond._sqlite._deathwatch import DeathWatch
from millpond._sqlite._liveness import LiveFile, Passport
from millpond._sqlite._sessions import enrol
from millpond.errors import EngineError

PATIENCE = 5.0
"""Seconds to wait for the gate at the end."""

Rows: TypeAlias = Mapping[int, str | None]
"""Sessions by number, with their passports as they are in the file."""


class Session:
    """Who we are in a file, and who of the others has died."""

    def __init__(
        self,
        database: Database,
        *,
        read: Callable[[Transaction], Rows],
        begin: Callable[[Transaction, int, int | None], object],
    ) -> None:
        self._database = database
        self._read = read
        self._begin = begin
        self._lock = threading.Lock()
        self._there: Rows = {}
        self._dead: set[int] = set()
        self.is_buried = False
        """Whether somebody has buried us by mistake, as far as we know."""
        self.live = LiveFile(database.path)
        try:
            self.number = self._enrol(None)
            self.bell = Bell(database.path, self.number)
            try:
                self.deaths = DeathWatch(self.live)
            except BaseException:
                self.bell.close()
                raise
        except BaseException:
            self.live.close()
            raise

    # -- the others ---------------------------------------------------------------------------------------------------

    def meet(self) -> bool:
        """Read who is there, and watch over their processes; return whether somebody has gone."""
        with self._database.glancing() as transaction:
            there = self._read(transaction)
        with self._lock:
            if there == self._there:
                return False
            gone = self._there.keys() - there.keys() - {self.number}
            self._there = there
            if there.get(self.number) is None:
                self.is_buried = True
            self._dead.update(number for number, row in there.items() if row is None and number != self.number)
            self.deaths.update(_passports(there))
        return bool(gone)

    def others(self) -> set[int]:
        """Return the sessions of the others, as far as they are alive."""
        with self._lock:
            return self._there.keys() - self._dead - {self.number}

    def knows(self, number: int) -> bool:
        """Return whether we watch over that session, so that its death would be found."""
        with self._lock:
            return number in self._there

    def find_dead(self, *, eager: bool = False) -> set[int]:
        """Look who has died; return all who are to be buried. `eager` if somebody waits for what they hold."""
        with self._lock:
            self._dead.update(self.deaths.dead(eager=eager))
            return set(self._dead)

    @property
    def dead(self) -> set[int]:
        """Those who are to be buried, as of the last look."""
        with self._lock:
            return set(self._dead)

    def patience(self, *, eager: bool = False) -> float | None:
        """Return after how many seconds to look for the dead, though nothing was heard; None for never."""
        with self._lock:
            return self.deaths.patience(eager=eager)

    def forget(self, buried: Iterable[int]) -> None:
        """Forget those who are buried, and remove their bells."""
        numbers = set(buried)
        with self._lock:
            self._dead -= numbers
            self._there = {number: row for number, row in self._there.items() if number not in numbers}
        for number in numbers:
            self.bell.sweep(number)

    # -- ourselves ----------------------------------------------------------------------------------------------------

    def register(self, selector: selectors.BaseSelector) -> None:
        """Register the bell and the deaths with a selector. To be done anew after `mend`."""
        selector.register(self.bell, selectors.EVENT_READ)
        if self.deaths.fileno() >= 0:
            selector.register(self.deaths, selectors.EVENT_READ)

    def is_well(self) -> bool:
        """Lock our bytes again, should they have been lost; return whether that is all: else `mend` is due."""
        return self.live.reassert() and not self.is_buried and self.bell.number == self.number

    def mend(self) -> None:
        """Go on with the live file that is there now if ours was replaced, and in a new session if ours was buried.

        What fails changes nothing, and can be tried again.
        """
        if not self.live.reassert():
            self._move()
        if self.is_buried:
            self._begin_again()
        if self.bell.number != self.number:
            old, self.bell = self.bell, Bell(self._database.path, self.number)
            old.close()

    def end(self, goodbye: Callable[[], object]) -> None:
        """End the session: do what the part does to that end, behind the gate. At worst the kernel tells the others."""
        gate = self._database.gate
        try:
            if gate.enter_within(PATIENCE):
                try:
                    goodbye()
                finally:
                    gate.leave()
        except EngineError as error:
            logger.warning("a session could not be ended", extra={"millpond": {"error": str(error)}})

    def close(self) -> None:
        """Close bell, watch and lock."""
        self.bell.close()
        with self._lock:
            self.deaths.close()
        self.live.close()

    # -- parts --------------------------------------------------------------------------------------------------------

    def _enrol(self, before: int | None) -> int:
        return enrol(self._database, self.live, lambda transaction, number: self._begin(transaction, number, before))

    def _move(self) -> None:
        live = self.live.successor()
        try:
            deaths = DeathWatch(live)
            passport = Passport.of_this_process(live).encode()
            with self._database.writing() as transaction:
                transaction.execute("UPDATE session SET passport = ? WHERE number = ?", (passport, self.number))
        except BaseException:
            live.close()
            raise
        with self._lock:
            old = self.live, self.deaths
            self.live, self.deaths = live, deaths
            self.deaths.update(_passports(self._there))
        for one in old:
            one.close()

    def _begin_again(self) -> None:
        before, self.number = self.number, self._enrol(self.number)
        self.is_buried = False
        self.live.unlock(before)


def _passports(rows: Rows) -> dict[int, Passport]:
    return {number: Passport.decode(row) for number, row in rows.items() if row is not None}
