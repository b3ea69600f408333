"""Jobs of one key, taken together: a worker runs them one after another, then reports."""

from __future__ import annotations

import asyncio
from typing import Any

from millpond.keyed.jobs import Lost, Resident
from millpond.keyed.rules.records import Outcome, Take


class RunningTake:
    """A take that is being run."""

    __slots__ = (
        "done",
        "drained",
        "early",
        "is_begun",
        "is_moved",
        "lost",
        "notes",
        "outcomes",
        "progress",
        "resident",
        "running",
        "take",
        "task",
    )

    def __init__(self, take: Take) -> None:
        self.take = take
        self.done = 0
        self.outcomes: list[Outcome] = []
        self.lost = Lost()
        self.is_moved = False
        """Its slot is another's now: nothing more of it is begun here."""
        self.drained: asyncio.TimerHandle | None = None
        """What stops it when its time to end is over."""
        self.running = ""
        """The id of the job that runs."""
        self.progress: Outcome | None = None
        """How far the job is that runs, not told yet."""
        self.resident: Resident | None = None
        self.early: list[tuple[int, bytes]] = []
        """Messages to a resident that came before it began."""
        self.is_begun = False
        self.notes = 0
        self.task: asyncio.Task[Any] | None = None

    def stop(self, reason: str, *, again: bool = False) -> None:
        """Ask what runs to stop: a coroutine is cancelled, a function is told. In the loop's thread.

        A coroutine that is cleaning up already is left alone, unless `again`.
        """
        is_first = not self.lost.is_set
        self.lost.set(reason)
        if self.task is not None and self.is_begun and (is_first or again):  # one that never began sees by itself
            self.task.cancel(reason)
