"""What can be asked of a resource pool: one record per verb, plain data, the same on every engine."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from millpond.resources._rules.records import Holder, Settings, Want


class Verb(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """The base of all commands; on a wire each goes by the name of its class."""


class Acquire(Verb, frozen=True):
    """Ask for resources. The same id again from the same session changes nothing and tells how it stands.

    `seen` is the highest token the session knows. `number` is always 0: older versions expect it.
    """

    id: str
    session: str
    number: int
    holder: Holder
    wants: tuple[Want, ...]
    priority: int = 0
    group: str = ""
    lease: int = 0
    reason: str = ""
    placement: str = "first"
    rank: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    picky: bool = False
    sure: bool = False
    chosen: bool = False
    patient: bool = False
    wait: bool = True
    timeout: int = 0  # microseconds, 0 is none
    seen: int = 0
    by: str = ""  # the operator who reserves it for the holder


class Claim(Verb, frozen=True):
    """Say that the session is there: offered requests become held, away ones return to their place."""

    session: str
    ids: tuple[str, ...]


class Decline(Verb, frozen=True):
    """Turn an offer down: its resources go on, the request keeps its place and is not offered them again.

    One that has turned down all that could serve it is unsatisfiable, unless it is patient.
    """

    session: str
    id: str
    token: int


class Withdraw(Verb, frozen=True):
    """Take a request back, wherever it stands. An operator's has another session, and a reason."""

    session: str
    id: str
    by: str = ""
    reason: str = ""


class Release(Verb, frozen=True):
    """Give a grant back: only when `token` is the one that counts. With `by`, an operator takes it away."""

    session: str
    token: int
    resource: str = ""
    by: str = ""
    reason: str = ""


class Renew(Verb, frozen=True):
    """Renew a lease for its whole length from now. A lease that is over is not revived."""

    session: str
    token: int


class Pass(Verb, frozen=True):
    """Pass a grant on: from now on whoever names its token may adopt it. Only its own session can do that."""

    session: str
    token: int


class Adopt(Verb, frozen=True):
    """Put a grant into other hands under a new token: a transfer, a theft, or kept for a person (`session` "").

    A transfer takes two: it is refused unless the holder passed the grant on.
    """

    session: str
    token: int
    holder: Holder
    how: str
    reason: str = ""
    lease: int = 0
    resource: str = ""
    by: str = ""
    seen: int = 0


class Suspect(Verb, frozen=True):
    """Mark a grant whose holder seems to have forgotten it; "" takes the mark away."""

    session: str
    token: int
    why: str


class Bury(Verb, frozen=True):
    """A session is proved dead: end all that it held and asked for. Chosen ids that held nothing keep their place."""

    session: str
    reason: str = "its process is gone"


class Add(Verb, frozen=True):
    """Add a resource."""

    name: str
    labels: dict[str, str]
    capacity: int = 1
    by: str = ""


class Remove(Verb, frozen=True):
    """Remove a resource: at once when free, else when the last holder gives it back."""

    name: str
    by: str = ""
    reason: str = ""


class Relabel(Verb, frozen=True):
    """Give a resource other labels. Grants stay."""

    name: str
    labels: dict[str, str]
    by: str = ""
    reason: str = ""


class Resize(Verb, frozen=True):
    """Change a resource's capacity. Shrinking works by attrition; who has the whole keeps the whole."""

    name: str
    capacity: int
    by: str = ""
    reason: str = ""


class Mark(Verb, frozen=True):
    """Set a resource's state: active, cordoned, draining or quarantined.

    What is quarantined is not cordoned or drained as well: it stays so, with its reason, until it is active.
    """

    name: str
    state: str
    by: str = ""
    reason: str = ""


class Configure(Verb, frozen=True):
    """Replace the pool's settings (also: pause, resume)."""

    settings: Settings
    by: str = ""
    reason: str = ""


class SetGroup(Verb, frozen=True):
    """Set a group's weight and quota (0: none)."""

    name: str
    weight: int = 1
    quota: int = 0
    by: str = ""
    reason: str = ""


class Tick(Verb, frozen=True):
    """Nothing but the time: end what is over."""


Command: TypeAlias = (
    Acquire
    | Claim
    | Decline
    | Withdraw
    | Release
    | Renew
    | Pass
    | Adopt
    | Suspect
    | Bury
    | Add
    | Remove
    | Relabel
    | Resize
    | Mark
    | Configure
    | SetGroup
    | Tick
)


class Reply(Struct, frozen=True, gc=False, omit_defaults=True):
    """The answer to a command, as a word and what belongs to it.

    `held`, `offered`, `waiting`, `away` (claim to return to one's place), `busy`, `unsatisfiable`, `used`
    (the id had its effect and is over), `taken` (the id belongs to another session), `full` (of the pool); `ok`,
    `released`, `withdrawn`, `ended` (it was over; `detail` says how), `stale` (the token does not count), `unknown` (no
    such name), `exists`, `refused` (the engine could not understand it).
    """

    kind: str
    id: str = ""
    token: int = 0
    shares: tuple[tuple[str, int], ...] = ()
    until: int = 0
    detail: str = ""
