"""Sessions of resource pools: what the news of the pools tell of them, and what this session has noted there.

The others are learned of in the file. A session that we read of before we know it is a stranger, until `meet`.

Locks. `notice` and `meet` expect `_use` to be held.
"""

from __future__ import annotations

from millpond._sqlite import Database, Passport, Rows, Session, Transaction, enrolled
from millpond.resources._rules import changes
from millpond.resources._rules.records import Holder
from millpond.resources._rules.wire import Entry


class Sessions:
    """Who uses the file."""

    def __init__(self, database: Database) -> None:
        self.left: set[int] = set()  # dead, and left to a process that can read all that they used
        self.noted: set[int] = set()  # the pools, by id, of which it is known that this session uses them
        self._known: set[str] = set()
        self.met_stranger = False
        self.own = Session(database, read=self._read, begin=self._begin)

    @property
    def session(self) -> str:
        """The number of this process's session."""
        return str(self.own.number)

    def holder(self) -> Holder:
        """Return who this process is."""
        passport = Passport.of_this_process(self.own.live)
        return Holder("process", "", passport.host, passport.pid, passport.start)

    def meet(self) -> None:
        """Learn of all sessions, to watch over their processes."""
        self.own.meet()
        self.met_stranger = False

    def notice(self, news: list[Entry]) -> None:
        """Notice if somebody has buried us, and we need another session; and those whom we do not watch over yet."""
        for entry in news:
            if entry.by and entry.by not in self._known:
                self.met_stranger = True
            for change in entry.changes:
                if type(change) is changes.Buried and change.session == self.session:
                    self.own.is_buried = True

    def _read(self, transaction: Transaction) -> Rows:
        there = enrolled(transaction)
        self._known = {str(number) for number in there}
        return {number: passport for number, passport in there.items() if number not in self.left}

    def _begin(self, transaction: Transaction, number: int, before: int | None) -> None:
        self.noted.clear()
