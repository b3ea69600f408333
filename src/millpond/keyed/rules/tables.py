# ruff: noqa: D102  (get, put, drop and the like say what they do)
"""What a pool consists of: tables, which a store keeps in memory or in rows. Nothing here decides anything.

A mailbox that is not empty is one `Mailbox`, with the place in which it stands as its `state`: so it cannot stand in
two. Where a table is empty nearly always (`cancelled`, `pauses`, `messages`), its truth tells whether there may be
anything in it, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from millpond.keyed.rules.records import Act, DeadLetter, Delayed, Joiner, Member, Paused, Settings, Signal, Slot

NOWHERE: Final = -1
READY: Final = 0
RUNNING: Final = 1
RETRY: Final = 2
"""Its first job is tried again at a time."""
PAUSED: Final = 3
PARKED: Final = 4
"""No worker that had it knows its first job; it waits for one that does."""
SUSPECTS: Final = "s"
"""The queue of mailboxes of jobs that are dead with their next loss; else a mailbox queues in its lane."""
QUEUES: Final = ("j", "r", SUSPECTS)
STATES: Final = ("ready", "running", "retry", "paused", "parked")
"""The states, as readings call them."""


@dataclass(slots=True, eq=False)
class Mailbox:
    """The jobs of one key, or one resident: where it stands, and with whom."""

    name: str
    queue: str
    """Where it stands or stood when it is ready: a lane, or `SUSPECTS`."""
    slot: int
    state: int = NOWHERE
    depth: int = 0
    """Jobs in it, those that a worker has included."""
    failures: int = 0
    """How often its first job has failed."""
    losses: int = 0
    """How often its first job has lost its worker."""
    deaths: int = 0
    """How often that was a proven death."""
    token: int = 0
    """Of the take that is running, or was the last."""
    worker: str = ""
    taken: int = 0
    done: int = 0
    """Jobs of the take that were reported as finished."""
    is_borrowed: bool = False
    """The worker does not own the slot: the mailbox was parked, and it knows the job."""
    unknown: str = ""
    """The name of the job for which it is parked."""
    since: int = 0
    """When it was parked; when a retry is due."""
    error: bytes = b""
    """How its first job has failed the last time."""
    lane: str = field(init=False)

    def __post_init__(self) -> None:
        """Read the lane off the name."""
        self.lane = self.name[0]


M = TypeVar("M", bound=Mailbox)
V = TypeVar("V")


@dataclass(slots=True)
class Numbers:
    """What is counted in a pool: flags, the last numbers that were given out, and totals."""

    version: int = 1
    is_shut: int = 0
    is_paused: int = 0
    last_token: int = 0
    last_dead: int = 0
    last_signal: int = 0
    last_message: int = 0
    last_due: int = 0
    last_box: int = 0
    first_place: int = 0
    last_place: int = 0
    ready: int = 0
    """Mailboxes of jobs that are ready, where the store cannot count them quickly."""
    jobs: int = 0
    """In mailboxes of the lane of jobs."""
    delayed: int = 0
    dead: int = 0
    dispatched: int = 0
    done: int = 0
    retried: int = 0
    dead_total: int = 0
    recovered: int = 0
    moved: int = 0


class Mailboxes(Protocol[M]):
    """Mailboxes, by name and by where they stand, and their jobs."""

    @property
    def has_parked(self) -> bool:
        """Whether any mailbox may be parked."""

    def get(self, name: str) -> M | None:
        """Return a mailbox that is not empty."""

    def make(self, slot: int, name: str) -> M:
        """Return a mailbox, a new one if need be."""

    def preload(self, names: Iterable[str]) -> None:
        """Read many at once, since they will be asked for."""

    def changed(self, box: M) -> None:
        """Take note that fields of a mailbox are others now."""

    def move(self, box: M, state: int) -> None:
        """Move a mailbox to another state, behind those that are there. Not for `READY`. An empty one is removed."""

    def make_ready(self, box: M, queue: str, *, first: bool = False) -> bool:
        """Make a mailbox ready, behind (or before) the others; return whether it is alone in its queue and slot."""

    def has_ready(self, queue: str, slot: int) -> bool: ...
    def ready(self, queue: str, slot: int, most: int) -> tuple[Sequence[M], bool]:
        """Return those that are ready, in their order, and whether there are more."""

    def ready_slots(self, queue: str, slots: Sequence[int]) -> set[int]:
        """Return those of the slots in which something is ready."""

    def running(self, slots: Sequence[int]) -> dict[int, list[M]]:
        """Return those that run, by slot, in the order of their takes."""

    def runs_suspect(self, worker: str) -> bool:
        """Return whether a worker runs a mailbox that it took as a suspect."""

    def borrowed(self) -> list[M]:
        """Return those that run with a worker which does not own their slot, in the order of their takes."""

    def parked(self, lane: str, unknown: str, most: int) -> list[M]:
        """Return those that are parked for a job of that name."""

    def paused(self, slot: int, key: str) -> list[M]:
        """Return those that are paused of a key."""

    # jobs
    def append(self, box: M, raw: bytes) -> None: ...
    def heads(self, box: M, count: int, size: int = 0) -> Sequence[bytes]:
        """Return the first jobs, up to so many; there is one at least. With a size, those behind it may be missing."""

    def last(self, box: M) -> bytes: ...
    def waiting(self, box: M, taken: int, text: str) -> list[tuple[int, bytes]]:
        """Return, with their positions, the jobs behind the taken ones; those without the text may be left out."""

    def find(self, box: M, job: str, taken: int) -> tuple[int, bytes, bool] | None:
        """Return the newest job of an id: its position, itself, and whether it is among the taken ones."""

    def remove(self, box: M, position: int) -> bool:
        """Remove one job; return whether it was the first. Positions behind it are no longer valid."""

    def pop(self, box: M, count: int) -> None:
        """Remove jobs from the head."""

    def cut(self, box: M, keep: int) -> list[bytes]:
        """Remove all jobs but the first ones; return them."""


class ActiveSlots(Protocol):
    """The slots of each worker in which something is ready, each once, in their turn."""

    def push(self, queue: str, worker: str, slot: int) -> bool:
        """Add a slot behind the others; return whether it is the only one."""

    def pop(self, queue: str, worker: str, want: int) -> int | None:
        """Return the next slot, and remove it. `want` says how many may be asked for, this one included."""

    def has(self, queue: str, worker: str) -> bool: ...
    def drop(self, worker: str) -> None: ...


class Due(Protocol):
    """What happens at a time; what is no longer so when its time comes, is skipped by who asks."""

    def add(self, due: int, number: int, what: str, name: str) -> None: ...
    def pop(self, now: int, most: int) -> Sequence[tuple[int, str, str]]:
        """Return what is due, by time and number, with the time, and remove it."""

    def next(self) -> int:
        """Return when the next thing is due, or 0."""


class Names(Protocol):
    """A set of names. Its length is 0 when there are none for sure."""

    def __len__(self) -> int: ...
    def __contains__(self, name: object, /) -> bool: ...
    def add(self, name: str, /) -> None: ...
    def discard(self, name: str, /) -> None: ...


class Pauses(Protocol):
    """Keys of which nothing may begin. Its length is 0 when there are none for sure."""

    def __len__(self) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...
    def put(self, paused: Paused) -> None: ...
    def drop(self, key: str) -> None: ...


class Expiring(Protocol[V]):
    """Values by id, each until a time."""

    def get(self, now: int, name: str) -> V | None: ...
    def put(self, until: int, name: str, value: V) -> None: ...
    def drop(self, name: str) -> None: ...
    def expire(self, now: int) -> None:
        """Forget what is over; perhaps not all at once: nobody sees it any more."""


class DelayedJobs(Protocol):
    """Delayed jobs by id."""

    def get(self, job: str) -> Delayed | None: ...
    def put(self, job: str, delayed: Delayed) -> None: ...
    def drop(self, job: str) -> None: ...
    def of(self, mailbox: str, most: int) -> list[tuple[str, bytes]]:
        """Return id and body of those that will enter a mailbox, or of some."""


class DeadLetters(Protocol):
    """Dead letters by number."""

    def get(self, number: int) -> DeadLetter | None: ...
    def put(self, letter: DeadLetter) -> None: ...
    def drop(self, number: int) -> bool: ...


class Acts(Protocol):
    """What people did to the pool: the last `KEPT_ACTS`."""

    def add(self, act: Act) -> None: ...


class Messages(Protocol):
    """Messages to residents that were not yet handled, numbered. Its length is 0 when there are none for sure."""

    def __len__(self) -> int: ...
    def add(self, mailbox: str, number: int, data: bytes) -> None: ...
    def of(self, mailbox: str) -> tuple[tuple[int, bytes], ...]: ...
    def count(self, mailbox: str) -> int: ...
    def drop(self, mailbox: str, upto: int | None = None) -> None:
        """Forget those up to a number, or all."""


class Signals(Protocol):
    """What a worker is to be told about something that it runs."""

    def add(self, worker: str, signal: Signal) -> None: ...
    def last(self, worker: str) -> int:
        """Return the number of its last signal that was not forgotten, or 0."""

    def unheard(self, worker: str, heard: int) -> tuple[Signal, ...]:
        """Return the signals above a number, and forget the others."""

    def drop(self, worker: str) -> None: ...


class Members(Protocol):
    """The workers, in the order in which they joined."""

    def __contains__(self, worker: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def get(self, worker: str) -> Member | None: ...
    def all(self) -> Sequence[Member]:
        """Return all, and whether each is proven to be dead."""

    def put(self, joiner: Joiner, now: int, lease_end: int) -> None: ...
    def renew(self, worker: str, lease_end: int, *, is_leaving: bool) -> None: ...
    def drop(self, worker: str) -> bool: ...
    def last_call(self, worker: str) -> int:
        """Return the highest number of its calls to `work`."""

    def count_call(self, worker: str, call: int, spare: int | None = None) -> None:
        """Take note of a call, and of how many keys the worker may be handed before its next one."""

    def spare(self, worker: str) -> int:
        """Return how many keys a worker may be handed; 0 where no store can hand any."""

    def use_spare(self, worker: str) -> None: ...
    def is_proven_dead(self, worker: str) -> bool: ...
    def set_dead(self, worker: str) -> None:
        """Take note of a proof."""


class Slots(Protocol):
    """The shares of the key space."""

    def get(self, slot: int) -> Slot: ...
    def put(self, slot: int, value: Slot) -> None: ...
    def preload(self, slots: Sequence[int]) -> None: ...
    def owned(self, worker: str) -> list[int]: ...


class Tables(Protocol[M]):
    """A pool."""

    settings: Settings
    """What holds for the pool; another one may be put here."""

    @property
    def incarnation(self) -> str: ...
    @property
    def numbers(self) -> Numbers: ...
    @property
    def members(self) -> Members: ...
    @property
    def slots(self) -> Slots: ...
    @property
    def mailboxes(self) -> Mailboxes[M]: ...
    @property
    def active(self) -> ActiveSlots: ...
    @property
    def due(self) -> Due: ...
    @property
    def delayed(self) -> DelayedJobs: ...
    @property
    def outcomes(self) -> Expiring[tuple[str, bytes]]:
        """Job id: status and data."""

    @property
    def unique(self) -> Expiring[bool]:
        """Ids that are not dispatched again."""

    @property
    def batches(self) -> Expiring[tuple[int, dict[int, str]]]:
        """The last batch of each producer: its number, and what was answered."""

    @property
    def died(self) -> Expiring[bool]:
        """Workers that were dismissed and were proven to be dead."""

    @property
    def dead(self) -> DeadLetters: ...
    @property
    def pauses(self) -> Pauses: ...
    @property
    def cancelled(self) -> Names:
        """Ids of jobs that a worker has and that are not to run again."""

    @property
    def messages(self) -> Messages: ...
    @property
    def signals(self) -> Signals: ...
    @property
    def acts(self) -> Acts: ...
