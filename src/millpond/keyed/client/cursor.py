"""Where a page of answers goes on, as people carry it: text that says nothing to them."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

MOST = 1_000_000
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def written(what: str, place: tuple[Any, ...] | str | None) -> str:
    """Return where to go on as text; empty: nowhere."""
    return base64.urlsafe_b64encode(_encode((what, place))).decode().rstrip("=") if place else ""


def read(what: str, text: str) -> Any:
    """Return what was written; refuse what was not, or for something else."""
    if not isinstance(text, str):
        raise TypeError(f"after= is the `next` of a page, which is text, not {text!r}")
    try:
        kind, place = _decode(base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)))
    except (ValueError, TypeError, msgspec.MsgspecError):
        kind, place = None, None
    if kind != what:
        raise ValueError(f"after= is the `next` of an earlier page of {what}, not {text!r}")
    return place


def check_limit(limit: Any) -> int | None:
    """Return how many are wanted; None: all."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= MOST):
        raise ValueError(f"limit= is a number from 1 to {MOST}, or None for all, not {limit!r}")
    return limit
