"""The books of a limiter: its counts, its line, its mailboxes, and who waits for it to rest.

Limiters stand in a chain, a subpool's below its parent's, and every count holds for the limiter and all below it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from millpond.errors import PoolClosed
from millpond.local._async_task import IN_LINE, AsyncTask
from millpond.local._stats import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from millpond._events import Observer
    from millpond.local._async_eager import EagerRun
    from millpond.local._async_lazy import LazyRun
    from millpond.local._async_room import Room
    from millpond.local._queues import Line


class Mailboxes:
    """Tasks with a key: the first of each key is in line or runs, the others wait here for it to end."""

    def __init__(self) -> None:
        self._boxes: dict[Hashable, deque[AsyncTask[Any]]] = {}

    def add(self, task: AsyncTask[Any]) -> bool:
        """Add a task; return whether it is the first of its key, and so may stand in line."""
        box = self._boxes.setdefault(task.key, deque())
        box.append(task)
        return len(box) == 1

    def is_first(self, task: AsyncTask[Any]) -> bool:
        """Tell whether a task stands in line or runs."""
        return task.key is None or self._boxes[task.key][0] is task

    def remove(self, task: AsyncTask[Any]) -> AsyncTask[Any] | None:
        """Remove a task; return the one that may stand in line now."""
        box = self._boxes[task.key]
        if box[0] is not task:
            box.remove(task)
            return None
        box.popleft()
        if box:
            return box[0]
        del self._boxes[task.key]
        return None

    def first(self, task: AsyncTask[Any]) -> AsyncTask[Any]:
        """Return the first task of the key of `task`: itself when nothing is before it."""
        if task.key is None:
            return task
        return self._boxes[task.key][0]

    def waiting(self) -> list[AsyncTask[Any]]:
        """Return the tasks that are not the first of their key."""
        return [task for box in self._boxes.values() for task in list(box)[1:]]


class Ledger:
    """What a limiter knows; `Limiter` acts on it."""

    def __init__(
        self,
        name: str,
        limit: int,
        make_line: Callable[[], Line],
        observer: Observer | None,
        parent: Any = None,
    ) -> None:
        self.name = name
        self.limit = limit
        self.parent = parent
        self.root: Any = self if parent is None else parent.root
        self.children: weakref.WeakSet[Any] = weakref.WeakSet()
        self.observer = observer
        self.make_line = make_line
        self.line: Any = make_line()
        self.keys = Mailboxes()
        self.room: Room | None = None
        self.is_paused = False
        self.is_closed = False
        self.is_refusing = False  # it is closed, or one above is
        self.held = 0  # places taken: by what runs and, below a parent, by what stands in line up there
        self.running = 0
        self.drivers = 0  # those of `running` that work for a map
        self.unfinished = 0  # tasks in line or running
        self.completed = 0
        self.failed = 0
        self.cancelled = 0
        self.rejected = 0
        self.largest = 0
        self.maps: set[EagerRun[Any]] = set()
        self.lazies: set[LazyRun[Any]] = set()
        self._idlers: list[asyncio.Future[None]] = []
        if parent is not None:
            parent.children.add(self)
            self.is_refusing = parent.is_refusing

    def refusal(self) -> PoolClosed:
        """Return the error for a submit to a closed pool."""
        node = self
        while not node.is_closed and node.parent is not None:
            node = node.parent
        return PoolClosed(
            f"pool {node.name!r} is shut down and takes no more tasks; submit before that, or await restart()"
        )

    def waiting(self) -> list[AsyncTask[Any]]:
        """Return the tasks that have not started, here and below."""
        tasks = [entry for entry in self.line if isinstance(entry, AsyncTask) and entry._stage == IN_LINE]
        tasks.extend(self.keys.waiting())
        for child in self.children:
            tasks.extend(child.waiting())
        return tasks

    def is_idle(self) -> bool:
        """Tell whether nothing is in line or running."""
        return not self.unfinished and not self.maps

    async def rest(self) -> None:
        """Wait until nothing is in line or running."""
        while not self.is_idle():
            idler = asyncio.get_running_loop().create_future()
            self._idlers.append(idler)
            try:
                await idler
            finally:
                if idler in self._idlers:
                    self._idlers.remove(idler)

    def notice(self) -> None:
        """Tell those who wait for room or for rest that there may be some."""
        if self.room is not None and self.room.waiting:
            self.room.let_in()
        if self._idlers and self.is_idle():
            idlers, self._idlers = self._idlers, []
            for idler in idlers:
                if not idler.done():
                    idler.set_result(None)

    def statistics(self, kind: str) -> Statistics:
        """Return a snapshot of the counts."""
        queued = self.unfinished - (self.running - self.drivers) + sum(each.left() for each in self.maps)
        completed = self.completed + sum(each.completed() for each in self.maps)
        return Statistics(
            name=self.name,
            kind=kind,
            max_workers=self.limit,
            workers=self.running,
            idle=0,
            queued=queued,
            running=self.running,
            submitted=queued + self.running + completed + self.cancelled,
            completed=completed,
            failed=self.failed,
            cancelled=self.cancelled,
            rejected=self.rejected,
            waiting_submitters=0 if self.room is None else self.room.waiting,
            largest=self.largest,
            state="closed" if self.is_closed else "paused" if self.is_paused else "open",
        )
