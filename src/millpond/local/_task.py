"""One task: a call that was handed to a pool, and the `concurrent.futures.Future` of its outcome.

The standard `Future` costs 2.5 µs and 1.7 kB, most of it for a Condition that nobody waits on. A `Task` is the same
thing to everybody who looks (`isinstance`, `wait`, `as_completed`, `asyncio.wrap_future`, callbacks), but it stays a
handful of slots until somebody looks before it is done: see `_watchers.py`.

How it holds together without a lock (`_atomic.py` tells what is different without the GIL):

- The completer stores the value, then the status, and *then* reads `_watchers`.
- A watcher stores `_watchers` (and itself in it), and *then* reads the status.
  So at least one of the two sees the other; both may, and every wake-up is harmless when it comes twice. Without the
  GIL both go through the lock of the task (the first watcher) and that of its `Watchers` (the others) in between.
- Whoever swaps `_fn` for None has the task, be it to run or to cancel it: see `_backlog.py`.
- The standard library's `wait` and `as_completed` read `_state` under `_condition` and rely on its not
  changing meanwhile. A task that is looked at in that way before it is done gets a lock for it, and its end is
  published under that lock. One lock for all tasks would be cheaper, but two threads that wait for our and for
  standard futures at once could then hold two locks crosswise. A task that is done needs no lock.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import _base as _futures
from typing import Any, Generic, TypeVar, cast

from millpond._atomic import FREE_THREADED, lock_of, pass_lock_of
from millpond.errors import PoolClosed
from millpond.local._loop_bridge import await_task
from millpond.local._watchers import (
    CANCELLED,
    NO_WAITERS,
    OPEN,
    OPEN_CONDITION,
    RAISED,
    RETURNED,
    STATE,
    StandardWaiters,
    Watchers,
    here,
)

T = TypeVar("T")


class Task(Future[T], Generic[T]):
    """A call handed to a pool: a `concurrent.futures.Future` that can also be awaited.

    `result()` called inside a worker of the same pool runs the task right there when it has not started
    yet, so tasks that wait for tasks never deadlock.
    """

    __slots__ = ("_args", "_context", "_fn", "_owner", "_status", "_value", "_watchers")

    is_place = False
    """Whether it is queued for others: for the items of a map, or the tasks of a subpool. No task of the user's."""

    def __init__(self) -> None:
        # The pools build tasks with `Task.__new__` and store the slots themselves; this is for everybody else.
        self._status: int = OPEN
        self._fn: Any = _unset
        self._args: Any = ()
        self._context: Any = None
        self._value: Any = None
        self._watchers: Watchers | None = None
        self._owner: Any = _NO_POOL

    def done(self) -> bool:
        """Return True when the task has returned, raised or been cancelled."""
        return self._status != OPEN

    def cancelled(self) -> bool:
        """Return True when the task was cancelled (or dropped by a full pool)."""
        return self._status == CANCELLED

    def running(self) -> bool:
        """Return True while a worker is executing the task."""
        return self._status == OPEN and self._fn is None

    def result(self, timeout: float | None = None) -> T:
        """Return what the call returned, or raise what it raised.

        Raises TimeoutError when it is not done after `timeout` seconds (the task goes on), and
        `CancelledError` when it was cancelled.
        """
        if self._status == OPEN:
            self._wait(timeout)
        if self._status == RETURNED:
            return self._value  # type: ignore[no-any-return]
        if self._status == CANCELLED:
            raise CancelledError()
        try:
            raise self._value
        finally:
            self = None  # type: ignore[assignment]  # the traceback holds this frame: leave no cycle

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the call raised, or None; times out and is cancelled like `result`."""
        if self._status == OPEN:
            self._wait(timeout)
        if self._status == CANCELLED:
            raise CancelledError()
        return self._value if self._status == RAISED else None

    def __await__(self) -> Generator[Any, None, T]:
        return await_task(self)

    def __repr__(self) -> str:
        state = "cancelled"
        if self._status == OPEN:
            state = "running" if self._fn is None else "pending"
        elif self._status == RETURNED:
            state = f"returned {type(self._value).__name__}"
        elif self._status == RAISED:
            state = f"raised {type(self._value).__name__}"
        return f"<Task at {id(self):#x} {state}>"

    def cancel(self) -> bool:
        """Cancel the task if it has not started; return whether it is cancelled."""
        if self._status == OPEN and self._owner.cancel_queued(self):
            self._settle(CANCELLED, None)
        return self._status == CANCELLED

    def add_done_callback(self, fn: Callable[[Task[T]], object]) -> None:
        """Call `fn(task)` when the task is done (at once when it is); errors in `fn` are logged."""
        if self._status == OPEN:
            watchers = self._watch()
            watchers.add_callback(fn)
            if self._status != OPEN:
                watchers.call_back(self)
            return
        try:
            fn(self)
        except Exception:
            _futures.LOGGER.exception("exception calling callback for %r", self)

    def _add_listener(self, listener: Callable[[Any], object]) -> None:
        """Call a quick function of ours when the task is done, in whatever thread ends it."""
        if self._status == OPEN:
            watchers = self._watch()
            watchers.add_listener(listener)
            if self._status != OPEN:
                watchers.listen(self)
        else:
            listener(self)

    def set_running_or_notify_cancel(self) -> bool:
        """Mark the task as running; False when it was cancelled (for executors and tests)."""
        if self._status == CANCELLED:
            return False
        if self._status != OPEN or self._fn is None:
            raise RuntimeError(f"{self!r} is not pending, so it cannot be marked as running")
        self._fn = None
        return True

    def set_result(self, result: T) -> None:
        """End the task with `result` (for executors and tests)."""
        self._end(RETURNED, result)

    def set_exception(self, exception: BaseException | None) -> None:
        """End the task with `exception` (for executors and tests)."""
        self._end(RETURNED if exception is None else RAISED, exception)

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a Task: it belongs to a pool of this process; send its result instead")

    def _end(self, status: int, value: Any) -> None:
        with lock_of(self):
            if self._status != OPEN:
                raise InvalidStateError(f"{self!r} is already done")
            self._value = value
            self._status = status
        self._settle(status, value)

    def _settle(self, status: int, value: Any) -> None:
        """Store the outcome and wake who looks. Only for whoever has claimed the task."""
        self._fn = self._args = self._context = None
        self._value = value
        self._status = status
        if FREE_THREADED:
            pass_lock_of(self)
        if self._watchers is not None:
            self._watchers.wake(self)

    def _watch(self) -> Watchers:
        if self._watchers is None:
            made = Watchers()
            with lock_of(self):
                if self._watchers is None:
                    self._watchers = made
        if self._owner.is_forked and self._status == OPEN:
            self._end_after_fork()
        return self._watchers

    def _end_after_fork(self) -> None:
        """End a task that this process inherited by fork: its worker is in the parent."""
        self._value = PoolClosed("this task was submitted before the fork and is the parent's; submit it again here")
        self._status = RAISED
        if self._watchers is not None and self._watchers.condition is not None:
            self._watchers.condition = threading.RLock()  # a thread of the parent may have held the old one
            self._watchers.published = _futures.FINISHED

    def _wait(self, timeout: float | None) -> None:
        """Block until done; a worker of the task's own pool runs it instead of waiting for it."""
        worker = getattr(here, "worker", None)
        if worker is None:
            self._block(timeout)
        else:
            worker.help(self, timeout)

    def _block(self, timeout: float | None) -> None:
        lock = _thread.allocate_lock()
        lock.acquire()
        locks = self._watch().add_lock(lock)
        try:
            if self._status == OPEN:
                lock.acquire(True, -1 if timeout is None else max(0.0, timeout))
                if self._status == OPEN:
                    raise TimeoutError()
        finally:
            if self._status == OPEN:  # time-out or Ctrl-C: leave nothing on the task
                with contextlib.suppress(ValueError):
                    locks.remove(lock)

    # -- the standard library's private names ---------------------------------------------------------------

    @property
    def _condition(self) -> threading.RLock:  # type: ignore[override]
        # Whoever acquires this releases it by asking again, so the answer must never change. It is decided once, under
        # a lock; a task that is done and has no watchers is open, and watchers that come too late are so as well.
        watchers = self._watch() if self._status == OPEN else self._watchers
        if watchers is None:
            return cast(threading.RLock, OPEN_CONDITION)
        if watchers.condition is None:
            waiters, condition = StandardWaiters(), threading.RLock()
            with lock_of(watchers):
                if watchers.condition is None:
                    self._decide_condition(watchers, waiters, condition)
        return cast(threading.RLock, watchers.condition)

    def _decide_condition(self, watchers: Watchers, waiters: StandardWaiters, condition: threading.RLock) -> None:
        if self._status == OPEN:
            watchers.waiters = waiters
            watchers.condition = condition
            if self._status != OPEN:  # it ended meanwhile, perhaps without seeing the lock
                watchers.published = STATE[self._status]
        else:
            watchers.published = STATE[self._status]
            watchers.condition = OPEN_CONDITION

    @property
    def _state(self) -> str:  # type: ignore[override]
        watchers = self._watchers
        if watchers is not None and watchers.condition is not None:
            return watchers.published
        if self._status == OPEN:
            return _futures.RUNNING if self._fn is None else _futures.PENDING
        return STATE[self._status]

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        watchers = self._watchers
        return NO_WAITERS if watchers is None else watchers.waiters

    @property
    def _result(self) -> Any:  # type: ignore[override]
        return self._value if self._status == RETURNED else None

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        return self._value if self._status == RAISED else None


class OptionTask(Task[T]):
    """A task with options of its own."""

    __slots__ = ("key", "link", "priority", "queue", "timeout", "token")

    key: Hashable | None
    priority: float
    timeout: float | None
    token: Any  # the `CancelToken` that it was given, or None
    link: Any  # what ends it in another process when its token is cancelled, or None
    queue: Any  # the worker's queue that it waits in because of its key, or None


class _NoPool:
    """The owner of a task that is in no pool's queue."""

    is_forked = False

    def cancel_queued(self, task: Task[Any]) -> bool:
        with lock_of(task):
            if task._fn is None or task._status != OPEN:
                return False
            task._fn = None
            task._status = CANCELLED
            return True


_NO_POOL = _NoPool()


def _unset() -> None:
    """Stand for the call of a task that no pool made."""
