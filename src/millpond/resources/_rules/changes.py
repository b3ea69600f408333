"""What a step decided, as records: the log of a pool, its history, and what replicas replay.

A replica never decides again: it applies changes (`State.evolve`). So two versions of the rules can work on one
store, and a placement that was chosen once stays chosen. New kinds and new trailing fields may be added; numbers are
never reused.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from millpond.resources._rules.records import Holder, Request, Resource, Settings


class Change(Struct, frozen=True, array_like=True, gc=False):
    """The base of all changes."""


class Asked(Change, frozen=True, tag=1):
    """A request came in; its state says whether it waits or was granted at once."""

    request: Request
    number: int = 0  # always; older versions expect it
    seen: int = 0


class Offered(Change, frozen=True, tag=2):
    """Resources were handed to a waiter, who must claim them until `until`."""

    id: str
    token: int
    shares: tuple[tuple[str, int], ...]
    until: int


class Held(Change, frozen=True, tag=3):
    """Resources were handed to a waiter who is surely there."""

    id: str
    token: int
    shares: tuple[tuple[str, int], ...]
    until: int


class Claimed(Change, frozen=True, tag=4):
    """An offer was accepted; a lease runs from now."""

    id: str
    until: int


class Left(Change, frozen=True, tag=5):
    """A waiter is away: it did not claim, or its process died and its id keeps the place until `until`."""

    id: str
    until: int
    reason: str


class Returned(Change, frozen=True, tag=6):
    """A waiter that was away is back in its place, in whatever session."""

    id: str
    session: str
    holder: Holder
    number: int = 0  # always; older versions expect it
    seen: int = 0


class Declined(Change, frozen=True, tag=7):
    """The requester turned an offer down."""

    id: str
    refused: tuple[str, ...]


class Renewed(Change, frozen=True, tag=8):
    """A lease runs until `until`."""

    id: str
    until: int


class Adopted(Change, frozen=True, tag=9):
    """A grant came into other hands, under a new token."""

    id: str
    token: int
    session: str
    holder: Holder
    how: str
    reason: str
    lease: int
    until: int
    by: str


class Ended(Change, frozen=True, tag=10):
    """A request or grant is over; what it held can be lent again, not before `delayed` if that is set."""

    id: str
    how: str
    by: str = ""
    reason: str = ""
    delayed: int = 0
    token: int = 0
    shares: tuple[tuple[str, int], ...] = ()
    holder: Holder | None = None


class Suspected(Change, frozen=True, tag=11):
    """A grant seems to be forgotten, or no longer does."""

    id: str
    why: str


class Added(Change, frozen=True, tag=12):
    """A resource came in."""

    resource: Resource
    by: str = ""


class Removed(Change, frozen=True, tag=13):
    """A resource is gone."""

    name: str
    by: str = ""
    reason: str = ""


class Relabelled(Change, frozen=True, tag=14):
    """A resource has other labels."""

    name: str
    labels: dict[str, str]
    by: str = ""
    reason: str = ""


class Resized(Change, frozen=True, tag=15):
    """A resource has another capacity."""

    name: str
    capacity: int
    by: str = ""
    reason: str = ""


class Marked(Change, frozen=True, tag=16):
    """A resource is active, cordoned, draining, quarantined or being removed."""

    name: str
    state: str
    by: str = ""
    reason: str = ""


class Configured(Change, frozen=True, tag=17):
    """The pool has other settings."""

    settings: Settings
    by: str = ""
    reason: str = ""


class GroupSet(Change, frozen=True, tag=18):
    """A group has another weight or quota."""

    name: str
    weight: int
    quota: int
    by: str = ""
    reason: str = ""


class Undelayed(Change, frozen=True, tag=19):
    """The pause after an expiry is over; the resource can be lent again."""

    name: str


class Buried(Change, frozen=True, tag=20):
    """A session is dead; what it had was ended before this."""

    session: str
    reason: str


class Passed(Change, frozen=True, tag=21):
    """The holder lets go: whoever names the token may adopt the grant."""

    id: str


AnyChange: TypeAlias = (
    Asked
    | Offered
    | Held
    | Claimed
    | Left
    | Returned
    | Declined
    | Renewed
    | Adopted
    | Ended
    | Suspected
    | Added
    | Removed
    | Relabelled
    | Resized
    | Marked
    | Configured
    | GroupSet
    | Undelayed
    | Buried
    | Passed
)


class Act(Struct, frozen=True, array_like=True, gc=False):
    """What an operator did, when, and to what: it is kept longer than the history of everything."""

    at: int
    change: AnyChange
    shares: tuple[tuple[str, int], ...] = ()
