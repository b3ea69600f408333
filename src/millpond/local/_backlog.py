"""The tasks of a pool that wait, and how each leaves its queue: by its turn, or out of turn.

Whoever swaps `task._fn` for None has the task, be it a worker that starts it, somebody who cancels it, a worker that
runs what it waits for, `purge` or `drop_oldest`. The swap is `claim` of `_atomic.py`, which tells why it is atomic (a
test races threads for it on every Python).

A task that leaves out of turn stays in the queue as an entry without a function, since finding it there would cost
O(n). Such entries are counted (`removed`), skipped by whoever meets one, and swept out when they outnumber the rest.

How long tasks wait is measured with one more such entry: `probe`, called by `statistics()`, sends it through the queue
and notes when somebody skips it. So a plain task carries no time stamp, and a pool that nobody watches measures
nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from millpond._atomic import claim, lock_of
from millpond._events import Observer, emit
from millpond.local._calls import release_all
from millpond.local._queues import Fifo, Lifo, Queue
from millpond.local._task import OptionTask, Task
from millpond.local._watchers import CANCELLED
from millpond.local._worker_queues import WorkerQueues

WITHDRAWN = object()
"""The value of a task that was taken back: its entry, if there is one, is not counted."""
SWEEP_AT = 4096
"""Fewer removed entries than this are never swept out."""


class Host(Protocol):
    """The runner of a pool, as far as its backlog needs it."""

    name: str
    lock: threading.RLock
    on_event: Observer | None

    def forget(self, task: Task[Any]) -> bool: ...  # release what is kept for a task that will not run; was it a place?
    def has_left(self) -> None: ...  # a task has left the backlog unrun: somebody may wait for that
    def sweep_soon(self) -> None: ...  # call `backlog.sweep()` where nobody else takes meanwhile (under the lock)


class Backlog:
    """What waits in a pool of threads or processes."""

    def __init__(self, host: Host, make_queue: Callable[[], Queue]) -> None:
        self._host = host
        self.make_queue = make_queue
        self.worker_queues: WorkerQueues | None = None
        self.cancelled = 0
        self.reset()

    def reset(self) -> None:
        self.queue = self.make_queue()
        self.put = self.queue.put
        self.removed = 0  # entries of the shared queue whose task is gone
        self._removed_keyed = 0  # the same, of the queues of single workers
        self._delay: float | None = None
        self._probe: Task[None] | None = None
        self._probed_at = 0.0

    def __len__(self) -> int:
        if self.worker_queues is None:
            return self.shared()
        return max(0, sum(map(len, self.queues())) - self.removed - self._removed_keyed)

    def shared(self) -> int:
        return max(0, len(self.queue) - self.removed)

    def queues(self) -> list[Queue]:
        """Return every queue: those of single workers, and the shared one."""
        return [self.queue] if self.worker_queues is None else [*self.worker_queues.queues(), self.queue]

    def take_next(self, take: Callable[[], Task[Any]]) -> tuple[Task[Any], Callable[..., Any]] | None:
        """Claim the next task of a queue; None when it is empty."""
        while True:
            try:
                task = take()
            except IndexError:
                return None
            fn = claim(task)
            if fn is not None:
                return task, fn
            self.skip(task)

    def skip(self, task: Task[Any]) -> None:
        """Note that an entry without a function has left its queue."""
        with self._host.lock:
            if getattr(task, "_value", None) is not WITHDRAWN:
                self._count_removed(task, -1)
            if task is self._probe:
                self._delay = time.monotonic() - self._probed_at
                self._probe = None

    # -- leaving out of turn ------------------------------------------------------------------------------------------

    def claim(self, task: Task[Any]) -> Callable[..., Any] | None:
        """Atomically take a queued task out of turn and return its call; None when it has started or ended."""
        fn: Callable[..., Any] | None = claim(task)
        if fn is not None:
            self._note_removed(task)
        return fn

    def _note_removed(self, task: Task[Any]) -> None:
        with self._host.lock:
            self._count_removed(task, 1)
            if self._is_sweep_due():
                self._host.sweep_soon()

    def _count_removed(self, task: Task[Any], number: int) -> None:
        if type(task) is OptionTask and task.key is not None:
            self._removed_keyed += number
        else:
            self.removed += number

    def cancel(self, task: Task[Any]) -> bool:
        """Atomically take a queued task out of turn to cancel it; False when it has started or ended."""
        with lock_of(task):  # so that whoever else cancels it finds it cancelled
            fn = claim(task)
            if fn is None:
                return False
            task._status = CANCELLED
        self._note_removed(task)
        self.note_cancelled(task, fn)
        return True

    def withdraw(self, tasks: Iterable[Task[Any]]) -> list[Task[Any]]:
        """Take back tasks that may be queued or not, and return those that have neither started nor ended."""
        taken = [task for task in tasks if self._claim_uncounted(task)]
        with self._host.lock:
            queued = self._entries() if taken else set()
            for task in taken:
                if task in queued:  # so it is still to be skipped
                    task._value = None
                    self._count_removed(task, 1)
        return taken

    def _claim_uncounted(self, task: Task[Any]) -> bool:
        with lock_of(task):
            fn = claim(task)
            if fn is not None:
                task._value = WITHDRAWN  # at once: a worker may have its entry in its hands
        return fn is not None

    def _entries(self) -> set[Task[Any]]:
        while True:
            with contextlib.suppress(RuntimeError):  # without the GIL others may change a queue meanwhile
                return {task for queue in self.queues() for task in list(queue)}

    def cancel_new(self, task: Task[Any]) -> bool:
        """Cancel a task that is not queued yet; False when it was cancelled, or has failed."""
        fn = claim(task)
        if fn is not None:
            self.note_cancelled(task, fn)
            task._settle(CANCELLED, None)
        return fn is not None

    def cancel_all(self) -> int:
        """Cancel the tasks that wait; return how many. The places of maps and subpools end, and are not counted."""
        number = 0
        for task, fn in self.take_all():
            if not task.is_place:
                self.note_cancelled(task, fn)
                number += 1
            task._settle(CANCELLED, None)
        return number

    def note_cancelled(self, task: Task[Any], fn: Callable[..., Any] | None) -> None:
        """Count a task that does not run, and release what was kept for it."""
        host = self._host
        release_all(fn)
        host.forget(task)
        with host.lock:
            self.cancelled += 1
        emit(host.on_event, "task_cancelled", host.name)
        host.has_left()

    def take_all(self) -> list[tuple[Task[Any], Callable[..., Any]]]:
        """Claim everything that waits; it is the caller's to settle."""
        taken = []
        for queue in self.queues():
            while (found := self.take_next(queue.take)) is not None:
                taken.append(found)
        return taken

    def drop_oldest(self) -> bool:
        """Cancel the task that has waited longest; False when none waits."""
        for queue in sorted(self.queues(), key=_oldest_number):
            places = []
            while (found := self.take_next(queue.oldest)) is not None and found[0].is_place:
                places.append(found)
            for place, fn in reversed(places):
                place._fn = fn
                queue.put_back(place)
            if found is not None:
                self.note_cancelled(*found)
                found[0]._settle(CANCELLED, None)
                return True
        return False

    def _is_sweep_due(self) -> bool:
        removed = self.removed + self._removed_keyed
        return removed > SWEEP_AT and removed > sum(map(len, self.queues())) // 2

    def sweep_if_due(self) -> None:
        if self._is_sweep_due():
            self.sweep()

    def sweep(self) -> None:
        """Take the entries without a function out of the queues, where nobody else takes meanwhile."""
        for queue in self.queues():
            alive: list[Task[Any]] = []
            with contextlib.suppress(IndexError):
                for _ in range(len(queue)):
                    task = queue.take()
                    if task._fn is None:
                        self.skip(task)
                    else:
                        alive.append(task)
            for task in reversed(alive):
                queue.put_back(task)

    # -- measuring ----------------------------------------------------------------------------------------------------

    def probe(self) -> float | None:
        """Return how long a task waits before it starts, in seconds, as last measured; None before the first time.

        Sends a probe through the queue if none is under way. While one is, and has waited longer than the last, its
        time so far is the answer.
        """
        with self._host.lock:
            now = time.monotonic()
            if not len(self):
                self._delay = 0.0
            elif self._probe is None:
                self._probe, self._probed_at = Task(), now
                self._probe._fn = None
                self.removed += 1
                queues = self.worker_queues
                (queues.shortest().shared if queues is not None and queues.dedicated else self.queue).put(self._probe)
            return self._delay if self._probe is None else max(self._delay or 0.0, now - self._probed_at)


def _oldest_number(queue: Queue) -> float:
    """Return the number of the oldest task of a queue, as `Admission` gave it; those with priorities come last."""
    if not isinstance(queue, Fifo | Lifo):
        return math.inf
    with contextlib.suppress(RuntimeError):  # without the GIL others may change the queue meanwhile
        first = list(itertools.islice(queue, 64))  # in one step
        return next((task._value for task in first if task._fn is not None and not task.is_place), math.inf)
    return math.inf
