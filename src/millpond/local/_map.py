"""`map`: many calls of one function, without a future for each. What maps in threads and in processes share.

`Items` holds what is to be called with, `Results` puts the outcomes in order for the consumer; `start` feeds a map and
returns the iterator of its results. What runs the calls is in `threads/_map.py` and `processes/_map.py`.
"""

from __future__ import annotations

import _thread
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import CancelledError
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from millpond.local._checks import check_callable, check_function, check_optional_count, check_seconds
from millpond.local._progress import Progress, with_progress
from millpond.local._task import Task
from millpond.local._watchers import CANCELLED, RAISED, Watchers

T = TypeVar("T")


class Items:
    """The items that have not been taken yet.

    Blocks are kept in reverse, so that both cutting from them and taking items one by one shorten a list at its end:
    no item is kept alive by a list that it has left.
    """

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._blocks: deque[tuple[int, list[Any]]] = deque()  # the number after its last item, and the items in reverse
        self._end = 0
        self._left = 0

    def __len__(self) -> int:
        return self._left

    def add(self, items: list[Any]) -> None:
        """Add items at the end."""
        if items:
            items = items[::-1]
            with self._lock:
                self._end += len(items)
                self._left += len(items)
                self._blocks.append((self._end, items))

    def give_back(self, end: int, items: list[Any]) -> None:
        """Take back items (in reverse), the last of which has the number before `end`; they are the next."""
        with self._lock:
            self._left += len(items)
            if self._blocks and len(items) <= 4096:  # one call after another comes back: keep them in one block
                next_end, block = self._blocks[0]
                if next_end - len(block) == end and len(block) <= 4096:
                    self._blocks[0] = (next_end, block + items)
                    return
            self._blocks.appendleft((end, items))

    def cut(self, size: int) -> tuple[int, list[Any]]:
        """Take the next items, `size` at most: the number of the first, and the items in reverse."""
        with self._lock:
            if not self._left:
                return 0, []
            end, block = self._blocks[0]
            items = block[-size:]
            del block[-size:]
            first = end - len(block) - len(items)
            if not block:
                self._blocks.popleft()
            self._left -= len(items)
            return first, items

    def clear(self) -> list[tuple[int, int]]:
        """Drop what was not taken; return the number of the first of each block, and how many there were."""
        with self._lock:
            dropped = [(end - len(items), len(items)) for end, items in self._blocks]
            self._left = 0
            self._blocks.clear()
            return dropped


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

    def end_after_fork(self, failure: BaseException) -> None:
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


class Map(Protocol):
    """One `map` call in a pool."""

    results: Results[Any]

    def add(self, items: list[Any]) -> None:
        """Add items and see that somebody calls with them."""

    def help_out(self) -> bool:
        """Make some calls here instead of waiting for them; False when that is not possible."""

    def stop(self) -> None:
        """Start nothing more."""

    def lose_place(self, failure: BaseException) -> None:
        """Note that the map's place in the queue was dropped, by a purge or because the pool broke."""


class PlaceWatchers(Watchers):
    """Notices when the pool drops the place of a map in the queue instead of running it."""

    __slots__ = ("_map",)

    def __init__(self, map: Map) -> None:  # noqa: A002
        super().__init__()
        self._map = map

    def wake(self, task: Task[Any]) -> None:
        super().wake(task)
        if task._status == CANCELLED:
            self._map.lose_place(CancelledError("the map was cancelled: its pool was purged or shut down"))
        elif task._status == RAISED:
            self._map.lose_place(task._value)


def open_source(
    fn: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    *,
    timeout: float | None,
    chunksize: int | None,
    buffersize: int | None,
    progress: Progress = False,
) -> tuple[Iterator[Any], int | None]:
    """Check what `map` was given; return an iterator over its items and how many there are, if that is known."""
    check_function(fn)
    if not isinstance(timeout, int | float) or timeout > 0:  # as in the standard library, what is past is past
        check_seconds("timeout", timeout)
    check_optional_count("chunksize", chunksize, 1)
    check_optional_count("buffersize", buffersize, 1)
    if not isinstance(progress, bool):
        check_callable(progress, "progress")
    lengths = [len(each) if isinstance(each, Sized) else None for each in iterables]
    total = None if not lengths or None in lengths else min(length for length in lengths if length is not None)
    return (iter(iterables[0]) if len(iterables) == 1 else zip(*iterables, strict=False)), total


def start(
    map: Map,  # noqa: A002
    items: Iterator[Any],
    *,
    timeout: float | None,
    buffersize: int | None,
    progress: Progress,
    total: int | None,
) -> Iterator[Any]:
    """Feed a map (all of it, or the first `buffersize` items) and return the iterator of its results."""
    deadline = None if timeout is None else time.monotonic() + timeout
    first = list(items if buffersize is None else islice(items, buffersize))
    map.add(first)
    rest = items if buffersize is not None else iter(())
    results = _consume(map, rest, len(first), buffersize or 0, deadline, timeout)
    return with_progress(results, total, progress) if progress else results


def _consume(
    map: Map,  # noqa: A002
    items: Iterator[Any],
    pending: int,
    buffersize: int,
    deadline: float | None,
    timeout: float | None,
) -> Iterator[Any]:
    """Yield the results, feeding as many items as were taken when the map is lazy."""
    try:
        while pending:
            try:
                values, error = map.results.next(deadline, map.help_out)
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
            if buffersize:
                more = list(islice(items, taken))
                map.add(more)
                pending += len(more)
    finally:
        map.stop()


def map_singly(
    submit: Callable[[tuple[Any, ...]], Task[T]],
    iterables: tuple[Iterable[Any], ...],
    timeout: float | None,
    buffersize: int | None,
) -> Iterator[T]:
    """Map with a task for each item, in order."""
    check_optional_count("buffersize", buffersize, 1)
    deadline = None if timeout is None else time.monotonic() + timeout
    arguments = zip(*iterables, strict=False)
    tasks = deque(submit(each) for each in (arguments if buffersize is None else islice(arguments, buffersize)))

    def results() -> Iterator[T]:
        try:
            while tasks:
                value = tasks[0].result(None if deadline is None else max(0.0, deadline - time.monotonic()))
                tasks.popleft()
                if buffersize is not None:
                    tasks.extend(submit(each) for each in islice(arguments, 1))
                yield value
        finally:
            for task in tasks:
                task.cancel()

    return results()
