"""`map` in threads.

A map has places in the pool's queue, which are tasks like others: each runs one slice of the items and goes back to the
head of the queue. So pause, resize, purge and shutdown take hold between slices, and the order among tasks is kept.

Slices adapt: they grow until one lasts about a millisecond, so quick items cost 0.1 µs each and slow ones travel
alone. So does the number of places: a few at once, then twice as many every millisecond while items are slow;
starting 32 threads costs as much as 30,000 quick items.

An item that blocks must not hold back the others of its slice (it may wait for one of them), so a slice in which
nothing has ended for a while is rescued: what it has is shown to the consumer, what has not started goes back to the
items.

The items of a slice share one copy of the caller's context.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

from millpond.local._calls import clean_trace, hide_frame
from millpond.local._map import Items, Map, MapPlace, start_map
from millpond.local._timer import timer
from millpond.local._watchers import here
from millpond.local.threads._runner import ThreadRunner
from millpond.local.threads._worker import Worker

T = TypeVar("T")

TARGET = 0.001
"""How long a slice should last, in seconds."""
LONGEST = 1 << 16
"""The most items of a slice."""
AT_ONCE = 4
"""How many places a map starts with; more come every `RAMP` seconds, as long as its items are slow."""
RAMP = 0.001
QUICK = 8
"""Items that travel in slices of more than this are quick: more threads would only share the interpreter's lock."""
RESCUE = 0.02
"""Seconds without an end after which a slice is rescued."""
STOP: Any = object()
"""Stands at the end of a slice."""


class Slicer:
    """How many items a slice has: as many as last about `TARGET` seconds."""

    def __init__(self, items: Items, chunksize: int | None) -> None:
        self._items = items
        self._is_fixed = chunksize is not None
        self._size = chunksize or 1
        self._seconds = 1.0  # per item

    def slices(self) -> int:
        """Return how many slices there are to run, at the size of now."""
        return -(-len(self._items) // self._size)

    def is_quick(self) -> bool:
        return self._size > QUICK

    def cut(self, sharers: int) -> Slice | None:
        """Take the next slice, one of many that so many share; None when there are no items."""
        size = self._size
        if not self._is_fixed:  # leave something for the others near the end
            size = max(1, min(size, len(self._items) // (2 * sharers)))
        first, items = self._items.cut(size)
        return Slice(first, items) if items else None

    def learn(self, size: int, seconds: float) -> None:
        if self._is_fixed:
            return
        # Waiting for the interpreter's lock only ever adds, so the quickest of late is nearest to the truth.
        self._seconds = max(1e-8, min(1.25 * self._seconds, seconds / size))
        self._size = max(1, min(int(TARGET / self._seconds), max(2 * size, self._size), LONGEST))


class Slice:
    """Items that one worker runs, until somebody stops it.

    The worker pops items from the end of `_items`; STOP is the last. To rescue the rest, put another STOP where the
    worker takes next: from then on it takes that or nothing, and the rest is the rescuer's.
    """

    __slots__ = ("_items", "_seen", "end", "size", "start", "values")

    def __init__(self, first: int, items: list[Any]) -> None:
        self.start = first  # the number of the first of `values`
        self.size = len(items)
        self.end = first + self.size
        self.values: list[Any] = []
        self._items = items
        self._items.insert(0, STOP)
        self._seen = -1

    def run(self, fn: Callable[..., Any], *, is_bare: bool) -> BaseException | None:
        """Call `fn` for each item until one raises; return what it raised. Hot."""
        take, add, stop = self._items.pop, self.values.append, STOP
        try:
            if is_bare:
                while (item := take()) is not stop:
                    add(fn(item))
            else:
                while (item := take()) is not stop:
                    add(fn(*item))
        except BaseException as error:
            clean_trace(error)
            return error
        return None

    def is_stuck(self) -> bool:
        """Return whether nothing has ended since this was asked last."""
        seen, self._seen = self._seen, self.start + len(self.values)
        return seen == self._seen

    def stop(self) -> list[Any]:
        """End the worker after its current item; return the rest, in reverse."""
        self._items.append(STOP)
        rest = [item for item in self._items[1:] if item is not STOP]
        self._items[:] = [STOP]
        self.end -= len(rest)
        return rest


hide_frame(Slice.run)


class ThreadMap(Map[T]):
    """One `map` call in a pool of threads."""

    _runner: ThreadRunner

    def __init__(
        self, runner: ThreadRunner, fn: Callable[..., T], *, is_bare: bool, chunksize: int | None, ordered: bool
    ) -> None:
        super().__init__(runner, fn, is_bare=is_bare, ordered=ordered)
        self._slicer = Slicer(self._items, chunksize)
        self._context: Context | None = (copy_context() or None) if runner.carries_context else None
        self._most = min(AT_ONCE, runner.max_workers)  # places that there may be, for now
        self._is_ramping = False
        self._places = self._running = 0  # places there are, and those of them that run a slice now
        self._long: set[Slice] = set()  # slices of more than one item that are being run
        self._is_watching = False

    # -- places -------------------------------------------------------------------------------------------------------

    def _queued_places(self) -> int:
        return self._places - self._running

    def queue_places(self) -> None:
        """Queue places if there are items for them, by and by as many as there may be workers."""
        with self._lock:
            queued = self._queued_places()
            slices = self._slicer.slices()
            missing = max(0, min(slices - queued, self._most - self._places))
            self._places += missing
            ramps = not self._is_ramping and self._most < self._runner.max_workers and slices > queued + missing
            self._is_ramping |= ramps
        if missing:
            self._runner.placement.place_many([self._make_place() for _ in range(missing)])
        if ramps:
            timer.after(RAMP, self._ramp)

    def _ramp(self) -> None:
        """Allow twice as many places if the items are slow, and look again later."""
        with self._lock:
            self._is_ramping = False
            if not self._slicer.is_quick():
                self._most = min(2 * self._most, self._runner.max_workers)
        if len(self._items) and not self._runner.is_closed:
            self.queue_places()

    def _make_place(self) -> MapPlace:
        place = MapPlace(self, self._runner.owner)
        place._fn = self._run_place
        place._context = None if self._context is None else self._context.copy()
        return place

    def _run_place(self) -> None:
        """Run a slice and go back to the queue; end when there is nothing left."""
        worker = self._worker()
        with self._lock:
            self._running += 1
        has_run = self._run_slice(worker)
        with self._lock:
            self._running -= 1
            self._places -= not has_run
        if has_run:
            again = self._make_place()
            if self._runner.backlog.worker_queues is None:
                self._runner.backlog.queue.put_back(again)
            else:
                self._runner.place(again)
        if len(self._items):  # the pool may have grown, or something was added between the last look and the leaving
            self.queue_places()
        if worker is not None:
            worker.places += 1

    def lose_place(self, failure: BaseException | None) -> None:
        with self._lock:
            self._places -= 1
        super().lose_place(failure)

    def _worker(self) -> Worker | None:
        """Return the worker of this pool that the calling thread is."""
        worker: Worker | None = getattr(here, "worker", None)
        while worker is not None and worker.runner is not self._runner:
            worker = worker.turn
        return worker

    # -- slices -------------------------------------------------------------------------------------------------------

    def _run_slice(self, worker: Worker | None) -> bool:
        piece = self._slicer.cut(max(1, self._places))
        if piece is None:
            return False
        if piece.size > 1:
            self._watch(piece)
        began = time.perf_counter()
        while True:
            error = piece.run(self.fn, is_bare=self.is_bare)
            with self._lock:
                values, piece.values = piece.values, []
                first = piece.start
                piece.start += len(values) + (error is not None)
            self._publish(first, values, error, worker)
            if error is None or self._is_over:
                break
            del error
        if piece.size > 1:
            self._long.discard(piece)
        self._slicer.learn(piece.size, time.perf_counter() - began)
        return True

    def _publish(self, first: int, values: list[T], error: BaseException | None, worker: Worker | None) -> None:
        """Count outcomes, for the worker whose thread this is, and hand them over."""
        failed = error is not None
        taken = len(values) + failed
        if not taken:
            return
        if worker is not None:
            worker.items += taken
            worker.failed += failed
        else:
            self._runner.workers.counts.add_past(taken, failed)
        self.results.publish(first, values, error)

    def _watch(self, piece: Slice) -> None:
        self._long.add(piece)
        with self._lock:
            is_watched, self._is_watching = self._is_watching, True
        if not is_watched:
            timer.after(RESCUE, self._rescue)

    def _rescue(self) -> None:
        for piece in [piece for piece in self._long.copy() if piece.is_stuck()]:
            with self._lock:
                first, values = piece.start, piece.values[:]
                del piece.values[: len(values)]  # in place: its worker goes on adding to this list
                piece.start += len(values)
                end, rest = piece.end, piece.stop()
            self._publish(first, values, None, None)
            self._give_back(end, rest)
        with self._lock:
            self._is_watching = bool(self._long)
        if self._is_watching:
            timer.after(RESCUE, self._rescue)

    def help_out(self) -> bool:
        """Inside a task of the same pool: run a slice instead of waiting for one."""
        worker = self._worker()
        return worker is not None and not self._runner.is_paused and self._run_slice(worker)

    def lend_thread(self) -> AbstractContextManager[Any]:
        """Lend one inside a task of the parent, say; also where no place is queued now: one that runs may be again."""
        is_inside = self._runner.is_inside() and self._worker() is None
        return self._runner.root.workers.extra_worker(self._queued_places) if is_inside else nullcontext()

    def _take_back(self) -> list[tuple[int, int]]:
        with self._lock:
            rests = [(piece, len(piece.stop())) for piece in self._long.copy()]
            return [(piece.end, rest) for piece, rest in rests if rest]


map_in_threads = partial(start_map, ThreadMap)
