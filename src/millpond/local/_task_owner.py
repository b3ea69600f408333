"""What a task knows of its pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond.local._task import Task


class TaskOwner:
    """The way from a task to the runner that has it queued. After a fork the child's pool goes on with a new one."""

    __slots__ = ("is_forked", "root", "runner")

    def __init__(self, runner: Any, root: Any = None) -> None:
        self.runner = runner
        self.root = root or runner  # the runner whose workers run the task; for that of a subpool another one
        self.is_forked = False

    def claim(self, task: Task[Any]) -> Callable[..., Any] | None:
        """Atomically take a queued task out of turn and return its call; None when it has started or ended."""
        call: Callable[..., Any] | None = None if self.is_forked else self.runner.backlog.claim(task)
        return call

    def cancel_queued(self, task: Task[Any]) -> bool:
        """Atomically take a queued task out of turn to cancel it; False when it has started or ended."""
        return not self.is_forked and bool(self.runner.backlog.cancel(task))
