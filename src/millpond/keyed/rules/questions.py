"""What can be asked of a store. Nothing here changes anything; an answer is one snapshot, and bounded by its limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from millpond.keyed.rules import records
from millpond.keyed.rules.page import Page

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class Question(Generic[A_co]):
    """A question, and in brackets what its answer is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Members(Question[records.PoolState]):
    """The workers, and how the pool stands."""


@dataclass(frozen=True, slots=True)
class Owners(Question[tuple[int, list[str]]]):
    """A version, and the owner of every slot ("" for nobody) as of that version or later."""


@dataclass(frozen=True, slots=True)
class Slots(Question[list[records.Slot]]):
    """All slots: who owns each, since when, and why."""


@dataclass(frozen=True, slots=True)
class Keys(Question[Page[records.KeyView]]):
    """Mailboxes of a lane that are not empty, in whatever order the store has them."""

    lane: str = "j"
    after: str = ""
    limit: int | None = None
    is_running: bool = False
    """Only those of which a worker has jobs now."""


@dataclass(frozen=True, slots=True)
class Key(Question[records.KeyView | None]):
    """A mailbox; None: it is empty."""

    slot: int
    mailbox: str


@dataclass(frozen=True, slots=True)
class Jobs(Question[list[list[bytes] | None]]):
    """Jobs of mailboxes, each from a place on, so many at most. None: that became too much, so ask again."""

    spans: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class DelayedJobs(Question[Page[records.Delayed]]):
    """Jobs that enter their mailboxes later."""

    after: str = ""
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetters(Question[Page[records.DeadLetter]]):
    """Dead letters, the oldest first, or the newest: all, or those of a key."""

    after: str = ""
    limit: int | None = None
    is_newest_first: bool = False
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Pauses(Question[Page[records.Paused]]):
    """What is paused."""

    after: str = ""
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Acts(Question[list[records.Act]]):
    """What people did to the pool: the last so many, the latest last."""

    limit: int


@dataclass(frozen=True, slots=True)
class Where(Question[str]):
    """Where a job is: `delayed`, `waiting`, `running` (a worker has it), `dead` or `gone`."""

    slot: int
    mailbox: str
    job: str


@dataclass(frozen=True, slots=True)
class Outcomes(Question[list[tuple[str, bytes] | None]]):
    """How jobs ended, as far as that is (still) known: status and data of each, or None.

    The answer may be shorter, by those behind `TAKE_BYTES` bytes of data: ask again for them. It has one at least.
    """

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Counts(Question[records.Counts]):
    """How the pool stands, and what it has done."""
