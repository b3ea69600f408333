"""A group of tasks in an `AsyncPool`. The first error cancels the others, in line or running."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

from millpond.local.coroutines._task import AsyncTask
from millpond.local.coroutines._waiting import until_done, until_ended

if TYPE_CHECKING:
    from types import TracebackType

    from millpond.local.coroutines._verbs import AsyncVerbs

P = ParamSpec("P")
T = TypeVar("T")


class AsyncGroup:
    """Tasks that belong together: `async with pool.group() as group: await group.submit(...)`.

    Leaving the block waits for all of them. The first one that raises cancels the others, in line and running; later
    submits get a cancelled task, and its error is raised from the block as it is. An error in the block itself, or a
    cancellation, cancels them too, and leaves the block when the last of them has ended.
    """

    def __init__(self, pool: AsyncVerbs) -> None:
        self._pool = pool
        self._tasks: list[AsyncTask[Any]] = []
        self._error: BaseException | None = None

    @overload
    async def submit(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTask[T]: ...
    @overload
    async def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTask[T]: ...
    async def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncTask[Any]:
        """Submit a task of this group; once the group has failed, a cancelled one is returned instead."""
        task: AsyncTask[Any]
        if self._error is None:
            task = await self._pool.submit(fn, *args, **kwargs)
        else:
            task = self._pool._cancelled_task()
        self._tasks.append(task)
        task.add_done_callback(self._ended)
        if self._error is not None:
            task.cancel()
        return task

    def _ended(self, task: asyncio.Future[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and self._error is None:
            self._error = error
            self.cancel()

    def cancel(self) -> None:
        """Cancel the tasks that have not ended."""
        for task in self._tasks:
            task.cancel()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until every task has ended; False at time-out. Raises nothing of theirs."""
        try:
            async with asyncio.timeout(timeout) as scope:
                for task in self._tasks:  # one after another: inside a task of this pool, waiting helps
                    await self._end_of(task)
        except TimeoutError:
            if scope.expired():
                return False
            raise
        await asyncio.sleep(0)  # so that the last error has been seen
        return True

    async def _end_of(self, task: AsyncTask[Any]) -> None:
        """Wait for one task, without cancelling it when the wait is."""
        while not task.done():
            await until_done(task._lend())

    async def results(self, timeout: float | None = None) -> list[Any]:
        """Wait, and return the results in the order of submission; raise the first error if there was one."""
        if not await self.wait(timeout):
            raise TimeoutError(f"the group has unfinished tasks after {timeout} s")
        if self._error is not None:
            raise self._error
        return [task.result() for task in self._tasks]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if kind is None:
            try:
                await self.wait()
            except asyncio.CancelledError:
                self.cancel()
                await until_ended(self._tasks)
                raise
        else:
            self.cancel()
            await until_ended(self._tasks)
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
