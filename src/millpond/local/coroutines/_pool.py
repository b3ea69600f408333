"""`AsyncPool`: calls with bounded concurrency in an asyncio loop.

Where to look: `_verbs` has the submitting verbs and says why `submit` is awaited; `_factory` makes the tasks; `_task`
is the handle; `_limiter` starts and ends tasks, `_backlog` holds those that wait, `_runner` makes their asyncio tasks;
`_when_full` is the bound; `_calls` wraps plain functions, time limits and events; `_eager_map` and `_lazy_map` are the
two kinds of `_map`; `_group` is the group. This file has the pool itself, and its subpools.

There are no worker tasks: a place in the limiter is a number. So `idle_timeout`, `min_workers` and `sizing` of the
other pools have no meaning here, and a pool that is forgotten leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Hashable
from typing import Any, Literal, Self

from millpond._events import Observer
from millpond.local._cancel import CancelToken
from millpond.local._checks import check_callable, check_count, check_optional_count, check_seconds, check_word
from millpond.local._options import Options
from millpond.local._queues import Order, check_priority, queue_maker
from millpond.local._statistics import Statistics, describe, to_html
from millpond.local._when_full import check_when_full
from millpond.local.coroutines._calls import Threads
from millpond.local.coroutines._factory import TaskFactory
from millpond.local.coroutines._group import AsyncGroup
from millpond.local.coroutines._limiter import Limiter
from millpond.local.coroutines._verbs import AsyncOptions, AsyncVerbs
from millpond.local.coroutines._waiting import ends_within, until_all_done
from millpond.local.coroutines._when_full import AsyncAdmission, AsyncWhenFull
from millpond.local.threads._pool import ThreadPool

_numbers = itertools.count(1)


class AsyncPool(AsyncVerbs):
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
        check_count("max_workers", max_workers, 1)
        check_optional_count("max_queued", max_queued, 0)
        check_when_full(when_full, max_queued)  # type: ignore[arg-type]
        check_word("context", context, ("copy", None))
        if on_event is not None:
            check_callable(on_event, "on_event")
        self.name = name or f"AsyncPool-{next(_numbers)}"
        self._order = order
        self._limiter = Limiter(self.name, max_workers, queue_maker(order), on_event)
        self._threads: Threads | None = Threads(threads, self.name, max_workers)
        self._factory = TaskFactory(self._limiter, self._threads.get, copies_context=context == "copy")
        if max_queued is not None:
            self._limiter.admission = AsyncAdmission(self._limiter, max_queued, when_full)

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
        thread; queued tasks are cancelled with it, and so are running coroutines.
        """
        options = Options(priority=priority, key=key, timeout=timeout, cancel=cancel)
        if priority is not None:
            check_priority(self._order, priority)
        return AsyncOptions(self, options)

    def group(self) -> AsyncGroup:
        """Return a group: `async with pool.group() as g: await g.submit(...)`; the first error cancels the rest."""
        return AsyncGroup(self._factory)

    def subpool(self, max_workers: int, *, name: str | None = None) -> AsyncSubPool:
        """Return a pool that runs at most `max_workers` tasks at once, in the places of this one."""
        return AsyncSubPool(self, max_workers, name=name)

    def pause(self) -> None:
        """Start no more tasks until `resume()`; what runs goes on, what is submitted waits."""
        self._factory.check_loop()
        self._limiter.pause()

    def resume(self) -> None:
        """Start tasks again."""
        self._factory.check_loop()
        self._limiter.resume()

    def purge(self) -> int:
        """Cancel every task that has not started; return how many."""
        self._factory.check_loop()
        return self._limiter.purge()

    def resize(self, max_workers: int) -> None:
        """Change how many tasks run at once; when it is fewer, running ones end first."""
        self._factory.check_loop()
        self._limiter.resize(check_count("max_workers", max_workers, 1))
        if self._threads is not None:
            self._threads.resize(max_workers)

    async def drain(self, timeout: float | None = None) -> bool:
        """Wait until every task has ended, leaving the pool open; False when that took longer than `timeout`."""
        timeout = check_seconds("timeout", timeout)
        self._factory.refuse_inside("drain()")
        return await ends_within(timeout, self._limiter.wait_idle())

    async def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, timeout: float | None = None) -> bool:
        """Take no more tasks, and wait until those there are have ended.

        `cancel_futures=True` cancels them first, queued and running. Returns False when `timeout` seconds were not
        enough; the rest then goes on. When the wait is cancelled, everything is cancelled and waited for. A paused
        pool is resumed, so that what is queued can end; those who wait for room get `PoolClosed`.
        """
        timeout = check_seconds("timeout", timeout)
        if wait:
            self._factory.refuse_inside("shutdown()")
        self._factory.bind()
        readers = list(self._limiter.readers)
        self._limiter.close()
        if cancel_futures:
            self._limiter.cancel_all()
        if not wait:
            return True
        try:
            has_ended = await ends_within(timeout, wait_idle(self._limiter, readers))
        except asyncio.CancelledError:
            await cancel_and_wait(self._limiter, self._threads)
            raise
        if has_ended and self._threads is not None:
            self._threads.close()
        return has_ended

    async def restart(self) -> None:
        """Open a pool again that was shut down, when its last tasks have ended."""
        self._factory.bind()
        await self._limiter.wait_idle()
        self._limiter.reopen()

    def statistics(self) -> Statistics:
        """Return a snapshot of the pool's counts.

        `cancelled` counts tasks cancelled while they ran too. `workers` are the places in use, so none is `idle`.
        """
        return self._limiter.statistics()

    async def __aenter__(self) -> Self:
        self._factory.bind()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> Literal[False]:
        """Wait for everything; after an error or a cancellation, cancel everything, and wait until it has ended."""
        if kind is None:
            await self.shutdown()
        else:
            self._limiter.close()
            await cancel_and_wait(self._limiter, self._threads)
        return False

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle pool {self.name!r}: make a pool in the other process, or submit from here")

    def __repr__(self) -> str:
        return describe(self.statistics())

    def _repr_html_(self) -> str:
        return to_html(self.statistics())


class AsyncSubPool(AsyncPool):
    """A share of an `AsyncPool`, by its `subpool()`: at most `max_workers` at once, queued apart, in its places."""

    def __init__(self, parent: AsyncPool, max_workers: int, *, name: str | None = None) -> None:
        check_count("max_workers", max_workers, 1)
        above = parent._limiter
        self.name = name or f"{parent.name}/{next(_numbers)}"
        self._order = parent._order
        self._limiter = Limiter(self.name, max_workers, above.backlog.make_queue, above.on_event, above)
        self._threads = None  # its parent resizes and closes those that it uses too
        factory = parent._factory
        self._factory = TaskFactory(self._limiter, factory.get_threads, factory.copies_context)


async def wait_idle(limiter: Limiter, readers: list[asyncio.Task[None]]) -> None:
    """Wait until nothing is read, queued or running."""
    await until_all_done(readers)
    await limiter.wait_idle()


async def cancel_and_wait(limiter: Limiter, threads: Threads | None) -> None:
    """Cancel everything and wait until it has ended, however often the wait itself is cancelled."""
    cancellation: asyncio.CancelledError | None = None
    readers = list(limiter.readers)
    limiter.cancel_all()
    while not limiter.is_idle() or any(not each.done() for each in readers):
        try:
            await wait_idle(limiter, readers)
        except asyncio.CancelledError as error:
            cancellation = error
            limiter.cancel_all()
    if threads is not None:
        threads.close()
    if cancellation is not None:
        raise cancellation
