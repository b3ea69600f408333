"""`map` in worker processes: items travel in slices, without a future for each.

A map has one place in the pool's queue, which is never run: when its turn comes, the pool cuts a slice of items for a
worker and leaves the place at the head of the queue while there are more. So the map keeps its turn among tasks, and
pause, purge, resize and shutdown take effect between slices. How large a slice is follows from the run time, as for
batches of tasks, unless `chunksize` fixes it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from millpond.local._map import Map, MapPlace, start_map
from millpond.local.processes._runner import ProcessRunner

T = TypeVar("T")


class ProcessMap(Map[T]):
    """One `map` call in a process pool."""

    _runner: ProcessRunner

    def __init__(
        self, runner: ProcessRunner, fn: Callable[..., T], *, is_bare: bool, chunksize: int | None, ordered: bool
    ) -> None:
        super().__init__(runner, fn, is_bare=is_bare, ordered=ordered)
        self.chunksize = chunksize
        self._place: MapPlace | None = None  # while it is queued, or in the dispatcher's hands

    def _queued_places(self) -> int:
        return int(self._place is not None)

    def queue_places(self) -> None:
        with self._lock:
            if self._place is not None:
                return
            self._place = place = MapPlace(self, self._runner.owner)
        self._runner.place(place)

    def _take_back(self) -> list[tuple[int, int]]:
        """Take the place out of the queue; what a worker has, it keeps."""
        with self._lock:
            if self._place is not None and self._runner.backlog.claim(self._place) is not None:
                self._place = None
        return []

    def lose_place(self, failure: BaseException | None) -> None:
        with self._lock:
            self._place = None
        super().lose_place(failure)

    # -- for the dispatcher -------------------------------------------------------------------------------------------

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
        self._give_back(number + len(items), items[::-1])


map_in_processes = partial(start_map, ProcessMap)
