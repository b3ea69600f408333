"""The nouns of a resource pool as plain records: what a pool's state is made of, and what its image on disk holds.

Times are whole microseconds of the engine's clock, 0 means none. Nothing here decides anything: `_rules.step` does.
Records are msgspec structs, written as arrays: a field is only ever added at the end, with a default, so that
neighbouring versions can read each other.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

ALL: Final = 0
"""`Want.units` that stands for the whole capacity of whatever resource is given."""

ACTIVE, CORDONED, DRAINING, QUARANTINED, REMOVING = "active", "cordoned", "draining", "quarantined", "removing"
WAITING, AWAY, OFFERED, HELD = "waiting", "away", "offered", "held"


class Holder(Struct, frozen=True, array_like=True, gc=False):
    """Who asks and holds: `kind` is `process`, `person`, `workflow` …, `started` tells pids apart that are reused."""

    kind: str = "process"
    id: str = ""
    host: str = ""
    pid: int = 0
    started: int = 0

    def __str__(self) -> str:
        return self.id or f"{self.host}:{self.pid}"


class Want(Struct, frozen=True, array_like=True, gc=False):
    """`count` different resources that match `selector`, `units` of each."""

    selector: str = "*"
    count: int = 1
    units: int = 1


class Resource(Struct, array_like=True, gc=False):
    """A thing that is lent. `slot` is its bit in the pool's masks and its place in the order of resources."""

    name: str
    labels: dict[str, str]
    capacity: int = 1
    slot: int = 0
    state: str = ACTIVE
    note: str = ""  # why it is not active
    freed: int = 0  # when it was last given back
    last: str = ""  # by whom
    delayed: int = 0  # not lent before this time
    used: int = 0  # derived: units in grants and offers; recounted when an image is loaded


class Request(Struct, array_like=True, gc=False):
    """What a holder asks for and, once it has it, the grant."""

    id: str
    session: str  # who must be alive: "" is nobody (a person's grant)
    holder: Holder
    wants: tuple[Want, ...]
    priority: int = 0
    group: str = ""
    lease: int = 0  # microseconds, 0 is a lock
    reason: str = ""
    placement: str = "first"
    rank: tuple[str, ...] = ()  # resources in the requester's order of preference
    refused: tuple[str, ...] = ()  # resources that the requester will not take
    picky: bool = False  # the requester looks at each offer and may decline it
    sure: bool = False  # cannot vanish unnoticed, so a hand-off needs no claim
    chosen: bool = False  # the id was chosen by the user: it keeps its place when the process dies
    patient: bool = False  # waits although no resource could satisfy it yet
    seq: int = 0
    asked: int = 0
    deadline: int = 0  # of the wait
    state: str = WAITING
    token: int = 0
    shares: tuple[tuple[str, int], ...] = ()  # (resource, units)
    since: int = 0  # when it was granted
    until: int = 0  # end of the claim, the lease or the absence
    suspect: str = ""
    bundle: bool = False  # needs several units at once, so others could starve it
    passed: bool = False  # its holder called transfer(): it may be adopted
    by: str = ""  # the operator who reserved it for its holder


class Group(Struct, array_like=True, gc=False):
    """A tenant: its share of hand-offs and the most units it may hold."""

    name: str
    weight: int = 1
    quota: int = 0  # 0 is none
    turn: int = 0  # virtual time at which it is served next
    held: int = 0  # derived


class Settings(Struct, frozen=True, array_like=True):
    """What holds for the whole pool."""

    claim: int = 2_000_000  # an offer that is not claimed in this time goes to the next
    patience: int = 10_000_000  # a bundle that waited this long has freed units kept for it
    ageing: int = 0  # microseconds of waiting that weigh as much as one point of priority, 0: strict priorities
    delay: int = 0  # pause before a resource is lent again after an expiry or a revocation
    retention: int = 60_000_000  # a chosen request id keeps its place this long after its process died
    paused: str = ""  # why the pool is paused, "" when it is not
    free_after: int = 0  # what a lost machine held is freed after this time: a guess, so 0: it stays, as suspect


class Ending(Struct, frozen=True, array_like=True, gc=False):
    """How a request or grant came to its end."""

    id: str
    token: int
    how: str
    by: str
    reason: str
    at: int
    session: str = ""
    chosen: bool = False
