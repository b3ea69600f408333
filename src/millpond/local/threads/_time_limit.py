"""The time limit and the token of a task in a thread.

A thread cannot be stopped from outside. A task past its `timeout=` (run time, counted from its start) is given up: its
future ends with `TaskTimeout`, its token is cancelled, its thread no longer counts and is replaced. The thread itself
ends when its function returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from millpond._events import logger
from millpond.errors import TaskTimeout
from millpond.local._calls import GivenUp, TimedCall, give_up_observed, hide_frame, name_of, release_all
from millpond.local._cancel import CancelToken
from millpond.local._task import Task
from millpond.local._timer import timer
from millpond.local._watchers import CANCELLED, OPEN, RAISED, here


class LimitedCall(TimedCall):
    """The call of a task with a token or a time limit."""

    __slots__ = ("_is_over", "_lock", "_task", "_worker", "timeout", "token")

    def __init__(
        self, fn: Callable[..., Any], task: Task[Any], timeout: float | None, token: CancelToken | None
    ) -> None:
        self.fn = fn
        self.timeout = timeout
        self.token = token
        self._task: Task[Any] | None = task
        self._lock: Any = None if timeout is None else threading.Lock()
        self._is_over = False
        self._worker: Any = None

    def __call__(self, *args: Any) -> Any:
        task, self._task = self._task, None
        assert task is not None
        if self.token is not None:
            self.token._unwatch(task)
            if self.token.cancelled:
                release_all(self.fn)
                task._settle(CANCELLED, None)
                raise GivenUp(worker_is_lost=False)
        if self.timeout is None:
            return self._call_with(self.token, args)
        worker = getattr(here, "worker", None)
        if worker is not None and worker.depth == 0:  # else another task of this thread waits below: keep it
            self._worker = worker
        token = self._own_token(self.timeout)
        alarm = timer.after(self.timeout, lambda: self._expire(task, token), own_thread=True)
        try:
            value = self._call_with(token, args)
        finally:
            if not alarm.cancel():
                self._yield_to_alarm()
        if token.cancelled and not token._is_set:
            raise self._late()  # it saw its deadline and stopped, a moment before the alarm
        return value

    def _call_with(self, token: CancelToken | None, args: tuple[Any, ...]) -> Any:
        before = getattr(here, "token", None)
        here.token = token
        try:
            return self.fn(*args)
        finally:
            here.token = before

    def _own_token(self, timeout: float) -> CancelToken:
        """Return a token with the task's deadline, which is cancelled with the shared one."""
        own = CancelToken()
        own.deadline = time.monotonic() + timeout
        if self.token is not None:
            self.token._watch(own)
        return own

    def _yield_to_alarm(self) -> None:
        """Leave the task to the alarm if that was quicker."""
        with self._lock:
            was_late, self._is_over = self._is_over, True
        if was_late:
            raise GivenUp(worker_is_lost=self._worker is not None and self._worker.is_lost)

    def _expire(self, task: Task[Any], token: CancelToken) -> None:
        """Give the task up, unless it has just ended."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            if self._worker is not None:
                try:
                    self._worker.lose()
                except Exception as problem:  # no thread is to be had, or a subpool's parent is closed
                    logger.warning("a worker that was given up could not be replaced: %s", problem)
        error = self._late()
        try:
            release_all(self.fn)
            give_up_observed(self.fn, error)
            token.cancel("its time-out passed")
        finally:
            if task._status == OPEN:
                task._settle(RAISED, error)

    def _late(self) -> TaskTimeout:
        return TaskTimeout(
            f"{name_of(self.fn)} ran longer than its timeout of {self.timeout} s and was given up; raise the timeout, "
            "or let the function look at current_token()"
        )


hide_frame(LimitedCall.__call__)
hide_frame(LimitedCall._call_with)
