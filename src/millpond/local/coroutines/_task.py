"""`AsyncTask`: the handle of one call in an `AsyncPool`, an `asyncio.Future` whose `cancel()` works in every stage.

A task is *new* (it may wait to be admitted), then *queued*, then it *runs* in an `asyncio.Task` of its own, then it is
done. `cancel()` settles it at once in the first two stages. While it runs, `cancel()` cancels the coroutine, and the
handle ends when the coroutine has ended: whoever sees a handle done knows that nothing of it runs any more. Since a
cancelled asyncio task cancels the future it awaits, `await task` hands the caller's own cancellation on to the call.

A task of the pool that awaits a task of the same pool which is still queued would wait for the place that it holds
itself; so that one starts at once, beside the limit, while its parent does nothing but wait (`Limiter.help`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable
from contextvars import Context
from typing import Any, Protocol, TypeVar

from millpond._events import Observer, logger
from millpond.local._cancel import CancelToken

T = TypeVar("T")

NEW, QUEUED, RUNNING, DONE, ABORTED = range(5)

cancel_future = asyncio.Future.cancel
_await_future = asyncio.Future.__await__


class TaskLimiter(Protocol):
    """The limiter of a task, as far as the task needs it."""

    name: str
    on_event: Observer | None
    chain: tuple[Any, ...]
    is_inside: Callable[[], bool]
    watched: dict[Any, Callable[[BaseException], None]]

    def leave(self, task: Any, /, *, completed: int = 0, failed: int = 0, cancelled: int = 0) -> None: ...
    def cancel_queued(self, task: Any, /) -> None: ...
    def help(self, task: Any, /) -> Any: ...
    def lend(self, task: Any = None, /) -> contextlib.AbstractContextManager[None]: ...


class Entry(Protocol):
    """What a limiter queues and starts: a task, or a worker of a map."""

    key: Hashable | None
    _stage: int
    _context: Context | None
    _limiter: Any
    _queued_at: Any
    _asyncio_task: Any
    _cancel_link: CancelLink | None

    def _perform(self, is_primed: bool, /) -> Coroutine[Any, Any, None]:
        """Run it: the body of its asyncio task."""

    def _abort(self, error: BaseException, /) -> None:
        """End it: no asyncio task could be made for it."""


def cancel_running(entry: Entry, msg: Any | None = None) -> bool:
    """Cancel the asyncio task of an entry; if that takes its first step right now, as soon as it is known."""
    if isinstance(entry._asyncio_task, asyncio.Task):
        return entry._asyncio_task.cancel(msg)
    entry._asyncio_task = True
    return True


@types.coroutine
def primed() -> Generator[None, None, None]:
    """Suspend once: where a coroutine stands that was started by hand before an asyncio task took it over."""
    yield


class AsyncTask(asyncio.Future[T]):
    """A call handed to an `AsyncPool`: await it for its result, `cancel()` it at any time."""

    __slots__ = ("_args", "_asyncio_task", "_call", "_context", "_limiter", "_queued_at", "_stage")

    _call: Callable[..., Awaitable[T]] | None
    _args: tuple[Any, ...]
    _context: Context | None
    _limiter: TaskLimiter  # the one that it was submitted to
    _queued_at: Any
    """The limiter in whose queue it is; once it runs, the first one (upwards) of which it holds no place."""
    _asyncio_task: Any  # what runs it; True when cancel() came before that was known
    _stage: int

    priority: float = 0
    key: Hashable | None = None
    _is_forgotten = False  # whether it was given to `go()`, so that nobody will ask for its error
    _cancel_link: CancelLink | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the call: at once when it is queued, else by cancelling the running coroutine.

        Returns False when it is done already. A running plain function cannot be stopped: it can see the wish by
        `current_token()`, is waited for, and its result is thrown away.
        """
        if self.done():
            return False
        if self._stage == RUNNING:
            return cancel_running(self, msg)
        cancel_future(self, msg)
        self._limiter.cancel_queued(self)
        return True

    def running(self) -> bool:
        """Return True while the call is being executed."""
        return self._stage == RUNNING

    def __await__(self) -> Generator[Any, None, T]:
        if self._stage < RUNNING and self._limiter.is_inside():
            return self._await_inside()
        return _await_future(self)

    __iter__ = __await__

    def _await_inside(self) -> Generator[Any, None, T]:
        """Wait inside a task of the same pool, which holds a place that this one may need."""
        try:
            while (first := self._limiter.help(self)) is not self:
                with self._limiter.lend(first):
                    yield from asyncio.wait((first,)).__await__()
        except asyncio.CancelledError:
            self.cancel()
            raise
        with self._limiter.lend(self):
            value: T = yield from _await_future(self)
        return value

    async def _perform(self, is_primed: bool) -> None:
        try:
            if is_primed:
                await primed()
            call, args = self._call, self._args
            self._call, self._args = None, ()
            value = await call(*args)  # type: ignore[misc]
        except asyncio.CancelledError as error:
            self._limiter.leave(self, cancelled=1)
            cancel_future(self, error.args[0] if error.args else None)
        except BaseException as error:
            if self._stage == ABORTED:
                raise
            self._fail(error)
        else:
            self._limiter.leave(self, completed=1)
            self.set_result(value)

    def _fail(self, error: BaseException) -> None:
        self._limiter.leave(self, completed=1, failed=1)
        error = clean_error(error)
        self.set_exception(error)
        if self._limiter.watched and (watcher := self._limiter.watched.pop(self, None)) is not None:
            watcher(error)  # now: the limiter may start the next task before any done-callback is called
        if self._is_forgotten:
            self.exception()  # it counts as retrieved
            if self._limiter.on_event is None:
                logger.error("a task given to go() failed in pool %r", self._limiter.name, exc_info=error)
        raise_interrupt(error)

    _abort = _fail

    def __repr__(self) -> str:
        if not self.done():
            state = ("new", "queued", "running", "ending")[self._stage]
        elif self.cancelled():
            state = "cancelled"
        else:
            error = self._exception  # exception() would count as having been retrieved
            state = "returned" if error is None else f"raised {type(error).__name__}"
        return f"<AsyncTask at {id(self):#x} {state}>"


class OptionTask(AsyncTask[T]):
    """A task with options of its own, or one that nobody holds: without `__slots__`, so that it takes more."""


class CancelLink:
    """Cancels a task together with a `CancelToken`, which may be cancelled in any thread."""

    def __init__(self, task: AsyncTask[Any], token: CancelToken) -> None:
        self._task = task
        self._token = token
        self._thread = threading.get_ident()
        token._watch(self)

    def cancel(self) -> None:
        if threading.get_ident() == self._thread:
            self._task.cancel()
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nothing runs any more
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def detach(self) -> None:
        self._token._unwatch(self)


def clean_error(error: BaseException) -> BaseException:
    """Take our own frame off a user's error, and make it one that asyncio takes."""
    if error.__traceback__ is not None:
        error.with_traceback(error.__traceback__.tb_next)  # not by an assignment: a class may forbid those
    if isinstance(error, StopIteration):
        return RuntimeError(f"task raised {error!r}")
    return error


def raise_interrupt(error: BaseException) -> None:
    """Raise Ctrl-C in the loop too: it is meant for the program, not only for the task that it hit."""
    if isinstance(error, KeyboardInterrupt):
        asyncio.get_running_loop().call_soon(_raise, error)


def _raise(error: BaseException) -> None:
    raise error
