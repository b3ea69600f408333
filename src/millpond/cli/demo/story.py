"""What happened, in lines for people."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """Something that happened."""

    at: float
    """Seconds since the demo began."""
    text: str
    kind: str = ""
    """`bad` for a kill, `good` for how it was overcome."""


class Story:
    """The lines so far."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._lines: list[Line] = []
        self._lock = threading.Lock()

    def say(self, text: str, kind: str = "") -> None:
        """Add a line."""
        with self._lock:
            self._lines.append(Line(time.monotonic() - self.began, text, kind))

    def lines(self) -> list[Line]:
        """Return all lines, the oldest first."""
        with self._lock:
            return list(self._lines)


def duration(seconds: float) -> str:
    """Return `8 ms`, `0.31 s`, `4.2 s`."""
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"


def count(number: int, noun: str) -> str:
    """Return `1 key`, `7 keys`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
