"""`map` in worker processes: items travel in slices, without a future for each.

A map has one place in the pool's queue, which is never run: when its turn comes, the pool cuts a slice of items for a
worker and leaves the place at the head of the queue while there are more. So the map keeps its turn among tasks, and
pause, purge, resize and shutdown take effect between slices. How large a slice is follows from the run time, as for
batches of tasks, unless `chunksize` fixes it.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.local._map import Items, PlaceWatchers, Results, open_source, start
from millpond.local._task import Task

if TYPE_CHECKING:
    from millpond.local._progress import Progress
    from millpond.local.processes._runner import ProcessRunner

T = TypeVar("T")


class MapPlace(Task[None]):
    """The place of a map in the queue."""

    __slots__ = ("run",)
    is_place = True
    run: ProcessMap[Any]


class ProcessMap(Generic[T]):
    def __init__(
        self, runner: ProcessRunner, fn: Callable[..., T], *, is_bare: bool, chunksize: int | None, ordered: bool
    ) -> None:
        self._runner = runner
        self.fn = fn
        self.is_bare = is_bare  # whether each item is the one argument of a call
        self.chunksize = chunksize
        self.results: Results[T] = Results(ordered=ordered)
        self._items = Items()
        self._lock = _thread.allocate_lock()
        self._place: MapPlace | None = None  # while it is queued, or in the dispatcher's hands
        self._is_over = False
        with runner.lock:
            runner.maps.add(self)

    def waiting(self) -> int:
        """Count the items that no worker has, less the queued place, which is counted as a task."""
        return max(0, len(self._items) - (self._place is not None))

    def add(self, items: list[Any]) -> None:
        if self._runner.is_closed:
            raise self._runner.refusal()
        if items:
            self._items.add(items)
            self._queue_place()

    def _queue_place(self) -> None:
        with self._lock:
            if self._place is not None:
                return
            self._place = place = MapPlace()
        place.run = self
        place._owner = self._runner.owner
        place._watchers = PlaceWatchers(self)
        self._runner.place(place)

    def cut(self, size: int) -> tuple[int, list[Any]]:
        """Take the next slice, of `size` items at most: the number of the first, and the items."""
        number, items = self._items.cut(size)
        items.reverse()
        return number, items

    def stays_queued(self) -> bool:
        """Return whether there is more to cut; when there is not, the map has no place any more."""
        with self._lock:
            if not len(self._items):
                self._place = None
            return self._place is not None

    def give_back(self, number: int, items: list[Any]) -> None:
        if self._is_over:
            self._count_dropped(len(items))
        else:
            self._items.give_back(number + len(items), items[::-1])
            self._queue_place()

    def help_out(self) -> bool:
        return False  # the items are for the worker processes

    def cancel(self) -> int:
        """Drop what no worker has, as a purge does; return how many."""
        return self._drop_rest(CancelledError("the map was cancelled: its pool was purged or shut down"))

    def lose_place(self, failure: BaseException) -> None:
        self._drop_rest(failure)

    def stop(self) -> None:
        self._is_over = True
        self._drop_rest(None)

    def end_after_fork(self, failure: BaseException) -> None:
        self._lock = _thread.allocate_lock()
        self._is_over = True
        self.results.end_after_fork(failure)

    def _drop_rest(self, failure: BaseException | None) -> int:
        """Start no more items; `failure` comes in their place. Return how many there were."""
        dropped = self._items.clear()
        with self._lock:
            place = self._place
            if place is not None and self._runner.backlog.claim(place) is not None:
                self._place = None
        if failure is not None:
            for first, _ in dropped:
                self.results.publish(first, [], failure)
        return self._count_dropped(sum([number for _, number in dropped]))

    def _count_dropped(self, number: int) -> int:
        with self._runner.lock:
            self._runner.cancelled_items += number
        self._runner.has_left()
        return number


def map_in_processes(
    runner: ProcessRunner,
    fn: Callable[..., T],
    iterables: tuple[Iterable[Any], ...],
    *,
    timeout: float | None,
    chunksize: int | None,
    buffersize: int | None,
    ordered: bool,
    progress: Progress,
) -> Iterator[T]:
    """Start a map in worker processes and return the iterator of its results."""
    items, total = open_source(
        fn, iterables, timeout=timeout, chunksize=chunksize, buffersize=buffersize, progress=progress
    )
    run: ProcessMap[T] = ProcessMap(runner, fn, is_bare=len(iterables) == 1, chunksize=chunksize, ordered=ordered)
    return start(run, items, timeout=timeout, buffersize=buffersize, progress=progress, total=total)
