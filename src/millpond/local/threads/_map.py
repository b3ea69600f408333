"""`map` in threads.

`Source` holds the items and cuts slices from them; a driver, which is a task in the pool's line, runs one slice after
another. After each it goes back to the head of the line, so that pause, resize, purge and shutdown take hold between
slices, and the order among tasks is kept.

Slices adapt: they grow until one lasts about a millisecond, so quick items cost 0.1 µs each and slow ones travel
alone. So does the number of drivers: a few at once, then twice as many every millisecond while items are slow;
starting 32 threads costs as much as 30,000 quick items.

An item that blocks must not hold back the others of its slice (it may wait for one of them), so a slice in which
nothing has ended for a while is rescued: what it has is shown to the consumer, what has not started goes back to the
source.

The items of a slice share one copy of the caller's context.
"""

from __future__ import annotations

import _thread
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.local._map import DriverHook, Results, open_source, start
from millpond.local._task import Task, here
from millpond.local._timer import timer
from millpond.local.threads._worker import clean_trace, hide_frame

if TYPE_CHECKING:
    from millpond.local.threads._runner import Crew

T = TypeVar("T")

TARGET = 0.001
"""How long a slice should last, in seconds."""
LONGEST = 1 << 16
"""The most items of a slice."""
AT_ONCE = 4
"""How many drivers a map starts with; more come every `RAMP` seconds, as long as its items are slow."""
RAMP = 0.001
QUICK = 8
"""Items that travel in slices of more than this are quick: more threads would only share the interpreter's lock."""
RESCUE = 0.02
"""Seconds without an end after which a slice is rescued."""
STOP: Any = object()
"""Stands at the end of a slice."""


class Source:
    """The items that have not been taken yet, and how many to take at once.

    Blocks are kept in reverse, so that both cutting from them and taking items one by one shorten a list at its end:
    no item is kept alive by a list that it has left.
    """

    def __init__(self, chunk: int | None) -> None:
        self._lock = _thread.allocate_lock()
        self._blocks: deque[tuple[int, list[Any]]] = deque()  # the number after its last item, and the items in reverse
        self._end = 0
        self._left = 0
        self._is_fixed = chunk is not None
        self._chunk = chunk or 1
        self._pace = 1.0  # seconds per item

    def feed(self, items: list[Any]) -> None:
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
            self._blocks.appendleft((end, items))

    def slices(self) -> int:
        """Return how many slices there are to run, at the size of now."""
        return -(-self._left // self._chunk)

    def is_quick(self) -> bool:
        """Tell whether the items have turned out to be quick."""
        return self._chunk > QUICK

    def cut(self, sharers: int) -> Slice | None:
        """Take the next slice, one of many that so many share; None when there are no items."""
        with self._lock:
            if not self._left:
                return None
            size = self._chunk
            if not self._is_fixed:  # leave something for the others near the end
                size = max(1, min(size, self._left // (2 * sharers)))
            end, block = self._blocks[0]
            items = block[-size:]
            del block[-size:]
            first = end - len(block) - len(items)
            if not block:
                self._blocks.popleft()
            self._left -= len(items)
            return Slice(first, items)

    def lasted(self, size: int, seconds: float) -> None:
        """Adapt to how long a slice of `size` items lasted."""
        if self._is_fixed:
            return
        # Waiting for the interpreter's lock only ever adds, so the quickest pace seen lately is nearest to the truth.
        self._pace = max(1e-8, min(1.25 * self._pace, seconds / size))
        self._chunk = max(1, min(int(TARGET / self._pace), max(2 * size, self._chunk), LONGEST))

    def clear(self) -> list[tuple[int, int]]:
        """Drop what was not taken; return the number of the first of each block, and how many there were."""
        with self._lock:
            dropped = [(end - len(items), len(items)) for end, items in self._blocks]
            self._left = 0
            self._blocks.clear()
            return dropped

    def __len__(self) -> int:
        return self._left


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

    def run(self, fn: Callable[..., Any], *, star: bool) -> BaseException | None:
        """Call `fn` for each item until one raises; return what it raised."""
        take, add = self._items.pop, self.values.append
        try:
            if star:
                while (item := take()) is not STOP:
                    add(fn(*item))
            else:
                while (item := take()) is not STOP:
                    add(fn(item))
        except BaseException as error:
            clean_trace(error)
            return error
        return None

    def is_stuck(self) -> bool:
        """Tell whether nothing has ended since this was asked last."""
        seen, self._seen = self._seen, self.start + len(self.values)
        return seen == self._seen

    def stop(self) -> list[Any]:
        """Let the worker end after its current item; return the rest, in reverse."""
        self._items.append(STOP)
        rest = [item for item in self._items[1:] if item is not STOP]
        self._items[:] = [STOP]
        self.end -= len(rest)
        return rest


hide_frame(Slice.run)


class Driver(Task[None]):
    """The place of a map in the line."""

    __slots__ = ()

    is_place = True


class ThreadMap(Generic[T]):
    """One `map` call in a crew of threads."""

    def __init__(self, crew: Crew, fn: Callable[..., T], *, star: bool, chunk: int | None, ordered: bool) -> None:
        self._crew = crew
        self._fn = fn
        self._star = star
        self.source = Source(chunk)
        self.results: Results[T] = Results(ordered=ordered)
        self._context: Context | None = (copy_context() or None) if crew.carries_context else None
        self._most = min(AT_ONCE, crew.size)  # drivers that there may be, for now
        self._is_ramping = False
        self._drivers = self._running = 0  # drivers there are, and those of them that run a slice now
        self._lock = _thread.allocate_lock()
        self._long: set[Slice] = set()  # slices of more than one item that are being run
        self._is_watching = False
        self._is_over = False
        crew.maps.add(self)

    def waiting(self) -> int:
        """Count the items that no driver has taken yet, less the drivers in line, which are counted as tasks."""
        return max(0, len(self.source) - self._drivers + self._running)

    # -- drivers ----------------------------------------------------------------------------------------------------

    def feed(self, items: list[Any]) -> None:
        """Add items and see that there are drivers for them."""
        if self._crew.is_closed:
            raise self._crew.refusal()
        self.source.feed(items)
        self._add_drivers()

    def _add_drivers(self) -> None:
        with self._lock:
            in_line = self._drivers - self._running
            slices = self.source.slices()
            missing = max(0, min(slices - in_line, self._most - self._drivers))
            self._drivers += missing
            ramps = not self._is_ramping and self._most < self._crew.size and slices > in_line + missing
            self._is_ramping |= ramps
        if missing:
            self._crew.place_many([self._driver() for _ in range(missing)])
        if ramps:
            timer.after(RAMP, self._ramp)

    def _ramp(self) -> None:
        """Allow twice as many drivers if the items are slow, and look again later."""
        with self._lock:
            self._is_ramping = False
            if not self.source.is_quick():
                self._most = min(2 * self._most, self._crew.size)
        if len(self.source) and not self._crew.is_closed:
            self._add_drivers()

    def _driver(self) -> Task[None]:
        driver: Task[None] = Driver()
        driver._fn = self._drive
        driver._owner = self._crew.owner
        driver._context = None if self._context is None else self._context.copy()
        driver._hook = DriverHook(self)
        return driver

    def _drive(self) -> None:
        """Run a slice and go back in line; end when there is nothing left."""
        worker = getattr(here, "worker", None)
        if worker is not None:
            worker.done -= 1  # a driver is not a task of the user's; its items are
        with self._lock:
            self._running += 1
        has_run = self.run_slice()
        with self._lock:
            self._running -= 1
            self._drivers -= not has_run
        if has_run:
            again = self._driver()
            if self._crew.seats is None:
                self._crew.line.put_back(again)
            else:
                self._crew.place(again)
        if len(self.source):  # the pool may have grown, or something was fed between the last look and the leaving
            self._add_drivers()

    def cancel(self) -> int:
        """Drop what has not started, as a purge does; return how many."""
        return self._drop_rest(CancelledError("the map was cancelled: its pool was purged or shut down"))

    def strand(self, failure: BaseException) -> None:
        """End a map that this process inherited by fork."""
        self._lock = _thread.allocate_lock()
        self._is_over = True
        self.results.strand(failure)

    def lost(self, failure: BaseException) -> None:
        """Note a driver that will never run: it was purged, or the pool broke."""
        self._drop_rest(failure)

    # -- slices -----------------------------------------------------------------------------------------------------

    def run_slice(self) -> bool:
        """Run one slice; False when there was none."""
        piece = self.source.cut(max(1, self._drivers))
        if piece is None:
            return False
        if piece.size > 1:
            self._watch(piece)
        began = time.perf_counter()
        while True:
            error = piece.run(self._fn, star=self._star)
            self._show(piece, error)
            if error is None or self._is_over:
                break
            del error
        if piece.size > 1:
            self._long.discard(piece)
        self.source.lasted(piece.size, time.perf_counter() - began)
        return True

    def _show(self, piece: Slice, error: BaseException | None) -> None:
        """Publish what a slice has, up to its end or its error."""
        with self._lock:
            values, piece.values = piece.values, []
            first, taken = piece.start, len(values) + (error is not None)
            piece.start += taken
        worker = getattr(here, "worker", None)
        if worker is not None:
            worker.items += taken
            worker.failed += error is not None
        if taken:
            self.results.publish(first, values, error)

    def _watch(self, piece: Slice) -> None:
        """See that a slice is rescued when it gets stuck."""
        self._long.add(piece)
        with self._lock:
            is_watched, self._is_watching = self._is_watching, True
        if not is_watched:
            timer.after(RESCUE, self._rescue)

    def _rescue(self) -> None:
        for piece in [piece for piece in self._long.copy() if piece.is_stuck()]:
            with self._lock:
                values = piece.values[:]
                del piece.values[: len(values)]
                first = piece.start
                piece.start += len(values)
                end, rest = piece.end, piece.stop()
            if values:
                with self._crew.lock:
                    self._crew.past_items += len(values)
                self.results.publish(first, values, None)
            if self._is_over:
                self._count_dropped(len(rest))
            elif rest:
                self.source.give_back(end, rest)
                self._add_drivers()
        with self._lock:
            self._is_watching = bool(self._long)
        if self._is_watching:
            timer.after(RESCUE, self._rescue)

    def help_out(self) -> bool:
        """Inside a worker of the same pool: run a slice instead of waiting for one."""
        worker = getattr(here, "worker", None)
        return worker is not None and worker.crew is self._crew.root and self.run_slice()

    def stop(self) -> None:
        """Start nothing more."""
        self._is_over = True
        self._drop_rest()

    def _drop_rest(self, failure: BaseException | None = None) -> int:
        """Start no more items; `failure` comes in their place. Return how many."""
        dropped = self.source.clear()
        with self._lock:
            for piece in self._long.copy():
                rest = len(piece.stop())
                dropped += [(piece.end, rest)] if rest else []
        if failure is not None:
            for first, _ in dropped:
                self.results.publish(first, [], failure)
        number = sum(number for _, number in dropped)
        self._count_dropped(number)
        return number

    def _count_dropped(self, number: int) -> None:
        with self._crew.lock:
            self._crew.cancelled_items += number


def map_in_threads(
    crew: Crew,
    fn: Callable[..., T],
    iterables: tuple[Iterable[Any], ...],
    *,
    timeout: float | None,
    chunk: int | None,
    ahead: int | None,
    ordered: bool,
    progress: bool,
) -> Iterator[T]:
    """Start a map in a crew of threads and return the iterator of its results."""
    items, total = open_source(fn, iterables, timeout=timeout, chunk=chunk, ahead=ahead)
    run: ThreadMap[T] = ThreadMap(crew, fn, star=len(iterables) != 1, chunk=chunk, ordered=ordered)
    return start(run, items, timeout=timeout, ahead=ahead, progress=progress, total=total)
