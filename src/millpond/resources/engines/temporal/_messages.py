"""What travels between a pool's workflow and the world, as plain records.

They are written as JSON, so that people can read them in Temporal's own tools. Long ones are compressed; what is
carried over continue-as-new always is.
"""

from __future__ import annotations

import re
import zlib
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from millpond.resources._rules.commands import Command, Reply
from millpond.resources._rules.image import Image
from millpond.resources._rules.wire import Entry

T = TypeVar("T")
FORMAT: Final = 1
"""Of `CarriedState`; a pool refuses one that is newer than it knows."""
PLAIN: Final = 8_000
"""Bytes up to which a message stays readable."""
LONG: Final = 1_000_000
"""Bytes from which on a message is compressed as well as it can be."""
MOST: Final = 64_000_000
"""Bytes of a message that was compressed."""
HIGHEST: Final = 10**16
"""Of numbers from outside: more microseconds than anybody needs, and sums of them still fit into 64 bits."""
_LONG_NUMBER: Final = re.compile(rb"[0-9]{16}")
Whole: TypeAlias = Annotated[int, Meta(ge=0)]

# the workflow's names, part of the protocol: never changed
WORKFLOW: Final = "MillpondResourcePool"
APPLY: Final = "apply"
NEWS: Final = "news"
CARRIED_STATE: Final = "estate"
CHAINS: Final = "chains"
NOTICE: Final = "millpond"
"""The signal by which a pool writes to a workflow."""
COMMAND: Final = "millpond_apply"
WATCH: Final = "millpond_watch"
RECOVER: Final = "millpond_inherit"
KNOCK: Final = "millpond_knock"
MOVING, BAD_REQUEST = "PoolIsMoving", "BadRequest"


class Death(Struct, frozen=True, omit_defaults=True):
    """The server says that a workflow is closed, since `at` (microseconds).

    With `but`, the workflow says itself that earlier runs of it are: all that they asked for before `at` is over, but
    for these requests, which it knows.
    """

    session: str
    at: Whole
    how: str
    but: tuple[str, ...] | None = None


class Batch(Struct, frozen=True, omit_defaults=True):
    """Commands of one sender, in order. The same number again is answered as the first time."""

    lane: str
    number: Whole
    commands: list[Command] = []
    session: str = ""  # the process that is hereby heard of
    graces: dict[str, Whole] = {}  # session -> microseconds that its work may go on after it closed
    deaths: list[Death] = []


class Answer(Struct, frozen=True, omit_defaults=True):
    """What came of a batch: the replies, and all that happened since the answer before (`base` to `version`)."""

    incarnation: str
    base: int
    version: int
    now: int
    replies: list[Reply] = []
    entries: list[Entry] = []


class Since(Struct, frozen=True, omit_defaults=True):
    """How far a reader has come."""

    incarnation: str = ""
    version: int = -1


class News(Struct, frozen=True, omit_defaults=True):
    """What a reader does not know yet: entries if that is little, else the whole state, and the last that led to it."""

    incarnation: str
    version: int
    now: int
    entries: list[Entry] = []
    image: Image | None = None
    events: int = 0  # of the run's history that are in it


class Notice(Struct, frozen=True, omit_defaults=True):
    """What a pool tells a workflow about a request of its own; `chain` is for whom it is meant."""

    pool: str
    chain: str
    kind: str  # granted, ended, lost
    request: str
    token: int = 0
    shares: tuple[tuple[str, int], ...] = ()
    detail: str = ""
    session: str = ""  # to whom; left out on the wire


class Memory(Struct, array_like=True):
    """The last batch of a lane, and what it was answered."""

    number: int
    at: int
    replies: list[Reply]


class Refusal(Struct, frozen=True, omit_defaults=True):
    """A signal that could not be understood."""

    at: int
    signal: str
    why: str


class Leftover(Struct, frozen=True, omit_defaults=True):
    """A signal that was not looked at yet."""

    name: str
    data: bytes
    args: int = 1  # how many there were, of which this is the first


class CarriedState(Struct, omit_defaults=True):
    """All that a pool carries over continue-as-new, and leaves when it is terminated."""

    format: int
    incarnation: str
    version: int
    now: int
    image: Image
    lanes: dict[str, Memory] = {}
    heard: dict[str, int] = {}
    graces: list[int] = []  # of the image's requests, in their order: how long work may go on after a death
    closed: dict[str, tuple[int, str]] = msgspec.field(name="mourned", default_factory=dict)
    # session -> when what it held ends, and why
    notices: list[Notice] = msgspec.field(name="letters", default_factory=list)  # the name that is written
    recent: list[Entry] = []
    refusals: list[Refusal] = []
    quarantine: str = ""  # why the resources were not to be trusted when it was inherited
    told: int = 0  # the version up to which answers hold what happened
    limit: int = 0  # bytes that the server lets a payload have, if anybody knows
    signals: list[Leftover] = []  # that wait for a batch


class Opening(Struct, omit_defaults=True):
    """How a pool begins. By hand: nothing at all, or the input of Temporal's sample."""

    previous: str | None = None  # the closed run to inherit from, "" when there is none, None when nobody looked
    limit: int = 0  # bytes that the server lets a payload have, if anybody knows
    resources: dict[str, Any] | list[str] = {}
    waiters: list[Any] = []


class Recovered(Struct, omit_defaults=True):
    """What could be had of a closed run."""

    carried: CarriedState | None = msgspec.field(name="estate", default=None)  # the name that is written
    leftovers: list[Leftover] = []
    quarantine: str = ""
    limit: int = 0


def write(message: Struct) -> bytes:
    """Return a message as bytes: JSON, or compressed JSON when it is long."""
    data = msgspec.json.encode(message)
    return data if len(data) <= PLAIN else zlib.compress(data, 1 if len(data) < LONG else 6)


def read(data: bytes, kind: type[T]) -> T:
    """Return the message that `write` wrote, or a person; whatever else it is, it is a ValueError."""
    try:
        return msgspec.json.decode(_inflate(data) if data[:1] == b"x" else data, type=kind)
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from error


def read_batch(data: bytes) -> tuple[Batch, frozenset[int]]:
    """Return a batch, and which of its commands have numbers in them that cannot be reckoned with, or written."""
    try:
        text = _inflate(data) if data[:1] == b"x" else data
        batch = msgspec.json.decode(text, type=Batch)
        if not _LONG_NUMBER.search(text):
            return batch, frozenset()
        if _is_beyond([batch.number, batch.graces, [one.at for one in batch.deaths]]):
            raise ValueError(f"a number in it is beyond {HIGHEST}")
        found = enumerate(batch.commands)
        return batch, frozenset(index for index, one in found if _is_beyond(msgspec.to_builtins(one)))
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from error


def _is_beyond(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_is_beyond, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_beyond, value))
    return isinstance(value, int) and abs(value) > HIGHEST


def freeze(carried: CarriedState | Recovered) -> bytes:
    """Write a carried state as small as it can be."""
    return zlib.compress(msgspec.msgpack.encode(carried), 6)


def freeze_to_fit(carried: CarriedState, size: int) -> bytes:
    """Write a carried state with at most `size` bytes; what is left out if need be only saves others a question.

    It is longer only if what is held and what waits is too much.
    """
    data = freeze(carried)
    for trim in (_forget_history, _forget_endings, _forget_old_lanes):
        if len(data) <= size:
            break
        trim(carried)
        data = freeze(carried)
    return data


def thaw(data: bytes, kind: type[T]) -> T:
    """Read a carried state, or what could be recovered."""
    try:
        found = msgspec.msgpack.decode(_inflate(data), type=kind)
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from error
    carried = found.carried if isinstance(found, Recovered) else found
    if isinstance(carried, CarriedState) and carried.format > FORMAT:
        problem = f"the pool's state has format {carried.format}, and this worker knows {FORMAT}: update it"
        raise NotImplementedError(problem)
    return found


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(data, MOST)
    if not stream.eof:
        raise ValueError("a message that is cut off, or far too long")
    return found


def _forget_history(carried: CarriedState) -> None:
    carried.recent = []


def _forget_endings(carried: CarriedState) -> None:
    carried.image.endings = []


def _forget_old_lanes(carried: CarriedState) -> None:
    """Leave those whose last batch may still come again."""
    carried.lanes = {lane: one for lane, one in carried.lanes.items() if one.at + 60_000_000 > carried.now}
