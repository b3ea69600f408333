"""A map over items that are all known: worker coroutines pull them from one shared iterator.

There is no asyncio task, no future and no queue entry per item: a *driver* holds a place of the pool and does
`ring[slot] = await fn(item)` in a loop over the shared iterator, which costs 0.05 µs on top of the coroutine itself.
What has to be looked at now and then is behind one flag, `halt`: a consumer that sleeps, a pause, a smaller limit,
the end of the map. A driver that must give its place back puts another driver at the head of the line, so the items
keep their turn; so does a driver that starts while items are left, which is how the first calls the others in.

Items that never suspend would keep the loop from everything else, so a driver works in slices that adapt to their
run time, and after a slice without a suspension it lets the loop breathe; a pass over all drivers lasts about 2 ms.

The price, to be said in the documentation: the items that one driver runs share its asyncio task and its copy of the
caller's context. `pool.options().map(...)` gives each item its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond._events import emit
from millpond.local.coroutines._limiter import clean, pass_on
from millpond.local.coroutines._task import ABORTED, DONE, IN_LINE, primed
from millpond.local.coroutines._waiting import until_ended

if TYPE_CHECKING:
    from millpond.local.coroutines._limiter import Limiter

T = TypeVar("T")

MISSING: Any = object()
PASS = 0.002
"""How long all drivers together may keep the loop, in seconds."""


class EagerRun(Generic[T]):
    """One map: its items, its outcomes, and its drivers."""

    def __init__(
        self,
        home: Limiter,
        fn: Callable[[Any], Awaitable[T]],
        items: list[Any],
        *,
        context: Context | None,
        ordered: bool,
    ) -> None:
        self.home = home
        self.fn = fn
        self.total = len(items)
        self._context = context
        self._items = iter(items)
        self.feed = enumerate(self._items)
        self.ordered = ordered
        self.ring: list[T] = [MISSING] * self.total if ordered else []
        self.failures: dict[int, BaseException] = {}
        self.halt = False
        self.is_over = False
        self.chunk = 16
        self.turns = 0  # how often a driver began a slice
        self.drivers: set[Driver] = set()
        self._standing: Driver | None = None
        self._contested = 0
        self._cancelled = 0  # items that were not run, or not to their end
        self._next = 0
        self._sleeper: asyncio.Future[None] | None = None
        self._wants_all = False  # the sleeper wakes at the end, or at the first error
        self._is_booked = False

    def start(self) -> None:
        """Come into the pool's books and stand in line."""
        if not self.total:
            self._is_booked = True
            return
        for node in self.home.chain:
            node.maps.add(self)
        self._standing = driver = Driver(self)
        self.home.stand(driver)

    # -- counts -----------------------------------------------------------------------------------------------------

    def left(self) -> int:
        """Count the items that no driver has taken."""
        return 0 if self.is_over else length_hint(self._items)

    def completed(self) -> int:
        """Count the items that have ended, but not by cancellation."""
        return max(0, self.total - self.left() - len(self.drivers) - self._cancelled)

    # -- for the drivers --------------------------------------------------------------------------------------------

    def came(self, driver: Driver) -> None:
        """Take in a driver that starts, and call the next one."""
        self.drivers.add(driver)
        if self._standing is driver:
            self._standing = None
        self.call_another()
        self._count(1)

    def call_another(self) -> None:
        """Put a driver at the head of the line if there is something to do for it."""
        if self._standing is None and self.left():
            self._standing = driver = Driver(self)
            self.home.line.put_back(driver)
            self.home.ring()

    def went(self, driver: Driver) -> None:
        """Let a driver go, and close the books after the last one."""
        driver._stage = DONE
        self.drivers.discard(driver)
        self.home.root.inners.pop(driver._inner, None)
        self._count(-1)
        if not self.left():
            self._dismiss()
            if not self.drivers:
                self._book()

    def _count(self, change: int) -> None:
        for node in self.home.chain:
            node.drivers += change
            if change < 0:
                node.running -= 1
                node.held -= 1
                if len(node.line):
                    node.ring()

    def _dismiss(self) -> None:
        """Take the driver out of the line."""
        driver, self._standing = self._standing, None
        if driver is not None and driver._stage == IN_LINE:
            driver._stage = DONE
            desk = driver._desk
            for node in self.home.chain:
                if node is desk:
                    break
                node.held -= 1
                node.ring()
            if desk is not None:
                desk.haunt()

    def _book(self) -> None:
        """Move the counts into the pool's books: the map is over."""
        if self._is_booked:
            return
        self._is_booked = True
        completed = self.total - self._cancelled
        for node in self.home.chain:
            node.maps.discard(self)
            node.completed += completed
            node.cancelled += self._cancelled
            node.notice()
        self.wake()

    def look(self) -> bool:
        """Look up from the work, since `halt` is set; True when the driver must give its place back."""
        if not self._wants_all and self._has_next():
            self.wake()
        if self.is_over:
            return True
        if any(node.is_paused or node.held > node.limit for node in self.home.chain):
            return True
        if self._contested:
            self._contested -= 1
            return True
        sleeper = self._sleeper
        self.halt = sleeper is not None and not sleeper.done() and not self._wants_all
        return False

    def contest(self) -> None:
        """Ask a driver to give its place to somebody who may come before it."""
        if self._contested < len(self.drivers):
            self._contested += 1
            self.halt = True

    def fail(self, slot: int, error: BaseException) -> None:
        """Keep an error for its place."""
        if isinstance(error, asyncio.CancelledError) and self.is_over:
            self._cancelled += 1
            emit(self.home.observer, "task_cancelled", self.home.name)
            return
        for node in self.home.chain:
            node.failed += 1
        error = clean(error)
        self.failures[slot] = error
        pass_on(error)
        if self._wants_all or self._has_next():
            self.wake()

    # -- for the consumer -------------------------------------------------------------------------------------------

    def _has_next(self) -> bool:
        if not self.ordered:
            return bool(self.ring or self.failures)
        return self._next in self.failures or (self._next < self.total and self.ring[self._next] is not MISSING)

    def wake(self) -> None:
        """Wake the consumer."""
        sleeper = self._sleeper
        if sleeper is not None and not sleeper.done():
            sleeper.set_result(None)

    def collect(self) -> list[T]:
        """Take the values that are next; raises the error that is next."""
        values = self._collect_ordered() if self.ordered else list(self.ring)
        if values:
            self._next += len(values)
            if not self.ordered:
                self.ring.clear()
            return values
        if self.failures and (not self.ordered or self._next in self.failures):
            raise self.failures.pop(self._next if self.ordered else next(iter(self.failures)))
        if self._is_booked and self._cancelled:
            raise asyncio.CancelledError("the map was cancelled: its pool was purged or shut down")
        return []

    def _collect_ordered(self) -> list[T]:
        ring, position, total = self.ring, self._next, self.total
        values = []
        while position < total:
            value = ring[position]
            if value is MISSING:
                break
            values.append(value)
            ring[position] = None  # type: ignore[assignment]
            position += 1
        return values

    is_lazy = False

    @property
    def has_reader(self) -> bool:
        """Whether somebody waits in it."""
        return self._sleeper is not None

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come."""
        return self._is_booked

    async def wait(self, *, everything: bool = False) -> None:
        """Sleep until `collect` has something, or until all is done or something failed."""
        if self._standing is not None and self.home.is_inside():
            await self._help_out()
            return
        self._sleeper = asyncio.get_running_loop().create_future()
        self._wants_all = everything
        self.halt = self.halt or not everything
        try:
            await self._sleeper
        finally:
            self._sleeper = None

    async def all(self) -> list[T]:
        """Wait for everything and return it; raises the first error as soon as it comes."""
        while not self._is_booked and not self.failures:
            await self.wait(everything=True)
        if self.failures:
            raise self.failures.pop(next(iter(self.failures)))
        if self._cancelled:
            raise asyncio.CancelledError("the map was cancelled: its pool was purged or shut down")
        values = self.ring[self._next :] if self.ordered and self._next else self.ring
        self._next = self.total
        return values

    async def _help_out(self) -> None:
        """Run one item here: the consumer is a task of this pool and may hold the place that a driver waits for."""
        for slot, item in self.feed:
            try:
                value = await self.fn(item)
            except asyncio.CancelledError:
                self._cancelled += 1
                raise
            except BaseException as error:
                self.fail(slot, error)
            else:
                self.keep(slot, value)
            break
        if not self.left():
            self._dismiss()
            if not self.drivers:
                self._book()

    def keep(self, slot: int, value: T) -> None:
        """Keep a value for its place."""
        if self.ordered:
            self.ring[slot] = value
        else:
            self.ring.append(value)

    # -- stopping ---------------------------------------------------------------------------------------------------

    def drop_rest(self) -> int:
        """Drop the items that have not started; return how many."""
        dropped = self.left()
        self.is_over = self.halt = True
        self._cancelled += dropped
        self._dismiss()
        if not self.drivers:
            self._book()
        return dropped

    def stop(self) -> None:
        """Drop what has not started and cancel what runs."""
        self.drop_rest()
        self.failures.clear()
        for driver in list(self.drivers):
            driver.cancel()

    async def ended(self) -> None:
        """Wait until nothing of the map runs any more."""
        await until_ended([each._inner for each in self.drivers if isinstance(each._inner, asyncio.Task)])

    def context(self) -> Context:
        """Return the context for a driver."""
        return (self.home.context if self._context is None else self._context).copy()


class Driver:
    """A worker coroutine of a map; in line, it looks like a task."""

    __slots__ = ("_context", "_desk", "_home", "_inner", "_stage", "run")

    priority = 0

    def __init__(self, run: EagerRun[Any]) -> None:
        self.run = run
        self._home: Limiter = run.home
        self._desk: Limiter | None = run.home
        self._context: Context | None = run.context()
        self._inner: Any = None
        self._stage = IN_LINE

    def cancel(self) -> None:
        """Cancel the item that it runs; with the map over, the driver ends."""
        if isinstance(self._inner, asyncio.Task):
            self._inner.cancel()
        else:
            self._inner = True

    async def _perform(self, is_primed: bool) -> None:
        run = self.run
        run.came(self)
        try:
            if is_primed:
                await primed()
            while not run.is_over and await self._slice():
                pass
        except asyncio.CancelledError:  # between two items
            run.drop_rest()
        finally:
            if self._stage != ABORTED:
                run.call_another()
                run.went(self)

    def _abort(self, error: BaseException) -> None:
        """End it: no asyncio task could be made for it, and so for no other."""
        self.run.failures[self.run.total - self.run.left()] = error
        self.run.drop_rest()
        self.run.went(self)

    async def _slice(self) -> bool:
        """Run some items; False when this driver has to go."""
        run = self.run
        run.turns += 1
        turn = run.turns
        slot = -1
        began = time.perf_counter()
        try:
            if run.ordered:
                fn, ring = run.fn, run.ring
                for slot, item in islice(run.feed, run.chunk):
                    ring[slot] = await fn(item)
                    if run.halt and run.look():
                        return False
            else:
                fn, keep = run.fn, run.ring.append
                for slot, item in islice(run.feed, run.chunk):  # noqa: B007  (for the errors)
                    keep(await fn(item))
                    if run.halt and run.look():
                        return False
        except BaseException as error:
            run.fail(slot, error)
            if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                run.drop_rest()  # it was this very asyncio task that was cancelled, by the map or by somebody else
            return not (run.halt and run.look())
        if slot < 0:
            return False
        lasted = time.perf_counter() - began
        target = PASS / len(run.drivers)
        if lasted < target / 2:
            run.chunk = min(2 * run.chunk, 1 << 12)
        elif lasted > 2 * target:
            run.chunk = max(1, run.chunk // 2)
        if run.turns == turn:  # nobody else had a turn, so nothing suspended
            await asyncio.sleep(0)
        return True
