"""`ProcessPool`: it makes tasks and hands them to a runner.

Where to look: `_runner` is what the pool shares with its one I/O thread; that is `_io_thread`, which listens to the
workers and keeps the deadlines; `_workers` says when one is started and when it leaves; `_dispatch` which calls go
where, in batches (`_batch`); `_worker` is one worker from here and `_child` the program that it runs; `_journal` and
`_recovery` are what makes `kill -9` cost one task only; `_callback_thread` runs users' callbacks.
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

import millpond.local.processes._exit  # noqa: F401  (registers what happens at exit)
from millpond._events import Observer, logger
from millpond.local._checks import check_callable, check_count, check_function, check_optional_count, check_seconds
from millpond.local._options import NO_OPTIONS, Options, option_task
from millpond.local._pool import Pool
from millpond.local._queues import Order, queue_maker
from millpond.local._task import Task
from millpond.local._when_full import WhenFull, check_when_full
from millpond.local.processes._io_thread import IoThread
from millpond.local.processes._map import map_in_processes
from millpond.local.processes._pickling import encode_setup
from millpond.local.processes._runner import ProcessRunner
from millpond.local.processes._workers import WorkerRules, is_importing_main, usable_context

P = ParamSpec("P")
T = TypeVar("T")

StartMethod = Literal["forkserver", "spawn", "fork"]

KILL_TIMEOUT = 5.0  # seconds to wait for killed workers when the pool is left by Ctrl-C

STARTS_AT_ONCE = sys.version_info[:2] == (3, 12)
"""Whether the I/O thread starts with the pool: Python 3.12 lets no thread start once the main thread has ended, when
tasks of thread pools, which are finished then, may use a process pool for the first time."""

_numbers = itertools.count(1)
_new_task = Task.__new__


class ProcessPool(Pool):
    """A pool of processes: a `concurrent.futures.Executor` in which a crash costs one task, not the pool.

    Functions and arguments travel by pickle, quick calls many at a time. When a worker process dies, the task it was
    running fails with `WorkerDied` (or is tried again, see `retries`), and a new process takes its place; no other task
    is lost or run twice. Done-callbacks, and `on_event` for what the workers do, run one after another in a thread of
    the pool: a slow one holds up the others, but no task. What objects do when they are pickled or loaded
    (`__reduce__`, `__getstate__`, `__setstate__`) is done in the thread that serves the workers: it should be quick.

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
        max_worker_age: Replace a worker that has been ready for this many seconds, between tasks; each runs one.
        max_worker_memory: Replace a worker that has more than this many bytes in memory, between tasks.
        retries: How many times a task is tried again whose worker died.
        name: Shown in process names, statistics and events.
        on_event: Called with an `Event` for each thing that happens, in order.
    """

    _runner: ProcessRunner
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
        most = check_count("max_workers", _processors() if max_workers is None else max_workers, 1)
        least = check_count("min_workers", min_workers, 0)
        if least > most:
            raise ValueError(f"min_workers ({least}) must not be above max_workers ({most})")
        check_when_full(when_full, max_queued)
        check_optional_count("max_queued", max_queued, 0)
        check_optional_count("max_tasks_per_worker", max_tasks_per_worker, 1)
        check_optional_count("max_worker_memory", max_worker_memory, 1)
        for label, call in (("initializer", initializer), ("finalizer", finalizer), ("on_event", on_event)):
            if call is not None:
                check_callable(call, label)
        self.name = name or f"ProcessPool-{next(_numbers)}"
        self._order = order
        self._on_event = on_event
        self._runner = runner = ProcessRunner(
            name=self.name,
            min_workers=least,
            max_workers=most,
            rules=WorkerRules(
                context=_context(start_method),
                setup=encode_setup(initializer, tuple(initargs), finalizer),
                idle_timeout=check_seconds("idle_timeout", idle_timeout),
                max_tasks_per_worker=max_tasks_per_worker,
                max_worker_age=check_seconds("max_worker_age", max_worker_age),
                max_worker_memory=max_worker_memory,
                retries=check_count("retries", retries, 0),
                looks_ahead=order == "fifo",
            ),
            make_queue=queue_maker(order),
            make_io_thread=IoThread,
            max_queued=max_queued,
            when_full=when_full,
            on_event=on_event,
        )
        weakref.finalize(self, runner.close).atexit = False
        if (least or STARTS_AT_ONCE) and not is_importing_main():
            runner.wake()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """Run `fn(*args, **kwargs)` in a worker process and return its future.

        Raises `PoolClosed` after shutdown. When the pool is bounded and full, `when_full` decides. What cannot be
        pickled fails the future, with an error that names it. `cancel()` works until it is on its way to a worker.
        """
        # This is the hot path: `_build` and `ProcessRunner.place` for a plain task, written out.
        runner = self._runner
        if fn is not runner.last_fn:  # most submits are of the same function as the last
            check_function(fn)
            runner.last_fn = fn
        task: Task[T] = _new_task(Task)
        task._status = 0
        task._watchers = None
        task._owner = runner.owner
        task._fn = partial(fn, **kwargs) if kwargs else fn
        task._args = args  # and `_context` stays unset: nobody reads it, but in a pool with `on_event`
        if runner.admit is not None:
            return runner.admit(task)
        try:
            runner.put(task)
            if runner.io.is_waiting:
                runner.wake(task)
        except BaseException:
            runner.admission.step_out(task)
            raise
        return task

    def _build(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task[T]:
        check_function(fn)
        if options is NO_OPTIONS:
            task: Task[T] = _new_task(Task)
        else:
            task = option_task(options)
        task._status = 0
        task._watchers = None
        task._owner = self._runner.owner
        task._fn = partial(fn, **kwargs) if kwargs else fn
        task._args = args
        task._context = None if self._on_event is None else time.perf_counter()  # see `ProcessRunner.admit_observed`
        return task

    def kill(self) -> None:
        """Shut down at once: cancel what is queued and end the workers; what they were running fails."""
        self.shutdown(wait=False, cancel_futures=True)
        self._runner.kill()

    def _leave_at_once(self, why: str) -> None:
        now = self.statistics()
        self.kill()
        self._runner.join(time.monotonic() + KILL_TIMEOUT)
        text = "pool %r was left by %s: %d queued tasks cancelled, %d running tasks ended"
        logger.warning(text, self.name, why, now.queued, now.running)

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every task has ended and its callbacks were called, leaving the pool open; False at time-out."""
        if self._runner.callbacks.is_here:
            raise RuntimeError(f"drain() in a callback of pool {self.name!r} would wait for itself; use wait()")
        return super().drain(timeout)

    def __reduce__(self) -> Any:
        raise TypeError(f"pool {self.name!r} cannot be sent to another process; make a pool there, or submit from here")

    # What people read of the standard pool although it is private.

    @property
    def _max_workers(self) -> int:
        return self._runner.max_workers

    @property
    def _processes(self) -> dict[int, Any]:
        return {worker.process.pid: worker.process for worker in list(self._runner.workers.all)}


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _context(method: str | None) -> Any:
    methods = multiprocessing.get_all_start_methods()
    if method is None:
        method = "forkserver" if "forkserver" in methods else "spawn"
    if method not in methods:
        raise ValueError(f"start_method must be one of {', '.join(map(repr, methods))} or None, not {method!r}")
    return usable_context(multiprocessing.get_context(method))
