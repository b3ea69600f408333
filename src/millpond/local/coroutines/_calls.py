"""Calls in the place of the user's coroutine function: for plain functions, time limits and events.

Each is an async callable with the user's function in `fn`. A plain coroutine function without options needs none.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from millpond._events import emit
from millpond.errors import TaskTimeout
from millpond.local._calls import ObservedCall, Wrapper, name_of
from millpond.local._cancel import CancelToken
from millpond.local._loop_bridge import Awaited, wrap
from millpond.local.threads._pool import ThreadPool, is_bounded

T = TypeVar("T")


def is_coroutine_function(fn: Callable[..., Any]) -> bool:
    """Return whether calling `fn` makes a coroutine; sees through partials, methods and an async `__call__` too."""
    code = getattr(fn, "__code__", None)  # not only functions have one: an AsyncMock shows itself by it
    if code is not None and getattr(code, "co_flags", 0) & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


class Threads:
    """The threads for plain functions: those given, or a pool of their own that is made when it is first needed."""

    def __init__(self, given: ThreadPool | None, name: str, max_workers: int) -> None:
        if given is not None and not isinstance(given, ThreadPool):
            raise TypeError(f"threads must be a ThreadPool, not {given!r}")
        if given is not None and is_bounded(given):
            raise ValueError(
                f"threads={given!r} is bounded, so a submit to it could block the loop; "
                "give max_queued to the AsyncPool instead"
            )
        self._given = given
        self._own: ThreadPool | None = None
        self._name = f"{name}-threads"
        self._max_workers = min(32, max_workers)

    def get(self) -> ThreadPool:
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = ThreadPool(self._max_workers, name=self._name)
        return self._own

    def resize(self, max_workers: int) -> None:
        self._max_workers = min(32, max_workers)
        if self._own is not None:
            self._own.resize(self._max_workers)

    def close(self) -> None:
        """End threads of its own, without waiting for calls that were given up."""
        if self._own is not None:
            self._own.shutdown(wait=False)
            self._own = None


class ThreadWaiter(Awaited[T]):
    """Waits for a call in a thread; when cancelled, asks the call to stop and waits until it has."""

    token: CancelToken
    was_cancelled = False

    def cancel(self, msg: Any | None = None) -> bool:
        if self.done():
            return False
        self.was_cancelled = True
        if self.task.cancel():
            return asyncio.Future.cancel(self, msg)
        self.token.cancel("its task was cancelled")
        return True


class ThreadCall(Wrapper):
    """A call of a plain function in a thread, so that it never blocks the loop; an awaitable result is awaited."""

    __slots__ = ("_threads", "_timeout")

    def __init__(self, fn: Callable[..., Any], threads: ThreadPool, timeout: float | None) -> None:
        self.fn = fn
        self._threads = threads
        self._timeout = timeout

    async def __call__(self, *args: Any) -> Any:
        began = time.monotonic()
        token = CancelToken()
        task = self._threads.options(cancel=token, timeout=self._timeout).submit(self.fn, *args)
        waiter: ThreadWaiter[Any] = wrap(task, ThreadWaiter)
        waiter.token = token
        try:
            value = await waiter
        except Exception as error:
            if waiter.was_cancelled:
                raise asyncio.CancelledError from error
            raise
        if waiter.was_cancelled:
            raise asyncio.CancelledError
        if not inspect.isawaitable(value):
            return value
        if self._timeout is None:
            return await value
        return await with_time_limit(value, self._timeout - (time.monotonic() - began), self._timeout, self.fn)


class TimeLimitedCall(Wrapper):
    """A call of a coroutine function with a time limit."""

    __slots__ = ("_timeout",)

    def __init__(self, fn: Callable[..., Awaitable[Any]], timeout: float) -> None:
        self.fn = fn
        self._timeout = timeout

    async def __call__(self, *args: Any) -> Any:
        return await with_time_limit(self.fn(*args), self._timeout, self._timeout, self.fn)


async def with_time_limit(awaitable: Awaitable[T], left: float, timeout: float, fn: Callable[..., Any]) -> T:
    """Await for `left` seconds at most, then cancel and raise TaskTimeout; a value that comes all the same is kept."""
    scope = asyncio.timeout(left)
    try:
        async with scope:
            return await awaitable
    except TimeoutError as error:
        if scope.expired() and isinstance(error.__cause__, asyncio.CancelledError):
            raise TaskTimeout(
                f"{name_of(fn)} ran longer than its timeout of {timeout} s and was cancelled; raise the timeout"
            ) from None
        raise


class AsyncObservedCall(ObservedCall):
    """A call that emits the same events, awaited."""

    __slots__ = ()

    async def __call__(self, *args: Any) -> Any:
        name = name_of(self.fn)
        started = time.perf_counter()
        emit(self._on_event, "task_started", self._pool, function=name, waited=started - self._queued_at)
        try:
            value = await self.fn(*args)
        except asyncio.CancelledError:  # the limiter emits that
            raise
        except BaseException as error:
            seconds = time.perf_counter() - started
            emit(self._on_event, "task_failed", self._pool, function=name, seconds=seconds, error=error)
            raise
        emit(self._on_event, "task_finished", self._pool, function=name, seconds=time.perf_counter() - started)
        return value
