r"""One request of this process, from the asking to its end: what the desk knows about it, in no colour.

    asking -> waiting -> held -> over | lost
                  \-> offered (a picky requester looks at it first)

A case is changed by the desk only, under its lock. `settled` is called, outside the lock, at each step that whoever
waits must hear of. Of the grant that its owner has it only knows whether that is still there: one that was dropped must
be noticed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from millpond.resources._alarm import Appointment
from millpond.resources._rules.commands import Acquire, Reply

ASKING, WAITING, OFFERED, HELD, OVER, LOST = "asking", "waiting", "offered", "held", "over", "lost"


class GrantRef(weakref.ref[Any]):
    """Leads to a grant, and knows its request when it leads nowhere any more."""

    __slots__ = ("id",)
    id: str


class Case:
    """A request, and the grant that comes of it."""

    __slots__ = (
        "__weakref__",
        "_appointments",
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
        self.settled: Callable[[Case], None] = _nobody
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
        self._appointments: list[Appointment] = []

    def begin_waiting(self) -> None:
        """Take note that the request stands in line."""
        if self.state == ASKING:
            self.state = WAITING

    def keep(self, *appointments: Appointment) -> None:
        """Have appointments that end with the case; earlier ones are cancelled."""
        for one in self._appointments:
            one.cancel()
        self._appointments = list(appointments)


def _nobody(case: Case) -> None:
    """Tell nobody: whoever waits hangs a latch here."""
