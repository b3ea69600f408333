"""`map`: many calls of one function, without a future for each. What maps in threads and in processes share.

`Items` holds what is to be called with, `Results` puts the outcomes in order for the consumer; a `Map` has both, and
places in the pool's queue; `start_map` makes one and returns the iterator of its results. What runs the calls is in
`threads/_map.py` and `processes/_map.py`.
"""

from __future__ import annotations

import _thread
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, nullcontext
from itertools import islice, repeat
from typing import Any, Generic, TypeVar

from millpond._atomic import FREE_THREADED
from millpond.local._checks import check_callable, check_function, check_optional_count, check_seconds
from millpond.local._progress import Progress, with_progress
from millpond.local._task import Task
from millpond.local._waiting import Sleeper
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
        self._consumer = Sleeper()
        self._failure: BaseException | None = None

    def publish(self, start: int, values: list[T], error: BaseException | None) -> None:
        """Hand over the outcomes from number `start` on; an error stands for the item after the values."""
        if self._ordered:
            self._ready[start] = (values, error)
            if FREE_THREADED or start == self._next:  # without the GIL `_next` may look older than it is
                self._consumer.wake()
        else:
            self._unordered.append((values, error))
            self._consumer.wake()

    def end_after_fork(self, failure: BaseException) -> None:
        """End the consumer's wait in a forked child, where the locks may be held by threads that are gone."""
        self._consumer = Sleeper()
        self._failure = failure

    def _take(self) -> tuple[list[T], BaseException | None] | None:
        if not self._ordered:
            return self._unordered.popleft() if self._unordered else None
        outcome = self._ready.pop(self._next, None)
        if outcome is not None:
            self._next += len(outcome[0]) + (outcome[1] is not None)
        return outcome

    def next(self, deadline: float | None, run: Map[T]) -> tuple[list[T], BaseException | None]:
        """Wait for the next outcomes; a consumer that can help out does so instead of waiting."""
        while (outcome := self._take()) is None:
            if self._failure is not None:
                raise self._failure
            if not run.help_out():
                with run.lend_thread():
                    self._consumer.sleep(self._has_next, deadline)
        return outcome

    def _has_next(self) -> bool:
        return self._next in self._ready if self._ordered else bool(self._unordered)


class Map(ABC, Generic[T]):
    """One `map` call in a pool: what it has to do, and how it ends. How the calls are made is each kind's own.

    It has one or more places in the pool's queue, which are tasks to the pool. Whoever drops a place drops the items
    that wait, and the consumer gets the reason in their place.
    """

    def __init__(self, runner: Any, fn: Callable[..., T], *, is_bare: bool, ordered: bool) -> None:
        self._runner = runner
        self.fn = fn
        self.is_bare = is_bare  # whether each item is the one argument of a call, not the tuple of all
        self.results: Results[T] = Results(ordered=ordered)
        self._items = Items()
        self._lock = _thread.allocate_lock()
        self._is_over = False

    @abstractmethod
    def queue_places(self) -> None:
        """See that there are places for the items that wait."""

    @abstractmethod
    def _queued_places(self) -> int:
        """Count the places in the queue."""

    @abstractmethod
    def _take_back(self) -> list[tuple[int, int]]:
        """Take back what was cut and has not started: the number of the first, and how many, of each piece."""

    def help_out(self) -> bool:
        """Make some calls here instead of waiting for them; False when that is not possible."""
        return False

    def lend_thread(self) -> AbstractContextManager[Any]:
        """Lend the pool a thread while this one waits, if the calls may wait for it."""
        return nullcontext()

    def waiting(self) -> int:
        """Count the items that nobody has taken yet, less the queued places, which are counted as tasks."""
        return max(0, len(self._items) - self._queued_places())

    def add(self, items: list[Any]) -> None:
        if self._runner.is_closed:
            raise self._runner.refusal()
        if items:
            self._items.add(items)
            self.queue_places()

    def _give_back(self, end: int, items: list[Any]) -> None:
        """Take back items (in reverse) that were cut and have not started; the last has the number before `end`."""
        if self._is_over:
            self._count_dropped(len(items))
        elif items:
            self._items.give_back(end, items)
            self.queue_places()

    def cancel(self) -> int:
        """Drop what has not started, as a purge does; return how many."""
        return self._drop_rest(CancelledError("the map was cancelled: its pool was purged or shut down"))

    def lose_place(self, failure: BaseException | None) -> None:
        """Note a place that will never run: it was purged (None), or the pool broke."""
        if failure is None:
            self.cancel()
        else:
            self._drop_rest(failure)

    def stop(self) -> None:
        """Start nothing more: nobody takes the results."""
        self._is_over = True
        self._drop_rest()

    def end_after_fork(self, failure: BaseException) -> None:
        """End a map that this process inherited by fork."""
        self._lock = _thread.allocate_lock()
        self._is_over = True
        self.results.end_after_fork(failure)

    def _drop_rest(self, failure: BaseException | None = None) -> int:
        """Start no more items; `failure` comes in their place. Return how many."""
        dropped = self._items.clear() + self._take_back()
        if failure is not None:
            for first, _ in dropped:
                self.results.publish(first, [], failure)
        number = sum([number for _, number in dropped])
        self._count_dropped(number)
        return number

    def _count_dropped(self, number: int) -> None:
        with self._runner.lock:
            self._runner.cancelled_items += number
        self._runner.has_left()


class PlaceWatcher(Watchers):
    """Notices when the pool drops the place of a map instead of running it. Nobody else watches one."""

    __slots__ = ()

    def wake(self, task: Any) -> None:
        if task._status == CANCELLED:
            task.run.lose_place(None)
        elif task._status == RAISED:
            task.run.lose_place(task._value)


_place_watcher = PlaceWatcher()


class MapPlace(Task[None]):
    """The place of a map in the queue."""

    __slots__ = ("run",)

    is_place = True

    def __init__(self, run: Map[Any], owner: Any) -> None:
        super().__init__()
        self.run: Any = run
        self._owner = owner
        self._watchers = _place_watcher


def check_map(iterables: tuple[Any, ...], buffersize: int | None, progress: Progress) -> int | None:
    check_optional_count("buffersize", buffersize, 1)
    if not isinstance(progress, bool):
        check_callable(progress, "progress")
    lengths = [len(each) if isinstance(each, Sized) else None for each in iterables]
    return None if not lengths or None in lengths else min(length for length in lengths if length is not None)


def start_map(
    kind: Callable[..., Map[T]],
    runner: Any,
    fn: Callable[..., T],
    iterables: tuple[Iterable[Any], ...],
    *,
    timeout: float | None,
    chunksize: int | None,
    buffersize: int | None,
    ordered: bool,
    progress: Progress,
) -> Iterator[T]:
    """Feed a map (all of it, or the first `buffersize` items) and return the iterator of its results."""
    check_function(fn)
    if not isinstance(timeout, int | float) or timeout > 0:  # as in the standard library, what is past is past
        check_seconds("timeout", timeout)
    check_optional_count("chunksize", chunksize, 1)
    total = check_map(iterables, buffersize, progress)
    items: Iterator[Any] = iter(iterables[0]) if len(iterables) == 1 else zip(*iterables, strict=False)
    run = kind(runner, fn, is_bare=len(iterables) == 1, chunksize=chunksize, ordered=ordered)
    with runner.lock:
        runner.maps.add(run)  # only now: others call whatever they find there
    deadline = None if timeout is None else time.monotonic() + timeout
    first = list(items if buffersize is None else islice(items, buffersize))
    run.add(first)
    results = _consume(run, iter(()) if buffersize is None else items, len(first), deadline, timeout)
    return results if progress is False else with_progress(results, total, progress)


def _consume(
    run: Map[T], items: Iterator[Any], pending: int, deadline: float | None, timeout: float | None
) -> Iterator[T]:
    """Yield the results, and feed as many items as were taken."""
    try:
        while pending:
            try:
                values, error = run.results.next(deadline, run)
            except TimeoutError:
                raise TimeoutError(f"{pending} results were missing {timeout} s after map() was called") from None
            taken = len(values) + (error is not None)
            values.reverse()
            for take in repeat(values.pop, len(values)):  # keep no result alive that was handed out
                yield take()
            if error is not None:
                try:
                    raise error
                finally:
                    del error
            more = list(islice(items, taken))
            if more:  # else the pool may be closed: what is there can be taken
                run.add(more)
            pending += len(more) - taken
    finally:
        run.stop()


def map_singly(
    submit: Callable[[tuple[Any, ...]], Task[T]],
    iterables: tuple[Iterable[Any], ...],
    timeout: float | None,
    buffersize: int | None,
) -> Iterator[T]:
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
