"""A job on its way: its envelope, and the bytes in which a store keeps it."""

from __future__ import annotations

import msgspec

from millpond.keyed._records import STAMP


class Envelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What everybody needs to know of a job; the order of the fields is part of the format."""

    id: str
    name: str
    reply: str
    """The producer who may wait for the outcome."""
    keep: int
    """How long the outcome is kept, in microseconds; 0: it is not."""
    payload: bytes
    """The arguments."""


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


def stamped(now: int, body: bytes) -> bytes:
    """Return what the store keeps: the time at which a job came, and its envelope."""
    return b"%016d" % now + body


def came(raw: bytes) -> int:
    """Return when a stored job came."""
    return int(raw[:STAMP])


UNREADABLE = Envelope("", "", "", 0, b"")
"""The envelope of a job that cannot be read; it is buried, and harms no other."""


def opened(raw: bytes) -> Envelope:
    """Return the envelope of a stored job."""
    try:
        return _decode(memoryview(raw)[STAMP:])
    except msgspec.MsgspecError:
        return UNREADABLE
