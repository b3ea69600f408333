"""`ThreadPool`: the face. What it does is in `_crew.py`; this file makes tasks and hands them over."""

from __future__ import annotations

import itertools
import weakref
from asyncio import Future
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar

import millpond.local._lifecycle  # noqa: F401  (registers what happens at exit and after fork)
from millpond._events import Observer
from millpond.local._awaiting import await_from_the_start, without_blocking
from millpond.local._calls import KeyedCall, ObservedCall
from millpond.local._cancel import CancelToken, LimitedCall
from millpond.local._checks import (
    check_callable,
    check_count,
    check_optional_count,
    check_seconds,
    check_word,
    default_size,
    not_callable,
)
from millpond.local._options import NO_OPTIONS, Options
from millpond.local._pool import LooseHook, Pool
from millpond.local._queues import Order, check_priority, line_maker
from millpond.local._seats import Seats
from millpond.local._sizing import Reaper, Sizing, SizingWord, eager, fixed, sizing_rule
from millpond.local._statistics import Statistics
from millpond.local._task import Task
from millpond.local._when_full import Bound, WhenFull, check_when_full
from millpond.local.threads._map import map_in_threads
from millpond.local.threads._runner import Crew
from millpond.local.threads._scaling import Scaling
from millpond.local.threads._subpool import SubCrew

P = ParamSpec("P")
T = TypeVar("T")

_numbers = itertools.count(1)
_new_task = Task.__new__


class OptionTask(Task[T]):
    """A task with options."""

    __slots__ = ("key", "priority", "seat", "token")

    key: Hashable | None
    priority: float
    seat: Any
    """Where its key is, once it stands in line."""
    token: CancelToken | None


class CrewPool(Pool):
    """A pool whose tasks are run by a crew of threads."""

    _crew: Crew
    _order: Order
    _kind = "threads"
    _start_map = staticmethod(map_in_threads)

    # -- submitting ---------------------------------------------------------------------------------------------

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """Run `fn(*args, **kwargs)` in the pool and return its future.

        Raises `PoolClosed` after shutdown. When the pool is bounded and full, `when_full` decides.
        """
        # This is the hot path: `_build` and `Crew.place` for a plain task, written out.
        if not callable(fn):
            raise not_callable(fn)
        crew = self._crew
        task: Task[T] = _new_task(Task)
        task._status = 0
        task._hook = None
        task._owner = crew.owner
        task._fn = partial(fn, **kwargs) if kwargs else fn
        task._args = args
        task._context = (copy_context() or None) if crew.carries_context else None
        if crew.gate is not None:
            return crew.gate(task)
        crew.put(task)
        if crew.parked:
            try:
                crew.parked.pop().lock.release()
            except IndexError:  # another submitter was quicker
                crew.wake(1, task)
        elif crew.count < crew.size:
            crew.grow(task)
        return task

    def submit_many(self, fn: Callable[..., T], arguments: Iterable[tuple[Any, ...]], /) -> list[Task[T]]:
        """Run `fn(*each)` for each tuple of `arguments` and return their futures in order."""
        tasks = [self._build(NO_OPTIONS, fn, tuple(each), {}) for each in arguments]
        if self._crew.gate is not None:
            return [self._crew.admit(task) for task in tasks]
        self._crew.place_many(tasks)
        return tasks

    def _build(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task[T]:
        check_callable(fn)
        crew = self._crew
        call = partial(fn, **kwargs) if kwargs else fn
        task: Task[T] = _new_task(Task)
        if self._observer is not None:
            call = ObservedCall(call, self._observer, self.name)
        if options is not NO_OPTIONS:
            task, call = self._equip(task, call, options)
        task._status = 0
        task._hook = None
        task._owner = crew.owner
        task._fn = call
        task._args = args
        task._context = (copy_context() or None) if crew.carries_context else None
        return task

    def _equip(self, task: Task[T], call: Callable[..., T], options: Options) -> tuple[Task[T], Callable[..., T]]:
        """Give a task what its options need."""
        self._check_options(options)
        special: OptionTask[T] = OptionTask.__new__(OptionTask)
        special.priority, special.key, special.token, special.seat = options.priority or 0, options.key, options.cancel, None
        task = special
        if options.key is not None:
            call = KeyedCall(call, task, self._crew)
            if self._crew.seats is None:
                self._take_seats()
        if options.timeout is not None or options.cancel is not None:
            call = LimitedCall(call, task, options.timeout, options.cancel)
        return task, call

    def _check_options(self, options: Options) -> None:
        if options.priority is not None:
            check_priority(self._order, options.priority)

    def _take_seats(self) -> None:
        """Give every worker a seat, since the first task with a key has come."""
        crew = self._crew
        with crew.lock:
            if crew.seats is None:
                crew.seats = Seats(crew, dedicated=False)
                crew.set_gate()

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` in the pool and return an asyncio future: `await pool.run(f, x)`.

        The ends of many calls reach the loop with one wake-up, so this is many times quicker than
        `loop.run_in_executor`. Cancelling the future cancels the task if it has not started. On a full pool it waits
        for room without holding up the loop.
        """
        crew = self._crew
        if crew.gate is not None or not callable(fn):
            return self._run(NO_OPTIONS, fn, args, kwargs)
        # The hot path once more, as in `submit`.
        task: Task[T] = _new_task(Task)
        task._status = 0
        task._owner = crew.owner
        task._fn = partial(fn, **kwargs) if kwargs else fn
        task._args = args
        task._context = (copy_context() or None) if crew.carries_context else None
        awaited = await_from_the_start(task)
        crew.put(task)
        if crew.parked:
            crew.wake(1, task)
        elif crew.count < crew.size:
            crew.grow(task)
        return awaited

    def _run(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[T]:
        crew = self._crew
        task = self._build(options, fn, args, kwargs)
        awaited = await_from_the_start(task)
        with without_blocking():
            self._admit(task)
        return awaited

    def _go(self, options: Options, fn: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        crew = self._crew
        if options is not NO_OPTIONS or crew.gate is not None or self._observer is not None:
            super()._go(options, fn, args, kwargs)
            return
        task = self._build(options, fn, args, kwargs)
        task._hook = self._loose
        crew.place(task)

    _loose: LooseHook

    def _admit(self, task: Task[T]) -> Task[T]:
        self._arm(task, self._crew.admit)
        return task

    def _try_admit(self, task: Task[T]) -> bool:
        return self._arm(task, self._crew.try_admit) is not False

    def _arm(self, task: Task[T], admit: Callable[[Task[T]], object]) -> object:
        """Admit a task and let its token cancel it from then on, not before: it must be in line for that."""
        token = task.token if type(task) is OptionTask else None
        if token is None:
            return admit(task)
        if token.cancelled and not self._crew.is_closed:
            self._crew.cancel_new(task)
            return task
        verdict = admit(task)
        token._watch(task)
        return verdict

    # -- managing ---------------------------------------------------------------------------------------------------

    def subpool(self, max_workers: int, *, name: str | None = None) -> SubPool:
        """Return a pool that runs at most `max_workers` tasks at once, in the workers of this one."""
        return SubPool(self, max_workers, name=name)

    def _leave_at_once(self, why: str) -> None:
        self._crew.is_interrupted = True
        super()._leave_at_once(why)
        self._crew.token.cancel(f"the pool was left by {why}")

    def statistics(self) -> Statistics:
        """Return a snapshot of the pool's counts."""
        return self._crew.statistics(self._kind)


class ThreadPool(CrewPool, ThreadPoolExecutor):
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
        queues: `"shared"` (workers pull from one line) or `"dedicated"` (a line for each, idle ones steal).
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
        size = default_size() if max_workers is None else check_count("max_workers", max_workers, 1)
        floor = check_count("min_workers", min_workers, 0)
        if floor > size:
            raise ValueError(f"min_workers ({floor}) must not be above max_workers ({size})")
        check_word("queues", queues, ("shared", "dedicated"))
        check_word("context", context, ("copy", None))
        check_when_full(when_full, max_queued)
        check_optional_count("max_queued", max_queued, 0)
        check_optional_count("max_tasks_per_worker", max_tasks_per_worker, 1)
        for label, call in (("initializer", initializer), ("finalizer", finalizer), ("on_event", on_event)):
            if call is not None:
                check_callable(call, label)
        rule = sizing_rule(sizing)
        reaper = idle_timeout if isinstance(idle_timeout, Reaper) else None
        patience = None if isinstance(idle_timeout, Reaper) else check_seconds("idle_timeout", idle_timeout)

        self.name = name or thread_name_prefix or f"ThreadPool-{next(_numbers)}"
        self._order = order
        self._observer = on_event
        self._loose = LooseHook(self.name, on_event)
        self._crew = crew = Crew(
            name=self.name,
            size=size,
            floor=size if rule is fixed else floor,
            make_line=line_maker(order),
            idle_timeout=patience,
            carries_context=context == "copy",
            initializer=initializer,
            initargs=tuple(initargs),
            finalizer=finalizer,
            recycle_after=max_tasks_per_worker,
            observer=on_event,
        )
        if max_queued is not None:
            crew.bound = Bound(crew, max_queued, when_full)
        if rule not in (eager, fixed) or reaper is not None:
            crew.scaling = Scaling(crew, rule, reaper)
        if queues == "dedicated":
            crew.seats = Seats(crew, dedicated=True)
        crew.set_gate()
        weakref.finalize(self, crew.close).atexit = False
        crew.warm_up()

    # What people read of the standard pool although it is private.

    @property
    def _max_workers(self) -> int:  # type: ignore[override]
        return self._crew.size

    @property
    def _threads(self) -> set[Any]:  # type: ignore[override]
        return set(self._crew.threads)

    @property
    def _shutdown(self) -> bool:  # type: ignore[override]
        return self._crew.is_closed

    @property
    def _work_queue(self) -> WorkQueue:  # type: ignore[override]
        return WorkQueue(self._crew)


class WorkQueue:
    """The line of a pool, as far as people ask the standard pool for it."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def qsize(self) -> int:
        """Return how many tasks wait."""
        return self._crew.waiting()


class SubPool(CrewPool):
    """A share of a pool: at most `max_workers` tasks at once, with a line of its own, in the parent's workers."""

    _kind = "subpool"

    def __init__(self, parent: CrewPool, max_workers: int, *, name: str | None = None) -> None:
        size = check_count("max_workers", max_workers, 1)
        self.name = name or f"{parent.name}/{next(_numbers)}"
        self._order = parent._order
        self._parent = parent
        self._loose = LooseHook(self.name, parent._observer)
        self._observer = parent._observer
        self._crew = SubCrew(parent._crew, self.name, size)
