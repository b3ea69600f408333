"""Vouches for workers of other processes that compute without a sign of life: a function holds the GIL there.

With each of its own heartbeats, and before it takes over what another had, a worker looks at the others. One of which
half of the lease has passed, though it renews after a third, is asked about: when its process has used a processor
since the last look, and was not stopped, its lease is renewed from here, for a minute. So a job that holds the GIL is
not run a second time beside itself; a process that was stopped, or waits for something, loses its lease as ever.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millpond._sqlite import Passport, Transaction, read_stat
from millpond.keyed.rules.records import SECOND

STALL: Final = 60 * SECOND
"""For so long others vouch for a worker that gives no sign of life."""
APART: Final = SECOND // 4
"""Two looks that lie closer together show nothing: a process that computes may not have had a processor in between."""


class _Look(NamedTuple):
    """What was seen of a process: when, how much of a processor it had used, and whether it computed."""

    at: int
    spent: int
    computes: bool


class Witness:
    """What this process saw of others at its last look."""

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}

    def vouch(self, transaction: Transaction, pool: int, session: int, now: int, lease: int) -> None:
        """Renew the leases of those that compute; those of our own session need nobody."""
        rows = transaction.execute(
            "SELECT keyed_member.id, lease_end, silent_since, passport FROM keyed_member "
            "JOIN session ON session.number = keyed_member.session WHERE pool = ? AND session.number <> ?",
            (pool, session),
        ).fetchall()
        computing = {passport: self._computes(passport, now) for passport in {row[-1] for row in rows}}
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
        self._looks = {passport: look for passport, look in self._looks.items() if passport in computing}

    def _computes(self, text: str, now: int) -> bool:
        """Return whether a process has used a processor since this was asked last."""
        passport = Passport.decode(text)
        stat = read_stat(passport.pid) if passport.is_visible else None
        if stat is None or stat.start != passport.start or stat.is_stopped or stat.is_remains:
            self._looks.pop(text, None)
            return False
        before = self._looks.get(text)
        if before is None:
            self._looks[text] = _Look(now, stat.spent, False)
            return False
        if stat.spent == before.spent and 0 <= now - before.at < APART:
            return before.computes
        self._looks[text] = _Look(now, stat.spent, stat.spent > before.spent)
        return stat.spent > before.spent
