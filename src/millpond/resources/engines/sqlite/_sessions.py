"""The sessions of the file: ours, and those of the other processes, whom we watch over.

Ours is a number, backed by a lock on the live file, with a bell by which the others reach us. Somebody may bury it by
mistake, or replace the live file under our feet: then we take another number, or another file. So nobody else keeps
`number`, `bell`, `live` or `deaths`: they are asked for here each time.

The others are learned of in the file. One of whom we read before we have learned of him is a stranger, until `meet`.

Locks. `notice`, `meet`, `look_for_deaths` and `forget_dead` expect `_use` to be held, `move` also the gate;
`enrol_again` is for the engine's thread only, which holds nothing then, since it passes the gate itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from millpond._sqlite import Bell, Database, DeathWatch, LiveFile, Passport, enrol, enrolled
from millpond.resources._rules import changes
from millpond.resources._rules.records import Holder
from millpond.resources._rules.wire import Entry


class Sessions:
    """Who uses the file."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.live = LiveFile(database.path)
        self.number = enrol(database, self.live)
        self.bell = Bell(database.path, self.number)
        self.deaths = DeathWatch(self.live)
        self.dead: set[int] = set()  # to be buried
        self.left: set[int] = set()  # dead, and left to a process that can read all that they used
        self.noted: set[int] = set()  # the pools, by id, of which it is known that this session uses them
        self.sessions: dict[int, Passport] = {}
        self._known: set[str] = set()
        self.is_buried = False
        self.met_stranger = False

    @property
    def session(self) -> str:
        """The number of this process's session."""
        return str(self.number)

    def holder(self) -> Holder:
        """Return who this process is."""
        passport = Passport.of_this_process(self.live)
        return Holder("process", "", passport.host, passport.pid, passport.start)

    def others(self) -> set[int]:
        """Return the sessions that are not ours."""
        return {number for number in self.sessions if number != self.number}

    def notice(self, news: list[Entry]) -> None:
        """Notice if somebody has buried us, and we need another session; and those whom we do not watch over yet."""
        for entry in news:
            if entry.by and entry.by not in self._known:
                self.met_stranger = True
            for change in entry.changes:
                if type(change) is changes.Buried and change.session == self.session:
                    self.is_buried = True

    # --- the others --------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Learn of all sessions, to watch over their processes."""
        with self._database.glancing() as transaction:
            self.sessions = enrolled(transaction)
        self._known = {str(number) for number in self.sessions}
        self.met_stranger = False
        self.deaths.update(self.sessions)

    def look_for_deaths(self) -> None:
        """Add those who have died to `dead`."""
        self.dead.update(number for number in self.deaths.dead(eager=True) if number not in self.left)

    def forget_dead(self, there: Mapping[int, Passport]) -> None:
        """Keep only those who are `there` and alive: the dead are buried."""
        self.sessions = {number: one for number, one in there.items() if number not in self.dead}
        self.dead.clear()

    # --- ourselves ---------------------------------------------------------------------------------------------

    def enrol_again(self) -> None:
        """Take a new session, with another bell, after somebody buried the old one by mistake."""
        self.bell.close()
        self.noted.clear()
        self.number = enrol(self._database, self.live)
        self.bell = Bell(self._database.path, self.number)

    def move(self) -> None:
        """Go on with the live file that is there now: ours was replaced."""
        old, self.live = self.live, LiveFile(self._database.path)
        self.live.lock(self.number)
        passport = Passport.of_this_process(self.live).encode()
        with self._database.writing() as transaction:
            transaction.execute("UPDATE session SET passport = ? WHERE number = ?", (passport, self.number))
        self.deaths.close()
        self.deaths = DeathWatch(self.live)
        self.deaths.update(self.sessions)
        old.close()
