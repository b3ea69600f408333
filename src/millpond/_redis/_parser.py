"""Calls and answers as bytes, by Python: for where hiredis has no wheel. The same faces as it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final


class Reader:
    """Bytes go in by `feed`, answers come out by `gets`; False when there is no whole one.

    What was read of an answer is kept, so that a large one that comes in many pieces is read once.
    """

    def __init__(self, protocolError: type[Exception], replyError: type[Exception]) -> None:  # noqa: N803
        self._protocol_error, self._reply_error = protocolError, replyError
        self._data = bytearray()
        self._at = 0
        self._open: list[tuple[list[Any], int]] = []
        """Arrays that have begun, the inner ones last: what is in them, and how many there will be."""
        self._length = -1
        """Of the text that has begun; -1 when none has."""

    def feed(self, data: bytes) -> None:
        """Take in bytes."""
        del self._data[: self._at]
        self._at = 0
        self._data += data

    def gets(self) -> Any:
        """Return the next answer."""
        while (value := self._next()) is not _INCOMPLETE:
            while self._open:
                items, number = self._open[-1]
                if value is not _BEGUN:
                    items.append(value)
                if len(items) < number:
                    break
                value = self._open.pop()[0]
            else:
                return value
        return False

    def _next(self) -> Any:
        """Return the next value that is no array, or that one has begun, or that it is not there as a whole."""
        if self._length >= 0:
            return self._text()
        end = self._data.find(b"\r\n", self._at)
        if end < 0:
            return _INCOMPLETE
        kind, value = self._data[self._at : self._at + 1], bytes(self._data[self._at + 1 : end])
        self._at = end + 2
        if kind == b"+":
            return value
        if kind == b"-":
            return self._reply_error(value.decode(errors="replace"))
        if kind == b":":
            return int(value)
        if kind == b"$":
            self._length = int(value)
            return None if self._length < 0 else self._text()
        if kind == b"*":
            number = int(value)
            if number < 0:
                return None
            self._open.append(([], number))
            return _BEGUN
        raise self._protocol_error(f"an answer cannot begin with {bytes(kind)!r}")

    def _text(self) -> Any:
        end = self._at + self._length
        if len(self._data) < end + 2:
            return _INCOMPLETE
        found = bytes(self._data[self._at : end])
        self._at, self._length = end + 2, -1
        return found


_INCOMPLETE: Final = object()
_BEGUN: Final = object()


def packed(args: Sequence[str | bytes | int]) -> bytes:
    """Write a call."""
    parts = [b"*%d\r\n" % len(args)]
    for one in args:
        data = one if isinstance(one, bytes) else str(one).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
