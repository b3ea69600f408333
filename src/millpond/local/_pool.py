"""The verbs that pools of threads and of processes have in common; each kind brings its runner and makes its tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Executor
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from millpond._events import logger
from millpond.local._cancel import CancelToken
from millpond.local._checks import check_count, check_seconds
from millpond.local._group import Group
from millpond.local._options import Options
from millpond.local._progress import Progress
from millpond.local._queues import Order, check_priority
from millpond.local._statistics import Statistics, describe, to_html
from millpond.local._verbs import OptionedPool, Verbs

T = TypeVar("T")


class Pool(Verbs, Executor):
    """What `ThreadPool`, `ProcessPool` and subpools have in common."""

    name: str
    _order: Order
    _start_map: Callable[..., Iterator[Any]]

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
        if priority is not None:
            check_priority(self._order, priority)
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
        timeout = check_seconds("timeout", timeout)
        if self._runner.is_inside():
            raise RuntimeError(f"drain() inside a task of pool {self.name!r} would wait for itself; use a group()")
        return bool(self._runner.drainers.wait(timeout))

    def restart(self) -> None:
        """Open a pool again that was shut down, when its last tasks have ended; an open one goes on."""
        if self._runner.is_closed:
            self._runner.join()
            self._runner.reopen()

    def shutdown(  # type: ignore[override]
        self, wait: bool = True, *, cancel_futures: bool = False, timeout: float | None = None
    ) -> bool:
        """Take no more tasks; finish those queued (or cancel them) and wait for the workers to end.

        Returns False when `timeout` seconds were not enough; the rest then goes on in the background. A paused pool
        is resumed, so that what is queued can end.
        """
        timeout = check_seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._runner.close(cancel_queued=cancel_futures)
        return bool(self._runner.join(deadline)) if wait else True

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
