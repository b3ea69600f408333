"""Tasks with a key: the first of each key is in line or runs, the others wait here for it to end."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable

    from millpond.local.coroutines._task import AsyncTask


class Keys:
    """The tasks of each key, in order."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, deque[AsyncTask[Any]]] = {}

    def add(self, task: AsyncTask[Any]) -> bool:
        """Add a task; return whether it is the first of its key, and so may stand in line."""
        tasks = self._tasks.setdefault(task.key, deque())
        tasks.append(task)
        return len(tasks) == 1

    def first(self, task: AsyncTask[Any]) -> AsyncTask[Any]:
        """Return the first task of the key of `task`: itself when nothing is before it."""
        return task if task.key is None else self._tasks[task.key][0]

    def remove(self, task: AsyncTask[Any]) -> AsyncTask[Any] | None:
        """Remove a task; return the one that may stand in line now."""
        tasks = self._tasks[task.key]
        if tasks[0] is not task:
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
