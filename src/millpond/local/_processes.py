"""`ProcessPool`: the face. It makes tasks and hands them over.

Where to look: `_process_crew` is what the pool shares with its one I/O thread; that is `_process_foreman`, which starts
and ends workers, listens to them and watches the clocks; `_process_dispatch` says which calls go where, in batches
(`_process_batch`); `_process_worker` is one worker from here and `_process_child` the program it runs;
`_process_journal` and `_process_recovery` are what makes `kill -9` cost one task only.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar

import millpond.local._process_lifecycle  # noqa: F401  (registers what happens at exit and after fork)
from millpond._events import Observer, logger
from millpond.local._checks import check_callable, check_count, check_seconds
from millpond.local._options import Options
from millpond.local._pool import Pool
from millpond.local._process_crew import ProcessCrew
from millpond.local._process_map import map_in_processes
from millpond.local._process_pickle import Encoder
from millpond.local._process_rules import Rules, is_importing_main, usable_context
from millpond.local._process_task import KillSwitch, ProcessTask
from millpond.local._queues import Order, check_priority, line_maker
from millpond.local._rejection import Bound, WhenFull, check_when_full
from millpond.local._stats import Statistics
from millpond.local._task import CANCELLED, OPEN, Task

P = ParamSpec("P")
T = TypeVar("T")

StartMethod = Literal["forkserver", "spawn", "fork"]

PATIENCE = 5.0
"""Seconds to wait for killed workers when the pool is left by Ctrl-C."""

STARTS_AT_ONCE = sys.version_info[:2] == (3, 12)
"""Whether the I/O thread starts with the pool: Python 3.12 lets no thread start once the main thread has ended, when
tasks of thread pools, which are finished then, may use a process pool for the first time."""

_numbers = itertools.count(1)
_new_task = Task.__new__


class ProcessPool(Pool):
    """A pool of processes: a `concurrent.futures.Executor` in which a crash costs one task, not the pool.

    Functions and arguments travel by pickle, quick calls many at a time. When a worker process dies, the task it was
    running fails with `WorkerDied` (or is tried again, see `retries`), and a new process takes its place; no other task
    is lost or run twice. Done-callbacks run in the pool's I/O thread and should be quick.

    Args:
        max_workers: The most processes at once; by default as many as this process may use processors.
        min_workers: Processes that are started at once and stay.
        max_queued: How many tasks may wait while all workers are busy; None for any number.
        when_full: What happens beyond that: `"block"`, `"raise"`, `"drop"`, `"drop_oldest"`, `"caller_runs"`,
            `Block(timeout=, max_waiting=)` or a callable.
        order: Which task is next: `"fifo"`, `"lifo"`, `"priority"` or `Priority(levels=)`.
        idle_timeout: Seconds after which an idle process leaves; None for never.
        start_method: `"forkserver"` (the default where there is one), `"spawn"` or `"fork"`.
        initializer: Called with `initargs` in each new worker; when it raises, the pool is broken.
        finalizer: Called in each worker that leaves.
        max_tasks_per_worker: Replace a worker after this many tasks.
        max_worker_age: Replace a worker that has lived for this many seconds, between tasks.
        max_worker_memory: Replace a worker that has more than this many bytes in memory, between tasks.
        retries: How many times a task is tried again whose worker died.
        name: Shown in process names, statistics and events.
        on_event: Called with an `Event` for each thing that happens, mostly in the I/O thread.
    """

    _crew: ProcessCrew
    _start_map = staticmethod(map_in_processes)

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        min_workers: int = 0,
        max_queued: int | None = None,
        when_full: WhenFull = "block",
        order: Order = "fifo",
        idle_timeout: float | None = 60.0,
        start_method: StartMethod | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        finalizer: Callable[[], object] | None = None,
        max_tasks_per_worker: int | None = None,
        max_worker_age: float | None = None,
        max_worker_memory: int | None = None,
        retries: int = 0,
        name: str | None = None,
        on_event: Observer | None = None,
    ) -> None:
        size = check_count("max_workers", _processors() if max_workers is None else max_workers, 1)
        floor = check_count("min_workers", min_workers, 0)
        if floor > size:
            raise ValueError(f"min_workers ({floor}) must not be above max_workers ({size})")
        check_when_full(when_full, max_queued)
        if max_queued is not None:
            check_count("max_queued", max_queued, 0)
        for label, call in (("initializer", initializer), ("finalizer", finalizer), ("on_event", on_event)):
            if call is not None:
                check_callable(call, label)
        for label, number in (("max_tasks_per_worker", max_tasks_per_worker), ("max_worker_memory", max_worker_memory)):
            if number is not None:
                check_count(label, number, 1)
        self.name = name or f"ProcessPool-{next(_numbers)}"
        self._order = order
        self._observer = on_event
        self._crew = crew = ProcessCrew(
            name=self.name,
            size=size,
            floor=floor,
            make_line=line_maker(order),
            rules=Rules(
                context=_context(start_method),
                setup=Encoder().encode_setup(initializer, tuple(initargs), finalizer),
                idle_timeout=check_seconds("idle_timeout", idle_timeout),
                max_tasks=max_tasks_per_worker,
                max_age=check_seconds("max_worker_age", max_worker_age),
                max_memory=max_worker_memory,
                retries=check_count("retries", retries, 0),
                looks_ahead=order == "fifo",
            ),
            observer=on_event,
        )
        if max_queued is not None:
            crew.bound = Bound(crew, max_queued, when_full)  # type: ignore[arg-type]
            crew.gate = crew.admit
        weakref.finalize(self, crew.close).atexit = False
        if (floor or STARTS_AT_ONCE) and not is_importing_main():
            crew.rouse()

    # -- submitting --------------------------------------------------------------------------------------------------

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """Run `fn(*args, **kwargs)` in a worker process and return its future.

        Raises `PoolClosed` after shutdown. When the pool is bounded and full, `when_full` decides. What cannot be
        pickled fails the future, with an error that names it. `cancel()` works until it is on its way to a worker.
        """
        # This is the hot path: `_build` and `ProcessCrew.place` for a plain task, written out.
        if not callable(fn):
            check_callable(fn)  # type: ignore[unreachable]
        crew = self._crew
        task: Task[T] = _new_task(Task)
        task._status = 0
        task._hook = None
        task._owner = crew
        task._fn = partial(fn, **kwargs) if kwargs else fn
        task._args = args
        task._context = None
        if crew.gate is not None:
            return crew.gate(task)
        crew.put(task)
        if crew.is_asleep:
            crew.rouse(task)
        return task

    def _build(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task[T]:
        check_callable(fn)
        self._check_options(options)
        task: Task[T]
        if options.priority is None and options.key is None and options.timeout is None and options.cancel is None:
            task = _new_task(Task)
        else:
            special: ProcessTask[T] = ProcessTask.__new__(ProcessTask)
            special.priority, special.key = options.priority or 0, options.key
            special.timeout = options.timeout
            special.switch = None if options.cancel is None else KillSwitch(special, options.cancel)
            task = special
        task._status = 0
        task._hook = None
        task._owner = self._crew
        task._fn = partial(fn, **kwargs) if kwargs else fn
        task._args = args
        task._context = None
        if options.cancel is not None and options.cancel.cancelled:
            task._settle(CANCELLED, None)
        return task

    def _check_options(self, options: Options) -> None:
        if options.priority is not None:
            check_priority(self._order, options.priority)

    def _admit(self, task: Task[T]) -> Task[T]:
        self._crew.admit(task)
        self._arm(task)
        return task

    def _try_admit(self, task: Task[T]) -> bool:
        is_in = self._crew.try_admit(task)
        self._arm(task)
        return is_in

    def _arm(self, task: Task[T]) -> None:
        """Let the task's token, if it has one, end it from now on."""
        if isinstance(task, ProcessTask) and task.switch is not None and task._status == OPEN:
            task.switch.arm()

    # -- managing ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Shut down at once: cancel what is queued and end the workers; what they were running fails."""
        self.shutdown(wait=False, cancel_futures=True)
        self._crew.kill()

    def _leave_at_once(self, why: str) -> None:
        now = self.statistics()
        self.kill()
        self._crew.join(time.monotonic() + PATIENCE)
        logger.warning(
            "pool %r was left by %s: %d queued tasks cancelled, %d running tasks ended",
            self.name,
            why,
            now.queued,
            now.running,
        )

    def statistics(self) -> Statistics:
        """Return a snapshot of the pool's counts."""
        return self._crew.statistics("processes")

    def __reduce__(self) -> Any:
        raise TypeError(f"pool {self.name!r} cannot be sent to another process; make a pool there, or submit from here")

    # What people read of the standard pool although it is private.

    @property
    def _max_workers(self) -> int:
        return self._crew.size

    @property
    def _processes(self) -> dict[int, Any]:
        return {worker.process.pid: worker.process for worker in list(self._crew.workers)}


def _processors() -> int:
    """Count the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _context(method: str | None) -> Any:
    """Return the multiprocessing context of a start method; refuse one that does not exist here."""
    methods = multiprocessing.get_all_start_methods()
    if method is None:
        method = "forkserver" if "forkserver" in methods else "spawn"
    if method not in methods:
        raise ValueError(f"start_method must be one of {', '.join(map(repr, methods))} or None, not {method!r}")
    return usable_context(multiprocessing.get_context(method))
