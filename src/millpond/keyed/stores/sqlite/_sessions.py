"""Sessions of keyed pools: what becomes of one that is dead, and of our own when somebody has buried it by mistake.

`keyed_session` lists the sessions that are used for keyed pools: a file may hold resource pools as well, whose engine
may strike any session whose process has died. A session that is in the file no more is over: its process has died and
somebody has buried it, or it has said goodbye.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millpond._sqlite import Database, Passport, Rows, Session, Transaction, Verdict, strike, verdict


class Sessions:
    """Who uses the file for keyed pools."""

    def __init__(self, database: Database, listened: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self._database = database
        self._listened = listened
        """Returns the pools and names for which somebody listens in this process."""
        self.own = Session(database, read=_read, begin=self._begin)

    @property
    def number(self) -> int:
        """The number of our session, which may become another: inside the gate it stays."""
        return self.own.number

    def is_dead(self, transaction: Transaction, number: int) -> bool:
        """Return whether the process of a session is gone now, as the kernel says."""
        if number == self.own.number:
            return False
        if number in self.own.find_dead(eager=True):
            self.own.bell.ring_self()
            return True
        if self.own.knows(number):
            return False
        row = transaction.execute("SELECT passport FROM session WHERE number = ?", (number,)).fetchone()
        return row is None or verdict(Passport.decode(row[0]), number, self.own.live) is Verdict.DEAD

    def bury(self, dead: set[int]) -> None:
        """Strike the dead from the file. Their workers stay members until somebody claims what they had."""
        with self._database.writing() as transaction:
            for number in dead:
                _strike(transaction, number)
        self.own.forget(dead)

    def say_goodbye(self) -> None:
        """End our session, behind the gate."""
        with self._database.writing() as transaction:
            _strike(transaction, self.own.number)

    def _begin(self, transaction: Transaction, number: int, before: int | None) -> None:
        """Note that a session is of keyed pools; the workers and subscriptions of the one before are in it now."""
        transaction.execute("INSERT INTO keyed_session VALUES (?)", (number,))
        if before is None:
            return
        transaction.execute("UPDATE keyed_member SET session = ? WHERE session = ?", (number, before))
        _strike(transaction, before)
        rows = [(pool, name, number) for pool, name in self._listened()]
        transaction.executemany("INSERT OR IGNORE INTO keyed_listener VALUES (?, ?, ?, 0)", rows)


def _read(transaction: Transaction) -> Rows:
    return dict(
        transaction.execute(
            "SELECT keyed_session.number, passport FROM keyed_session LEFT JOIN session USING (number)"
        ).fetchall()
    )


def _strike(transaction: Transaction, number: int) -> None:
    transaction.execute(  # so that every worker looks at the members at once, not at its next heartbeat
        "UPDATE keyed_pool SET version = version + 1 WHERE id IN (SELECT pool FROM keyed_member WHERE session = ?)",
        (number,),
    )
    transaction.execute("DELETE FROM keyed_session WHERE number = ?", (number,))
    transaction.execute("DELETE FROM keyed_listener WHERE session = ?", (number,))
    strike(transaction, number)
