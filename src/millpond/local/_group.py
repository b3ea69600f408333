"""A group: tasks that belong together. The first error cancels the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from millpond.local._cancel import CancelToken
from millpond.local._task import Task
from millpond.local._waiting import wait
from millpond.local._watchers import CANCELLED, RAISED

P = ParamSpec("P")
T = TypeVar("T")


class Group:
    """Tasks that belong together: `with pool.group() as group: group.submit(...)`.

    Leaving the block waits for all of them. The first one that raises cancels the others that have not started; what
    runs goes on to its end, and in a pool of threads can see by `current_token()` that it may stop. Later submits are
    refused, and the error is raised from the block. An error in the block itself cancels them too.
    """

    def __init__(self, submit: Callable[..., Task[Any]], token: CancelToken) -> None:
        self._submit = submit
        self._token = token
        self._tasks: list[Task[Any]] = []  # only ever added to, and copied in one step
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._is_over = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """Submit a task of this group; once the group has failed, a cancelled one is returned instead."""
        if self._is_over:
            raise RuntimeError("this group has ended, so nobody would wait for the task; make a new group")
        if self._error is not None:
            task: Task[T] = Task()
            task.cancel()
        else:
            task = self._submit(fn, *args, **kwargs)
        self._tasks.append(task)
        task._add_listener(self._ended)
        if self._error is not None:
            task.cancel()
        return task

    def _ended(self, task: Task[Any]) -> None:
        if task._status != RAISED:
            return
        with self._lock:
            is_first = self._error is None
            if is_first:
                self._error = task._value
        if is_first:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the tasks that have not started, and ask those that run to stop."""
        for task in self._tasks.copy():
            task.cancel()
        self._token.cancel("its group was cancelled")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every task has ended; False at time-out. Raises nothing of theirs."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            tasks = self._tasks.copy()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if wait(tasks, timeout=left).not_done:
                return False
            if len(tasks) == len(self._tasks):
                return True

    def results(self, timeout: float | None = None) -> list[Any]:
        """Wait, and return the results in the order of submission; raise the first error if there was one."""
        if not self.wait(timeout):
            raise TimeoutError(f"the group has unfinished tasks after {timeout} s")
        if self._error is not None:
            raise self._error
        tasks = self._tasks.copy()
        if any(task._status == CANCELLED for task in tasks):
            raise CancelledError("the group was cancelled")
        return [task._value for task in tasks]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if kind is not None:
            self._is_over = True
            self.cancel()
            if issubclass(kind, Exception):
                self.wait()
            return False
        self.wait()
        self._is_over = True
        if self._error is not None:
            try:
                raise self._error
            finally:
                self = None  # type: ignore[assignment]  # leave no cycle through the traceback
        return False

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        done = sum(task.done() for task in self._tasks)
        return f"<Group of {len(self._tasks)} tasks, {done} done{', failed' if self._error is not None else ''}>"
