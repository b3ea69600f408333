"""The verbs that pools of threads and of processes have in common; each kind brings its runner and makes its tasks."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar

from millpond._events import Observer, logger
from millpond.local._cancel import CancelToken
from millpond.local._checks import check_count, check_seconds
from millpond.local._group import Group
from millpond.local._loop_bridge import await_from_the_start
from millpond.local._map import map_singly
from millpond.local._options import NO_OPTIONS, OptionedPool, Options
from millpond.local._progress import Progress
from millpond.local._queues import Order, check_priority
from millpond.local._statistics import Statistics, describe, to_html
from millpond.local._task import Task
from millpond.local._watchers import RAISED, Watchers

if TYPE_CHECKING:
    from asyncio import Future
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")


class Pool(Executor):
    """What `ThreadPool`, `ProcessPool` and subpools have in common."""

    name: str
    _on_event: Observer | None = None
    _order: Order
    _runner: Any
    """What the pool shares with its workers; each kind has its own."""
    _start_map: Callable[..., Iterator[Any]]

    @abstractmethod
    def _build(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task[T]:
        """Make a task that is not queued yet."""

    # -- submitting -------------------------------------------------------------------------------------------

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """Run `fn(*args, **kwargs)` in the pool and return its future.

        Raises `PoolClosed` after shutdown. When the pool is bounded and full, `when_full` decides.
        """
        return self._submit(NO_OPTIONS, fn, args, kwargs)

    def try_submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T] | None:
        """Like `submit`, but never wait and never apply `when_full`: return None when the pool is full."""
        return self._try_submit(NO_OPTIONS, fn, args, kwargs)

    def go(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `fn(*args, **kwargs)` and forget it.

        What it raises is not lost: `on_event` gets it as `task_failed`; without `on_event` it is logged as an error.
        """
        self._go(NO_OPTIONS, fn, args, kwargs)

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` in the pool and return an asyncio future: `await pool.run(f, x)`.

        The ends of many calls reach the loop with one wake-up, so this is many times quicker than
        `loop.run_in_executor`. Cancelling the future cancels the task if it has not started. On a full pool it waits
        for room without holding up the loop.
        """
        return self._run(NO_OPTIONS, fn, args, kwargs)

    def submit_many(self, fn: Callable[..., T], arguments: Iterable[tuple[Any, ...]], /) -> list[Task[T]]:
        """Run `fn(*each)` for each tuple of `arguments` and return their futures in order."""
        return [self._submit(NO_OPTIONS, fn, each, {}) for each in arguments]

    def options(
        self,
        *,
        priority: float | None = None,
        key: Hashable | None = None,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
    ) -> OptionedPool:
        """Return the pool's submitting verbs with options for each task.

        `priority`: higher runs first (pools with `order="priority"`). `key`: tasks of the same key run in the same
        worker, in order. `timeout`: the most seconds that a task may run; past it, it ends with `TaskTimeout`.
        `cancel`: a `CancelToken`; what is queued is cancelled with it, what runs can see it.
        """
        options = Options(priority=priority, key=key, timeout=timeout, cancel=cancel)
        self._check_options(options)
        return OptionedPool(self, options)

    def group(self) -> Group:
        """Return a group: `with pool.group() as g: g.submit(...)` waits for all; the first error cancels the rest."""
        return Group(self.submit, CancelToken())

    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
        ordered: bool = True,
        progress: Progress = False,
    ) -> Iterator[T]:
        """Call `fn` for the items of `iterables` and yield the results.

        As in the standard library, the source is read here and now, in the caller's thread, and everything runs,
        whether the results are taken or not; TimeoutError is raised `timeout` seconds after this call. Quick items
        travel in chunks that adapt to their run time, unless `chunksize` fixes it. `buffersize=n` makes it lazy: at
        most n items are ahead of the consumer, so that it fits endless sources. `ordered=False` yields results as
        they come. `progress=True` shows a bar, a function is called as `progress(done, total)`. When a call raises, or
        its process dies, the error comes in its place, and what has not started is cancelled; so it is when the
        iterator is closed after its first result.
        """
        return self._start_map(
            self._runner,
            fn,
            iterables,
            timeout=timeout,
            chunksize=chunksize,
            buffersize=buffersize,
            ordered=ordered,
            progress=progress,
        )

    # -- managing -----------------------------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return a snapshot of the pool's counts."""
        now: Statistics = self._runner.statistics()
        return now

    def pause(self) -> None:
        """Start no more tasks until `resume()`; what runs goes on, what is submitted waits."""
        self._runner.pause()

    def resume(self) -> None:
        """Start tasks again."""
        self._runner.resume()

    def purge(self) -> int:
        """Cancel every task that has not started (or is not on its way to a process); return how many."""
        return int(self._runner.purge())

    def resize(self, max_workers: int) -> None:
        """Change the number of workers; surplus ones leave as their tasks end."""
        self._runner.resize(check_count("max_workers", max_workers, 1))

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every task has ended, leaving the pool open; False when that took longer than `timeout`."""
        check_seconds("timeout", timeout)
        if self._runner.is_inside():
            raise RuntimeError(f"drain() inside a task of pool {self.name!r} would wait for itself; use a group()")
        return bool(self._runner.drainers.wait(timeout))

    def restart(self) -> None:
        """Open a pool again that was shut down, when its last tasks have ended."""
        self._runner.join()
        self._runner.reopen()

    def shutdown(  # type: ignore[override]
        self, wait: bool = True, *, cancel_futures: bool = False, timeout: float | None = None
    ) -> bool:
        """Take no more tasks; finish those queued (or cancel them) and wait for the workers to end.

        Returns False when `timeout` seconds were not enough; the rest then goes on in the background. A paused pool
        is resumed, so that what is queued can end.
        """
        check_seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._runner.close(cancel_queued=cancel_futures)
        return bool(self._runner.join(deadline)) if wait else True

    # -- for the verbs above --------------------------------------------------------------------------------------

    def _check_options(self, options: Options) -> None:
        """Refuse options that this pool cannot honour."""
        if options.priority is not None:
            check_priority(self._order, options.priority)

    def _submit(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task[T]:
        task = self._build(options, fn, args, kwargs)
        self._runner.admission.admit(task)
        return task

    def _try_submit(
        self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Task[T] | None:
        task = self._build(options, fn, args, kwargs)
        return task if self._runner.admission.try_admit(task) else None

    def _go(self, options: Options, fn: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        task = self._build(options, fn, args, kwargs)
        task._watchers = ErrorLogger(self.name, self._on_event)
        self._runner.admission.admit(task)

    def _run(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[T]:
        task = self._build(options, fn, args, kwargs)
        awaited = await_from_the_start(task)
        self._runner.admission.admit(task, wait=False)
        return awaited

    def _map_singly(
        self,
        options: Options,
        fn: Callable[..., T],
        iterables: tuple[Iterable[Any], ...],
        timeout: float | None,
        buffersize: int | None,
    ) -> Iterator[T]:
        return map_singly(lambda args: self._submit(options, fn, args, {}), iterables, timeout, buffersize)

    # -- being a pool ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """Wait for everything, as the standard pools do; after Ctrl-C cancel what is queued and leave at once."""
        if kind is not None and not issubclass(kind, Exception) and kind is not GeneratorExit:
            self._leave_at_once(kind.__name__)
            return False
        try:
            self.shutdown(wait=True)
        except BaseException as interrupt:  # Ctrl-C while waiting here
            self._leave_at_once(type(interrupt).__name__)
            raise
        return False

    def _leave_at_once(self, why: str) -> None:
        now = self.statistics()
        self.shutdown(wait=False, cancel_futures=True)
        logger.warning(
            "pool %r was left by %s: %d queued tasks cancelled, %d running tasks left behind",
            self.name,
            why,
            now.queued,
            now.running,
        )

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle pool {self.name!r}: make a pool in the other process, or submit from here")

    def __repr__(self) -> str:
        return describe(self.statistics())

    def _repr_html_(self) -> str:
        return to_html(self.statistics())


class ErrorLogger(Watchers):
    """Watches tasks that nobody else watches, so that their errors do not vanish; one serves all of a pool."""

    __slots__ = ("_on_event", "_pool")

    def __init__(self, pool: str, on_event: Observer | None) -> None:
        super().__init__()
        self._pool = pool
        self._on_event = on_event

    def wake(self, task: Task[Any]) -> None:
        """Log the error, if there is one and no event was emitted for it."""
        super().wake(task)
        if task._status == RAISED and self._on_event is None:
            trace = task._value.__traceback__
            function = "a task" if trace is None else trace.tb_frame.f_code.co_qualname
            logger.error("%s failed in pool %r", function, self._pool, exc_info=task._value)
