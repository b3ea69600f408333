"""A group of tasks in an `AsyncPool`. The first error cancels the others, queued or running."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

from millpond.local._checks import check_seconds
from millpond.local.coroutines._factory import TaskFactory
from millpond.local.coroutines._task import AsyncTask
from millpond.local.coroutines._waiting import ends_within, until_all_done

P = ParamSpec("P")
T = TypeVar("T")


class AsyncGroup:
    """Tasks that belong together: `async with pool.group() as group: await group.submit(...)`.

    Leaving the block waits for all of them. The first one that raises cancels the others: queued ones never start, a
    running coroutine gets `CancelledError`, and a plain function in a thread sees it by `current_token()` and is waited
    for. Later submits get a cancelled task, and the error is raised from the block as it is. An error in the block
    itself, or a cancellation, cancels them too, and leaves the block when the last of them has ended.
    """

    def __init__(self, factory: TaskFactory) -> None:
        self._factory = factory
        self._tasks: list[AsyncTask[Any]] = []
        self._error: BaseException | None = None
        self._is_over = False

    @overload
    async def submit(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTask[T]: ...
    @overload
    async def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTask[T]: ...
    async def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncTask[Any]:
        """Submit a task of this group; once the group has failed, a cancelled one is returned instead."""
        if self._is_over:
            raise RuntimeError("this group has ended, so nobody would wait for the task; make a new group")
        task = self._factory.make(fn, args, kwargs)
        if self._error is None:
            self._factory.limiter.watched[task] = self._fail
            try:
                await self._factory.admit(task)
            except BaseException:
                self._factory.limiter.watched.pop(task, None)
                raise
        self._tasks.append(task)
        task.add_done_callback(self._ended)
        if self._error is not None:
            task.cancel()
        return task

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._factory.limiter.watched.pop(task, None)  # type: ignore[call-overload]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            self.cancel()

    def cancel(self) -> None:
        """Cancel the tasks that have not ended."""
        for task in self._tasks:
            task.cancel()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until every task has ended; False at time-out. Raises nothing of theirs."""
        return await ends_within(check_seconds("timeout", timeout), self._wait())

    async def _wait(self) -> None:
        for task in self._tasks:
            while not task.done():  # inside a task of this pool, waiting helps
                first = self._factory.limiter.help(task)
                with self._factory.limiter.lend(first):
                    await asyncio.wait((first,))
        await asyncio.sleep(0)  # so that the last error has been seen

    async def results(self, timeout: float | None = None) -> list[Any]:
        """Wait, and return the results in the order of submission; raise the first error if there was one."""
        if not await self.wait(timeout):
            raise TimeoutError(f"the group has unfinished tasks after {timeout} s")
        if self._error is not None:
            raise self._error
        return [task.result() for task in self._tasks]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        try:
            if kind is None:
                await self._wait()
        finally:
            self.cancel()  # what has not ended because the block, or the wait above, was left by an error
            await until_all_done(self._tasks)
            self._is_over = True
        if kind is None and self._error is not None:
            try:
                raise self._error
            finally:
                self = None  # type: ignore[assignment]  # leave no cycle through the traceback
        return False

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        done = sum(task.done() for task in self._tasks)
        failed = ", failed" if self._error is not None else ""
        return f"<AsyncGroup of {len(self._tasks)} tasks, {done} done{failed}>"
