"""Locks that this process has accepted by a byte, and not claimed in the file yet.

A hand-off to a waiter of another process is an offer until it is claimed, and a claim is a commit. To spare that, a
lock is accepted by locking a byte of the live file that belongs to its token, which everybody can see at once and which
is gone with the process; the claim follows in some later batch, if the lock is still held by then. Whoever would let an
offer lapse looks at that byte first, inside the gate. The holder looks at the clock *after* it has locked the byte: if
the offer was not over then, whoever comes later sees the byte.

Locks. `accept` is called by watchers, so `_use` is held. `is_accepted`, `old` and `settle` are parts of a batch: `_use`
is held, and what `is_accepted` says of other processes is final only inside the gate. `has_old` is a hint, asked with
`_use` or without.
"""

from __future__ import annotations

from collections.abc import Mapping

from millpond._clock import elapsed
from millpond._sqlite import EngineClock, Session
from millpond.resources._rules.records import OFFERED
from millpond.resources.engines.sqlite._replicas import Pool

CLAIM = 0.05
"""Seconds after which an accepted lock that is still held is claimed in the file."""
CLAIMS = 1 << 60
"""The byte of the live file that stands for token 0."""


class AcceptedOffers:
    """What this process has accepted by a byte."""

    def __init__(self, session: Session, clock: EngineClock) -> None:
        self._session = session  # has the live file, which may become another
        self._clock = clock
        self.offers: dict[int, tuple[str, str, float]] = {}  # token -> pool, request, when

    def accept(self, pool: str, request: str, token: int, until: int) -> bool:
        """Take an offered lock by locking its byte."""
        self._session.live.lock(CLAIMS + token)
        if self._clock.now() < until:
            self.offers[token] = (pool, request, elapsed())
            return True
        self._session.live.unlock(CLAIMS + token)
        return False

    def is_accepted(self, token: int) -> bool:
        """Return whether anybody, here or elsewhere, has accepted the lock with this token."""
        return token in self.offers or self._session.live.is_locked(CLAIMS + token)

    def has_old(self) -> bool:
        """Return whether something was accepted a while ago."""
        return bool(self.offers) and next(iter(self.offers.values()))[2] < elapsed() - CLAIM

    def old(self) -> list[tuple[str, str]]:
        """Return pool and request of what we accepted a while ago and still hold."""
        if not self.has_old():
            return []
        late = elapsed() - CLAIM
        return [(pool, request) for pool, request, since in list(self.offers.values()) if since < late]

    def settle(self, pools: Mapping[str, Pool]) -> None:
        """Unlock the bytes of what is claimed in the file now, or over."""
        for token, (name, request, _) in list(self.offers.items()):
            replica = pools[name].replica
            found = None if replica is None else replica.state.requests.get(request)
            if replica is not None and (found is None or found.state != OFFERED or found.token != token):
                del self.offers[token]
                self._session.live.unlock(CLAIMS + token)
