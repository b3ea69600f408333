r"""One request of this process, from the asking to its end, and the grant that comes of it.

    asking -> waiting -> held -> over | lost
                  \-> offered (a picky requester looks at it first)

It is changed by `OwnRequests` only, under its lock. `settled` is called, outside the lock, at each step that whoever
waits must hear of. Of the grant that its owner has it only knows whether that is still there: one that was dropped must
be noticed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from millpond.resources._rules.commands import Acquire, Reply
from millpond.resources._timers import Timer

ASKING, WAITING, OFFERED, HELD, OVER, LOST = "asking", "waiting", "offered", "held", "over", "lost"


class GrantRef(weakref.ref[Any]):
    """Leads to a grant, and knows its request when it leads nowhere any more."""

    __slots__ = ("id",)
    id: str


class OwnRequest:
    """A request, and the grant that comes of it."""

    __slots__ = (
        "__weakref__",
        "_timers",
        "command",
        "deadline",
        "grant",
        "held_since",
        "how",
        "id",
        "is_passed_on",
        "is_suspect",
        "lease",
        "on_lost",
        "refusal",
        "sent",
        "settled",
        "shares",
        "state",
        "token",
    )

    def __init__(self, command: Acquire) -> None:
        self.id = command.id
        self.command = command
        self.lease = command.lease / 1_000_000
        self.settled: Callable[[OwnRequest], None] = _nobody
        self.state = ASKING
        self.token = 0
        self.shares: tuple[tuple[str, int], ...] = ()
        self.sent = 0.0
        self.held_since = 0.0
        self.deadline: float | None = None  # on `elapsed()`: until then a lease is surely held
        self.how = ""  # why it is over or lost
        self.refusal: Reply | Exception | None = None
        self.is_passed_on = False
        self.is_suspect = False
        self.on_lost: Callable[[], None] | None = None
        self.grant: GrantRef | None = None
        self._timers: list[Timer] = []

    def begin_waiting(self) -> None:
        """Mark the request as waiting in line."""
        if self.state == ASKING:
            self.state = WAITING

    def set_timers(self, *timers: Timer) -> None:
        """Replace the timers of the request; the earlier ones are cancelled."""
        for one in self._timers:
            one.cancel()
        self._timers = list(timers)


def _nobody(request: OwnRequest) -> None:
    """Do nothing: whoever waits puts the `set` of a latch in this place."""
