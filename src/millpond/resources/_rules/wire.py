"""Changes and states as bytes: MessagePack, by msgspec.

An `Entry` is one command's worth of changes: when, by which session, what. A log is a sequence of entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millpond.resources._rules.changes import AnyChange
from millpond.resources._rules.image import Image
from millpond.resources._rules.state import State


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one command changed, and when (microseconds of the engine's clock)."""

    at: int
    by: str
    changes: list[AnyChange]


_encoder = msgspec.msgpack.Encoder()
_entries = msgspec.msgpack.Decoder(list[Entry])
_image = msgspec.msgpack.Decoder(Image)


def pack(entries: Sequence[Entry]) -> bytes:
    """Write entries."""
    return _encoder.encode(entries)


def unpack(data: bytes) -> list[Entry]:
    """Read entries."""
    return _entries.decode(data)


def freeze(state: State) -> bytes:
    """Write a whole state."""
    return _encoder.encode(state.image())


def thaw(data: bytes) -> State:
    """Read a whole state."""
    return State.load(_image.decode(data))
