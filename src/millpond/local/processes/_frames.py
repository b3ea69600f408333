"""Messages between a process pool and its workers: what goes over the socket, and how it is cut into frames.

A frame is its length (8 bytes) and then its body. To the worker the body is a batch: the number of its first call, the
count of its calls, and a pickle. From the worker it is a pickled tuple that starts with one of the words below. Both
sides read with an `Inbox`, which never asks for more than has come, so it serves blocking and non-blocking sockets.

Loaded in every worker process, so it imports next to nothing.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

LENGTH = struct.Struct("<Q")
BATCH = struct.Struct("<QQ")  # how a batch begins: the number of its first call, and how many there are

READY, BROKEN, REPLY = 0, 1, 2
"""The words of a worker: it is ready for work; its initializer failed; here are outcomes."""

ROOM = 1 << 16  # bytes read at once; a longer frame gets a buffer of its own


def frame(body: bytes, head: bytes = b"") -> list[bytes]:
    """Return what to send for a message that starts with `head`: in one piece, unless it is too long to be copied."""
    start = LENGTH.pack(len(head) + len(body)) + head
    return [start + body] if len(body) < ROOM else [start, body]


class Inbox:
    def __init__(self) -> None:
        self._view = memoryview(bytearray(ROOM))
        self._have = 0
        self._long: memoryview | None = None  # a frame that does not fit into the buffer
        self._long_have = 0

    def receive(self, sock: socket.socket) -> list[bytes | memoryview] | None:
        """Read once; return the frames that are complete now, or None at the end of the stream."""
        long = self._long
        number = sock.recv_into(self._view[self._have :] if long is None else long[self._long_have :])
        if not number:
            return None
        if long is None:
            self._have += number
            return self._cut()
        self._long_have += number
        if self._long_have < len(long):
            return []
        self._long = None
        return [long]

    def _cut(self) -> list[bytes | memoryview]:
        frames: list[bytes | memoryview] = []
        view, have, at = self._view, self._have, 0
        while have - at >= 8:
            (length,) = LENGTH.unpack_from(view, at)
            start, end = at + 8, at + 8 + length
            if end > have:
                if length > ROOM - 8:
                    self._long = memoryview(bytearray(length))
                    self._long[: have - start] = view[start:have]
                    self._long_have = have - start
                    at = have
                break
            frames.append(bytes(view[start:end]))
            at = end
        if at and at < have:
            rest = bytes(view[at:have])
            view[: len(rest)] = rest
        self._have = have - at
        return frames
