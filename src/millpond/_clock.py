"""Time, as the pools see it.

Liveness never depends on the wall clock, which people and daemons step. `elapsed()` runs on during suspend and never
goes back: a deadline that a process keeps for itself is counted on it. `EngineTime` looks like the time of day, in
whole microseconds, but is driven by `elapsed()`: it serves engines that live inside one process.
"""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def elapsed() -> float:
        """Return seconds on the clock of this machine that runs on during suspend and is never stepped."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # macOS, Windows

    def elapsed() -> float:
        """Return seconds on the clock of this machine that is never stepped."""
        return time.monotonic()


class EngineTime:
    """A clock that starts at the time of day and goes on by `elapsed()`."""

    def __init__(self) -> None:
        self._offset = time.time() - elapsed()

    def __call__(self) -> int:
        return int((elapsed() + self._offset) * 1_000_000)
