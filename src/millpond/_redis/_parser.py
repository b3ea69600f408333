"""Calls and answers as bytes, by Python: for where hiredis has no wheel. The same faces as it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class _Incomplete(Exception):
    """More bytes are needed."""


class Reader:
    """Bytes go in by `feed`, answers come out by `gets`; False when there is no whole one."""

    def __init__(self, protocolError: type[Exception], replyError: type[Exception]) -> None:  # noqa: N803
        self._protocol_error, self._reply_error = protocolError, replyError
        self._data = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Take in bytes."""
        self._data += data

    def gets(self) -> Any:
        """Return the next answer."""
        self._at = 0
        try:
            answer = self._answer()
        except _Incomplete:
            return False
        del self._data[: self._at]
        return answer

    def _answer(self) -> Any:
        line = self._line()
        kind, value = line[:1], line[1:]
        if kind == b"+":
            return value
        if kind == b"-":
            return self._reply_error(value.decode(errors="replace"))
        if kind == b":":
            return int(value)
        if kind == b"$":
            return None if value == b"-1" else self._exactly(int(value))
        if kind == b"*":
            return None if value == b"-1" else [self._answer() for _ in range(int(value))]
        raise self._protocol_error(f"an answer cannot begin with {kind!r}")

    def _line(self) -> bytes:
        end = self._data.find(b"\r\n", self._at)
        if end < 0:
            raise _Incomplete
        line = bytes(self._data[self._at : end])
        self._at = end + 2
        return line

    def _exactly(self, number: int) -> bytes:
        if len(self._data) < self._at + number + 2:
            raise _Incomplete
        found = bytes(self._data[self._at : self._at + number])
        self._at += number + 2
        return found


def packed(args: Sequence[str | bytes | int]) -> bytes:
    """Write a call."""
    parts = [b"*%d\r\n" % len(args)]
    for one in args:
        data = one if isinstance(one, bytes) else str(one).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)
