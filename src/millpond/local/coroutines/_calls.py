"""Calls in the place of the user's coroutine function: for plain functions, time limits and events.

Each is an async callable in the stead of the user's function. A plain coroutine function without options has none.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from millpond._events import Observer, emit
from millpond.errors import TaskTimeout
from millpond.local._calls import name_of
from millpond.local._cancel import CancelToken
from millpond.local._loop_bridge import Awaited, wrap
from millpond.local.threads._pool import ThreadPool

T = TypeVar("T")


def is_coroutine_function(fn: Callable[..., Any]) -> bool:
    """Tell whether calling `fn` makes a coroutine (also of partials, methods and objects with an async `__call__`)."""
    code = getattr(fn, "__code__", None)
    if code is not None and getattr(code, "co_flags", 0) & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


class Patient(Awaited[T]):
    """Waits for a call in a thread; when cancelled, asks the call to stop and waits until it has."""

    token: CancelToken
    was_cancelled = False

    def cancel(self, msg: Any | None = None) -> bool:
        """Withdraw the call if it has not started, else cancel its token."""
        if self.done():
            return False
        self.was_cancelled = True
        if self.task.cancel():
            return asyncio.Future.cancel(self, msg)
        self.token.cancel("its task was cancelled")
        return True


class Threads:
    """The threads for plain functions: those given, or a pool of their own that is made when it is first needed."""

    def __init__(self, given: ThreadPool | None, name: str, limit: int) -> None:
        if given is not None and not isinstance(given, ThreadPool):
            raise TypeError(f"threads must be a ThreadPool, not {given!r}")
        if given is not None and given._crew.bound is not None:
            raise ValueError(
                f"threads={given!r} is bounded, so a submit to it could block the loop; "
                "give max_queued to the AsyncPool instead"
            )
        self._is_given = given is not None
        self._pool = given
        self._name = name
        self._limit = limit

    def get(self) -> ThreadPool:
        """Return the pool of threads."""
        if self._pool is None:
            self._pool = ThreadPool(min(32, self._limit), name=f"{self._name}-threads")
        return self._pool

    def resize(self, limit: int) -> None:
        """Follow the pool's size."""
        self._limit = limit
        if self._pool is not None and not self._is_given:
            self._pool.resize(min(32, limit))

    def close(self) -> None:
        """Let own threads go, without waiting for what was given up."""
        if self._pool is not None and not self._is_given:
            pool, self._pool = self._pool, None
            pool.shutdown(wait=False)


class InThread:
    """A call of a plain function in a thread, so that it never blocks the loop; an awaitable result is awaited."""

    __slots__ = ("_threads", "_timeout", "fn")

    def __init__(self, fn: Callable[..., Any], threads: ThreadPool, timeout: float | None) -> None:
        self.fn = fn
        self._threads = threads
        self._timeout = timeout

    async def __call__(self, *args: Any) -> Any:
        began = time.monotonic()
        token = CancelToken()
        task = self._threads.options(cancel=token, timeout=self._timeout).submit(self.fn, *args)
        waiter: Patient[Any] = wrap(task, Patient)
        waiter.token = token
        try:
            value = await waiter
        except Exception as error:
            if waiter.was_cancelled:
                raise asyncio.CancelledError from error
            raise
        if waiter.was_cancelled:
            raise asyncio.CancelledError
        if inspect.isawaitable(value):
            if self._timeout is None:
                return await value
            left = self._timeout - (time.monotonic() - began)
            return await limited(value, left, self._timeout, self.fn)
        return value


class Limited:
    """A call of a coroutine function with a time limit."""

    __slots__ = ("_timeout", "fn")

    def __init__(self, fn: Callable[..., Awaitable[Any]], timeout: float) -> None:
        self.fn = fn
        self._timeout = timeout

    async def __call__(self, *args: Any) -> Any:
        return await limited(self.fn(*args), self._timeout, self._timeout, self.fn)


async def limited(awaitable: Awaitable[T], left: float, whole: float, fn: Callable[..., Any]) -> T:
    """Await for `left` seconds at most, then cancel and raise TaskTimeout; a value that comes all the same is kept."""
    scope = asyncio.timeout(left)
    try:
        async with scope:
            return await awaitable
    except TimeoutError as error:
        if scope.expired() and isinstance(error.__cause__, asyncio.CancelledError):
            raise TaskTimeout(
                f"{name_of(fn)} ran longer than its timeout of {whole} s and was cancelled; raise the timeout"
            ) from None
        raise


class Observed:
    """A call that is told of: before, after, and how long it took."""

    __slots__ = ("_observer", "_pool", "fn")

    def __init__(self, fn: Callable[..., Awaitable[Any]], observer: Observer, pool: str) -> None:
        self.fn = fn
        self._observer = observer
        self._pool = pool

    async def __call__(self, *args: Any) -> Any:
        name = name_of(self.fn)
        emit(self._observer, "task_started", self._pool, function=name)
        started = time.perf_counter()
        try:
            value = await self.fn(*args)
        except asyncio.CancelledError:  # the pool tells of it
            raise
        except BaseException as error:
            seconds = time.perf_counter() - started
            emit(self._observer, "task_failed", self._pool, function=name, seconds=seconds, error=error)
            raise
        emit(self._observer, "task_finished", self._pool, function=name, seconds=time.perf_counter() - started)
        return value
