"""From a worker thread to an asyncio loop, with one wake-up per burst.

`loop.call_soon_threadsafe` costs a write to a pipe and a pass of the loop, so one per task is what makes
`run_in_executor` slow. Here the ended tasks of a loop gather in its `LoopInbox`, and only the first of a burst
wakes the loop, which then delivers all that have come in.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Generator
from concurrent import futures
from concurrent.futures._base import PENDING
from typing import Any, Protocol, TypeVar

from millpond._atomic import FREE_THREADED
from millpond.local._watchers import NO_WAITERS, RETURNED, Watchers

T = TypeVar("T")
W = TypeVar("W", bound="Awaited[Any]")


class Awaitable(Protocol):
    """A task, as far as a loop needs it."""

    _status: int
    _value: Any
    _watchers: Watchers | None

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> bool: ...
    def result(self) -> Any: ...
    def exception(self) -> BaseException | None: ...
    def _add_listener(self, listener: Callable[[Any], object]) -> None: ...


class Awaited(asyncio.Future[T]):
    """The asyncio side of a task; cancelling it cancels the task if that has not started."""

    __slots__ = ("task",)

    task: Awaitable

    def cancel(self, msg: Any | None = None) -> bool:
        self.task.cancel()
        return super().cancel(msg)


class LoopInbox:
    """The ended tasks that a loop has not seen yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)
        self.arrived: deque[Awaited[Any]] = deque()
        self.is_scheduled = False

    def add(self, awaited: Awaited[Any]) -> None:
        """Add an ended task, from any thread, and wake the loop unless a wake-up is on its way."""
        self.arrived.append(awaited)
        if not self.is_scheduled:
            self.schedule()

    def schedule(self) -> None:
        self.is_scheduled = True
        loop = self.loop()
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop was closed: nobody waits any more
                self.arrived.clear()

    def _deliver(self) -> None:
        self.is_scheduled = False  # before looking: whoever comes after this wakes the loop again
        arrived = self.arrived
        while True:
            try:
                awaited = arrived.popleft()  # also in vain: through the lock of the deque, as `add` goes
            except IndexError:
                return
            deliver(awaited)


def deliver(awaited: Awaited[Any]) -> None:
    if awaited.done():
        return
    task = awaited.task
    if task._status == RETURNED:
        awaited.set_result(task._value)
        return
    if task.cancelled():
        asyncio.Future.cancel(awaited)
        return
    error = task._value
    if isinstance(error, futures.CancelledError):  # asyncio has a class of its own for it
        awaited.set_exception(asyncio.CancelledError(*error.args))
    elif isinstance(error, StopIteration):  # asyncio refuses it: it would end the awaiting coroutine
        awaited.set_exception(RuntimeError(f"task raised {error!r}"))
    else:
        awaited.set_exception(error)


_inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopInbox] = weakref.WeakKeyDictionary()
_latest: LoopInbox | None = None  # most programs have one loop: look here first


def inbox_of(loop: asyncio.AbstractEventLoop) -> LoopInbox:
    global _latest
    inbox = _latest
    if inbox is None or inbox.loop() is not loop:
        inbox = _inboxes.get(loop)
        if inbox is None:
            inbox = _inboxes[loop] = LoopInbox(loop)
        _latest = inbox
    return inbox


class LoopWatcher(Watchers):
    """The watchers of a task that is awaited from the start, as by `pool.run(f, x)`."""

    __slots__ = ("_awaited", "_inbox")

    def __init__(self, awaited: Awaited[Any], inbox: LoopInbox) -> None:
        self.locks = self.listeners = self.callbacks = self.condition = None  # `Watchers.__init__`, written out
        self.waiters = NO_WAITERS
        self.published = PENDING
        self._awaited = awaited
        self._inbox = inbox

    def wake(self, task: Any) -> None:
        if FREE_THREADED or self.locks or self.listeners or self.callbacks or self.condition is not None:
            super().wake(task)
        inbox = self._inbox
        inbox.arrived.append(self._awaited)  # `LoopInbox.add`, written out
        if not inbox.is_scheduled:
            inbox.schedule()


def await_from_the_start(task: Awaitable) -> Awaited[Any]:
    """Return the asyncio future of a task that is not queued yet."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "no running event loop: run() is awaited in a coroutine; elsewhere take submit(...).result()"
        ) from None
    awaited: Awaited[Any] = Awaited(loop=loop)
    awaited.task = task
    task._watchers = LoopWatcher(awaited, inbox_of(loop))
    return awaited


def wrap(task: Awaitable, kind: type[W] = Awaited) -> W:  # type: ignore[assignment]
    loop = asyncio.get_running_loop()
    awaited = kind(loop=loop)
    awaited.task = task
    if task.done():
        deliver(awaited)
    else:
        inbox = inbox_of(loop)
        task._add_listener(lambda _: inbox.add(awaited))
    return awaited


def await_task(task: Awaitable) -> Generator[Any, None, Any]:
    if task.done() and not task.cancelled() and not isinstance(task.exception(), futures.CancelledError):
        return task.result()
    awaited: Awaited[Any] = wrap(task)
    return (yield from awaited)
