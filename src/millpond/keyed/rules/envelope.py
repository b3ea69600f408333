"""A job on its way: its envelope, and the bytes in which a store keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millpond.keyed.rules.records import STAMP


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


class TracedEnvelope(Envelope, array_like=True, frozen=True, gc=False):
    """The envelope of a job whose dispatch is traced. It has one more field, which others pass over."""

    trace: Any = None
    """What travels with it: texts by name. Anything else is of no use to us, and does no harm."""


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode
_decode_traced = msgspec.msgpack.Decoder(TracedEnvelope).decode


def stamped(now: int, body: bytes) -> bytes:
    """Return what the store keeps: the time at which a job came, and its envelope."""
    return b"%016d" % now + body


def came(raw: bytes) -> int:
    """Return when a stored job came."""
    return int(raw[:STAMP])


UNREADABLE = Envelope("", "", "", 0, b"")
"""The envelope of a job that cannot be read; it becomes a dead letter, and harms no other."""


def opened(raw: bytes) -> Envelope:
    """Return the envelope of a stored job."""
    try:
        return _decode(memoryview(raw)[STAMP:])
    except msgspec.MsgspecError:
        return UNREADABLE


def trace_of(raw: bytes) -> Mapping[str, str]:
    """Return what travels with a stored job for tracing."""
    try:
        trace = _decode_traced(memoryview(raw)[STAMP:]).trace
    except msgspec.MsgspecError:
        return {}
    if not isinstance(trace, dict):
        return {}
    return {name: text for name, text in trace.items() if isinstance(name, str) and isinstance(text, str)}
