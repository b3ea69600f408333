"""`ThreadPool` and its subpools: they make tasks and hand them to a runner, which is in `_runner.py`."""

from __future__ import annotations

import itertools
import weakref
from asyncio import Future
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, ParamSpec, TypeVar

from millpond._events import Observer
from millpond.local._calls import ObservedCall
from millpond.local._cancel import CancelToken
from millpond.local._checks import (
    check_callable,
    check_count,
    check_function,
    check_optional_count,
    check_seconds,
    check_word,
    default_size,
)
from millpond.local._group import Group
from millpond.local._loop_bridge import await_from_the_start
from millpond.local._options import NO_OPTIONS, Options, option_task
from millpond.local._pool import Pool
from millpond.local._queues import Order, queue_maker
from millpond.local._sizing import Reaper, Sizing, SizingWord, eager, fixed, sizing_rule
from millpond.local._task import Task
from millpond.local._when_full import WhenFull, check_when_full
from millpond.local.threads._map import map_in_threads
from millpond.local.threads._runner import ThreadRunner
from millpond.local.threads._scaling import Scaling
from millpond.local.threads._subpool import make_runner
from millpond.local.threads._threads import Threads
from millpond.local.threads._time_limit import LimitedCall
from millpond.local.threads._workers import WorkerRules, Workers

P = ParamSpec("P")
T = TypeVar("T")

_numbers = itertools.count(1)
_new_task = Task.__new__


def is_bounded(pool: BaseThreadPool) -> bool:
    """Return whether a submit to `pool` may have to wait for room."""
    return pool._runner.admission.max_queued is not None


class BaseThreadPool(Pool):
    """A pool whose tasks are run by threads: its own, or its parent's."""

    _runner: ThreadRunner
    _start_map = staticmethod(map_in_threads)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """Run `fn(*args, **kwargs)` in the pool and return its future.

        Raises `PoolClosed` after shutdown. When the pool is bounded and full, `when_full` decides.
        """
        # This is the hot path: `_build` and `Placement.place` for a plain task, written out.
        runner = self._runner
        if fn is not runner.last_fn:  # most submits are of the same function as the last
            check_function(fn)
            runner.last_fn = fn
        task: Task[T] = _new_task(Task)
        task._status = 0
        task._watchers = None
        task._owner = runner.owner
        task._fn = partial(fn, **kwargs) if kwargs else fn
        task._args = args
        task._context = (copy_context() or None) if runner.carries_context else None
        if runner.admit is not None:
            return runner.admit(task)
        try:
            runner.put(task)
            workers = runner.workers
            if workers.idle:
                try:
                    next(workers.wakes)
                except IndexError:  # another submitter was quicker
                    workers.wake(1, task)
            elif workers.count < workers.max_workers:
                workers.grow(task)
        except BaseException:
            runner.admission.step_out(task)
            raise
        return task

    def submit_many(self, fn: Callable[..., T], arguments: Iterable[tuple[Any, ...]], /) -> list[Task[T]]:
        """Run `fn(*each)` for each tuple of `arguments` and return their futures in order."""
        runner = self._runner
        if runner.admit is not None:
            return super().submit_many(fn, arguments)
        tasks = [self._build(NO_OPTIONS, fn, tuple(each), {}) for each in arguments]
        runner.placement.place_many(tasks)
        return tasks

    def _build(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task[T]:
        runner = self._runner
        if fn is not runner.last_fn:
            check_function(fn)
            runner.last_fn = fn
        call = partial(fn, **kwargs) if kwargs else fn
        if runner.on_event is not None:
            call = ObservedCall(call, runner.on_event, self.name)
        if options is NO_OPTIONS:
            task: Task[T] = _new_task(Task)
        else:
            task = option_task(options)
            if options.timeout is not None or options.cancel is not None:
                call = LimitedCall(call, task, options.timeout, options.cancel)
        task._status = 0
        task._watchers = None
        task._owner = runner.owner
        task._fn = call
        task._args = args
        task._context = (copy_context() or None) if runner.carries_context else None
        return task

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` in the pool and return an asyncio future: `await pool.run(f, x)`.

        The ends of many calls reach the loop with one wake-up, so this is many times quicker than
        `loop.run_in_executor`. Cancelling the future cancels the task if it has not started. On a full pool it waits
        for room without holding up the loop.
        """
        runner = self._runner
        if runner.admit is not None:
            return super().run(fn, *args, **kwargs)
        if fn is not runner.last_fn:
            check_function(fn)
            runner.last_fn = fn
        # The hot path once more, as in `submit`.
        task: Task[T] = _new_task(Task)
        task._status = 0
        task._owner = runner.owner
        task._fn = partial(fn, **kwargs) if kwargs else fn
        task._args = args
        task._context = (copy_context() or None) if runner.carries_context else None
        awaited = await_from_the_start(task)
        runner.placement.queue_plain(task)
        return awaited

    def go(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `fn(*args, **kwargs)` and forget it; what it raises goes to `on_event`, or else is logged as an error."""
        runner = self._runner
        if runner.admit is not None:
            super().go(fn, *args, **kwargs)
            return
        if fn is not runner.last_fn:
            check_function(fn)
            runner.last_fn = fn
        # The hot path for the last time.
        task: Task[Any] = _new_task(Task)
        task._status = 0
        task._watchers = runner.error_logger  # one for all: nobody else gets to see the task
        task._owner = runner.owner
        task._fn = partial(fn, **kwargs) if kwargs else fn
        task._args = args
        task._context = (copy_context() or None) if runner.carries_context else None
        runner.placement.queue_plain(task)

    def group(self) -> Group:
        """Return a group: `with pool.group() as g: g.submit(...)` waits for all; the first error cancels the rest.

        A running task of a group that failed sees that by its `current_token()`.
        """
        token = CancelToken()
        return Group(self.options(cancel=token).submit, token)

    def subpool(self, max_workers: int, *, name: str | None = None) -> SubPool:
        """Return a pool that runs at most `max_workers` tasks at once, in the workers of this one."""
        return SubPool(self, max_workers, name=name)

    def _leave_at_once(self, why: str) -> None:
        runners = [self._runner, *self._runner.descendants()]
        for each in runners:  # first: a second Ctrl-C may come at any time
            each.is_interrupted = True
        super()._leave_at_once(why)
        for each in runners:
            each.token.cancel(f"the pool was left by {why}")


class ThreadPool(BaseThreadPool, ThreadPoolExecutor):
    """A pool of threads: a `concurrent.futures.ThreadPoolExecutor` by type, many times faster, and bounded if asked.

    Args:
        max_workers: The most threads at once; by default as many as the standard pool has.
        min_workers: Threads that are started at once and stay.
        max_queued: How many tasks may wait while all workers are busy; None for any number.
        when_full: What happens beyond that: `"block"`, `"raise"`, `"drop"`, `"drop_oldest"`, `"caller_runs"`,
            `Block(timeout=, max_waiting=)` or a callable.
        order: Which task is next: `"fifo"`, `"lifo"`, `"priority"` or `Priority(levels=)`.
        sizing: When to start threads: `"fixed"`, `"eager"`, `"balanced"`, `"lazy"`, `"proactive"` or a callable.
        idle_timeout: Seconds after which an idle thread leaves; None for never; a `Reaper(period=)` to do it on a beat.
        queues: `"shared"` (workers pull from one queue) or `"dedicated"` (a queue for each, idle ones steal).
        context: `"copy"` runs each task in a copy of its submitter's contextvars; None in the worker's own.
        initializer: Called with `initargs` in each new worker; when it raises, the pool is broken.
        finalizer: Called in each worker that leaves.
        max_tasks_per_worker: Replace a worker after this many tasks.
        name: Shown in thread names, statistics and events (`thread_name_prefix` says the same).
        on_event: Called with an `Event` for each thing that happens.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        min_workers: int = 0,
        max_queued: int | None = None,
        when_full: WhenFull = "block",
        order: Order = "fifo",
        sizing: SizingWord | Sizing = "eager",
        idle_timeout: float | Reaper | None = 10.0,
        queues: Literal["shared", "dedicated"] = "shared",
        context: Literal["copy"] | None = "copy",
        finalizer: Callable[[], object] | None = None,
        max_tasks_per_worker: int | None = None,
        name: str | None = None,
        on_event: Observer | None = None,
    ) -> None:
        most = default_size() if max_workers is None else check_count("max_workers", max_workers, 1)
        least = check_count("min_workers", min_workers, 0)
        if least > most:
            raise ValueError(f"min_workers ({least}) must not be above max_workers ({most})")
        check_word("queues", queues, ("shared", "dedicated"))
        check_word("context", context, ("copy", None))
        check_optional_count("max_queued", max_queued, 0)
        check_when_full(when_full, max_queued)
        check_optional_count("max_tasks_per_worker", max_tasks_per_worker, 1)
        for label, call in (("initializer", initializer), ("finalizer", finalizer), ("on_event", on_event)):
            if call is not None:
                check_callable(call, label)
        rule = sizing_rule(sizing)
        reaper = idle_timeout if isinstance(idle_timeout, Reaper) else None
        rules = WorkerRules(
            idle_timeout=None if isinstance(idle_timeout, Reaper) else check_seconds("idle_timeout", idle_timeout),
            carries_context=context == "copy",
            initializer=initializer,
            initargs=tuple(initargs),
            finalizer=finalizer,
            max_tasks_per_worker=max_tasks_per_worker,
        )
        self.name = name or thread_name_prefix or f"ThreadPool-{next(_numbers)}"
        self._order = order
        self._runner = runner = ThreadRunner(
            name=self.name,
            make_queue=queue_maker(order),
            make_workers=lambda runner: Workers(
                runner, rules, Threads, min_workers=most if rule is fixed else least, max_workers=most
            ),
            max_queued=max_queued,
            when_full=when_full,
            is_dedicated=queues == "dedicated",
            on_event=on_event,
        )
        if rule not in (eager, fixed) or reaper is not None:
            runner.workers.scaling = Scaling(runner.workers, rule, reaper)
        weakref.finalize(self, runner.close).atexit = False
        runner.workers.start_minimum()

    # What people read of the standard pool although it is private.

    @property
    def _max_workers(self) -> int:  # type: ignore[override]
        return self._runner.max_workers

    @property
    def _threads(self) -> set[Any]:  # type: ignore[override]
        return set(self._runner.workers.threads)

    @property
    def _shutdown(self) -> bool:  # type: ignore[override]
        return self._runner.is_closed

    @property
    def _broken(self) -> str | bool:  # type: ignore[override]
        return self._runner.broken or False

    @property
    def _work_queue(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(qsize=self._runner.backlog.__len__)


class SubPool(BaseThreadPool):
    """A share of a pool: at most `max_workers` tasks at once, with a queue of its own, in the parent's workers."""

    def __init__(self, parent: BaseThreadPool, max_workers: int, *, name: str | None = None) -> None:
        number = check_count("max_workers", max_workers, 1)
        self.name = name or f"{parent.name}/{next(_numbers)}"
        self._order = parent._order
        self._parent = parent
        self._runner = make_runner(parent._runner, self.name, number)
