"""Calls handlers: coroutines in the event loop, plain functions in threads.

A plain function cannot be cancelled. Should the task be that waits for it, it is waited for all the same: only when it
has returned is its key let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

from millpond._saying import shown
from millpond.errors import TaskTimeout
from millpond.keyed.jobs import Job, Resident
from millpond.keyed.shared.definition import Definition
from millpond.local import ThreadPool


class Caller:
    """Calls the handlers of one worker."""

    def __init__(self, pool: str, concurrency: int) -> None:
        self._pool = pool
        self._concurrency = concurrency
        self._threads: ThreadPool | None = None

    async def call(self, definition: Definition, job: Job, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the handler of a job and return its result."""
        function = definition.function
        assert function is not None
        if not definition.is_async:
            return await self._in_pool(function, job, args, kwargs)
        limit = definition.policy.timeout
        if limit is None:
            return await function(job, *args, **kwargs)
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                return await function(job, *args, **kwargs)
        except TimeoutError:
            if scope.expired():
                raise TaskTimeout(f"job {job.name!r} of key {job.key!r} ran longer than {limit} s") from None
            raise

    async def stay(
        self, definition: Definition, resident: Resident, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Run the handler of a resident; a plain function has a thread that it need not share."""
        function = definition.function
        assert function is not None
        if definition.is_async:
            await function(resident, *args, **kwargs)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def run() -> None:
            outcome = _guarded(function, resident, args, kwargs)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(future.set_result, outcome)

        name = f"millpond-{resident.name}-{resident.key}"
        threading.Thread(target=run, name=name, daemon=True).start()
        await _ended(future)

    async def _in_pool(
        self, function: Callable[..., Any], job: Job, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._threads is None:
            self._threads = ThreadPool(self._concurrency, f"millpond-{self._pool}")
        value = await _ended(self._threads.run(_guarded, function, job, args, kwargs))
        return await value if inspect.iscoroutine(value) else value  # it was a coroutine function in disguise

    def shut(self) -> None:
        """Release the threads; those that still run something are left to the end of the process."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)


async def _ended(future: asyncio.Future[tuple[Any, BaseException | None]]) -> Any:
    """Wait for a function, even when cancelled; return what it returned or raise what it raised."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(future)
    value, error = future.result()
    if error is not None:
        raise error
    return value


def _guarded(
    function: Callable[..., Any], first: Job | Resident, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    """Call a handler and return what it returned and what it raised: a future does not take every exception."""
    try:
        return function(first, *args, **kwargs), None
    except StopIteration as error:
        failure = RuntimeError(f"the handler raised {shown(error)}")
        failure.__cause__ = error
        return None, failure
    except BaseException as error:
        return None, error
