"""Making tasks: what a pool, its subpools, its groups and `pool.options(...)` use to turn calls into tasks."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from inspect import CO_COROUTINE
from types import FunctionType
from typing import Any

from millpond.local._checks import check_callable
from millpond.local._options import NO_OPTIONS, Options
from millpond.local.coroutines._calls import AsyncObservedCall, ThreadCall, TimeLimitedCall, is_coroutine_function
from millpond.local.coroutines._limiter import Limiter
from millpond.local.coroutines._task import NEW, AsyncTask, CancelLink, OptionTask
from millpond.local.threads._pool import ThreadPool


@dataclass(eq=False)
class TaskFactory:
    """Makes the tasks of one limiter, each with the same options."""

    limiter: Limiter
    get_threads: Callable[[], ThreadPool]
    copies_context: bool
    options: Options = NO_OPTIONS

    def __post_init__(self) -> None:
        self._runner = self.limiter.runner
        self._calls_directly = self.limiter.on_event is None and self.options.timeout is None

    def with_options(self, options: Options) -> TaskFactory:
        return TaskFactory(self.limiter, self.get_threads, self.copies_context, options)

    def make(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, is_forgotten: bool = False
    ) -> AsyncTask[Any]:
        limiter = self.limiter
        loop = self._runner.loop
        if _get_running_loop() is not loop or loop is None:
            loop = self.bind()
        if limiter.is_refusing:
            raise limiter.refusal()
        options = self.options
        task: AsyncTask[Any]
        if options is NO_OPTIONS and not is_forgotten:
            task = AsyncTask(loop=loop)
        else:
            task = OptionTask(loop=loop)
            task._is_forgotten = is_forgotten
            task.priority, task.key = options.priority or 0, options.key
        task._stage = NEW
        task._limiter = limiter
        task._queued_at = task._asyncio_task = None
        if self._calls_directly and type(fn) is FunctionType and fn.__code__.co_flags & CO_COROUTINE and not kwargs:
            task._call = fn
        else:
            task._call = self.wrap(fn, kwargs)
        task._args = args
        task._context = (copy_context() or None) if self.copies_context else limiter.context.copy()
        if options.cancel is not None:
            task._cancel_link = CancelLink(task, options.cancel)
        return task

    async def admit(self, task: AsyncTask[Any]) -> None:
        """Queue a new task, by the rules of the pool when it is bounded."""
        if self.limiter.admission is None:
            self.limiter.add(task)
        else:
            await self.limiter.admission.admit(task)

    def wrap(self, fn: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Awaitable[Any]]:
        check_callable(fn)
        timeout = self.options.timeout
        call: Any = partial(fn, **kwargs) if kwargs else fn
        if not is_coroutine_function(fn):
            call = ThreadCall(call, self.get_threads(), timeout)
        elif timeout is not None:
            call = TimeLimitedCall(call, timeout)
        if self.limiter.on_event is not None:
            call = AsyncObservedCall(call, self.limiter.on_event, self.limiter.name)
        return call  # type: ignore[no-any-return]

    def bind(self) -> asyncio.AbstractEventLoop:
        """Check that the pool's loop runs here, or make this loop the pool's at the first use."""
        root = self.limiter.chain[-1]
        loop = _get_running_loop()
        if loop is None:
            raise RuntimeError(
                f"pool {root.name!r} was used where no event loop runs; use it inside a coroutine, and from another "
                "thread through asyncio.run_coroutine_threadsafe(coroutine, loop) or loop.call_soon_threadsafe(...)"
            )
        bound = self._runner.loop
        if bound is not loop:
            if bound is not None and not (root.is_idle() and bound.is_closed()):
                raise RuntimeError(
                    f"pool {root.name!r} belongs to another event loop, where it was first used; make a pool for each "
                    "loop, or go through asyncio.run_coroutine_threadsafe(coroutine, its_loop)"
                )
            root.bind(loop)
        return loop

    def check_loop(self) -> None:
        if self._runner.loop is not None:
            self.bind()

    def refuse_inside(self, verb: str) -> None:
        """Raise when the caller is a task of this pool, which would wait for itself."""
        self.bind()
        if self.limiter.is_inside():
            name = self.limiter.name
            raise RuntimeError(f"{verb} inside a task of pool {name!r} would wait for itself; use a group()")
