"""`AsyncTask`: the handle of one call in an `AsyncPool`, an `asyncio.Future` whose `cancel()` works in every stage.

A task is *new* (it may wait for room), then *in line*, then it *runs* in an `asyncio.Task` of its own, then it is
done. `cancel()` settles it at once in the first two stages. While it runs, `cancel()` cancels the coroutine, and the
handle ends when the coroutine has ended: whoever sees a handle done knows that nothing of it runs any more. Since a
cancelled asyncio task cancels the future it awaits, `await task` hands the caller's own cancellation on to the call.

A task of the pool that awaits a task of the same pool which is still in line would wait for the place that it holds
itself; so that one starts at once, beside the limit, while its parent does nothing but wait (`Limiter.help`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import types
from collections.abc import Awaitable, Callable, Generator, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.local.coroutines._waiting import until_done

if TYPE_CHECKING:
    from contextvars import Context

    from millpond.local._cancel import CancelToken
    from millpond.local.coroutines._limiter import Limiter

T = TypeVar("T")

NEW, IN_LINE, RUNNING, DONE, ABORTED = range(5)

cancel_future = asyncio.Future.cancel
_await_future = asyncio.Future.__await__


@types.coroutine
def primed() -> Generator[None, None, None]:
    """Suspend once: where a coroutine stands that was started by hand before an asyncio task took it over."""
    yield


class AsyncTask(asyncio.Future[T]):
    """A call handed to an `AsyncPool`: await it for its result, `cancel()` it at any time."""

    __slots__ = ("_args", "_call", "_context", "_desk", "_home", "_inner", "_stage")

    _call: Callable[..., Awaitable[T]] | None
    _args: tuple[Any, ...]
    _context: Context | None
    _home: Limiter
    """The limiter that it was submitted to."""
    _desk: Limiter | None
    """The limiter in whose line it stands; once it runs, the first one (upwards) of which it holds no place."""
    _inner: asyncio.Task[None] | bool | None
    """The asyncio task that runs it; True when cancel() came before that was known."""
    _stage: int

    priority: float = 0
    key: Hashable | None = None
    _is_loose = False
    _remote: Remote | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the call: at once when it is in line, else by cancelling the running coroutine.

        Returns False when it is done already. A running plain function cannot be stopped: it can see the wish by
        `current_token()`, is waited for, and its result is thrown away.
        """
        if self.done():
            return False
        if self._stage == RUNNING:
            inner = self._inner
            if isinstance(inner, asyncio.Task):
                return inner.cancel(msg)
            self._inner = True
            return True
        cancel_future(self, msg)
        self._home.withdraw(self)
        return True

    def running(self) -> bool:
        """Return True while the call is being executed."""
        return self._stage == RUNNING

    def __await__(self) -> Generator[Any, None, T]:
        if self._stage < RUNNING and self._home.is_inside():
            return self._await_inside()
        return _await_future(self)

    __iter__ = __await__

    def _await_inside(self) -> Generator[Any, None, T]:
        """Wait inside a task of the same pool, which holds a place that this one may need."""
        try:
            while (first := self._lend()) is not self:
                yield from until_done(first).__await__()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return (yield from _await_future(self))

    def _lend(self) -> AsyncTask[Any]:
        """Inside a task of the same pool, start this one (or the first of its key); return the one to wait for."""
        if self._stage >= RUNNING or self.done() or not self._home.is_inside():
            return self
        first = self._home.keys.first(self)
        if first is not self and self._home.is_in(first):
            self.cancel()
            raise RuntimeError(
                f"a task with key {self.key!r} awaits another task of that key, which can start only after it, so that "
                "one was cancelled; await it elsewhere, or give it another key"
            )
        self._home.help(first)
        return first

    async def _perform(self, is_primed: bool) -> None:
        """Run the call and settle: the body of the asyncio task."""
        try:
            if is_primed:
                await primed()
            call, args = self._call, self._args
            self._call, self._args = None, ()
            value = await call(*args)  # type: ignore[misc]
        except asyncio.CancelledError as error:
            self._home.end_cancelled(self, error)
        except BaseException as error:
            if self._stage == ABORTED:
                raise
            self._home.end_failed(self, error)
        else:
            self._home.end(self, value)

    def _abort(self, error: BaseException) -> None:
        """End it: no asyncio task could be made for it."""
        self._stage = RUNNING
        self._home.end_failed(self, error)

    def __repr__(self) -> str:
        if not self.done():
            state = ("new", "in line", "running", "ending")[self._stage]
        elif self.cancelled():
            state = "cancelled"
        else:
            error = self._exception  # exception() would count as having been retrieved
            state = "returned" if error is None else f"raised {type(error).__name__}"
        return f"<AsyncTask at {id(self):#x} {state}>"


class OptionTask(AsyncTask[T]):
    """A task with options of its own, or one that nobody holds."""


class Remote:
    """Cancels a task for a `CancelToken`, which may be cancelled in any thread."""

    def __init__(self, task: AsyncTask[Any], token: CancelToken) -> None:
        self._task = task
        self._token = token
        self._thread = threading.get_ident()
        token._watch(self)  # type: ignore[arg-type]  # it asks for nothing but cancel()

    def cancel(self) -> None:
        """Cancel the task, in its loop's thread."""
        if threading.get_ident() == self._thread:
            self._task.cancel()
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nothing runs any more
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def detach(self) -> None:
        """Watch no longer: the task is done."""
        self._token._unwatch(self)  # type: ignore[arg-type]
