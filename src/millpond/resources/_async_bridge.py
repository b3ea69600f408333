"""How a task talks to an engine: it awaits. The twin for threads is `_bridge`; nothing else differs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, Generic, TypeVar

from millpond._clock import elapsed
from millpond.errors import PoolError
from millpond.resources._engine import UNREAD, Engine, Question, Ticket, answer_or, fell_behind
from millpond.resources._rules.commands import Command, Reply

T = TypeVar("T")
G = TypeVar("G", bound="AsyncObtainable")


class _LoopWakeups:
    """Brings values into one event loop: however many arrive at once, the loop is woken once."""

    __slots__ = ("_is_scheduled", "_latches")

    def __init__(self) -> None:
        self._latches: deque[AsyncLatch[Any]] = deque()
        self._is_scheduled = False

    def send(self, latch: AsyncLatch[Any]) -> None:
        self._latches.append(latch)
        if not self._is_scheduled:
            self._is_scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
                latch.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        while self._latches:
            self._latches.popleft()._wake()


class _Loops(threading.local):
    """The wake-ups of the loop that ran in this thread last: nearly always the right one."""

    def __init__(self) -> None:
        self.loop: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None
        self.wakeups = _LoopWakeups()

    def wakeups_of(self, loop: asyncio.AbstractEventLoop) -> _LoopWakeups:
        if self.loop() is not loop:
            self.loop = weakref.ref(loop)
            self.wakeups = _LoopWakeups()
        return self.wakeups


_loops = _Loops()


class AsyncLatch(Generic[T]):
    """A value that comes once, from any thread, to the one task that waits for it."""

    __slots__ = ("_future", "_value", "_wakeups", "is_set", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._wakeups = _loops.wakeups_of(self.loop)
        self._future: asyncio.Future[None] | None = None
        self.is_set = False

    def set(self, value: T) -> None:
        """Bring the value; only the first counts."""
        if not self.is_set:
            self._value = value
            self.is_set = True
            if asyncio._get_running_loop() is self.loop:
                self._wake()
            else:
                self._wakeups.send(self)

    def _has_come(self) -> bool:
        return self.is_set

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False when the time is over first."""
        if self.is_set:
            return True
        future = self._future = self.loop.create_future()
        if self._has_come():  # from another thread, before there was a future to wake
            return True
        if timeout is None:
            await future
            return True
        try:
            async with asyncio.timeout(max(timeout, 0.0)):
                await future
        except TimeoutError:
            return self.is_set
        return True

    @property
    def value(self) -> T:
        """What came."""
        return self._value


class AsyncObtainable:
    """A grant that is obtained when it is awaited."""

    __slots__ = ()

    async def _obtain(self) -> Any:
        raise NotImplementedError

    def __await__(self: G) -> Generator[Any, None, G]:
        yield from self._obtain().__await__()
        return self


def begin(grant: G) -> G:
    """Leave it to the caller to await the grant."""
    return grant


ON_LOST: Final = "cancel"
"""What happens by default when a grant is lost: the block that uses it is cancelled, and raises `LeaseLost`."""


def check_on_lost(on_lost: object) -> None:
    """Refuse what nobody knows how to do when a grant is lost."""
    if not callable(on_lost) and on_lost not in ("cancel", "raise", "ignore"):
        raise ValueError(f"on_lost must be 'cancel', 'raise', 'ignore' or a function, not {on_lost!r}")


class AsyncBlock:
    """An `async with` block in progress, which can be cancelled from any thread."""

    def __init__(self, on_lost: object) -> None:
        self._task = asyncio.current_task() if on_lost == "cancel" else None
        self._loop = asyncio.get_running_loop()
        self._is_cancelled = False

    def interrupt(self) -> None:
        """Cancel the block."""
        if self._task is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done() and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()

    def absorb(self, error: BaseException | None) -> bool:
        """Return whether the error came of `interrupt`; if so, nobody else asked for the cancellation."""
        task, self._task = self._task, None
        if task is None or not self._is_cancelled:
            return False
        return task.uncancel() == 0 and isinstance(error, asyncio.CancelledError)


async def pause(bridge: AsyncBridge, question: Question[bool], timeout: float | None) -> bool:
    """Wait until a question about the pool is answered with no; False when the time is over first."""
    deadline = None if timeout is None else elapsed() + timeout
    stream: AsyncStream[object] = AsyncStream()
    stop = bridge.engine.watch(bridge.pool, stream.put)
    try:
        while await bridge.ask(question):
            left = 1.0 if deadline is None else min(1.0, deadline - elapsed())
            if left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await anext(stream)
    finally:
        stop()
    return True


class AsyncBridge:
    """The engine, as one pool of this loop sees it."""

    blocks = False

    def __init__(self, engine: Engine, pool: str) -> None:
        self.engine = engine
        self.pool = pool

    async def send(self, command: Command) -> Reply:
        """Run a command and return its answer."""
        latch: AsyncLatch[Reply | Exception] = AsyncLatch()
        return await self._result(self.engine.apply(self.pool, command, latch.set, block=False), latch)

    async def ask(self, question: Question[T]) -> T:
        """Ask a question about the pool."""
        latch: AsyncLatch[T | Exception] = AsyncLatch()
        return await self._result(self.engine.ask(self.pool, question, latch.set, block=False), latch)

    async def glance(self, question: Question[T], otherwise: T, timeout: float) -> T:
        """Ask a question that is not worth waiting for: return `otherwise` when there is no answer in time."""
        latch: AsyncLatch[T | Exception] = AsyncLatch()
        try:
            ticket = self.engine.ask(self.pool, question, latch.set, block=False)
        except (PoolError, RuntimeError):  # closed meanwhile
            return otherwise
        if not await latch.wait(timeout):
            ticket.cancel()
            return otherwise
        return otherwise if isinstance(latch.value, Exception) else latch.value

    async def finish(self, command: Command) -> tuple[Reply | Exception, BaseException | None]:
        """Run a command to its end although the caller is being cancelled; return that with the answer."""
        latch: AsyncLatch[Reply | Exception] = AsyncLatch()
        self.engine.apply(self.pool, command, latch.set, block=False)
        cancelled: asyncio.CancelledError | None = None
        while not latch.is_set:
            try:
                await latch.wait()
            except asyncio.CancelledError as error:
                cancelled = error
        return latch.value, cancelled

    async def take_back(self, command: Command, owe: Callable[[], None], within: float) -> BaseException | None:
        """Run a command that takes something back, waiting for its answer for so many seconds; return a cancellation.

        Whenever it fails, `owe` is called: then that sees to it.
        """
        latch: AsyncLatch[Reply | Exception] = AsyncLatch()
        self.engine.apply(self.pool, command, answer_or(owe, latch.set), block=False)
        deadline = elapsed() + within
        cancelled: asyncio.CancelledError | None = None
        while not latch.is_set and elapsed() < deadline:
            try:
                await latch.wait(deadline - elapsed())
            except asyncio.CancelledError as error:
                cancelled = error
        return cancelled

    async def call(self, function: Callable[[], T]) -> T:
        """Run something that blocks, in a thread."""
        return await asyncio.to_thread(function)

    async def _result(self, ticket: Ticket, latch: AsyncLatch[T | Exception]) -> T:
        try:
            await latch.wait()
        except BaseException:
            ticket.cancel()
            raise
        if isinstance(latch.value, Exception):
            raise latch.value
        return latch.value


class AsyncStream(Generic[T]):
    """Values that arrive from any thread and are iterated over in this loop, until it is closed.

    It keeps `limit` values for one who reads slowly. What comes after them is not kept: then the iteration raises
    `PoolError` after those.
    """

    def __init__(self, limit: int = UNREAD) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
        self._limit = limit
        self._is_cut = False

    def put(self, value: T) -> None:
        """Add a value."""
        if not self._is_cut:
            self._post((value,))

    def close(self) -> None:
        """End the iteration after what is there."""
        self._post(None)

    def _post(self, item: tuple[T] | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody listens
            self._loop.call_soon_threadsafe(self._take, item)

    def _take(self, item: tuple[T] | None) -> None:
        if self._is_cut:
            return
        if item is not None and self._queue.qsize() >= self._limit:
            self._is_cut = True
            item = None  # the end
        self._queue.put_nowait(item)

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> T:
        item = await self._queue.get()
        if item is None:
            if self._is_cut:
                raise fell_behind(self._limit)
            raise StopAsyncIteration
        return item[0]
