"""Single keys of a terminal, without waiting for a line. The terminal is as it was afterwards, however it ends."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator


class Keyboard:
    """Reads keys; reads none where stdin is no terminal."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[Keyboard]:
        """Take keys as they come; Ctrl-C stays a signal."""
        try:
            descriptor = sys.stdin.fileno()
            before = termios.tcgetattr(descriptor)
        except (AttributeError, OSError, ValueError, termios.error):  # closed, a file, or a pipe
            yield self
            return
        tty.setcbreak(descriptor)
        self._descriptor = descriptor
        try:
            yield self
        finally:
            self._descriptor = None
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    def keys(self, seconds: float) -> str:
        """Return the keys that were pressed within so many seconds, as soon as there are some."""
        if self._descriptor is None:
            select.select([], [], [], seconds)
            return ""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return ""
        typed = os.read(self._descriptor, 64)
        if not typed:  # the terminal is gone
            raise EOFError
        return "" if typed.startswith(b"\x1b") else typed.decode(errors="ignore")
