"""A limit on calls whose library has none: a server that stands still would hold up its caller for ever."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

from millpond._clock import elapsed


class Watchdog:
    """Shut down the connection of a call that takes too long, so that the call fails. One thread, when needed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._descriptor = -1
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def expect(self, descriptor: int, seconds: float) -> None:
        """Watch over a call on this connection from now on."""
        with self._changed:
            self._descriptor, self._deadline = descriptor, elapsed() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="millpond-watchdog", daemon=True)
                self._thread.start()

    def forget(self) -> None:
        """Take note that the call is over."""
        with self._changed:
            self._deadline = None

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._is_closed:
                self._changed.wait(0.5)
                if self._deadline is not None and elapsed() > self._deadline:
                    self._deadline = None
                    _shut_down(self._descriptor)


def _shut_down(descriptor: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.shutdown(socket.SHUT_RDWR)
