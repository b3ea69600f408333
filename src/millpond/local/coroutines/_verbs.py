"""The submitting verbs of an `AsyncPool`, plain or seen through options.

`submit` is awaited and waits for room only: `task = await pool.submit(f, x)` returns a handle, at once unless the
pool is bounded and full, and `await task` gives the result; `await pool.run(f, x)` is both in one. Rejected: a plain
`submit` that returns a handle still waiting for room. It cannot slow its caller down, which is what a bound is for,
and `PoolFull` would come out of the handle instead of the call that was refused.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sized
from contextvars import copy_context
from functools import partial
from inspect import CO_COROUTINE
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, overload

from millpond.local._checks import check_callable, check_count
from millpond.local._options import NO_OPTIONS, Options
from millpond.local.coroutines._calls import InThread, Limited, Observed, Threads, is_coroutine_function
from millpond.local.coroutines._eager_map import EagerRun
from millpond.local.coroutines._lazy_map import LazyRun, zip_any
from millpond.local.coroutines._limiter import Limiter
from millpond.local.coroutines._map import AsyncMap
from millpond.local.coroutines._task import NEW, AsyncTask, OptionTask, Remote, cancel_future

P = ParamSpec("P")
T = TypeVar("T")


class AsyncVerbs:
    """Hands calls to a limiter, each with the same options."""

    _limiter: Limiter
    _threads: Threads
    _carries_context: bool
    _options: Options = NO_OPTIONS

    # -- submitting -----------------------------------------------------------------------------------------------

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
        task = self._build(fn, args, kwargs)
        room = self._limiter.room
        if room is None:
            self._limiter.place(task)
        else:
            await room.enter(task)
        return task

    @overload
    async def run(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn(*args, **kwargs)` in the pool and return its result: `submit` and the wait for it in one.

        Cancelling the caller cancels the call, whether it waits for room, stands in line or runs.
        """
        task = self._build(fn, args, kwargs)
        room = self._limiter.room
        if room is None:
            self._limiter.place_at_once(task)
        else:
            await room.enter(task)
        return await task

    @overload
    def try_submit(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncTask[T] | None: ...
    @overload
    def try_submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> AsyncTask[T] | None: ...
    def try_submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncTask[Any] | None:
        """Like `submit`, but never wait and never apply `when_full`: return None when the pool is full."""
        task = self._build(fn, args, kwargs)
        room = self._limiter.room
        if room is None:
            self._limiter.place(task)
        elif not room.try_enter(task):
            room.reject()
            return None
        return task

    async def go(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `fn(*args, **kwargs)` and forget it; waits for room only.

        What it raises is not lost: `on_event` gets it as `task_failed`; without `on_event` it is logged as an error.
        """
        task = self._build(fn, args, kwargs, is_loose=True)
        room = self._limiter.room
        if room is None:
            self._limiter.place(task)
        else:
            await room.enter(task)

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
        progress: bool = False,
    ) -> AsyncMap[T]: ...
    @overload
    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any] | AsyncIterable[Any],
        buffersize: int | None = None,
        ordered: bool = True,
        progress: bool = False,
    ) -> AsyncMap[T]: ...
    def map(
        self,
        fn: Callable[..., Any],
        /,
        *iterables: Iterable[Any] | AsyncIterable[Any],
        buffersize: int | None = None,
        ordered: bool = True,
        progress: bool = False,
    ) -> AsyncMap[Any]:
        """Call `fn` for the items of `iterables`; take the results by `async for`, or all of them by `await`.

        Plain iterables are read here and now, and everything runs, whether the results are taken or not. With
        `buffersize=n`, at most n items are read ahead of the consumer, so that it fits endless sources. Async
        iterables are always read so, by default 2 * max_workers ahead, and async generators among them are closed at
        the end. `ordered=False` gives results as they come;
        `progress=True` shows a bar. When a call raises, its error comes in its place and the rest is cancelled; so
        it is when the map is closed, or dropped half-way, or its reader is cancelled.

        Items that are all known at once are run by a few worker coroutines (0.15 µs per item, not 4 to 6): such an
        item shares its asyncio task and its context with others. A map with `buffersize=`, over an async source, or
        from `pool.options()` gives each item its own.
        """
        check_callable(fn)
        if buffersize is not None:
            check_count("buffersize", buffersize, 1)
        self._bind()
        if self._limiter.is_refusing:
            raise self._limiter.refusal()
        lengths = [len(each) if isinstance(each, Sized) else None for each in iterables]
        total = None if not lengths or None in lengths else min(length for length in lengths if length is not None)
        has_async = any(isinstance(each, AsyncIterable) for each in iterables)
        run: EagerRun[Any] | LazyRun[Any]
        if has_async or buffersize is not None or self._is_per_task:
            run = self._lazy_run(fn, iterables, buffersize, ordered)
        else:
            run = self._eager_run(fn, iterables, ordered)
        result: AsyncMap[Any] = AsyncMap(run, progress=progress, total=total)
        run.start()
        return result

    # -- for the verbs above ----------------------------------------------------------------------------------------

    _is_per_task = False
    _is_bare = False
    """Whether a coroutine function is called as it is."""

    def _eager_run(self, fn: Callable[..., Any], iterables: tuple[Any, ...], ordered: bool) -> EagerRun[Any]:
        call = self._call(fn, {})
        items = list(iterables[0] if len(iterables) == 1 else zip(*iterables, strict=False))
        context = copy_context() if self._carries_context else None
        starred = call if len(iterables) == 1 else lambda item: call(*item)
        return EagerRun(self._limiter, starred, items, context=context, ordered=ordered)

    def _lazy_run(
        self, fn: Callable[..., Any], iterables: tuple[Any, ...], ahead: int | None, ordered: bool
    ) -> LazyRun[Any]:
        source: Any
        if any(isinstance(each, AsyncIterable) for each in iterables):
            source = zip_any(iterables)
            ahead = ahead or 2 * self._limiter.limit
        else:
            source = zip(*iterables, strict=False)

        def place(args: tuple[Any, ...]) -> AsyncTask[Any]:
            task = self._build(fn, args, {})
            self._limiter.place(task)
            return task

        return LazyRun(self._limiter, place, source, ahead=ahead, ordered=ordered)

    def _build(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, is_loose: bool = False
    ) -> AsyncTask[Any]:
        """Make a task that is in no line yet."""
        limiter = self._limiter
        loop = limiter.loop
        if _get_running_loop() is not loop or loop is None:
            loop = self._bind()
        if limiter.is_refusing:
            raise limiter.refusal()
        options = self._options
        task: AsyncTask[Any]
        if options is NO_OPTIONS and not is_loose:
            task = AsyncTask(loop=loop)
        else:
            task = OptionTask(loop=loop)
            task._is_loose = is_loose
            task.priority, task.key = options.priority or 0, options.key
        task._stage = NEW
        task._home = limiter
        task._desk = task._inner = None
        if self._is_bare and type(fn) is FunctionType and fn.__code__.co_flags & CO_COROUTINE and not kwargs:
            task._call = fn
        else:
            task._call = self._call(fn, kwargs)
        task._args = args
        task._context = (copy_context() or None) if self._carries_context else limiter.context.copy()
        if options.cancel is not None:
            task._remote = Remote(task, options.cancel)
        return task

    def _call(self, fn: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Awaitable[Any]]:
        """Return what is awaited for a call of `fn`."""
        check_callable(fn)
        timeout = self._options.timeout
        call: Any = partial(fn, **kwargs) if kwargs else fn
        if not is_coroutine_function(fn):
            call = InThread(call, self._threads.get(), timeout)
        elif timeout is not None:
            call = Limited(call, timeout)
        if self._limiter.observer is not None:
            call = Observed(call, self._limiter.observer, self._limiter.name)
        return call  # type: ignore[no-any-return]

    def _cancelled_task(self) -> AsyncTask[Any]:
        """Return a task that was cancelled before it was submitted."""
        task: AsyncTask[Any] = AsyncTask(loop=self._bind())
        task._stage = NEW
        task._home = self._limiter
        task._desk = task._inner = task._context = task._call = None
        task._args = ()
        cancel_future(task)
        return task

    def _bind(self) -> asyncio.AbstractEventLoop:
        """Check that this is the pool's loop, or make it so at the first use."""
        root = self._limiter.root
        loop = _get_running_loop()
        if loop is None:
            raise RuntimeError(
                f"pool {root.name!r} was used where no event loop runs; use it inside a coroutine, and from another "
                "thread through asyncio.run_coroutine_threadsafe(coroutine, loop) or loop.call_soon_threadsafe(...)"
            )
        if root.loop is not loop:
            if root.loop is not None and not (root.is_idle() and root.loop.is_closed()):
                raise RuntimeError(
                    f"pool {root.name!r} belongs to another event loop, where it was first used; make a pool for each "
                    "loop, or go through asyncio.run_coroutine_threadsafe(coroutine, its_loop)"
                )
            root.bind(loop)
        return loop


class AsyncOptions(AsyncVerbs):
    """An `AsyncPool` seen through options: the submitting verbs, each with these options."""

    _is_per_task = True

    def __init__(self, pool: AsyncVerbs, options: Options) -> None:
        self._limiter = pool._limiter
        self._threads = pool._threads
        self._carries_context = pool._carries_context
        self._options = options
        self._pool = pool

    def __repr__(self) -> str:
        return f"<{self._pool!r} with {self._options}>"
