"""A clock that stands still until it is told."""

from __future__ import annotations


class FakeClock:
    """A clock for engines: call it for whole microseconds; only `advance` moves it.

    `MemoryEngine(clock=FakeClock())` sees no time but this. What is over ends with the next command, or with `tick()`.
    """

    def __init__(self, start: int = 1_700_000_000_000_000) -> None:
        self._now = start

    def __call__(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by so many seconds."""
        if seconds < 0:
            raise ValueError(f"time does not go back: seconds must be at least 0, not {seconds!r}")
        self._now += round(seconds * 1_000_000)
