"""`map`: many calls of one function, without a future for each. What maps in threads and in processes share.

`Results` puts the outcomes in order for the consumer; `start` feeds a map and returns the iterator of its results. What
runs the calls is in `_thread_map.py` and `_process_map.py`.
"""

from __future__ import annotations

import _thread
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import CancelledError
from itertools import islice
from typing import Any, Generic, TypeVar

from millpond.local._checks import check_callable, check_count, check_seconds
from millpond.local._progress import with_progress
from millpond.local._task import CANCELLED, RAISED, Hook, Task

T = TypeVar("T")


class Results(Generic[T]):
    """Outcomes on their way from the workers to the consumer."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._ready: dict[int, tuple[list[T], BaseException | None]] = {}
        self._unordered: deque[tuple[list[T], BaseException | None]] = deque()
        self._next = 0
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._is_asleep = False
        self.failure: BaseException | None = None

    def publish(self, start: int, values: list[T], error: BaseException | None) -> None:
        """Hand over the outcomes from number `start` on; an error stands for the item after the values."""
        if self._ordered:
            self._ready[start] = (values, error)
            if start == self._next:
                self._wake()
        else:
            self._unordered.append((values, error))
            self._wake()

    def fail(self, failure: BaseException) -> None:
        """End the consumer's wait: no more outcomes will come."""
        self.failure = failure
        self._wake()

    def strand(self, failure: BaseException) -> None:
        """End the consumer's wait in a forked child, where the locks may be held by threads that are gone."""
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self.failure = failure

    def _wake(self) -> None:
        if self._is_asleep:
            self._is_asleep = False
            with contextlib.suppress(RuntimeError):  # two workers saw the same sleeper: one wake-up is enough
                self._lock.release()

    def _take(self) -> tuple[list[T], BaseException | None] | None:
        if not self._ordered:
            return self._unordered.popleft() if self._unordered else None
        outcome = self._ready.pop(self._next, None)
        if outcome is not None:
            self._next += len(outcome[0]) + (outcome[1] is not None)
        return outcome

    def next(self, deadline: float | None, help_out: Callable[[], bool]) -> tuple[list[T], BaseException | None]:
        """Wait for the next outcomes; a consumer that can help out does so instead of waiting."""
        while True:
            outcome = self._take()
            if outcome is not None:
                return outcome
            if self.failure is not None:
                raise self.failure
            if help_out():
                continue
            self._is_asleep = True
            if self._has_next() or self.failure is not None:
                self._is_asleep = False
                continue
            left = -1 if deadline is None else deadline - time.monotonic()
            if deadline is not None and left <= 0:
                raise TimeoutError
            self._lock.acquire(True, left)

    def _has_next(self) -> bool:
        return self._next in self._ready if self._ordered else bool(self._unordered)


class DriverHook(Hook):
    """Notices when the pool drops the driver of a map, its place in the line, instead of running it."""

    __slots__ = ("_run",)

    def __init__(self, run: Any) -> None:
        super().__init__()
        self._run = run

    def wake(self, task: Task[Any]) -> None:
        """Tell the map."""
        super().wake(task)
        if task._status == CANCELLED:
            self._run.lost(CancelledError("the map was cancelled: its pool was purged or shut down"))
        elif task._status == RAISED:
            self._run.lost(task._value)


def open_source(
    fn: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    *,
    timeout: float | None,
    chunk: int | None,
    ahead: int | None,
) -> tuple[Iterator[Any], int | None]:
    """Check what `map` was given; return an iterator over its items and how many there are, if that is known."""
    check_callable(fn)
    if not isinstance(timeout, int | float) or timeout > 0:  # as in the standard library, what is past is past
        check_seconds("timeout", timeout)
    if chunk is not None:
        check_count("chunksize", chunk, 1)
    if ahead is not None:
        check_count("buffersize", ahead, 1)
    lengths = [len(each) if isinstance(each, Sized) else None for each in iterables]
    total = None if not lengths or None in lengths else min(length for length in lengths if length is not None)
    return (iter(iterables[0]) if len(iterables) == 1 else zip(*iterables, strict=False)), total


def start(
    run: Any,
    items: Iterator[Any],
    *,
    timeout: float | None,
    ahead: int | None,
    progress: bool,
    total: int | None,
) -> Iterator[Any]:
    """Feed a map (all of it, or the first `ahead` items) and return the iterator of its results."""
    deadline = None if timeout is None else time.monotonic() + timeout
    first = list(items if ahead is None else islice(items, ahead))
    run.feed(first)
    results = _consume(run, items if ahead is not None else iter(()), len(first), ahead or 0, deadline, timeout)
    return with_progress(results, total) if progress else results


def _consume(
    run: Any, items: Iterator[Any], pending: int, ahead: int, deadline: float | None, timeout: float | None
) -> Iterator[Any]:
    """Yield the results, feeding as many items as were taken when the map is lazy."""
    try:
        while pending:
            try:
                values, error = run.results.next(deadline, run.help_out)
            except TimeoutError:
                raise TimeoutError(f"{pending} results were missing {timeout} s after map() was called") from None
            taken = len(values) + (error is not None)
            pending -= taken
            values.reverse()
            while values:  # keep no result alive that was handed out
                yield values.pop()
            if error is not None:
                try:
                    raise error
                finally:
                    del error
            if ahead:
                more = list(islice(items, taken))
                run.feed(more)
                pending += len(more)
    finally:
        run.stop()


def map_singly(
    submit: Callable[[tuple[Any, ...]], Task[T]],
    iterables: tuple[Iterable[Any], ...],
    timeout: float | None,
    ahead: int | None,
) -> Iterator[T]:
    """Map with a task for each item, in order."""
    if ahead is not None:
        check_count("buffersize", ahead, 1)
    deadline = None if timeout is None else time.monotonic() + timeout
    arguments = zip(*iterables, strict=False)
    tasks = deque(submit(each) for each in (arguments if ahead is None else islice(arguments, ahead)))

    def results() -> Iterator[T]:
        try:
            while tasks:
                value = tasks[0].result(None if deadline is None else max(0.0, deadline - time.monotonic()))
                tasks.popleft()
                if ahead is not None:
                    tasks.extend(submit(each) for each in islice(arguments, 1))
                yield value
        finally:
            for task in tasks:
                task.cancel()

    return results()
