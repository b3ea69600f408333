"""A map over items that are read as the results are taken: a task for each, at most `buffersize` of them at a time.

A plain source is read by the consumer. An async source is read by one task of its own, always the same, since async
generators may hold things (time-outs, cancel scopes, context variables) that must not change their task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, Generic, TypeVar

from millpond.local.coroutines._factory import TaskFactory
from millpond.local.coroutines._task import AsyncTask, clean_error
from millpond.local.coroutines._waiting import Wakeup, until_all_done

T = TypeVar("T")


class LazyMap(Generic[T]):
    """One map: its source, and the tasks that the consumer has not taken yet."""

    def __init__(
        self, factory: TaskFactory, fn: Callable[..., Any], source: Any, buffersize: int | None, *, ordered: bool
    ) -> None:
        self._factory = factory
        self._limiter = factory.limiter
        self._fn = fn
        self._source = source  # of the arguments of each call
        self._buffersize = buffersize
        self.is_lazy = buffersize is not None
        self._ordered = ordered
        self._tasks: deque[AsyncTask[T]] = deque()  # not taken yet
        self._arrived: deque[AsyncTask[T]] = deque()  # those of them that are done, in that order (unordered only)
        self.reader: asyncio.Task[None] | None = None
        self._is_exhausted = False
        self._error: BaseException | None = None  # of the source; comes after the results of what it gave
        self.consumer = Wakeup()
        self._room = Wakeup()

    def start(self) -> None:
        if isinstance(self._source, AsyncIterator):
            name = f"{self._limiter.name} map"
            self.reader = asyncio.get_running_loop().create_task(self._read(self._source), name=name)
            self._limiter.readers[self.reader] = self.stop_reading
        else:
            self._fill()

    def _is_full(self) -> bool:
        return self._buffersize is not None and len(self._tasks) >= self._buffersize

    def _fill(self) -> None:
        while not self._is_exhausted and not self._is_full():
            try:
                args = next(self._source)
            except StopIteration:
                self._is_exhausted = True
            except Exception as error:
                self.stop_reading(error)
            else:
                self._add(args)

    async def _read(self, source: AsyncIterator[tuple[Any, ...]]) -> None:
        try:
            async for args in source:
                self._add(args)
                while self._is_full() and not self._is_exhausted:
                    await self._room.wait()
                if self._is_exhausted:
                    break
        except asyncio.CancelledError as error:
            self.stop_reading(error)
        except BaseException as error:
            self.stop_reading(clean_error(error))
        finally:
            self._is_exhausted = True
            self.consumer.wake()
            try:
                await close(source)
            finally:
                self._limiter.readers.pop(asyncio.current_task(), None)  # type: ignore[arg-type]

    def _add(self, args: tuple[Any, ...]) -> None:
        try:
            task = self._factory.make(self._fn, args, {})
        except Exception as error:  # the pool was closed meanwhile
            self.stop_reading(error)
            return
        self._limiter.add(task)
        self._tasks.append(task)
        if not self._ordered:
            task.add_done_callback(self._arrive)
        elif len(self._tasks) == 1:
            self.consumer.wake()

    def _arrive(self, task: Any) -> None:
        self._arrived.append(task)
        self.consumer.wake()

    def stop_reading(self, error: BaseException) -> None:
        """Read no more; `error` comes after the results of what was read."""
        if not self._is_exhausted:
            self._is_exhausted = True
            self._error = error
        if self.reader is not None and self.reader is not asyncio.current_task():
            self.reader.cancel()

    def collect(self) -> list[T]:
        """Take the value that is next; raises the error that is next."""
        task = self._next()
        if task is not None:
            value = task.result()
            if self.reader is None:
                self._fill()
            else:
                self._room.wake()
            return [value]
        if self.is_finished and self._error is not None:
            error, self._error = self._error, None
            raise error
        return []

    def _next(self) -> AsyncTask[T] | None:
        if self._ordered:
            return self._tasks.popleft() if self._tasks and self._tasks[0].done() else None
        if not self._arrived:
            return None
        task = self._arrived.popleft()
        self._tasks.remove(task)
        return task

    @property
    def is_finished(self) -> bool:
        return not self._tasks and self._is_exhausted

    async def wait(self) -> None:
        if self._tasks:
            first = self._tasks[0]
            before = self._limiter.help(first)
            if self._ordered or before is not first:
                before.add_done_callback(self.consumer.wake)
            with self._limiter.lend(before):
                await self.consumer.wait()
        else:
            await self.consumer.wait()

    def stop(self) -> None:
        self._is_exhausted = True
        self._error = None
        if self.reader is not None:
            self.reader.cancel()
        for task in self._tasks:
            task.add_done_callback(_retrieve)
            task.cancel()

    async def ended(self) -> None:
        await until_all_done([*self._tasks, *([self.reader] if self.reader else [])])


def _retrieve(task: asyncio.Future[Any]) -> None:
    """Look at an error, so that asyncio does not report that nobody did."""
    if not task.cancelled():
        task.exception()


async def zip_any(sources: tuple[Iterable[Any] | AsyncIterable[Any], ...]) -> AsyncIterator[tuple[Any, ...]]:
    """Zip sources of which at least one is async; ends with the shortest."""
    iterators = [aiter(each) if isinstance(each, AsyncIterable) else iter(each) for each in sources]
    try:
        while True:
            row = []
            for each in iterators:
                try:
                    row.append(await anext(each) if isinstance(each, AsyncIterator) else next(each))
                except (StopIteration, StopAsyncIteration):
                    return
            yield tuple(row)
    finally:
        for each in iterators:
            await close(each)


async def close(source: object) -> None:
    """Close an async generator: left to itself, it would be closed some time later, by a task that nobody awaits."""
    if isinstance(source, AsyncGenerator):
        await source.aclose()
