"""How many workers are idle, and how many tasks they have ended."""

from __future__ import annotations

from _thread import LockType
from typing import Protocol

from millpond.local.threads._worker import Runner, Worker


class Workers(Protocol):
    """The workers that are counted."""

    runner: Runner
    count: int
    idle: list[LockType]
    all: set[Worker]


class Counts:
    """Each worker counts its own tasks, without a lock; the counts of those that left are kept here."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._past_ended = self._past_failed = 0

    def add_past(self, ended: int, failed: int) -> None:
        """Count what a worker did that is gone, or a thread that is no worker of this pool."""
        with self._workers.runner.lock:
            self._past_ended += ended
            self._past_failed += failed

    def ended(self) -> int:
        with self._workers.runner.lock:
            return self._past_ended + sum(worker.ended for worker in self._workers.all)

    def failed(self) -> int:
        with self._workers.runner.lock:
            return self._past_failed + sum(worker.failed for worker in self._workers.all)

    def idle(self) -> int:
        return min(len(self._workers.idle) + self.queued_turns(), self._workers.count)

    def queued_turns(self) -> int:
        """Count the workers of a subpool whose turn has not come."""
        if self._workers.runner.parent is None:
            return 0
        with self._workers.runner.lock:
            return sum(worker.is_queued for worker in self._workers.all)
