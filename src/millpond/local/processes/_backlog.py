"""The tasks of a process pool that wait: the shared line, those of its seats, and the places of maps."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from millpond.local._backlog import SWEEP_AT, Backlog
from millpond.local._task import CANCELLED, Task
from millpond.local.processes._map import Driver
from millpond.local.processes._seats import Seats
from millpond.local.processes._task import ProcessTask

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from millpond._events import Observer
    from millpond.local._queues import Line
    from millpond.local._when_full import Bound


class ProcessBacklog(Backlog):
    """The lines of a process pool."""

    def __init__(self, *, name: str, size: int, make_line: Callable[[], Line], observer: Observer | None) -> None:
        super().__init__()
        self.name = name
        self.size = size
        self.observer = observer
        self.make_line = make_line
        self.bound: Bound | None = None
        self._empty()

    def _empty(self) -> None:
        self.lock = threading.RLock()
        self.line = self.make_line()
        self.put = self.line.put
        self.seats = Seats(self.size)
        self.shells = 0
        self.tries: dict[Hashable, int] = {}

    def order(self, call: Callable[[], object]) -> None:
        """Have the I/O thread call this soon, if there is one."""
        raise NotImplementedError

    def sweep_soon(self) -> None:
        """Let the foreman sweep, who alone takes."""
        self.order(lambda: self.shells > SWEEP_AT and self.sweep())

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

    def lines(self) -> list[Line]:
        """Return every line there is."""
        with self.lock:
            return [*self.seats.lines(), self.line]

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

    def backlog(self) -> int:
        """Count the tasks in the shared line and the items of the maps that stand there."""
        if not len(self.line):
            return 0  # a map with items stands in line
        return max(0, len(self.line) - self.shells) + sum(int(run.waiting()) for run in list(self.maps))
