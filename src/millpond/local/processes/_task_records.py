"""What is kept for single tasks while they are in a process pool, and the counts of those that have ended.

Functions travel to the workers as they are, so nothing can be wrapped around them, as in a thread pool: a task's place
in a bounded pool, its key, its token and its tries are kept here, and released by `forget` when it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from millpond.local._backlog import Backlog
from millpond.local._queues import Queue
from millpond.local._task import OptionTask, Task

EndRunning = Callable[[Task[Any]], None]


class TokenLink:
    """What a token calls when it is cancelled: a queued task is cancelled, a running one ended with its process."""

    def __init__(self, task: OptionTask[Any], end_running: EndRunning) -> None:
        self._task: OptionTask[Any] | None = task
        self._end_running = end_running

    def cancel(self) -> None:
        task = self._task
        if task is not None and not task.cancel():
            self._end_running(task)

    def unlink(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.token._unwatch(self)


class TaskRecords:
    """What is kept for the tasks of a pool; `leave` gives back the places of so many in a bounded one."""

    def __init__(
        self, lock: threading.RLock, backlog: Backlog, end_running: EndRunning, leave: Callable[[int], None]
    ) -> None:
        self._backlog = backlog
        self._end_running = end_running
        self._leave = leave
        self.completed = self.failed = 0
        self.reset(lock)

    def reset(self, lock: threading.RLock) -> None:
        """Start without tasks, as in a forked child; the counts go on."""
        self._lock = lock
        self.admitted: set[Task[Any]] = set()  # those that have a place in a bounded pool
        self.tries: dict[Hashable, int] = {}  # how often calls were tried again whose worker died

    def hold_place(self, task: Task[Any], _: Callable[[Any], None]) -> None:
        """Note that the place of an admitted task is to be given back once, when it has ended or was cancelled."""
        self.admitted.add(task)

    def leave_places(self, tasks: Iterable[Task[Any]]) -> None:
        """Give back the places of tasks that have ended, which nobody but the I/O thread has."""
        held = self.admitted.intersection(tasks)
        self.admitted -= held
        self._leave(len(held))

    def watch_token(self, task: OptionTask[Any]) -> None:
        task.link = TokenLink(task, self._end_running)
        task.token._watch(task.link)

    def queue_of(self, task: Task[Any]) -> Queue:
        queue: Queue = self._backlog.queue
        if type(task) is OptionTask and task.queue is not None:
            queue = task.queue.keyed
        return queue

    def forget(self, task: Task[Any]) -> bool:
        """Release what is kept for a task that has ended or will not run; a second time there is nothing left.

        Returns whether it had a place in a bounded pool.
        """
        had_place = task in self.admitted
        if had_place:
            try:
                self.admitted.remove(task)
            except KeyError:
                pass  # somebody else gives back its place just now
            else:
                self._leave(1)
        if self.tries:
            self.tries.pop(task, None)
        if type(task) is OptionTask:
            queues = self._backlog.worker_queues
            if queues is not None and queues.note_ended(task):
                with self._lock:
                    queues.forget(task.key)
            if task.link is not None:
                task.link.unlink()
        return had_place

    def count_ended(self, number: int, failed: int) -> None:
        with self._lock:
            self.completed += number
            self.failed += failed
