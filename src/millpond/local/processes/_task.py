"""A task with options in a process pool, and the switch by which its token ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from millpond.local._task import Task

if TYPE_CHECKING:
    from collections.abc import Hashable

    from millpond.local._cancel import CancelToken

T = TypeVar("T")


class ProcessTask(Task[T]):
    """A task with a priority, a key, a time limit or a token."""

    __slots__ = ("key", "priority", "switch", "timeout")

    key: Hashable | None
    priority: float
    switch: KillSwitch | None
    timeout: float | None

    @property
    def is_alone(self) -> bool:
        """Whether it travels alone to an idle worker: its time counts from its start, and it can be ended alone."""
        return self.timeout is not None or self.switch is not None


class KillSwitch:
    """What a token calls when it is cancelled: the task is taken out of line, or its process ended."""

    def __init__(self, task: ProcessTask[Any], token: CancelToken) -> None:
        self._task: ProcessTask[Any] | None = task
        self._token = token

    def arm(self) -> None:
        """Watch the token."""
        self._token._watch(self)  # type: ignore[arg-type]

    def cancel(self) -> None:
        """End the task."""
        task = self._task
        if task is not None and not task.cancel():
            crew = task._owner
            crew.order(lambda: crew.foreman and crew.foreman.end_task(task))

    def disarm(self) -> None:
        """Let go of the token, since the task has ended."""
        self._task = None
        self._token._unwatch(self)  # type: ignore[arg-type]
