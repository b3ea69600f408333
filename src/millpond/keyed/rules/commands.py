"""What a store can be asked to do: each command is one atomic step, and names in brackets what its answer is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from millpond.keyed.rules import records

A_co = TypeVar("A_co", covariant=True)


class Command(Generic[A_co]):
    """A command, and in brackets what its answer is. It can be unpacked as a tuple can."""

    __slots__ = ()

    may_repeat: ClassVar[bool] = True
    """Whether it may be sent again when its answer was lost, since twice is as good as once."""

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self.__match_args__)  # type: ignore[attr-defined]


# -- producers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dispatch(Command[records.Verdicts]):
    """Put jobs into their mailboxes. The batch has a name, so that sending it again changes nothing."""

    batch: records.Batch
    orders: Sequence[records.Order]


# -- workers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join(Command[records.PoolState]):
    """Become a member."""

    joiner: records.Joiner


@dataclass(frozen=True, slots=True)
class Renew(Command[records.PoolState | None]):
    """Renew a lease; None: it is no member any more. Of members that have not changed since `version` less is told."""

    worker: str
    leaving: bool = False
    version: int = 0


@dataclass(frozen=True, slots=True)
class Leave(Command[None]):
    """End a membership: its slots are free."""

    worker: str


@dataclass(frozen=True, slots=True)
class Give(Command[int]):
    """Pass slots of a worker on to others; how many were its own."""

    worker: str
    moves: records.Moves
    why: str


@dataclass(frozen=True, slots=True)
class Claim(Command[records.Claimed]):
    """Take over slots that nobody living owns, and what the dead ran in them.

    `dead` are workers that were found dead, each with the end of its lease as it was seen. `known` are the takes that
    the worker knows of, up to its last `call` and the last signal that it `heard`: of its slots, what it does not know
    is made ready again. None: it does not say.
    """

    worker: str
    slots: Sequence[int]
    dead: Mapping[str, int]
    known: Iterable[int] | None = None
    call: int = 0
    heard: int = 0


@dataclass(frozen=True, slots=True)
class Work(Command[records.Work]):
    """Report takes and take more, in one step. The call has a number: a take that was lost is given back by `Claim`."""

    worker: str
    call: int
    reports: Sequence[records.Report]
    want: int
    per: int
    want_residents: int = 0
    heard: int = 0
    spare: int = 0


# -- people, and producers beside dispatching --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start(Command[str]):
    """Start a resident: `started`, `replaced` (it had other arguments) or `same` (nothing to do), or `closed`."""

    slot: int
    mailbox: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Stop(Command[str]):
    """End a resident: `stopped` (it did not run), `stopping` (its worker was told) or `gone`."""

    slot: int
    mailbox: str


@dataclass(frozen=True, slots=True)
class Notify(Command[str]):
    """Send a message to a resident: `sent`, `full` (as many as a mailbox may have wait for it) or `gone`."""

    may_repeat: ClassVar[bool] = False  # it would come twice

    slot: int
    mailbox: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Cancel(Command[str]):
    """Take a job back: `cancelled`, `asked` (a worker has it and was told) or `gone`."""

    slot: int
    mailbox: str
    id: str


@dataclass(frozen=True, slots=True)
class Purge(Command[str]):
    """Drop jobs of a key that no worker has, the newest first, then delayed ones: the number as text.

    It is done when that is less than `most`: a store does nothing else meanwhile, so a deep mailbox goes in parts.
    """

    slot: int
    mailbox: str
    most: int = records.PURGED


@dataclass(frozen=True, slots=True)
class Retry(Command[str]):
    """Try the first job of a mailbox again that waits for that: `ready`, or `gone` (it does not wait)."""

    slot: int
    mailbox: str


@dataclass(frozen=True, slots=True)
class Log(Command[str]):
    """Keep a line of what a person does to the pool."""

    by: str
    what: str
    about: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pause(Command[str]):
    """Pause a key (or the pool, with an empty key): nothing of it begins, and residents of it that run are stopped."""

    slot: int = 0
    key: str = ""
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resume(Command[str]):
    """Undo `Pause`; for the pool also `Shut`."""

    slot: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Shut(Command[str]):
    """Refuse dispatches and tell all workers to drain and end."""


@dataclass(frozen=True, slots=True)
class Gone(Command[str]):
    """Take note that the process of a worker has ended: `noted`, or `unknown` (it is no member)."""

    worker: str


@dataclass(frozen=True, slots=True)
class Replay(Command[str]):
    """Put dead letters back into their mailboxes, by number: how many, as text."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drop(Command[str]):
    """Forget dead letters, by number: how many, as text."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Configure(Command[str]):
    """Change settings of the pool: `done`, or `busy` (lease or drain would change under workers)."""

    changes: tuple[tuple[str, int], ...]
