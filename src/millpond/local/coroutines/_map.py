"""`AsyncMap`: what `AsyncPool.map` returns. `async for` takes the results one by one, `await` all of them as a list.

The work itself is a *run*: `EagerRun` when every item is known at once, `LazyRun` when items are read as results are
taken. A class and not an async generator: 0.04 µs less per item from 3.12 on, it can be awaited, and it is stopped
when it is dropped half-way in whatever manner; a lazy one also before its first step.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from itertools import repeat
from typing import Any, Protocol, TypeVar

from millpond.local._progress import with_progress

T = TypeVar("T")
V = TypeVar("V")


class Run(Protocol[V]):
    """The work of a map, as its consumer sees it."""

    def collect(self) -> list[V]:
        """Take the values that are next; empty when there are none yet; raises the error that is next."""

    @property
    def is_lazy(self) -> bool:
        """Whether it stands still without a consumer."""

    @property
    def has_reader(self) -> bool:
        """Whether somebody waits in it."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come."""

    async def wait(self) -> None:
        """Sleep until there is something to collect."""

    async def all(self) -> list[V]:
        """Wait for everything and return it."""

    def stop(self) -> None:
        """Cancel everything."""

    async def ended(self) -> None:
        """Wait until nothing runs any more."""


class AsyncMap(AsyncIterator[T]):
    """The results of a map: `async for result in it`, or `results = await it`.

    An error comes in its place and cancels the rest (with `await`, as soon as it happens). Closing it, dropping it
    half-way, or cancelling whoever waits in it cancels the rest too; `aclose()` returns when nothing
    of it runs any more.
    """

    __slots__ = ("__weakref__", "_has_begun", "_is_open", "_loop", "_run", "_take", "_thread", "_ticks")

    def __init__(self, run: Run[T], *, progress: bool, total: int | None) -> None:
        self._run = run
        self._is_open = True
        self._has_begun = False
        self._take: Callable[[], T] = iter(()).__next__
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._ticks: Iterator[None] | None = None
        if progress:
            self._ticks = with_progress(repeat(None), total)
            next(self._ticks)

    def __aiter__(self) -> AsyncMap[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return self._take()
        except StopIteration:
            pass
        return await self._refill()

    async def _refill(self) -> T:
        """Wait for results, and return the first of them."""
        run = self._run
        self._has_begun = True
        self._check_reader()
        try:
            while self._is_open:
                values = run.collect()
                if values:
                    batch = iter(values if self._ticks is None else self._ticking(values))
                    self._take = batch.__next__
                    return next(batch)
                if run.is_finished:
                    break
                await run.wait()
        except BaseException:
            await self.aclose()
            raise
        await self.aclose()
        raise StopAsyncIteration

    def _ticking(self, values: list[T]) -> Iterator[T]:
        for value in values:
            yield value
            if self._ticks is not None:
                next(self._ticks)

    def __await__(self) -> Generator[Any, None, list[T]]:
        return self._all().__await__()

    async def _all(self) -> list[T]:
        self._has_begun = True
        self._check_reader()
        if self._ticks is not None:
            return [value async for value in self]
        try:
            values = list(self._take_rest())
            rest = await self._run.all() if self._is_open else []
            return values + rest if values else rest
        finally:
            await self.aclose()

    def _take_rest(self) -> Iterator[T]:
        with contextlib.suppress(StopIteration):
            while True:
                yield self._take()

    async def aclose(self) -> None:
        """Cancel what is left, and wait until nothing of it runs any more."""
        self._shut()
        await self._run.ended()

    def _check_reader(self) -> None:
        if self._run.has_reader:
            raise RuntimeError("this map is being read already; one reader at a time")

    def _shut(self) -> None:
        if self._is_open:
            self._is_open = False
            self._take = iter(()).__next__
            self._run.stop()
            if self._ticks is not None:
                self._ticks.close()  # type: ignore[attr-defined]

    def __del__(self) -> None:
        if not getattr(self, "_is_open", False) or self._loop.is_closed():
            return
        if not self._has_begun and not self._run.is_lazy:  # as in the standard library: all of it runs, taken or not
            return
        if threading.get_ident() == self._thread:
            self._run.stop()
        else:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._run.stop)
