"""The tasks of a pool that wait, and how each leaves the queue: by its turn, or out of turn.

`task._fn` is a baton: whoever swaps it for None has the task, be it a worker that starts it, somebody who cancels it, a
worker that runs what it waits for, `purge` or `drop_oldest`. The swap is one line, `fn, task._fn = task._fn, None`, and
CPython lets no other thread run between its load and its store (a test races threads for it on every Python).

A task that leaves out of turn stays in the queue as an empty shell, since finding it there would cost O(n). Shells are
counted, skipped by whoever meets one, and swept when they outnumber the rest.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from millpond._events import emit
from millpond.local._task import CANCELLED, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond._events import Observer
    from millpond.local._queues import Line
    from millpond.local._when_full import Bound

SWEEP_AT = 4096
"""Fewer shells than this are never swept."""


class Backlog:
    """What waits in a pool of threads or processes."""

    name: str
    lock: Any
    line: Line
    observer: Observer | None
    bound: Bound | None
    idlers: list[Any]

    def __init__(self) -> None:
        self.shells = 0  # entries of the queue whose task is gone
        self.cancelled = self.cancelled_items = 0
        self.maps: weakref.WeakSet[Any] = weakref.WeakSet()

    # -- what each kind of pool brings ----------------------------------------------------------------------------

    def lines(self) -> list[Line]:
        """Return every queue, the shared one and those of keys."""
        raise NotImplementedError

    def forget(self, task: Task[Any]) -> None:
        """Let go of what belongs to a task with options that has ended."""

    def sweep_soon(self) -> None:
        """Have `sweep` called where nobody else takes (under the lock)."""
        raise NotImplementedError

    def tell_idlers(self) -> None:
        """Wake those who wait for idleness, if it has come."""
        raise NotImplementedError

    # -- leaving out of turn --------------------------------------------------------------------------------------

    def claim(self, task: Task[Any]) -> Callable[..., Any] | None:
        """Atomically take a queued task out of turn and return its call; None when it has started or ended."""
        fn: Callable[..., Any] | None
        fn, task._fn = task._fn, None
        if fn is not None:
            with self.lock:
                self.shells += 1
                if self.shells > SWEEP_AT and self.shells > len(self.line) // 2:
                    self.sweep_soon()
        return fn

    def skip(self) -> None:
        """Note that a shell was met and is out of the queue."""
        with self.lock:
            self.shells -= 1

    def withdraw(self, task: Task[Any]) -> bool:
        """Atomically take a queued task out of turn to cancel it; False when it has started or ended."""
        with self.lock:  # so that whoever else cancels finds it cancelled
            if self.claim(task) is None:
                return False
            task._status = CANCELLED
        self.note_cancelled(task)
        return True

    def note_cancelled(self, task: Task[Any]) -> None:
        """Count a task that leaves unrun, and let somebody in for it."""
        self.forget(task)
        with self.lock:
            self.cancelled += 1
        emit(self.observer, "task_cancelled", self.name)
        if self.bound is not None:
            self.bound.let_in()
        if self.idlers:
            self.tell_idlers()

    def take_all(self) -> list[Task[Any]]:
        """Claim every waiting task; they are the caller's to settle."""
        return [task for line in self.lines() for task, _ in iter(lambda line=line: self._next(line.take), None)]

    def give_up_oldest(self) -> Task[Any] | None:
        """Claim the longest waiting task to cancel it; None when none waits. The place of a map or subpool is none."""
        for line in self.lines():
            places = []
            while (found := self._next(line.oldest)) is not None and found[0].is_place:
                places.append(found)
            for place, fn in reversed(places):
                place._fn = fn
                line.put_back(place)
            if found is not None:
                self.note_cancelled(found[0])
                return found[0]
        return None

    def _next(self, take: Callable[[], Task[Any]]) -> tuple[Task[Any], Any] | None:
        """Claim the next task by its turn, past the shells; None when the queue is empty."""
        while True:
            try:
                task = take()
            except IndexError:
                return None
            fn, task._fn = task._fn, None
            if fn is not None:
                return task, fn
            self.skip()

    def sweep(self) -> None:
        """Take the shells out of the queue, where nobody else takes meanwhile."""
        alive: list[Task[Any]] = []
        for _ in range(len(self.line)):
            try:
                task = self.line.take()
            except IndexError:
                break
            if task._fn is None:
                self.skip()
            else:
                alive.append(task)
        for task in reversed(alive):
            self.line.put_back(task)

    def waiting(self) -> int:
        """Count the tasks that wait."""
        return max(0, sum(map(len, self.lines())) - self.shells)
