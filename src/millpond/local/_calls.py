"""Calls in the place of the user's function, for tasks with options. A plain task has none of them.

Each is called by the worker in the user's function's stead; `hide_frame` keeps them out of tracebacks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from millpond._events import Observer, emit
from millpond.local.threads._worker import hide_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.local._task import Task
    from millpond.local.threads._runner import Crew


def name_of(fn: Any) -> str:
    """Return how people call this function."""
    fn = getattr(fn, "fn", fn)
    fn = getattr(fn, "func", fn)
    return getattr(fn, "__qualname__", None) or repr(fn)


class KeyedCall:
    """A call with a key: tells the seats when it is over."""

    __slots__ = ("_crew", "_task", "fn")

    def __init__(self, fn: Callable[..., Any], task: Task[Any], crew: Crew) -> None:
        self.fn = fn
        self._task = task
        self._crew = crew

    def __call__(self, *args: Any) -> Any:
        try:
            return self.fn(*args)
        finally:
            seats = self._crew.seats
            if seats is not None:
                seats.settle(self._task)


class ObservedCall:
    """A call that is told of: before, after, and how long it took."""

    __slots__ = ("_observer", "_pool", "fn")

    def __init__(self, fn: Callable[..., Any], observer: Observer, pool: str) -> None:
        self.fn = fn
        self._observer = observer
        self._pool = pool

    def __call__(self, *args: Any) -> Any:
        name = name_of(self.fn)
        emit(self._observer, "task_started", self._pool, function=name)
        started = time.perf_counter()
        try:
            value = self.fn(*args)
        except BaseException as error:
            seconds = time.perf_counter() - started
            emit(self._observer, "task_failed", self._pool, function=name, seconds=seconds, error=error)
            raise
        emit(self._observer, "task_finished", self._pool, function=name, seconds=time.perf_counter() - started)
        return value


hide_frame(KeyedCall.__call__)
hide_frame(ObservedCall.__call__)
