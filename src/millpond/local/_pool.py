"""The verbs that every local pool has, on three primitives that each kind brings: build, admit, statistics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar

from millpond._events import Observer, logger
from millpond.local._awaiting import await_from_the_start, without_blocking
from millpond.local._group import Group
from millpond.local._map import map_singly
from millpond.local._options import NO_OPTIONS, OptionedPool, Options
from millpond.local._stats import Statistics, describe, picture
from millpond.local._task import RAISED, Hook, Task
from millpond.local._token import CancelToken

if TYPE_CHECKING:
    from asyncio import Future
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")


class Pool(Executor):
    """What `ThreadPool`, `ProcessPool` and subpools have in common."""

    name: str
    _observer: Observer | None = None

    # -- the primitives ---------------------------------------------------------------------------------------

    @abstractmethod
    def _build(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task[T]:
        """Make a task that is in no line yet."""

    @abstractmethod
    def _admit(self, task: Task[T]) -> Task[T]:
        """Put a task in line by the rules of the pool, and return it (cancelled, when it was dropped)."""

    @abstractmethod
    def _try_admit(self, task: Task[T]) -> bool:
        """Put a task in line if there is room; False when the pool is full."""

    @abstractmethod
    def statistics(self) -> Statistics:
        """Return a snapshot of the pool's counts."""

    # -- submitting -------------------------------------------------------------------------------------------

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """Run `fn(*args, **kwargs)` in the pool and return its future.

        Raises `PoolClosed` after shutdown. When the pool is bounded and full, `when_full` decides.
        """
        return self._admit(self._build(NO_OPTIONS, fn, args, kwargs))

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
        `loop.run_in_executor`. Cancelling the future cancels the task if it has not started.
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
        `cancel`: a `CancelToken`; what is in line is cancelled with it, what runs can see it.
        """
        options = Options(priority=priority, key=key, timeout=timeout, cancel=cancel)
        self._check_options(options)
        return OptionedPool(self, options)

    def group(self) -> Group:
        """Return a group: `with pool.group() as g: g.submit(...)` waits for all; the first error cancels the rest."""
        return Group(self)

    # -- for the verbs above --------------------------------------------------------------------------------------

    def _check_options(self, options: Options) -> None:
        """Refuse options that this pool cannot honour."""

    def _submit(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task[T]:
        return self._admit(self._build(options, fn, args, kwargs))

    def _try_submit(
        self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Task[T] | None:
        task = self._build(options, fn, args, kwargs)
        return task if self._try_admit(task) else None

    def _go(self, options: Options, fn: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        task = self._build(options, fn, args, kwargs)
        task._hook = LooseHook(self.name, self._observer)
        self._admit(task)

    def _run(self, options: Options, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[T]:
        task = self._build(options, fn, args, kwargs)
        awaited = await_from_the_start(task)
        with without_blocking():
            self._admit(task)
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

    def __repr__(self) -> str:
        return describe(self.statistics())

    def _repr_html_(self) -> str:
        return picture(self.statistics())


class LooseHook(Hook):
    """Watches tasks that nobody else watches, so that their errors do not vanish; one serves all of a pool."""

    __slots__ = ("_observer", "_pool")

    def __init__(self, pool: str, observer: Observer | None) -> None:
        super().__init__()
        self._pool = pool
        self._observer = observer

    def wake(self, task: Task[Any]) -> None:
        """Log the error, if there is one and no observer was told of it."""
        super().wake(task)
        if task._status == RAISED and self._observer is None:
            trace = task._value.__traceback__
            function = "a task" if trace is None else trace.tb_frame.f_code.co_qualname
            logger.error("%s failed in pool %r", function, self._pool, exc_info=task._value)
