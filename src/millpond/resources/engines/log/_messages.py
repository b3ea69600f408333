"""What a process and its companion say to each other, over a socket of this machine.

A frame is four bytes of length and a MessagePack list of messages. Calls carry numbers that grow; each is answered once
under its number. After a new connection everything that was not answered is sent again under its old number: the log
knows the numbers, so a call that is sent twice is done once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from millpond.resources._questions import Standing
from millpond.resources._rules.commands import Command, Reply
from millpond.resources._rules.wire import Entry
from millpond.resources.engines.log._log import Witness

PROTOCOL: Final = 2
"""Part of the name under which processes and companions find each other."""


class Message(Struct, frozen=True, array_like=True, gc=False):
    """The base of all messages."""


# --- from a process to its companion ---------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=1):
    """Begin, or begin again: this is the session, its process, and the pools that it has used."""

    session: str
    process: Witness
    pools: tuple[str, ...]


class Apply(Message, frozen=True, tag=2):
    """Run a command. All calls up to `acked` were answered."""

    number: int
    acked: int
    pool: str
    command: Command


class Look(Message, frozen=True, tag=3):
    """Ask how requests of the session stand; with `strays`, also which others it has."""

    number: int
    pool: str
    ids: tuple[str, ...]
    strays: bool


class GetImage(Message, frozen=True, tag=4):
    """Send the pool as it is now, for a question that only the asker understands."""

    number: int
    pool: str


class Watch(Message, frozen=True, tag=5):
    """Subscribe to what happens in a pool: all of it, or what concerns the session. Answered when it has begun."""

    number: int
    pool: str
    everything: bool


class GetPools(Message, frozen=True, tag=6):
    """Ask for the names of all pools."""

    number: int


class Drop(Message, frozen=True, tag=7):
    """Delete a pool."""

    number: int
    pool: str


class Bye(Message, frozen=True, tag=8):
    """The session is over: end what it holds, then answer."""

    number: int


class Ping(Message, frozen=True, tag=9):
    """Answer at once."""

    number: int


Ask: TypeAlias = Hello | Apply | Look | GetImage | Watch | GetPools | Drop | Bye | Ping


# --- from a companion to its processes -------------------------------------------------------------------------------


class News(Message, frozen=True, tag=1):
    """Entries of a pool, in order."""

    pool: str
    entries: tuple[Entry, ...]


class Missed(Message, frozen=True, tag=2):
    """Something may have happened in a pool that was not told: look."""

    pool: str


class Replied(Message, frozen=True, tag=3):
    """The reply to a command."""

    number: int
    reply: Reply


class Standings(Message, frozen=True, tag=4):
    """How requests stand."""

    number: int
    standings: tuple[Standing, ...]


class PoolImage(Message, frozen=True, tag=5):
    """A pool as it is: its image and its recent entries, as `_rules.wire` writes them."""

    number: int
    version: int
    now: int
    image: bytes
    history: bytes


class Names(Message, frozen=True, tag=6):
    """Names of pools; also the plain "done" of what has no other answer."""

    number: int
    names: tuple[str, ...]


class Failed(Message, frozen=True, tag=7):
    """A call could not be carried out; `is_away`: the store does not answer, and it may have taken effect."""

    number: int
    text: str
    is_away: bool


class Welcome(Message, frozen=True, tag=8):
    """The answer to a hello: which process the companion is."""

    pid: int
    start: int


Tell: TypeAlias = News | Missed | Replied | Standings | PoolImage | Names | Failed | Welcome

_encoder = msgspec.msgpack.Encoder()
_asks = msgspec.msgpack.Decoder(list[Ask])
_tells = msgspec.msgpack.Decoder(list[Tell])
decode_asks = _asks.decode
decode_tells = _tells.decode
_length = struct.Struct("!I")


def frame(messages: Sequence[Message]) -> bytes:
    """Write messages as one frame."""
    body = _encoder.encode(messages)
    return _length.pack(len(body)) + body


class Frames:
    """Bytes that come in, cut into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take in bytes; return the frames that are complete."""
        self._data += data
        found: list[bytes] = []
        start, end = 0, len(self._data)
        while end - start >= 4:
            (size,) = _length.unpack_from(self._data, start)
            if end - start - 4 < size:
                break
            found.append(bytes(self._data[start + 4 : start + 4 + size]))
            start += 4 + size
        if start:
            del self._data[:start]
        return found
