"""The seam under the log engine: what a store must be able to do, and the records that it keeps.

A pool in a store is an ordered **log** of items, a **snapshot** of everything up to some item, an **inbox** of calls
that nobody has decided yet, and a **gate**: the right of one companion at a time to decide. A store knows nothing of
the rules: items, snapshots and parcels are bytes to it.

Safety does not rest on the gate's clock. Every item names the tip (the random mark) of the item before it, and a store
appends only for the current epoch of the gate and on the current tip. A companion that lost the gate, or whose store
went back in time, is refused, reads the pool again and goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from millpond.resources._rules.commands import Command, Reply
from millpond.resources._rules.image import Image
from millpond.resources._rules.wire import Entry

FORMAT: Final = 1
"""Of what is stored; a store of a newer format is refused."""
OVER: Final = 1 << 62
"""`Answered.acked` of a session that is over: whatever still comes of it came too late, and is not done."""
LOST_WORDS: Final = "its machine has not been heard of"
"""How the reason begins when nobody knows whether a session is over."""
GATE: Final = 500_000
"""Microseconds without a sign of work after which another companion may take the gate."""


class Answer(Struct, frozen=True, array_like=True, gc=False):
    """The reply to a numbered call. All replies up to `acked` have reached their caller and can be forgotten."""

    session: str
    number: int
    acked: int
    reply: Reply


class Step(Struct, frozen=True, array_like=True, gc=False):
    """What one call led to: an entry if it changed anything, an answer if somebody may ask for it again."""

    entry: Entry | None
    answer: Answer | None


class Item(Struct, frozen=True, array_like=True):
    """What was decided and appended at once, on top of the item with the tip `previous`."""

    previous: bytes
    steps: list[Step]


class Answered(Struct, array_like=True):
    """What a session was answered lately: all up to `acked` has arrived, the rest may be asked for again."""

    acked: int = 0
    replies: dict[int, Reply] = {}


class Snapshot(Struct, array_like=True):
    """A pool at rest: its state, how many entries made it, and what its sessions were answered lately."""

    version: int
    image: Image
    answered: dict[str, Answered]


class Posted(Struct, frozen=True, array_like=True, gc=False):
    """A call on its way to whoever decides. Number 0: it may be done twice without harm, and is not answered."""

    session: str
    number: int
    acked: int
    command: Command


class Parcel(Struct, frozen=True, array_like=True):
    """Calls that one companion posted at once."""

    companion: str
    calls: list[Posted]


class Witness(Struct, frozen=True, array_like=True):
    """Where a session's process is, for whoever must find out whether it lives."""

    companion: str
    machine: str
    boot: str
    namespace: str
    host: str
    pid: int
    start: int


class Orphan(NamedTuple):
    """A session whose witness has not been heard of for `silence` seconds."""

    session: str
    witness: Witness
    silence: float
    beat: int  # the last sign of life of the companion, as the store has it


class Synced(NamedTuple):
    """How a pool stands in the store, and what is new since one looked last."""

    now: int
    epoch: int  # of the gate; 0: it is not ours
    seq: int
    tip: bytes
    items: list[tuple[int, bytes, bytes]]  # (seq, tip, body), in order
    snapshot: bytes | None  # only when asked to start over
    base: int  # the item up to which the snapshot goes
    inbox: list[tuple[int, bytes]]  # what is to be decided, when the gate is ours


class Appended(NamedTuple):
    """What came of an append: refused, or done, and what has come into the inbox meanwhile."""

    is_done: bool
    now: int
    inbox: list[tuple[int, bytes]]


class Log(Protocol):
    """A store of logs. Each verb is atomic; any may raise `EngineUnavailable`: whether it took effect is unknown."""

    def check(self) -> None:
        """Make sure that the store can be used at all; raise `EngineError` with what to do."""

    def sync(self, pool: str, me: str, seq: int, tip: bytes, posts: Sequence[bytes], *, wants_gate: bool) -> Synced:
        """Atomically post parcels, take the gate if it is wanted and free, and return what is new after `seq`.

        With seq -1 return the snapshot and all items that there are.
        """

    def append(
        self,
        pool: str,
        epoch: int,
        previous: bytes,
        item: tuple[int, bytes, bytes] | None,
        taken: Sequence[int],
        snapshot: bytes | None,
        hints: Iterable[str],
    ) -> Appended:
        """Atomically append an item, remove what was taken from the inbox, give hints; refuse if the gate is lost."""

    def leave(self, pool: str, epoch: int) -> None:
        """Atomically give up the gate, if it is still that of the epoch."""

    def beat(self, pool: str, me: str, lost_after: int) -> list[Orphan]:
        """Atomically note that this companion lives; return the sessions of those that have long been silent."""

    def register(self, pool: str, me: str, session: str, witness: Witness) -> None:
        """Atomically note who watches over a session, and that this companion lives."""

    def unregister(self, pool: str, sessions: Sequence[str]) -> None:
        """Forget sessions that are over."""

    def sessions(self, pool: str) -> dict[str, Witness]:
        """Return all sessions of a pool."""

    def pools(self) -> list[str]:
        """Return the names of all pools."""

    def drop(self, pool: str) -> None:
        """Atomically delete a pool."""

    def subscribe(self, names: Iterable[str]) -> None:
        """Listen for hints to these companions and sessions, and to no others, from now on."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there are hints; -1: there is none, look by yourself."""

    def hints(self) -> set[str] | None:
        """Return the pools for which hints have come; None: any may have been missed."""

    def close(self) -> None:
        """Close what is open."""


_encoder = msgspec.msgpack.Encoder()
_items = msgspec.msgpack.Decoder(Item)
_snapshots = msgspec.msgpack.Decoder(Snapshot)
_parcels = msgspec.msgpack.Decoder(Parcel)
_witnesses = msgspec.msgpack.Decoder(Witness)
encode = _encoder.encode
decode_item = _items.decode
decode_snapshot = _snapshots.decode
decode_parcel = _parcels.decode
decode_witness = _witnesses.decode
