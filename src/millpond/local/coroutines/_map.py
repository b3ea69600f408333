"""`AsyncMap`: what `AsyncPool.map` returns. `async for` takes the results one by one, `await` all of them as a list.

The work itself is an `EagerMap` when every item is known at once, a `LazyMap` when items are read as results are taken.
A class and not an async generator: 0.04 µs less per item from 3.12 on, it can be awaited, and it is stopped when it is
dropped half-way in whatever manner; a lazy one also before its first step.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, TypeVar

from millpond.local._progress import ProgressReport
from millpond.local.coroutines._eager_map import EagerMap
from millpond.local.coroutines._lazy_map import LazyMap

T = TypeVar("T")


class AsyncMap(AsyncIterator[T]):
    """The results of a map: `async for result in it`, or `results = await it`.

    An error comes in its place and cancels the rest (with `await`, as soon as it happens). Closing it, dropping it
    half-way, or cancelling whoever waits in it cancels the rest too; `aclose()` returns when nothing
    of it runs any more.
    """

    __slots__ = ("__weakref__", "_has_begun", "_is_open", "_loop", "_map", "_report", "_take", "_thread")

    def __init__(self, running: EagerMap[T] | LazyMap[T], report: ProgressReport | None) -> None:
        self._map = running
        self._report = report
        self._is_open = True
        self._has_begun = False
        self._take: Callable[[], T] = iter(()).__next__
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def __aiter__(self) -> AsyncMap[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return self._take()
        except StopIteration:
            pass
        except BaseException:  # of a progress callable
            await self.aclose()
            raise
        return await self._refill()

    async def _refill(self) -> T:
        """Wait for results, and return the first of them."""
        self._begin()
        try:
            while self._is_open:
                values = self._map.collect()
                if values:
                    batch = iter(values) if self._report is None else self._report.each(values)
                    self._take = batch.__next__
                    return next(batch)
                if self._map.is_finished:
                    break
                await self._map.wait()
        except BaseException:
            await self.aclose()
            raise
        await self.aclose()
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, list[T]]:
        return self._all().__await__()

    async def _all(self) -> list[T]:
        self._begin()
        if self._report is not None or isinstance(self._map, LazyMap):
            return [value async for value in self]
        try:
            values = list(iter(self._take, object()))
            rest = await self._map.all() if self._is_open else []
            return values + rest if values else rest
        finally:
            await self.aclose()

    def _begin(self) -> None:
        self._has_begun = True
        if self._map.consumer.waiter is not None:
            raise RuntimeError("this map is being read already; one reader at a time")

    async def aclose(self) -> None:
        """Cancel what is left, and wait until nothing of it runs any more."""
        if self._is_open:
            self._is_open = False
            self._take = iter(()).__next__
            self._map.stop()
            if self._report is not None:
                self._report.close()
        await self._map.ended()

    def __del__(self) -> None:
        if not getattr(self, "_is_open", False):
            return
        if self._report is not None:
            self._report.close()
        if self._loop.is_closed() or not (self._has_begun or self._map.is_lazy):
            return  # as in the standard library: all of an eager map runs, taken or not
        if threading.get_ident() == self._thread:
            self._map.stop()
        else:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._map.stop)
