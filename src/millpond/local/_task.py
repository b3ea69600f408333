"""One task: a call that was handed to a pool, and the `concurrent.futures.Future` of its outcome.

The standard `Future` costs 2.5 µs and 1.7 kB, most of it for a Condition that nobody waits on. A `Task`
is the same thing to everybody who looks (`isinstance`, `wait`, `as_completed`, `asyncio.wrap_future`,
callbacks), but it stays a handful of slots until somebody looks before it is done. What only a watched
task needs lives in its `Hook`, made at the first look.

How it holds together without a lock (attribute stores are ordered under the GIL):

- The completer stores the value, then the status, and *then* reads `_hook`.
- A watcher stores `_hook` (and itself in it), and *then* reads the status.
  So at least one of the two sees the other; both may, and every wake-up is harmless when it comes twice.
- `_fn` is None from the moment that a worker has started the task. `owner.claim(task)` takes a task out of
  turn (to cancel it, or to run it elsewhere) and is the only other place that may decide so.
- The standard library's `wait` and `as_completed` read `_state` under `_condition` and rely on its not
  changing meanwhile. A task that is looked at in that way before it is done gets a lock for it, and its end is
  published under that lock (`Hook.publish`). One lock for all tasks would be cheaper, but two threads that wait for our
  and for standard futures at once could then hold two locks crosswise. A task that is done needs no lock.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import _base as _futures
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from millpond.errors import PoolClosed
from millpond.local._loop_bridge import await_task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

T = TypeVar("T")

# What became of a task. OPEN covers both "in line" and "running": `_fn` tells them apart.
OPEN, RETURNED, RAISED, CANCELLED = 0, 1, 2, 3

_STATE = {RETURNED: _futures.FINISHED, RAISED: _futures.FINISHED, CANCELLED: _futures.CANCELLED_AND_NOTIFIED}
_making = threading.Lock()
"""Held while a hook or its lock is made, and for nothing else."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_making._at_fork_reinit)  # type: ignore[attr-defined]

here = threading.local()
"""What this thread is doing: `here.worker` in a worker thread, `here.token` inside a task with a token."""


class Owner(Protocol):
    """Where a task stands in line."""

    is_stranded: bool
    """Whether this is a forked child, and the task is the parent's to run."""

    def withdraw(self, task: Task[Any]) -> bool:
        """Atomically take `task` out of line to cancel it; False when it has started or ended."""


class _Waiters(list[Any]):
    """The standard library's waiters; one that came to a done task, which keeps none, may be removed all the same."""

    def remove(self, waiter: Any) -> None:
        with contextlib.suppress(ValueError):
            super().remove(waiter)


class _Deaf(_Waiters):
    """The waiters of a task that is done: it has nothing left to tell them."""

    def append(self, _: Any) -> None:
        pass


_DEAF = _Deaf()


class Hook:
    """What a task needs only when somebody looks at it before it is done."""

    __slots__ = ("callbacks", "condition", "locks", "published", "waiters")

    def __init__(self) -> None:
        # Each list is made when it is needed (the garbage collector walks every one), and is a list, not a deque:
        # an empty deque is 600 bytes.
        self.locks: list[_thread.LockType] | None = None
        self.callbacks: list[Callable[[Any], object]] | None = None
        self.condition: Any = None
        self.waiters: list[Any] = _DEAF
        self.published: str = _futures.PENDING

    def add_callback(self, callback: Callable[[Any], object]) -> None:
        """Add a done-callback; whoever adds it looks at the task's status afterwards."""
        if self.callbacks is None:
            with _making:
                if self.callbacks is None:
                    self.callbacks = []
        self.callbacks.append(callback)

    def drop_callback(self, callback: Callable[[Any], object]) -> None:
        """Remove a done-callback if it is still there."""
        with contextlib.suppress(ValueError):
            if self.callbacks is not None:
                self.callbacks.remove(callback)

    def add_lock(self, lock: _thread.LockType) -> list[_thread.LockType]:
        """Add the lock of somebody who waits; return the list for taking it out again."""
        if self.locks is None:
            with _making:
                if self.locks is None:
                    self.locks = []
        self.locks.append(lock)
        return self.locks

    def wake(self, task: Task[Any]) -> None:
        """Tell everybody who looks that `task` is done."""
        locks = self.locks
        while locks:
            try:
                locks.pop().release()
            except IndexError:
                break
        if self.condition is not None:
            self.publish(task, self.condition)
        if self.callbacks:
            self.call_back(task)

    def publish(self, task: Task[Any], condition: Any) -> None:
        """Show the end of `task` to the waiters of the standard library, once."""
        with condition:
            if self.published != _futures.PENDING:
                return
            self.published = _STATE[task._status]
            for waiter in self.waiters:
                if task._status == CANCELLED:
                    waiter.add_cancelled(task)
                elif task._status == RAISED:
                    waiter.add_exception(task)
                else:
                    waiter.add_result(task)

    def call_back(self, task: Task[Any]) -> None:
        """Run the callbacks in the order they were added; each is run by whoever takes it out."""
        callbacks = self.callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:
                return
            try:
                callback(task)
            except BaseException:  # also SystemExit: it is not this thread's to end
                _futures.LOGGER.exception("exception calling callback for %r", task)


class _Open:
    """The lock of a task that is done: nothing about it changes any more."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass


_OPEN_CONDITION = _Open()


class Task(Future[T], Generic[T]):
    """A call handed to a pool: a `concurrent.futures.Future` that can also be awaited.

    `result()` called inside a worker of the same pool runs the task right there when it has not started
    yet, so tasks that wait for tasks never deadlock.
    """

    __slots__ = ("_args", "_context", "_fn", "_hook", "_owner", "_status", "_value")

    is_place = False
    """Whether it stands in line for others: for the items of a map, or the tasks of a subpool."""

    _args: Any
    _context: Any
    _fn: Any
    _hook: Hook | None
    _owner: Any
    _status: int
    _value: Any

    def __init__(self) -> None:
        # The pools build tasks with `Task.__new__` and store the slots themselves; this is for everybody else.
        self._status = OPEN
        self._fn = _unset
        self._args = ()
        self._context = self._hook = self._value = None
        self._owner = _NOBODY

    # -- looking ----------------------------------------------------------------------------------------

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

    # -- acting -----------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Cancel the task if it has not started; return whether it is cancelled."""
        if self._status == OPEN and self._owner.withdraw(self):
            self._settle(CANCELLED, None)
        return self._status == CANCELLED

    def add_done_callback(self, fn: Callable[[Task[T]], object]) -> None:
        """Call `fn(task)` when the task is done (at once when it is); errors in `fn` are logged."""
        if self._status == OPEN:
            hook = self._look()
            hook.add_callback(fn)
            if self._status != OPEN:
                hook.call_back(self)
            return
        try:
            fn(self)
        except Exception:
            _futures.LOGGER.exception("exception calling callback for %r", self)

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

    # -- inside -----------------------------------------------------------------------------------------

    def _end(self, status: int, value: Any) -> None:
        with _making:
            if self._status != OPEN:
                raise InvalidStateError(f"{self!r} is already done")
            self._fn = self._args = self._context = None
            self._value = value
            self._status = status
        if self._hook is not None:
            self._hook.wake(self)

    def _settle(self, status: int, value: Any) -> None:
        """Store the outcome and wake who looks. Only for whoever has claimed the task."""
        self._fn = self._args = self._context = None
        self._value = value
        self._status = status
        if self._hook is not None:
            self._hook.wake(self)

    def _look(self) -> Hook:
        hook = self._hook
        if hook is None:
            with _making:
                hook = self._hook
                if hook is None:
                    hook = self._hook = Hook()
        if self._owner.is_stranded and self._status == OPEN:
            self._strand()
        return hook

    def _strand(self) -> None:
        """End a task that this process inherited by fork: its worker is in the parent."""
        self._value = PoolClosed("this task was submitted before the fork and is the parent's; submit it again here")
        self._status = RAISED
        if self._hook is not None and self._hook.condition is not None:
            self._hook.condition = threading.RLock()  # a thread of the parent may have held the old one
            self._hook.published = _futures.FINISHED

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
        locks = self._look().add_lock(lock)
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
        # `_making`; a task that is done and has no hook is open, and a hook that comes too late is decided so as well.
        hook = self._look() if self._status == OPEN else self._hook
        if hook is None:
            return cast(threading.RLock, _OPEN_CONDITION)
        if hook.condition is None:
            with _making:
                if hook.condition is None:
                    self._decide_condition(hook)
        return cast(threading.RLock, hook.condition)

    def _decide_condition(self, hook: Hook) -> None:
        if self._status == OPEN:
            hook.waiters = _Waiters()
            hook.condition = threading.RLock()
            if self._status != OPEN:  # it ended meanwhile, perhaps without seeing the lock
                hook.published = _STATE[self._status]
        else:
            hook.published = _STATE[self._status]
            hook.condition = _OPEN_CONDITION

    @property
    def _state(self) -> str:  # type: ignore[override]
        hook = self._hook
        if hook is not None and hook.condition is not None:
            return hook.published
        if self._status == OPEN:
            return _futures.RUNNING if self._fn is None else _futures.PENDING
        return _STATE[self._status]

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        hook = self._hook
        return _DEAF if hook is None else hook.waiters

    @property
    def _result(self) -> Any:  # type: ignore[override]
        return self._value if self._status == RETURNED else None

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        return self._value if self._status == RAISED else None

    @property
    def _done_callbacks(self) -> list[Any]:
        return [] if self._hook is None else list(self._hook.callbacks or ())


class _Nobody:
    """The owner of a task that no pool has in line."""

    is_stranded = False

    def withdraw(self, task: Task[Any]) -> bool:
        with _making:
            if task._fn is None or task._status != OPEN:
                return False
            task._fn = None
            task._status = CANCELLED
            return True


_NOBODY = _Nobody()


def _unset() -> None:
    """Stand for the call of a task that no pool made."""
