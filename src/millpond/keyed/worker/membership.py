"""The time for which a worker is a member under one id: from its joining until it leaves or its lease is over.

The lease is counted from the moment at which a renewal was *sent*, on this machine's own clock that runs on in suspend
and is never stepped. Its last fifth is a margin: from there on nothing is begun, and what runs is asked to stop. So
a worker that is cut off is silent before anybody else can take over. One that lost its lease comes back under a new id.
"""

from __future__ import annotations

import signal
import threading

from millpond._clock import elapsed

MARGIN = 0.2
"""The last part of a lease, in which nothing is begun any more; and of a drain, in which nothing goes on."""


class _KillTimer:
    """Ends the process when a strict membership is not renewed: SIGALRM, at the first of all their ends.

    The kernel keeps the time, so it works when the process was stopped, or no thread of it can run.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}

    def set(self, membership: str, end: float | None) -> None:
        """Set when a membership ends; None: it is over, and harmless."""
        with self._lock:
            if end is None:
                self._ends.pop(membership, None)
            else:
                self._ends[membership] = end
            left = max(1e-3, min(self._ends.values()) - elapsed()) if self._ends else 0
            signal.setitimer(signal.ITIMER_REAL, left)


_kill_timer = _KillTimer()


class Membership:
    """A membership, and what is run under it."""

    def __init__(self, id: str, lease: float, sent: float, *, strict: bool = False) -> None:  # noqa: A002
        self.id = id
        self.lease = lease
        self.is_over = False
        self.call = 0
        self.heard = 0
        """The last signal that was acted upon."""
        self.hearing = threading.Lock()
        """Held while signals are acted upon: they come with answers and with hints, in two threads."""
        self.given: set[int] = set()
        """Slots that were given away: a job handed over before that is not begun. Used in the loop only."""
        self.version = 0
        """Of the members for whom its slots were last settled. Another membership may be in another pool of the same
        name, which counts its members anew: so this, and what follows, is kept per membership."""
        self.own: list[int] = []
        """Its slots."""
        self.contested: set[int] = set()
        """Slots that it is to have, and others still run jobs of."""
        self.patrol = 0
        """How far its slots were looked after, at the last heartbeat."""
        self._strict = strict
        self._sent = 0.0
        """When the last renewal was sent that was answered."""
        self.extend(sent)

    def extend(self, sent: float) -> None:
        """Take note of a renewal that was sent then, and answered."""
        self._sent = max(self._sent, sent)
        if self._strict:
            _kill_timer.set(self.id, self._sent + self.lease)

    def left(self) -> float:
        """Return the seconds for which things may be begun."""
        return self._sent + self.lease * (1 - MARGIN) - elapsed()

    def lasts(self) -> float:
        """Return the seconds until the lease is over: from then on others may take over."""
        return self._sent + self.lease - elapsed()

    def may_begin(self) -> bool:
        """Return whether the lease surely holds."""
        return not self.is_over and self.left() > 0

    def end(self, *, disarm: bool = False) -> None:
        """Begin nothing any more under this id. A strict one still ends the process in time, unless `disarm`."""
        self.is_over = True
        if self._strict and disarm:
            _kill_timer.set(self.id, None)
