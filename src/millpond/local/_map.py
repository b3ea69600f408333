"""`map`: many calls of one function, without a future for each.

`Source` holds the items and cuts slices from them, `Results` puts the outcomes in order for the consumer, and a
driver, which is a task in the pool's line, runs one slice after another. After each slice it goes back to the head of
the line, so that pause, resize, purge and shutdown take hold between slices, and the order among tasks is kept.

Slices adapt: they double while one lasts less than half a millisecond and halve when it lasts much longer, so quick
items cost 0.1 µs each and slow ones travel alone. The items of a slice share one copy of the caller's context.
"""

from __future__ import annotations

import _thread
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import CancelledError
from contextvars import Context, copy_context
from itertools import islice, starmap
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.local._checks import check_callable, check_count, check_seconds
from millpond.local._progress import with_progress
from millpond.local._task import CANCELLED, RAISED, Hook, Task, here

if TYPE_CHECKING:
    from millpond.local._crew import Crew

T = TypeVar("T")

TARGET = 0.0005
"""How long a slice should last, in seconds."""


class Source:
    """The items that have not been taken yet, and how many to take at once."""

    def __init__(self, chunk: int | None, workers: int) -> None:
        self._lock = _thread.allocate_lock()
        self._blocks: deque[list[Any]] = deque()
        self._position = 0  # in the first block
        self._start = 0  # the number of the next item
        self._left = 0
        self._is_fixed = chunk is not None
        self._chunk = chunk or 1
        self._workers = workers

    def feed(self, items: list[Any]) -> None:
        """Add items at the end."""
        if items:
            with self._lock:
                self._blocks.append(items)
                self._left += len(items)

    def cut(self) -> tuple[int, list[Any]]:
        """Take the next slice: the number of its first item, and the items (none when there are none)."""
        with self._lock:
            if not self._left:
                return self._start, []
            size = self._chunk
            if not self._is_fixed:  # leave something for the others near the end
                size = max(1, min(size, self._left // (2 * self._workers)))
            block = self._blocks[0]
            items = block[self._position : self._position + size]
            self._position += len(items)
            if self._position >= len(block):
                self._blocks.popleft()
                self._position = 0
            start = self._start
            self._start += len(items)
            self._left -= len(items)
            return start, items

    def lasted(self, size: int, seconds: float) -> None:
        """Adapt to how long a slice of `size` items lasted."""
        if self._is_fixed:
            return
        if seconds < TARGET / 2:
            self._chunk = max(self._chunk, min(2 * size, 1 << 16))
        elif seconds > 4 * TARGET:
            self._chunk = max(1, min(self._chunk, size // 2))

    def clear(self) -> int:
        """Drop what was not taken; return how many."""
        with self._lock:
            dropped, self._left = self._left, 0
            self._blocks.clear()
            self._position = 0
            return dropped

    def __len__(self) -> int:
        return self._left


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


def call_each(fn: Callable[..., T], items: list[Any], *, star: bool) -> tuple[list[T], BaseException | None]:
    """Call `fn` for each item until one raises; return the values so far and what was raised."""
    values: list[T] = []
    try:
        values.extend(starmap(fn, items) if star else map(fn, items))
    except BaseException as error:
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next
        return values, error
    if len(values) < len(items):  # `map` takes a StopIteration of the function for its own end
        return values, RuntimeError("the mapped function raised StopIteration")
    return values, None


class ThreadMap(Generic[T]):
    """One `map` call in a crew of threads."""

    def __init__(self, crew: Crew, fn: Callable[..., T], *, star: bool, chunk: int | None, ordered: bool) -> None:
        self._crew = crew
        self._fn = fn
        self._star = star
        self.source = Source(chunk, crew.size)
        self.results: Results[T] = Results(ordered=ordered)
        self._context: Context | None = (copy_context() or None) if crew.carries_context else None
        self._drivers = 0
        self._lock = _thread.allocate_lock()
        self._is_over = False
        crew.maps.add(self)

    def waiting(self) -> int:
        """Count the items that no driver has taken yet, less the drivers in line, which are counted as tasks."""
        return max(0, len(self.source) - self._drivers)

    def feed(self, items: list[Any]) -> None:
        """Add items and see that there are drivers for them."""
        if self._crew.is_closed:
            raise self._crew.refusal()
        self.source.feed(items)
        self._add_drivers()

    def _add_drivers(self) -> None:
        with self._lock:
            missing = min(len(self.source), self._crew.size) - self._drivers
            if missing <= 0:
                return
            self._drivers += missing
        self._crew.place_many([self._driver() for _ in range(missing)])

    def _driver(self) -> Task[None]:
        driver: Task[None] = Task()
        driver._fn = self._drive
        driver._owner = self._crew
        driver._context = None if self._context is None else self._context.copy()
        driver._hook = _DriverHook(self)
        return driver

    def _drive(self) -> None:
        """Run a slice and go back in line; end when there is nothing left."""
        worker = getattr(here, "worker", None)
        if worker is not None:
            worker.done -= 1  # a driver is not a task of the user's; its items are
        if self.run_slice():
            again = self._driver()
            if self._crew.seats is None:
                self._crew.line.put_back(again)
            else:
                self._crew.place(again)
            if self._drivers < self._crew.size and len(self.source) > self._drivers:
                self._add_drivers()  # the pool has grown
            return
        with self._lock:
            self._drivers -= 1
        if len(self.source):  # something was fed between the last look and the leaving
            self._add_drivers()

    def run_slice(self) -> bool:
        """Run one slice; False when there was none."""
        start, items = self.source.cut()
        if not items:
            return False
        worker = getattr(here, "worker", None)
        size = len(items)
        began = time.perf_counter()
        while items:
            values, error = call_each(self._fn, items, star=self._star)
            taken = len(values) + (error is not None)
            self.results.publish(start, values, error)
            if worker is not None:
                worker.items += taken
                worker.failed += error is not None
            start += taken
            items = [] if self._is_over else items[taken:]
        self.source.lasted(size, time.perf_counter() - began)
        return True

    def help_out(self) -> bool:
        """Inside a worker of the same pool: run a slice instead of waiting for one."""
        worker = getattr(here, "worker", None)
        return worker is not None and worker.crew is self._crew.root and self.run_slice()

    def driver_lost(self, failure: BaseException) -> None:
        """Note a driver that will never run: it was purged, or the pool broke."""
        self.source.clear()
        self.results.fail(failure)

    def stop(self) -> None:
        """Start nothing more."""
        self._is_over = True
        dropped = self.source.clear()
        with self._crew.lock:
            self._crew.cancelled_items += dropped


class _DriverHook(Hook):
    """Notices when the pool drops a driver instead of running it."""

    __slots__ = ("_run",)

    def __init__(self, run: ThreadMap[Any]) -> None:
        super().__init__()
        self._run = run

    def wake(self, task: Task[Any]) -> None:
        """Tell the map."""
        super().wake(task)
        if task._status == CANCELLED:
            self._run.driver_lost(CancelledError("the map was cancelled: its pool was purged or shut down"))
        elif task._status == RAISED:
            self._run.driver_lost(task._value)


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
