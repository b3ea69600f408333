"""What waits for a place of a limiter, and tasks that wait for another one of their key.

An entry that was cancelled, or started out of turn, stays in the queue until its turn comes and is skipped then; when
there are many of these, the queue is made anew without them.

How long entries wait is measured as in `millpond.local._backlog`, with an entry that is there only to be skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from millpond.local._queues import Fifo, Queue
from millpond.local.coroutines._task import DONE, QUEUED, AsyncTask


@dataclass(eq=False)
class Probe:
    """An entry that measures how long it waits."""

    queued_at: float
    priority = 0
    _stage = DONE


class AsyncBacklog:
    """A queue of entries, some of which are no longer there."""

    def __init__(self, make_queue: Callable[[], Queue]) -> None:
        self.make_queue = make_queue
        self.queue: Any = make_queue()
        self.is_fifo = isinstance(self.queue, Fifo)
        self.removed = 0
        self._delay: float | None = None
        self._probe: Probe | None = None

    def skip(self, entry: Any) -> None:
        self.removed -= 1
        if self._probe is not None and entry is self._probe:
            self._delay = time.monotonic() - self._probe.queued_at
            self._probe = None

    def count_removed(self) -> None:
        """Note that an entry in the queue is to be skipped; make the queue anew when there are many."""
        self.removed += 1
        if self.removed > 64 and self.removed > len(self.queue) // 2:
            entries = [entry for entry in self.queue if entry._stage == QUEUED]
            self.queue = self.make_queue()
            self.queue.extend(entries)
            self.removed = 0
            self._probe = None

    def tasks(self) -> list[AsyncTask[Any]]:
        return [entry for entry in self.queue if isinstance(entry, AsyncTask) and entry._stage == QUEUED]

    def take_oldest(self) -> AsyncTask[Any] | None:
        """Take out the task that `when_full="drop_oldest"` drops, and note it as removed: it is to be cancelled."""
        others = []
        oldest: AsyncTask[Any] | None = None
        with suppress(IndexError):
            while oldest is None:
                entry = self.queue.oldest()
                if isinstance(entry, AsyncTask):
                    self.removed -= 1
                    oldest = entry if entry._stage == QUEUED else None
                else:
                    others.append(entry)  # the worker of a map is not a task of the user's
        for entry in reversed(others):
            self.queue.put_back(entry)
        return oldest

    def delay(self, loop: asyncio.AbstractEventLoop | None) -> float | None:
        """Return how long an entry waits, in seconds, as last measured, and have it measured again.

        Another thread than that of `loop` has it done soon.
        """
        if loop is None or not loop.is_running() or asyncio._get_running_loop() is loop:
            self._send_probe()
        else:
            with suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(self._send_probe)
        probe = self._probe
        return self._delay if probe is None else max(self._delay or 0.0, time.monotonic() - probe.queued_at)

    def _send_probe(self) -> None:
        if len(self.queue) <= self.removed:
            self._delay = 0.0
        elif self._probe is None:
            self._probe = Probe(time.monotonic())
            self.removed += 1
            self.queue.put(self._probe)


class Keys:
    """Tasks with a key: the first of each key is queued or runs, the others wait here for it to end."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, deque[AsyncTask[Any]]] = {}

    def add(self, task: AsyncTask[Any]) -> bool:
        """Add a task; return whether it is the first of its key, and so may be queued."""
        tasks = self._tasks.setdefault(task.key, deque())
        tasks.append(task)
        return len(tasks) == 1

    def first(self, task: Any) -> Any:
        """Return the first task of the key of `task`: itself when nothing is before it."""
        return task if task.key is None else self._tasks[task.key][0]

    def remove(self, task: Any) -> AsyncTask[Any] | None:
        """Remove a task; return the one that may be queued now."""
        tasks: deque[AsyncTask[Any]] = self._tasks[task.key]
        if self.first(task) is not task:
            tasks.remove(task)
            return None
        tasks.popleft()
        if tasks:
            return tasks[0]
        del self._tasks[task.key]
        return None

    def waiting(self) -> list[AsyncTask[Any]]:
        """Return the tasks that are not the first of their key."""
        return [task for tasks in self._tasks.values() for task in list(tasks)[1:]]
