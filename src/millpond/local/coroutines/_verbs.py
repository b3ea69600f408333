"""The submitting verbs of an `AsyncPool`, plain or seen through options.

`submit` is awaited and waits for room only: `task = await pool.submit(f, x)` returns a handle, at once unless the
pool is bounded and full, and `await task` gives the result; `await pool.run(f, x)` is both in one. Rejected: a plain
`submit` that returns a handle still waiting for room. It cannot slow its caller down, which is what a bound is for,
and `PoolFull` would come out of the handle instead of the call that was refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

from millpond.local._checks import check_callable
from millpond.local._map import check_map
from millpond.local._options import Options
from millpond.local._progress import Progress, ProgressReport
from millpond.local.coroutines._eager_map import EagerMap
from millpond.local.coroutines._factory import TaskFactory
from millpond.local.coroutines._lazy_map import LazyMap, zip_any
from millpond.local.coroutines._map import AsyncMap
from millpond.local.coroutines._task import AsyncTask

P = ParamSpec("P")
T = TypeVar("T")


class AsyncVerbs:
    """The verbs that hand calls to a pool; `_factory` makes the tasks."""

    _factory: TaskFactory
    _has_worker_coroutines = True
    """Whether a map of known items is run by a few worker coroutines, not by a task for each item."""

    @overload
    async def submit(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTask[T]: ...
    @overload
    async def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTask[T]: ...
    async def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncTask[Any]:
        """Run `fn(*args, **kwargs)` in the pool and return its task; await that for the result.

        A coroutine function runs in the loop, as an asyncio task of its own; a plain function runs in a thread. When
        the pool is bounded and full, `when_full` decides; by default this waits for room, first come, first served,
        and cancelling the wait submits nothing. Raises `PoolClosed` after shutdown.
        """
        factory = self._factory
        task = factory.make(fn, args, kwargs)
        if factory.limiter.admission is None:  # `admit`, without a second coroutine
            factory.limiter.add(task)
        else:
            await factory.limiter.admission.admit(task)
        return task

    @overload
    async def run(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` in the pool and return its result: `submit` and the wait for it in one.

        Cancelling the caller cancels the call, whether it waits for room, is queued or runs.
        """
        factory = self._factory
        task = factory.make(fn, args, kwargs)
        if factory.limiter.admission is None:
            factory.limiter.add_or_start(task)
        else:
            await factory.limiter.admission.admit(task)
        return await task

    @overload
    def try_submit(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncTask[T] | None: ...
    @overload
    def try_submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTask[T] | None: ...
    def try_submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncTask[Any] | None:
        """Like `submit`, but never wait and never apply `when_full`: return None when the pool is full."""
        task = self._factory.make(fn, args, kwargs)
        admission = self._factory.limiter.admission
        if admission is None:
            self._factory.limiter.add(task)
            return task
        return task if admission.try_admit(task) else None

    async def go(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `fn(*args, **kwargs)` and forget it; waits for room only.

        What it raises is not lost: `on_event` gets it as `task_failed`; without `on_event` it is logged as an error.
        """
        await self._factory.admit(self._factory.make(fn, args, kwargs, is_forgotten=True))

    async def submit_many(
        self, fn: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], /
    ) -> list[AsyncTask[Any]]:
        """Run `fn(*each)` for each tuple of `arguments` and return their tasks in order.

        When it is cancelled, or refused half-way, what it has submitted is cancelled, since nobody would have it.
        """
        tasks: list[AsyncTask[Any]] = []
        try:
            for each in arguments:
                tasks.append(await self.submit(fn, *each))  # noqa: PERF401  (what was submitted must be known)
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        return tasks

    @overload
    def map(
        self,
        fn: Callable[..., Awaitable[T]],
        /,
        *iterables: Iterable[Any] | AsyncIterable[Any],
        buffersize: int | None = None,
        ordered: bool = True,
        progress: Progress = False,
    ) -> AsyncMap[T]: ...
    @overload
    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any] | AsyncIterable[Any],
        buffersize: int | None = None,
        ordered: bool = True,
        progress: Progress = False,
    ) -> AsyncMap[T]: ...
    def map(
        self,
        fn: Callable[..., Any],
        /,
        *iterables: Iterable[Any] | AsyncIterable[Any],
        buffersize: int | None = None,
        ordered: bool = True,
        progress: Progress = False,
    ) -> AsyncMap[Any]:
        """Call `fn` for the items of `iterables`; take the results by `async for`, or all of them by `await`.

        Plain iterables are read here and now, and everything runs, whether the results are taken or not. With
        `buffersize=n`, at most n items are read ahead of the consumer, so that it fits endless sources. Async
        iterables are always read so, by default 2 * max_workers ahead, and async generators among them are closed at
        the end. `ordered=False` gives results as they come. `progress=True` shows a bar; `progress=f` calls
        `f(done, total)` for each result that is taken (`total` is None when it is not known). When a call raises, its
        error comes in its place and the rest is cancelled; so it is when the map is closed, or dropped half-way, or its
        reader is cancelled.

        Items that are all known at once are run by a few worker coroutines (0.15 µs per item, not 4 to 6): such an
        item shares its asyncio task and its context with others. A map with `buffersize=`, over an async source, or
        from `pool.options()` gives each item its own.
        """
        check_callable(fn)
        total = check_map(iterables, buffersize, progress)
        self._factory.bind()
        if self._factory.limiter.is_refusing:
            raise self._factory.limiter.refusal()
        running: EagerMap[Any] | LazyMap[Any]
        if any(isinstance(each, AsyncIterable) for each in iterables):
            ahead = buffersize or 2 * self._factory.limiter.max_workers
            running = LazyMap(self._factory, fn, zip_any(iterables), ahead, ordered=ordered)
        elif buffersize is not None or not self._has_worker_coroutines:
            running = LazyMap(self._factory, fn, zip(*iterables, strict=False), buffersize, ordered=ordered)
        else:
            running = EagerMap(self._factory, fn, iterables, ordered=ordered)  # type: ignore[arg-type]
        result: AsyncMap[Any] = AsyncMap(running, None if progress is False else ProgressReport(total, progress))
        running.start()
        return result


class AsyncOptions(AsyncVerbs):
    """An `AsyncPool` seen through options: the submitting verbs, each with these options."""

    _has_worker_coroutines = False

    def __init__(self, pool: AsyncVerbs, options: Options) -> None:
        self._pool = pool
        self._factory = pool._factory.with_options(options)

    def __repr__(self) -> str:
        return f"<{self._pool!r} with {self._factory.options}>"
