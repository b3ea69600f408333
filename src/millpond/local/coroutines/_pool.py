"""`AsyncPool`: calls with bounded concurrency in an asyncio loop.

Where to look: `_async_verbs` makes tasks (submit, run, map …) and says why `submit` is awaited; `_async_task` is the
handle; `_async_limiter` starts and ends tasks, on the books of `_async_ledger`, and `_async_control` manages it;
`_async_room` is the bound; `_async_calls` wraps plain functions, time limits and events; `_async_eager` and
`_async_lazy` are the two kinds of `_async_map`; `_async_group` is the group. This file is the face.

There are no worker tasks: a place in the limiter is a number. So `idle_timeout`, `min_workers` and `sizing` of the
other pools have no meaning here, and a pool that is forgotten leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Hashable
from typing import TYPE_CHECKING, Literal, Self

from millpond._events import Observer
from millpond.local._cancel import CancelToken
from millpond.local._checks import check_callable, check_count
from millpond.local._options import Options
from millpond.local._queues import Order, check_priority, line_maker
from millpond.local._statistics import Statistics, describe, picture
from millpond.local._when_full import check_when_full
from millpond.local.coroutines._calls import Threads
from millpond.local.coroutines._group import AsyncGroup
from millpond.local.coroutines._limiter import Limiter
from millpond.local.coroutines._verbs import AsyncOptions, AsyncVerbs
from millpond.local.coroutines._waiting import until_ended
from millpond.local.coroutines._when_full import AsyncWhenFull, Room
from millpond.local.threads._pool import ThreadPool

if TYPE_CHECKING:
    from types import TracebackType

_numbers = itertools.count(1)


class AsyncPoolFace(AsyncVerbs):
    """What an `AsyncPool` and its subpools have in common."""

    name: str
    _order: Order
    _limiter: Limiter

    def options(
        self,
        *,
        priority: float | None = None,
        key: Hashable | None = None,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> AsyncOptions:
        """Return the pool's submitting verbs with options for each task.

        `priority`: higher runs first (pools with `order="priority"`). `key`: tasks of the same key run one at a time,
        in order. `timeout`: the most seconds that a task may run; then it is cancelled and ends with `TaskTimeout` (a
        plain function is given up, as in a `ThreadPool`). `cancel`: a `CancelToken`, which may be cancelled from any
        thread; what is in line is cancelled with it, and so are running coroutines.
        """
        options = Options(priority=priority, key=key, timeout=timeout, cancel=cancel)
        if priority is not None:
            check_priority(self._order, priority)
        return AsyncOptions(self, options)

    def group(self) -> AsyncGroup:
        """Return a group: `async with pool.group() as g: await g.submit(...)`; the first error cancels the rest."""
        return AsyncGroup(self)

    def subpool(self, max_workers: int, *, name: str | None = None) -> AsyncSubPool:
        """Return a pool that runs at most `max_workers` tasks at once, in the places of this one."""
        return AsyncSubPool(self, max_workers, name=name)

    def pause(self) -> None:
        """Start no more tasks until `resume()`; what runs goes on, what is submitted waits."""
        self._check_loop()
        self._limiter.pause()

    def resume(self) -> None:
        """Start tasks again."""
        self._check_loop()
        self._limiter.resume()

    def purge(self) -> int:
        """Cancel every task that has not started; return how many."""
        self._check_loop()
        return self._limiter.purge()

    def resize(self, max_workers: int) -> None:
        """Change how many tasks run at once; when it is fewer, running ones end first."""
        self._check_loop()
        self._limiter.resize(check_count("max_workers", max_workers, 1))

    async def drain(self, timeout: float | None = None) -> bool:
        """Wait until every task has ended, leaving the pool open; False when that took longer than `timeout`."""
        self._bind()
        self._refuse_inside("drain()")
        try:
            async with asyncio.timeout(timeout):
                await self._limiter.rest()
        except TimeoutError:
            return False
        return True

    async def shutdown(
        self,
        wait: bool = True,
        *,
        cancel_futures: bool = False,
        timeout: float | None = None,
    ) -> bool:
        """Take no more tasks, and wait until those there are have ended.

        `cancel_futures=True` cancels them first, in line and running. Returns False when `timeout` seconds were not
        enough; the rest then goes on. When the wait is cancelled, everything is cancelled and waited for. A paused
        pool is resumed, so that what is queued can end; those who wait for room get `PoolClosed`.
        """
        self._bind()
        if wait:
            self._refuse_inside("shutdown()")
        readers = [each.reader for each in self._limiter.lazies if each.reader is not None]
        self._limiter.close()
        if cancel_futures:
            self._cancel_all()
        if not wait:
            return True
        try:
            async with asyncio.timeout(timeout) as scope:
                await until_ended(readers)
                await self._limiter.rest()
        except TimeoutError:
            if scope.expired():
                return False
            raise
        except asyncio.CancelledError:
            await self._end_everything()
            raise
        self._close_threads()
        return True

    async def restart(self) -> None:
        """Open a pool again that was shut down, when its last tasks have ended."""
        self._bind()
        await self._limiter.rest()
        self._limiter.reopen()

    def statistics(self) -> Statistics:
        """Return a snapshot of the pool's counts.

        `cancelled` counts tasks cancelled while they ran too. `workers` are the places in use, so none is `idle`.
        """
        return self._limiter.statistics("asyncio")

    async def __aenter__(self) -> Self:
        self._bind()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """Wait for everything; after an error or a cancellation, cancel everything, and wait until it has ended."""
        if kind is None:
            await self.shutdown()
        else:
            self._limiter.close()
            await self._end_everything()
        return False

    def __repr__(self) -> str:
        return describe(self.statistics())

    def _repr_html_(self) -> str:
        return picture(self.statistics())

    def _check_loop(self) -> None:
        if self._limiter.root.loop is not None:
            self._bind()

    def _refuse_inside(self, verb: str) -> None:
        if self._limiter.is_inside():
            raise RuntimeError(f"{verb} inside a task of pool {self.name!r} would wait for itself; use a group()")

    def _cancel_all(self) -> None:
        self._limiter.purge()
        self._limiter.cancel_running()

    async def _end_everything(self) -> None:
        """Cancel everything and wait until it has ended, however often the wait itself is cancelled."""
        cancellation: asyncio.CancelledError | None = None
        readers = [each.reader for each in self._limiter.lazies if each.reader is not None]
        self._cancel_all()
        while not self._limiter.is_idle() or any(not each.done() for each in readers):
            try:
                await until_ended(readers)
                await self._limiter.rest()
            except asyncio.CancelledError as error:
                cancellation = error
                self._cancel_all()
        self._close_threads()
        if cancellation is not None:
            raise cancellation

    def _close_threads(self) -> None:
        """Let the threads go, if they are this pool's own."""


class AsyncPool(AsyncPoolFace):
    """A pool of coroutine calls: at most `max_workers` at once in one event loop; plain functions run in threads.

    `async with AsyncPool(100) as pool:` waits for everything at its end; after an error or a cancellation it cancels
    everything, and nothing runs any more when the block has been left. A pool belongs to the loop where it is first
    used, and its verbs are called in that loop's thread only.

    Args:
        max_workers: How many calls run at once; `resize()` changes it.
        max_queued: How many tasks may wait while all places are taken; None for any number.
        when_full: What happens beyond that: `"block"`, `"raise"`, `"drop"`, `"drop_oldest"`, `"caller_runs"`,
            `Block(timeout=, max_waiting=)` or a callable.
        order: Which task is next: `"fifo"`, `"lifo"`, `"priority"` or `Priority(levels=)`.
        context: `"copy"` runs each task in a copy of its submitter's contextvars; None in the pool's own.
        name: Shown as the name of its asyncio tasks, in statistics and in events.
        on_event: Called with an `Event` for each thing that happens.
        threads: Where plain functions run; by default a `ThreadPool` of its own, of at most 32 threads, made when
            the first one comes.
    """

    def __init__(
        self,
        max_workers: int = 100,
        *,
        max_queued: int | None = None,
        when_full: AsyncWhenFull = "block",
        order: Order = "fifo",
        context: Literal["copy"] | None = "copy",
        name: str | None = None,
        on_event: Observer | None = None,
        threads: ThreadPool | None = None,
    ) -> None:
        limit = check_count("max_workers", max_workers, 1)
        check_when_full(when_full)  # type: ignore[arg-type]
        if context not in ("copy", None):
            raise ValueError(f"context must be 'copy' or None, not {context!r}")
        if on_event is not None:
            check_callable(on_event, "on_event")
        self.name = name or f"AsyncPool-{next(_numbers)}"
        self._order = order
        self._carries_context = context == "copy"
        self._limiter = Limiter(self.name, limit, line_maker(order), on_event)
        self._is_bare = on_event is None
        self._threads = Threads(threads, self.name, limit)
        if max_queued is not None:
            self._limiter.room = Room(self._limiter, check_count("max_queued", max_queued, 0), when_full)

    def resize(self, max_workers: int) -> None:
        """Change how many tasks run at once; when it is fewer, running ones end first."""
        super().resize(max_workers)
        self._threads.resize(max_workers)

    def _close_threads(self) -> None:
        self._threads.close()


class AsyncSubPool(AsyncPoolFace):
    """A share of an `AsyncPool`: at most `max_workers` at once, with a line of its own, in the parent's places."""

    def __init__(self, parent: AsyncPoolFace, max_workers: int, *, name: str | None = None) -> None:
        limit = check_count("max_workers", max_workers, 1)
        above = parent._limiter
        self.name = name or f"{parent.name}/{next(_numbers)}"
        self._order = parent._order
        self._carries_context = parent._carries_context
        self._threads = parent._threads
        self._limiter = Limiter(self.name, limit, above.make_line, above.observer, above)
        self._is_bare = above.observer is None
