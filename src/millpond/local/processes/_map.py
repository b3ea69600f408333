"""`map` in worker processes: items travel in slices, without a future for each.

A map stands in the pool's line as one `Driver`, which is never run: when its turn comes, the pool cuts a slice of items
for a worker and leaves the driver at the head of the line while there are more. So the map keeps its place among tasks,
and pause, purge, resize and shutdown take hold between slices. How large a slice is follows from the run time, as for
batches of tasks, unless `chunksize` fixes it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.local._map import DriverHook, Results, open_source, start
from millpond.local._task import Task

if TYPE_CHECKING:
    from millpond.local.processes._runner import ProcessCrew

T = TypeVar("T")


class Driver(Task[None]):
    """The place of a map in the line."""

    __slots__ = ("run",)

    is_place = True

    run: ProcessMap[Any]


class _Block:
    """Items to be cut into slices: the number of the first, the items, and how many are cut off already."""

    __slots__ = ("at", "items", "number")

    def __init__(self, number: int, items: list[Any]) -> None:
        self.number = number
        self.items = items
        self.at = 0

    def follows(self, number: int, items: list[Any]) -> bool:
        """Tell whether these items belong right before this block, which is whole and not large."""
        return not self.at and self.number == number + len(items) and len(self.items) <= 4096


class ProcessMap(Generic[T]):
    """One `map` call in a process pool."""

    def __init__(
        self, crew: ProcessCrew, fn: Callable[..., T], *, is_bare: bool, chunk: int | None, ordered: bool
    ) -> None:
        self.crew = crew
        self.fn = fn
        self.is_bare = is_bare  # whether each item is the one argument of a call
        self.chunk = chunk
        self.results: Results[T] = Results(ordered=ordered)
        self._blocks: deque[_Block] = deque()
        self._next = 0
        self._left = 0
        self._lock = threading.Lock()
        self._is_in_line = False
        self._is_over = False
        crew.maps.add(self)

    def waiting(self) -> int:
        """Count the items that no worker has, less the driver in line, which is counted as a task."""
        return max(0, self._left - self._is_in_line)

    def feed(self, items: list[Any]) -> None:
        """Add items at the end."""
        if self.crew.is_closed:
            raise self.crew.refusal()
        if items:
            with self._lock:
                self._blocks.append(_Block(self._next, items))
                self._next += len(items)
                self._left += len(items)
            self._stand_in_line()

    def _stand_in_line(self) -> None:
        with self._lock:
            if self._is_in_line:
                return
            self._is_in_line = True
        driver: Driver = Driver()
        driver._owner = self.crew
        driver._hook = DriverHook(self)
        driver.run = self
        self.crew.place(driver)

    def cut(self, size: int) -> tuple[int, list[Any]]:
        """Take the next slice, of `size` items at most: the number of the first, and the items."""
        with self._lock:
            if not self._blocks:
                return 0, []
            block = self._blocks[0]
            number, items = block.number + block.at, block.items[block.at : block.at + size]
            block.at += len(items)
            if block.at == len(block.items):
                self._blocks.popleft()
            self._left -= len(items)
            return number, items

    def stays_in_line(self) -> bool:
        """Tell whether there is more to cut; when there is not, the driver is out of line."""
        with self._lock:
            self._is_in_line = bool(self._left)
            return self._is_in_line

    def give_back(self, number: int, items: list[Any]) -> None:
        """Take back items that were not run."""
        with self._lock:
            if self._is_over:
                return
            self._left += len(items)
            if self._blocks and self._blocks[0].follows(number, items):
                items = items + self._blocks.popleft().items
            self._blocks.appendleft(_Block(number, items))
        self._stand_in_line()

    def help_out(self) -> bool:
        """Never help: the items are for the worker processes."""
        return False

    def lost(self, failure: BaseException) -> None:
        """End the map: its driver was purged, or the pool broke."""
        self.clear()
        self.results.fail(failure)

    def stop(self) -> None:
        """Start nothing more."""
        self._is_over = True
        dropped = self.clear()
        with self.crew.lock:
            self.crew.cancelled_items += dropped

    def clear(self) -> int:
        """Drop what no worker has; return how many."""
        with self._lock:
            dropped, self._left = self._left, 0
            self._blocks.clear()
            return dropped


def map_in_processes(
    crew: ProcessCrew,
    fn: Callable[..., T],
    iterables: tuple[Iterable[Any], ...],
    *,
    timeout: float | None,
    chunk: int | None,
    ahead: int | None,
    ordered: bool,
    progress: bool,
) -> Iterator[T]:
    """Start a map in worker processes and return the iterator of its results."""
    items, total = open_source(fn, iterables, timeout=timeout, chunk=chunk, ahead=ahead)
    run: ProcessMap[T] = ProcessMap(crew, fn, is_bare=len(iterables) == 1, chunk=chunk, ordered=ordered)
    return start(run, items, timeout=timeout, ahead=ahead, progress=progress, total=total)
