"""Vouches for workers of other processes that compute without a sign of life: a function holds the GIL there.

With each of its own heartbeats a worker looks at the others. One of which half of the lease has passed, though it
renews after a third, is asked about: when its process has used a processor since the last look, and was not stopped,
its lease is renewed from here, for a minute at most. So a job that holds the GIL is not run a second time beside
itself; a process that was stopped, or waits for something, loses its lease as ever.
"""

from __future__ import annotations

from typing import Final

from millpond._sqlite import Passport, Transaction, read_stat
from millpond.keyed._records import SECOND

STALL: Final = 60 * SECOND
"""For so long others vouch for a worker that gives no sign of life."""


class Witness:
    """What this process saw of others at its last look."""

    def __init__(self) -> None:
        self._spent: dict[str, int] = {}

    def vouch(self, transaction: Transaction, pool: int, session: int, now: int, lease: int) -> None:
        """Renew the leases of those that compute; those of our own session need nobody."""
        rows = transaction.execute(
            "SELECT keyed_member.id, lease_end, silent_since, passport FROM keyed_member "
            "JOIN session ON session.number = keyed_member.session WHERE pool = ? AND session.number <> ?",
            (pool, session),
        ).fetchall()
        computing = {passport: self._computes(passport) for passport in {row[-1] for row in rows}}
        spoke: dict[str, int] = {}
        for _, end, silent, passport in rows:
            if not silent:
                spoke[passport] = max(end, spoke.get(passport, 0))
        for worker, end, silent, passport in rows:
            has_spoken = spoke.get(passport, 0) - end >= lease // 2  # for another worker, and could have for this one
            is_late = end - now < lease // 2
            if is_late and not has_spoken and computing[passport] and (not silent or now - silent < STALL):
                transaction.execute(
                    "UPDATE keyed_member SET lease_end = ?, silent_since = ? WHERE pool = ? AND id = ?",
                    (now + lease, silent or now, pool, worker),
                )
        self._spent = {passport: spent for passport, spent in self._spent.items() if passport in computing}

    def _computes(self, text: str) -> bool:
        """Tell whether a process has used a processor since this was asked last."""
        passport = Passport.decode(text)
        stat = read_stat(passport.pid) if passport.is_visible else None
        if stat is None or stat.start != passport.start or stat.is_stopped or stat.is_remains:
            self._spent.pop(text, None)
            return False
        before, self._spent[text] = self._spent.get(text), stat.spent
        return before is not None and stat.spent > before
