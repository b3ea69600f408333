"""The tasks of a process pool that wait, and how one leaves the line out of turn.

`submit` puts, the I/O thread takes, neither with a lock. A task that is cancelled is not searched for in the line,
which would cost O(n): it becomes a ghost, and is left out when its turn comes. `withdraw` writes the ghost and then
reads `task._fn`; who takes clears `task._fn` and then reads `ghosts`. When both see each other, the lock decides.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from millpond._events import tell
from millpond.local._process_map import Driver
from millpond.local._process_seats import Seats
from millpond.local._process_task import ProcessTask
from millpond.local._task import CANCELLED, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from millpond._events import Observer
    from millpond.local._queues import Line
    from millpond.local._rejection import Bound

SWEEP_AT = 4096
"""Ghosts below this number are never swept."""


class Backlog:
    """The lines of a process pool: the shared one, and those of its seats."""

    def __init__(self, *, name: str, size: int, make_line: Callable[[], Line], observer: Observer | None) -> None:
        self.name = name
        self.size = size
        self.observer = observer
        self.make_line = make_line
        self.bound: Bound | None = None
        self.cancelled = self.cancelled_items = 0
        self.maps: weakref.WeakSet[Any] = weakref.WeakSet()
        self._empty()

    def _empty(self) -> None:
        self.lock = threading.RLock()
        self.line = self.make_line()
        self.put = self.line.put
        self.seats = Seats(self.size)
        self.ghosts: set[Task[Any]] = set()
        self.tries: dict[Hashable, int] = {}

    def order(self, call: Callable[[], object]) -> None:
        """Have the I/O thread call this soon, if there is one."""
        raise NotImplementedError

    def tell_idlers(self) -> None:
        """Wake those who wait for idleness, if it has come."""
        raise NotImplementedError

    def line_of(self, task: Task[Any]) -> Line:
        """Return the line in which a task waits."""
        key = getattr(task, "key", None)
        return self.line if key is None else self.seats.line_of(key)

    def forget(self, task: Task[Any], *, was_placed: bool = True) -> None:
        """Let go of what belongs to a task with options that has ended."""
        if self.tries:
            self.tries.pop(task, None)
        if type(task) is ProcessTask:
            if task.key is not None and was_placed:
                with self.lock:
                    self.seats.settle(task.key)
            if task.switch is not None:
                task.switch.disarm()

    def claim(self, task: Task[Any]) -> bool:
        """Atomically take a task out of turn; False when it has started or ended."""
        with self.lock:
            if task._fn is None:
                return False
            self.ghosts.add(task)
            if task._fn is None:  # the foreman was quicker by a hair
                self.ghosts.discard(task)
                return False
            if len(self.ghosts) > SWEEP_AT and len(self.ghosts) > len(self.line) // 2:
                self.order(self.sweep)
            return True

    def withdraw(self, task: Task[Any]) -> bool:
        """Atomically take a task out of line to cancel it; False when it has started or ended."""
        if not self.claim(task):
            return False
        self.note_cancelled(task)
        return True

    def note_cancelled(self, task: Task[Any]) -> None:
        """Count a task that leaves the line unrun, and let somebody in for it."""
        self.forget(task)
        with self.lock:
            self.cancelled += 1
        tell(self.observer, "task_cancelled", self.name)
        if self.bound is not None:
            self.bound.let_in()
        self.tell_idlers()

    def lay(self, task: Task[Any]) -> bool:
        """Tell whether a task taken from the line is a ghost, and forget it then."""
        with self.lock:
            if task in self.ghosts:
                self.ghosts.discard(task)
                return True
            return False

    def sweep(self) -> None:
        """Take the ghosts out of the line: for the foreman, who alone takes."""
        if len(self.ghosts) <= SWEEP_AT:
            return
        alive = []
        for _ in range(len(self.line)):
            try:
                task = self.line.take()
            except IndexError:
                break
            if not self.lay(task):
                alive.append(task)
        for task in reversed(alive):
            self.line.put_back(task)

    def _lines(self) -> list[Line]:
        with self.lock:
            return [*self.seats.lines(), self.line]

    def take_all(self) -> list[Task[Any]]:
        """Take every waiting task out of line, ghosts laid; they are the caller's to settle."""
        taken: list[Task[Any]] = []
        for line in self._lines():
            while True:
                try:
                    task = line.take()
                except IndexError:
                    break
                task._fn = None
                if not (self.ghosts and self.lay(task)):
                    taken.append(task)
        return taken

    def give_up_oldest(self) -> Task[Any] | None:
        """Take the longest waiting task out of line to cancel it; None when none waits (under the lock)."""
        maps: list[Task[Any]] = []
        try:
            for line in self._lines():
                while True:
                    try:
                        task = line.oldest()
                    except IndexError:
                        break
                    if type(task) is Driver:
                        maps.append(task)
                        continue
                    task._fn = None
                    if not (self.ghosts and self.lay(task)):
                        self.note_cancelled(task)
                        return task
            return None
        finally:
            for driver in reversed(maps):
                self.line.put_back(driver)

    def purge(self) -> int:
        """Cancel everything in line; return how many."""
        number = 0
        for task in self.take_all():
            if type(task) is Driver:
                dropped = task.run.clear()
                with self.lock:
                    self.cancelled_items += dropped
                number += dropped
            else:
                self.note_cancelled(task)
                number += 1
            task._settle(CANCELLED, None)
        return number

    def waiting(self) -> int:
        """Count the tasks in line."""
        return max(0, sum(map(len, self._lines())) - len(self.ghosts))

    def backlog(self) -> int:
        """Count the tasks in the shared line and the items of the maps that stand there."""
        if not len(self.line):
            return 0  # a map with items stands in line
        return max(0, len(self.line) - len(self.ghosts)) + sum(int(run.waiting()) for run in list(self.maps))
