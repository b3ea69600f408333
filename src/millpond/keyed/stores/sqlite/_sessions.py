"""The session of this process in the file, and those of the others: who of them has died.

A session is a row that is backed by a lock of the kernel (`_sqlite`). `keyed_session` lists those that are used for
keyed pools: a file may hold resource pools as well, whose engine buries its own dead. A session that is in the file no
more is over: its process has died and somebody has buried it, or it has said goodbye.
"""

from __future__ import annotations

import threading

from millpond._sqlite import (
    Bell,
    Database,
    DeathWatch,
    LiveFile,
    Passport,
    Transaction,
    Verdict,
    enrol,
    strike,
    verdict,
)


class Sessions:
    """Who uses the file for keyed pools."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._known: set[int] = set()
        self._dead: set[int] = set()
        """Found dead, and not buried yet."""
        self.live = LiveFile(database.path)
        try:
            self.number = self._enrol()
            self.bell = Bell(database.path, self.number)
            self.deaths = DeathWatch(self.live)
        except BaseException:
            self.live.close()
            raise

    def _enrol(self) -> int:
        number = enrol(self._database, self.live)
        with self._database.writing() as transaction:
            transaction.execute("INSERT INTO keyed_session VALUES (?)", (number,))
        return number

    def is_dead(self, transaction: Transaction, number: int) -> bool:
        """Return whether the process of a session is gone now, as the kernel says."""
        if number == self.number:
            return False
        with self._lock:
            self._dead.update(self.deaths.dead(eager=True))
            if number in self._dead:
                self.bell.ring_self()
                return True
            if number in self._known:
                return False
        row = transaction.execute("SELECT passport FROM session WHERE number = ?", (number,)).fetchone()
        return row is None or verdict(Passport.decode(row[0]), number, self.live) is Verdict.DEAD

    def meet(self) -> bool:
        """Learn who is there, and watch over their processes; tell whether somebody has gone."""
        with self._database.glancing() as transaction:
            there = {row[0] for row in transaction.execute("SELECT number FROM keyed_session")}
            if there == self._known:
                return False
            rows = transaction.execute(
                "SELECT number, passport FROM session WHERE number IN (SELECT number FROM keyed_session)"
            ).fetchall()
        with self._lock:
            gone = self._known - there
            self._known = there
            self.deaths.update({number: Passport.decode(passport) for number, passport in rows})
        return bool(gone - {self.number})

    def others(self) -> set[int]:
        """Return the sessions that are not ours."""
        return self._known - {self.number}

    def look(self) -> bool:
        """Take note of those who have died; tell whether somebody is to be buried."""
        with self._lock:
            self._dead.update(self.deaths.dead())
            return bool(self._dead)

    def patience(self) -> float | None:
        """Return after how many seconds to look, though nobody called."""
        with self._lock:
            return self.deaths.patience()

    def bury(self) -> None:
        """Strike the dead from the file. Their workers stay members until somebody claims what they had."""
        with self._lock:
            dead = set(self._dead)
        with self._database.writing() as transaction:
            for number in dead:
                self._strike(transaction, number)
        for number in dead:
            self.bell.sweep(number)
        with self._lock:
            self._dead -= dead

    def look_after_own(self) -> None:
        """Take a new session if somebody buried ours by mistake, and mend a live file that was replaced."""
        is_found = self.live.reassert()
        with self._database.glancing() as transaction:
            is_there = transaction.execute("SELECT 1 FROM keyed_session WHERE number = ?", (self.number,)).fetchone()
            has_row = transaction.execute("SELECT 1 FROM session WHERE number = ?", (self.number,)).fetchone()
        if is_found and is_there and has_row:
            return
        with self._database.gate:
            if not is_found:
                old, self.live = self.live, LiveFile(self._database.path)
                with self._lock:
                    self.deaths.close()
                    self.deaths = DeathWatch(self.live)
                    self._known = set()
                old.close()
            with self._database.writing() as transaction:
                passport = Passport.of_this_process(self.live).encode()
                self.live.lock(self.number)
                transaction.execute("INSERT OR REPLACE INTO session VALUES (?, ?)", (self.number, passport))
                transaction.execute("INSERT OR IGNORE INTO keyed_session VALUES (?)", (self.number,))

    def say_goodbye(self) -> None:
        """End our session, behind the gate."""
        with self._database.writing() as transaction:
            self._strike(transaction, self.number)

    def close(self) -> None:
        """Close bell, watch and lock."""
        self.bell.close()
        with self._lock:
            self.deaths.close()
        self.live.close()

    def _strike(self, transaction: Transaction, number: int) -> None:
        transaction.execute(  # so that every worker looks at the members at once, not at its next heartbeat
            "UPDATE keyed_pool SET version = version + 1 WHERE id IN (SELECT pool FROM keyed_member WHERE session = ?)",
            (number,),
        )
        transaction.execute("DELETE FROM keyed_session WHERE number = ?", (number,))
        transaction.execute("DELETE FROM keyed_ear WHERE session = ?", (number,))
        strike(transaction, number)
