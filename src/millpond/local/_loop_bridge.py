"""From a worker thread to an asyncio loop, with one wake-up per burst.

`loop.call_soon_threadsafe` costs a write to a pipe and a pass of the loop, so one per task is what makes
`run_in_executor` slow. Here the ended tasks of a loop gather in its `Mailbox`, and only the first of a burst
rings; the loop then delivers all that have come in.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator

    from millpond.local._task import Task

T = TypeVar("T")
W = TypeVar("W", bound="Awaited[Any]")


class Awaited(asyncio.Future[T]):
    """The asyncio side of a task; cancelling it cancels the task if that has not started."""

    __slots__ = ("task",)

    task: Task[T]

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the wait, and the task when it is still in line."""
        self.task.cancel()
        return super().cancel(msg)


class Mailbox:
    """The ended tasks that a loop has yet to hear of."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)
        self._arrived: deque[Awaited[Any]] = deque()
        self._is_ringing = False

    def post(self, awaited: Awaited[Any]) -> None:
        """Take in an ended task, from any thread, and ring unless a ring is on its way."""
        self._arrived.append(awaited)
        if self._is_ringing:
            return
        self._is_ringing = True
        loop = self.loop()
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop was closed: nobody waits any more
                self._arrived.clear()

    def _deliver(self) -> None:
        self._is_ringing = False  # before looking: whoever comes after this rings again
        arrived = self._arrived
        while arrived:
            deliver(arrived.popleft())


def deliver(awaited: Awaited[Any]) -> None:
    """Hand the outcome of its task to `awaited`, in the loop's thread."""
    if awaited.done():
        return
    task = awaited.task
    if task._status == 1:  # RETURNED: nearly all of them
        awaited.set_result(task._value)
        return
    if task.cancelled():
        asyncio.Future.cancel(awaited)
        return
    error = task.exception()
    assert error is not None
    if isinstance(error, futures.CancelledError):  # asyncio has a class of its own for it
        awaited.set_exception(asyncio.CancelledError(*error.args))
    elif isinstance(error, StopIteration):  # asyncio refuses it: it would end the awaiting coroutine
        awaited.set_exception(RuntimeError(f"task raised {error!r}"))
    else:
        awaited.set_exception(error)


class _Post:
    """The done-callback of an awaited task."""

    __slots__ = ("awaited", "mailbox")

    def __init__(self, awaited: Awaited[Any], mailbox: Mailbox) -> None:
        self.awaited = awaited
        self.mailbox = mailbox

    def __call__(self, _: Any) -> None:
        self.mailbox.post(self.awaited)


_mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = weakref.WeakKeyDictionary()
_latest: Mailbox | None = None  # most programs have one loop: look here first


def open_mailbox(loop: asyncio.AbstractEventLoop) -> Mailbox:
    """Return the mailbox of a loop."""
    global _latest
    mailbox = _latest
    if mailbox is None or mailbox.loop() is not loop:
        mailbox = _mailboxes.get(loop)
        if mailbox is None:
            mailbox = _mailboxes[loop] = Mailbox(loop)
        _latest = mailbox
    return mailbox


def wrap(task: Task[T], kind: type[W] = Awaited) -> W:  # type: ignore[assignment]
    """Return an asyncio future of `task` for the running loop, of the given kind."""
    loop = asyncio.get_running_loop()
    awaited = kind(loop=loop)
    awaited.task = task
    if task.done():
        deliver(awaited)
    else:
        task.add_done_callback(_Post(awaited, open_mailbox(loop)))
    return awaited


def await_task(task: Task[T]) -> Generator[Any, None, T]:
    """Wait for `task` in the running loop."""
    if task.done() and not task.cancelled() and not isinstance(task.exception(), futures.CancelledError):
        return task.result()
    awaited: Awaited[T] = wrap(task)
    return (yield from awaited)
