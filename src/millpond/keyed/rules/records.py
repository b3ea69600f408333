"""The words that pools, workers and stores speak with one another. All times are whole microseconds, by the store.

A *mailbox* is where the jobs of one key stand, named by its lane and key: `j:tenant-42` for jobs, `r:watch:tenant-42`
for the resident `watch` of that key. The store keeps a job as bytes: the time at which it came, in 16 digits, then the
envelope (`envelope`), of which it looks at the id, the name and the retention only when it has to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

SECOND: Final = 1_000_000
STAMP: Final = 16
"""Digits of the time in front of a stored job."""

KEYS_PER_TURN: Final = 8
"""Keys of one slot that are taken before the next slot has its turn."""
DUE_PER_CALL: Final = 100
"""Jobs and keys that become due in one `work`."""
TAKE_BYTES: Final = 4 << 20
"""Bytes of jobs after which a take ends, as does the share of one key in it."""
BATCH_RETENTION: Final = 120 * SECOND
"""How long a store remembers what it answered to the last dispatch of a producer, should it be sent again."""
DEATH_RETENTION: Final = 24 * 3600 * SECOND
"""How long a proven death is remembered: what the worker ran may be recovered until then."""
DEAD_RETRY: Final = 10 * SECOND
"""How long a key waits when its dead job finds the dead letters full."""
UNPROVEN: Final = 5
"""A worker that is lost without a proof of its death (its lease ended) counts for so much less against its jobs."""
KEPT_ACTS: Final = 1000
"""Lines that are kept of what people did to a pool."""
LONGEST_ERROR: Final = 1000
"""Bytes that are kept of how a job has failed which is tried again."""
HANDED: Final = 8
"""A dispatch of up to so many jobs may hand them to idle workers at once; larger ones are taken in bulk."""
HANDED_BYTES: Final = 16 << 10
"""A job that is larger is not sent with a wake-up."""
PURGED: Final = 1000
"""Jobs that one `Purge` drops."""
LOOKED_AT: Final = 4096
"""With more keys ready than this, the oldest job is looked for among those that are next in their slots."""

Lane: TypeAlias = Literal["j", "r"]


class Settings(NamedTuple):
    """What holds for the whole pool: fixed when it is created, and kept in the store."""

    slots: int = 4096
    lease: int = 5 * SECOND
    drain: int = 30 * SECOND
    placement: str = "rendezvous"
    payload_limit: int = 1 << 20
    max_jobs: int = 0
    """Jobs that the pool keeps at most; 0: no limit."""
    max_per_key: int = 0
    max_dead: int = 0
    max_losses: int = 3
    """A job that was running when its worker died, so many times, is dead. See `UNPROVEN`."""
    unknown: int = 3600 * SECOND
    """How long a job that no worker knows is kept for one that does, before it is dead."""


class OrderOptions(NamedTuple):
    """What is uncommon about an order."""

    id: str
    name: str
    delay: int = 0
    at: int = 0
    """Enter the mailbox at this time of the store; 0: after `delay`."""
    on_busy: str = "queue"
    unique_for: int = 0
    """How long the id is remembered: the same id again is not dispatched again; 0: not at all."""


class Order(NamedTuple):
    """A job to be dispatched: `body` is its envelope."""

    slot: int
    mailbox: str
    body: bytes
    options: OrderOptions | None = None


class Batch(NamedTuple):
    """The name of a dispatch: who sends it, and a number that grows. A producer has one under way at a time."""

    producer: str
    number: int


class Joiner(NamedTuple):
    """A worker, as it presents itself."""

    id: str
    label: str
    """Who that is, for people: host and pid."""
    weight: int = 1
    concurrency: int = 100
    names: tuple[str, ...] = ()
    """The jobs and residents that it knows."""
    session: int = 0
    """What stands for its process with a store that can prove death."""


class Member(NamedTuple):
    """A worker, as the store knows it."""

    id: str
    label: str
    weight: int
    concurrency: int
    names: tuple[str, ...]
    joined: int
    lease_end: int
    is_leaving: bool
    is_dead: bool = False
    """The store can prove that its process is gone."""


class PoolState(NamedTuple):
    """What a worker is told at each heartbeat."""

    now: int
    incarnation: str
    """Changes when the store has lost its data and the pool was made anew."""
    version: int
    """Grows with every change of members and owners."""
    is_shut: bool
    members: tuple[Member, ...]
    is_brief: bool = False
    """Of the members only the ids, the leases and who is leaving or dead are told."""


class Report(NamedTuple):
    """What became of a take: an absolute count of finished jobs, and what is to happen to the key."""

    slot: int
    mailbox: str
    token: int
    done: int
    how: str = "end"
    """`keep` (progress), `end`, `retry` (the next job is tried again later), `to_dead_letters` (it is dead), `park`
    (it is not known here)."""
    delay: int = 0
    """`retry`: microseconds until then."""
    failures: int = 0
    """`retry`: how often the job has failed."""
    reason: bytes = b""
    """`to_dead_letters`, `retry`: why, as a person reads it; `park`: the name that is not known."""
    outcomes: tuple[Outcome, ...] = ()
    notes: int = 0
    """Notifications up to this number were handled."""


class Outcome(NamedTuple):
    """How a job ended: `done`, `failed`, `dead`, `lost`, `cancelled`, `replaced`, `purged`."""

    id: str
    status: str
    data: bytes
    keep: int
    """How long it is kept."""
    reply: str = ""
    """The producer who may be waiting for it."""


class Take(NamedTuple):
    """Jobs of one key for a worker to run, in order."""

    slot: int
    mailbox: str
    token: int
    jobs: tuple[bytes, ...]
    failures: int = 0
    losses: int = 0
    notes: tuple[tuple[int, bytes], ...] = ()


class Signal(NamedTuple):
    """A word to a worker about something that it runs: `cancel` a job, `pause`, a `note` to a resident; or a `take`.

    A `take` is a job that a dispatch has handed to it: `note` is the token, `data` the job; without data the take is
    over, and is not to be begun.
    """

    number: int
    kind: str
    mailbox: str
    id: str = ""
    note: int = 0
    data: bytes = b""
    slot: int = 0
    """Of a `take`."""


class Work(NamedTuple):
    """The answer to a `work`."""

    stale: tuple[int, ...]
    """Indexes of settles that came too late: their take was over, so they changed nothing."""
    takes: tuple[Take, ...]
    signals: tuple[Signal, ...]
    """All that was not yet heard."""
    is_gone: bool
    """The worker is no member any more, or its lease is over: nothing was taken."""
    is_more: bool
    """There may be more to take."""
    due: int
    """When something becomes due next; 0: nothing that is known."""
    now: int
    version: int
    """As in `PoolState`: whether members or owners have changed."""


class Claimed(NamedTuple):
    """The answer to a `claim`."""

    got: tuple[int, ...]
    contested: tuple[int, ...]
    """Slots of the caller in which a worker that had them before still runs something."""
    recovered: int
    is_gone: bool


class Slot(NamedTuple):
    """A share of the key space and who owns it."""

    owner: str = ""
    epoch: int = 0
    since: int = 0
    why: str = "nobody yet"
    before: str = ""


class DeadLetter(NamedTuple):
    """A job that will not be run any more, unless somebody wants it to."""

    number: int
    slot: int
    mailbox: str
    at: int
    reason: bytes
    job: bytes
    attempts: int = 0
    """How often it was begun."""


class Delayed(NamedTuple):
    """A job that enters its mailbox later."""

    due: int
    slot: int
    mailbox: str
    body: bytes


class Paused(NamedTuple):
    """A key of which nothing may begin; an empty one stands for the whole pool."""

    key: str
    since: int
    by: str
    reason: str


class Act(NamedTuple):
    """What a person did to the pool."""

    at: int
    by: str
    what: str
    about: str
    reason: str


class KeyView(NamedTuple):
    """A mailbox that is not empty."""

    slot: int
    mailbox: str
    depth: int
    """Jobs that are not settled, the running one included."""
    oldest: int
    """When its oldest job came."""
    state: str
    """`ready`, `running`, `retry`, `paused` or `parked` (nobody knows its job)."""
    worker: str
    """Who runs it, or owns its slot."""
    token: int
    """Of its take, which is about the time at which it began."""
    taken: int
    """Jobs at its head that the worker has."""
    failures: int
    losses: int
    error: bytes
    """How its first job has failed the last time."""
    due: int
    """When its first job is tried again; 0: it does not wait for that."""
    owned: int
    """Since when its slot is where it is."""
    why: str
    """Why it is."""
    last: bytes = b""
    """Of a resident: its job (the last one, should it be about to be replaced)."""
    is_ending: bool = False
    """Of a resident: it was told to end, and nothing comes behind it."""


class Counts(NamedTuple):
    """How a pool stands, and what it has done since it was created."""

    now: int
    jobs: int
    """In mailboxes, running ones included; not delayed ones, not residents."""
    keys_ready: int
    keys_running: int
    delayed: int
    dead: int
    residents: int
    oldest: int
    """When the oldest job came that is ready and at the head of its key; 0: there is none. See `LOOKED_AT`."""
    dispatched: int
    done: int
    retried: int
    dead_total: int
    recovered: int
    """Keys that were running when their worker was lost."""
    moved: int
    """Slots that changed hands."""
    is_paused: bool
    is_shut: bool


Verdicts: TypeAlias = Mapping[int, str]
"""What is to be said of orders, by index: `full` (mailbox), `pool` (full), `busy`, `closed`: refused; `same` (that id
was dispatched before), `into:<id>` (another waiting job does for it): nothing added. None: it is in."""
Moves: TypeAlias = Sequence[tuple[int, str]]
"""Slots, each with who gets it; nobody: it is free."""


def key_of(mailbox: str) -> str:
    """Return the key of a mailbox."""
    return mailbox[2:] if mailbox[0] == "j" else mailbox.split(":", 2)[2]
