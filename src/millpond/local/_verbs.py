"""The submitting verbs of pools of threads and of processes, plain or seen through options."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar

from millpond._events import Observer, logger
from millpond.local._loop_bridge import await_from_the_start
from millpond.local._map import map_singly
from millpond.local._options import NO_OPTIONS, Options
from millpond.local._task import Task
from millpond.local._watchers import RAISED, Watchers

P = ParamSpec("P")
T = TypeVar("T")


class Verbs:
    """The verbs that hand calls to a pool: `_build` makes the task, the runner's admission queues it."""

    _options: Options = NO_OPTIONS
    _runner: Any
    """What the pool shares with its workers; each kind has its own."""
    _build: Callable[..., Task[Any]]
    """Called as `_build(options, fn, args, kwargs)`: makes a task that is not queued yet."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """Run `fn(*args, **kwargs)` in the pool and return its future.

        Raises `PoolClosed` after shutdown. When the pool is bounded and full, `when_full` decides.
        """
        task = self._build(self._options, fn, args, kwargs)
        self._runner.admission.admit(task)
        return task

    def try_submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T] | None:
        """Like `submit`, but never wait and never apply `when_full`: return None when the pool is full."""
        task = self._build(self._options, fn, args, kwargs)
        return task if self._runner.admission.try_admit(task) else None

    def go(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `fn(*args, **kwargs)` and forget it; what it raises goes to `on_event`, or else is logged as an error."""
        runner = self._runner
        task = self._build(self._options, fn, args, kwargs)
        task._watchers = ErrorLogger(runner.name, runner.on_event)
        runner.admission.admit(task)

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` in the pool and return an asyncio future: `await pool.run(f, x)`.

        The ends of many calls reach the loop with one wake-up, so this is many times quicker than
        `loop.run_in_executor`. Cancelling the future cancels the task if it has not started. On a full pool it waits
        for room without holding up the loop.
        """
        task = self._build(self._options, fn, args, kwargs)
        awaited = await_from_the_start(task)
        self._runner.admission.admit(task, wait=False)
        return awaited

    def submit_many(self, fn: Callable[..., T], arguments: Iterable[tuple[Any, ...]], /) -> list[Task[T]]:
        """Run `fn(*each)` for each tuple of `arguments` and return their futures in order."""
        admit = self._runner.admission.admit
        return [admit(self._build(self._options, fn, each, {})) for each in arguments]


class OptionedPool(Verbs):
    """A pool seen through options: its submitting verbs, each with these options."""

    def __init__(self, pool: Verbs, options: Options) -> None:
        self._pool = pool
        self._options = options
        self._runner = pool._runner
        self._build = pool._build

    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Like `Pool.map` in order, but with a task of its own for each item, since the options are each task's."""
        return map_singly(lambda args: self.submit(fn, *args), iterables, timeout, buffersize)

    def __repr__(self) -> str:
        return f"<{self._pool!r} with {self._options}>"


class ErrorLogger(Watchers):
    """Watches tasks that nobody else watches, so that their errors do not vanish."""

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
