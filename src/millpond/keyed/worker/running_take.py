"""What runs on a worker: each take, and the one table of them all.

A take is jobs of one key, taken together: they are run one after another, then reported.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

from millpond.keyed.jobs import Lost, Resident
from millpond.keyed.rules.records import Outcome, Report, Take


class RunningTake:
    """A take that is being run, under the membership under which it was taken."""

    __slots__ = (
        "done",
        "drained",
        "early",
        "is_begun",
        "is_moved",
        "lost",
        "member",
        "notes",
        "outcomes",
        "progress",
        "resident",
        "running",
        "take",
        "task",
    )

    def __init__(self, take: Take, member: str) -> None:
        self.take = take
        self.member = member
        """The id of that membership."""
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
        """The number of the last message that a resident has handled."""
        self.task: asyncio.Task[Any] | None = None

    @property
    def is_resident(self) -> bool:
        """Whether it is a resident, and not jobs."""
        return self.take.mailbox[0] == "r"

    def stop(self, reason: str, *, again: bool = False) -> None:
        """Ask what runs to stop: a coroutine is cancelled, a function is told. In the loop's thread.

        A coroutine that is cleaning up already is left alone, unless `again`.
        """
        is_first = not self.lost.is_set
        self.lost.set(reason)
        if self.task is not None and self.is_begun and (is_first or again):  # one that never began sees by itself
            self.task.cancel(reason)

    def report(self, how: str = "end", *, delay: int = 0, failures: int = 0, reason: bytes = b"") -> Report:
        """Return a report of this take, of which the outcomes are still to be filled in (`filled`)."""
        take = self.take
        return Report(take.slot, take.mailbox, take.token, 0, how, delay, failures, reason)

    def filled(self, report: Report) -> Report:
        """Return a report with how many jobs are done and the outcomes that were not reported yet."""
        outcomes, self.outcomes = tuple(self.outcomes), []
        slot, mailbox, token, _, how, delay, failures, reason, _, _ = report
        return Report(slot, mailbox, token, self.done, how, delay, failures, reason, outcomes, self.notes)


class RunningTakes:
    """All takes that run on a worker, also those of memberships that are over. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._takes: dict[RunningTake, None] = {}
        self._latest: dict[tuple[str, str], RunningTake] = {}
        """By membership and mailbox: a take that is over for the store may still run beside the next one."""
        self._residents = 0

    def add(self, takes: Iterable[RunningTake]) -> None:
        """Add takes that are about to be run."""
        with self._lock:
            for one in takes:
                self._takes[one] = None
                self._latest[one.member, one.take.mailbox] = one
                self._residents += one.is_resident

    def remove(self, one: RunningTake) -> None:
        """Remove a take that has ended."""
        with self._lock:
            if one in self._takes:
                del self._takes[one]
                self._residents -= one.is_resident
            if self._latest.get((one.member, one.take.mailbox)) is one:
                del self._latest[one.member, one.take.mailbox]

    def find(self, member: str, mailbox: str) -> RunningTake | None:
        """Return the latest take of a mailbox that runs under a membership."""
        return self._latest.get((member, mailbox))

    def under(self, member: str) -> list[RunningTake]:
        """Return what runs under a membership."""
        return [one for one in self.all() if one.member == member]

    def tokens(self, member: str) -> set[int]:
        """Return the tokens of what runs under a membership."""
        return {one.take.token for one in self.all() if one.member == member}

    def all(self) -> list[RunningTake]:
        """Return everything that runs."""
        with self._lock:
            return list(self._takes)

    @property
    def keys(self) -> int:
        """How many takes of jobs run, residents apart."""
        return len(self._takes) - self._residents

    def __contains__(self, one: RunningTake) -> bool:
        return one in self._takes

    def __len__(self) -> int:
        return len(self._takes)
