"""A map over items that are all known: worker coroutines pull them from one shared iterator.

There is no asyncio task, no future and no queue entry per item: a *worker* holds a place of the pool and does
`results[index] = await fn(item)` in a loop over the shared iterator, which costs 0.05 µs on top of the coroutine.
What has to be checked now and then is behind one flag, `is_interrupted`: a consumer that waits, a pause, a smaller
limit, the end of the map. A worker that must give its place back puts another worker at the head of the queue, so the
items keep their turn; so does a worker that starts while items are left, which is how the first calls the others in.

Items that never suspend would keep the loop from everything else, so a worker runs items in slices that adapt to their
run time, and after a slice without a suspension it yields to the loop; a pass over all workers lasts about 2 ms.

The price, to be said in the documentation: the items that one worker runs share its asyncio task and its copy of the
caller's context. `pool.options().map(...)` gives each item its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context, copy_context
from itertools import islice
from operator import length_hint
from typing import Any, Generic, TypeVar

from millpond._events import emit
from millpond.local.coroutines._factory import TaskFactory
from millpond.local.coroutines._task import ABORTED, QUEUED, cancel_running, clean_error, primed, raise_interrupt
from millpond.local.coroutines._waiting import Wakeup, until_all_done

T = TypeVar("T")

MISSING: Any = object()
PASS_SECONDS = 0.002
"""How long all workers together may keep the loop."""


class EagerMap(Generic[T]):
    """One map: its items, its results, and its workers."""

    is_lazy = False

    def __init__(
        self, factory: TaskFactory, fn: Callable[..., Any], iterables: tuple[Iterable[Any], ...], *, ordered: bool
    ) -> None:
        call = factory.wrap(fn, {})
        self.context = copy_context() if factory.copies_context else factory.limiter.context
        is_bare = len(iterables) == 1
        items = list(iterables[0] if is_bare else zip(*iterables, strict=False))
        self.limiter = factory.limiter
        self.fn: Callable[[Any], Awaitable[T]] = call if is_bare else lambda item: call(*item)
        self.total = len(items)
        self._items = iter(items)
        self.numbered = enumerate(self._items)
        self.ordered = ordered
        self.results: list[T] = [MISSING] * self.total if ordered else []
        self.errors: dict[int, BaseException] = {}
        self.is_interrupted = False
        self.is_over = False
        self.slice_size = 16
        self.slices = 0  # how many were begun
        self.workers: set[MapWorker] = set()
        self._queued_worker: MapWorker | None = None
        self._places_wanted = 0
        self._cancelled = 0  # items that were not run, or not to their end
        self._next = 0
        self.consumer = Wakeup()
        self._wants_all = False  # the consumer wakes at the end, or at the first error
        self.is_finished = not items

    def start(self) -> None:
        if self.total:
            for node in self.limiter.chain:
                node.maps.add(self)
            self._queued_worker = MapWorker(self)
            self.limiter.enqueue(self._queued_worker)

    def left(self) -> int:
        return 0 if self.is_over else length_hint(self._items)

    def completed(self) -> int:
        """Return how many items have ended, but not by cancellation."""
        return max(0, self.total - self.left() - len(self.workers) - self._cancelled)

    def add_worker(self, worker: MapWorker) -> None:
        """Add a worker that starts, and queue the next one."""
        self.workers.add(worker)
        if self._queued_worker is worker:
            self._queued_worker = None
        self.queue_worker()

    def queue_worker(self) -> None:
        """Put a worker at the head of the queue if items are left and none is queued."""
        if self._queued_worker is None and self.left():
            self._queued_worker = MapWorker(self)
            self.limiter.backlog.queue.put_back(self._queued_worker)
            self.limiter.schedule()

    def remove_worker(self, worker: MapWorker) -> None:
        """Remove a worker that has ended; after the last one, end the map."""
        self.workers.discard(worker)
        self.limiter.leave(worker, tasks=0)
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self.left():
            return
        worker, self._queued_worker = self._queued_worker, None
        if worker is not None and worker._stage == QUEUED:
            self.limiter.leave(worker, tasks=0)
        if not self.workers and not self.is_finished:
            self.is_finished = True
            for node in self.limiter.chain:
                node.maps.discard(self)
                node.completed += self.total - self._cancelled
                node.cancelled += self._cancelled
                node.notify()
            self.consumer.wake()

    def check_interrupt(self) -> bool:
        """Do what `is_interrupted` was set for; return whether the worker must give its place back."""
        if not self._wants_all and self._has_next():
            self.consumer.wake()
        if self.is_over or any(node.is_paused or node.held > node.max_workers for node in self.limiter.chain):
            return True
        if self._places_wanted:
            self._places_wanted -= 1
            return True
        self.is_interrupted = self.consumer.is_due() and not self._wants_all
        return False

    def yield_place(self) -> None:
        """Ask a worker to give its place to an entry that may come before it."""
        if self._places_wanted < len(self.workers):
            self._places_wanted += 1
            self.is_interrupted = True

    def fail(self, index: int, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and self.is_over:
            self._cancelled += 1
            emit(self.limiter.on_event, "task_cancelled", self.limiter.name)
            return
        for node in self.limiter.chain:
            node.failed += 1
        error = clean_error(error)
        self.errors[index] = error
        raise_interrupt(error)
        if self._wants_all or self._has_next():
            self.consumer.wake()

    def _has_next(self) -> bool:
        if not self.ordered:
            return bool(self.results or self.errors)
        return self._next in self.errors or (self._next < self.total and self.results[self._next] is not MISSING)

    def collect(self) -> list[T]:
        """Take the values that are next; raises the error that is next."""
        if self.ordered:
            values = self._collect_ordered()
        else:
            values = self.results.copy()
            self.results.clear()  # in place: the workers go on adding to this list
        if not values:
            index = self._next if self.ordered else next(iter(self.errors), -1)
            if index in self.errors:
                raise self.errors.pop(index)
            self._raise_if_cancelled()
        self._next += len(values)
        return values

    def _collect_ordered(self) -> list[T]:
        results, values = self.results, []
        for position in range(self._next, self.total):
            value = results[position]
            if value is MISSING:
                break
            values.append(value)
            results[position] = None  # type: ignore[assignment]
        return values

    def _raise_if_cancelled(self) -> None:
        if self.is_finished and self._cancelled:
            raise asyncio.CancelledError("the map was cancelled: its pool was purged or shut down")

    async def wait(self, *, everything: bool = False) -> None:
        if self._queued_worker is not None and self.limiter.is_above_caller():
            await self._run_one_here()
            return
        self._wants_all = everything
        self.is_interrupted = self.is_interrupted or not everything
        if self._queued_worker is None:
            await self.consumer.wait()
        else:
            with self.limiter.lend():
                await self.consumer.wait()

    async def all(self) -> list[T]:
        """Wait for everything and return it; raises the first error as soon as it comes."""
        while not self.is_finished and not self.errors:
            await self.wait(everything=True)
        if self.errors:
            raise self.errors.pop(next(iter(self.errors)))
        self._raise_if_cancelled()
        values = self.results[self._next :] if self.ordered and self._next else self.results
        self._next = self.total
        return values

    async def _run_one_here(self) -> None:
        """Run one item: the consumer is a task of this pool and may hold the place that a worker waits for."""
        for index, item in self.numbered:
            try:
                value = await self.fn(item)
            except asyncio.CancelledError:
                self._cancelled += 1
                raise
            except BaseException as error:
                self.fail(index, error)
            else:
                if self.ordered:
                    self.results[index] = value
                else:
                    self.results.append(value)
            break
        self._finish_if_done()

    def cancel_rest(self) -> int:
        rest = self.left()
        self.is_over = self.is_interrupted = True
        self._cancelled += rest
        self._finish_if_done()
        return rest

    def stop(self) -> None:
        """Cancel what has not started and what runs."""
        self.cancel_rest()
        self.errors.clear()
        for worker in list(self.workers):
            cancel_running(worker)

    async def ended(self) -> None:
        tasks = [worker._asyncio_task for worker in self.workers]
        await until_all_done([task for task in tasks if isinstance(task, asyncio.Task)])


class MapWorker:
    """A worker coroutine of a map; in the queue, it looks like a task."""

    __slots__ = ("_asyncio_task", "_context", "_limiter", "_map", "_queued_at", "_stage")

    priority = 0
    key: Any = None
    _cancel_link: Any = None

    def __init__(self, of: EagerMap[Any]) -> None:
        self._map = of
        self._limiter: Any = of.limiter
        self._queued_at: Any = of.limiter
        self._context: Context | None = of.context.copy()
        self._asyncio_task: Any = None
        self._stage = QUEUED

    async def _perform(self, is_primed: bool) -> None:
        self._map.add_worker(self)
        try:
            if is_primed:
                await primed()
            while not self._map.is_over and await self._run_slice():
                pass
        except asyncio.CancelledError:  # between two items
            self._map.cancel_rest()
        finally:
            if self._stage != ABORTED:
                self._map.queue_worker()
                self._map.remove_worker(self)

    def _abort(self, error: BaseException) -> None:
        """End the map: no asyncio task could be made for this worker, and so for no other."""
        run = self._map
        run.errors[run.total - run.left()] = error
        run.cancel_rest()
        run.remove_worker(self)

    async def _run_slice(self) -> bool:
        """Run some items; return False when this worker has to go."""
        run = self._map
        run.slices += 1
        number = run.slices
        index = -1
        began = time.perf_counter()
        try:
            fn, results = run.fn, run.results
            if run.ordered:
                for index, item in islice(run.numbered, run.slice_size):
                    results[index] = await fn(item)
                    if run.is_interrupted and run.check_interrupt():
                        return False
            else:
                add = results.append
                for index, item in islice(run.numbered, run.slice_size):  # noqa: B007  (for the errors)
                    add(await fn(item))
                    if run.is_interrupted and run.check_interrupt():
                        return False
        except BaseException as error:
            run.fail(index, error)
            if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                run.cancel_rest()  # it was this very asyncio task that was cancelled, by the map or by somebody else
            return not (run.is_interrupted and run.check_interrupt())
        if index < 0:
            return False
        self._adapt_slice(time.perf_counter() - began)
        if run.slices == number:  # nobody else began one, so nothing suspended
            await asyncio.sleep(0)
        return True

    def _adapt_slice(self, seconds: float) -> None:
        run = self._map
        target = PASS_SECONDS / len(run.workers)
        if seconds < target / 2:
            run.slice_size = min(2 * run.slice_size, 1 << 12)
        elif seconds > 2 * target:
            run.slice_size = max(1, run.slice_size // 2)
