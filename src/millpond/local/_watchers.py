"""What a task needs only when somebody looks at it before it is done: locks, listeners, callbacks, a condition.

Most tasks are done before anybody looks, so they have no `Watchers` at all. It is made at the first look, and each of
its lists when it is first needed: the garbage collector walks every one. They are lists, not deques, since an empty
deque is 600 bytes.

Two kinds of functions are called when a task is done. *Listeners* are ours: quick, never blocking, called at once in
whatever thread ends the task. *Callbacks* are users' code: a thread that others wait for (the I/O thread of a process
pool) sets `here.defer`, and gets them handed to that function instead of having to run them.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import _base as _futures
from typing import Any, Final

from millpond._atomic import FREE_THREADED, lock_of, pass_lock_of

# What became of a task. OPEN covers both "queued" and "running": `_fn` tells them apart.
OPEN: Final = 0
RETURNED: Final = 1
RAISED: Final = 2
CANCELLED: Final = 3

STATE = {RETURNED: _futures.FINISHED, RAISED: _futures.FINISHED, CANCELLED: _futures.CANCELLED_AND_NOTIFIED}
"""What the standard library calls them."""

here = threading.local()
"""What this thread is doing: `here.worker` in a worker thread, `here.token` inside a task with a token, `here.defer`
in a thread that must not run users' code."""


class StandardWaiters(list[Any]):
    """The standard library's waiters; one that came to a done task, which keeps none, may be removed all the same."""

    def remove(self, waiter: Any) -> None:
        with contextlib.suppress(ValueError):
            super().remove(waiter)


class _NoWaiters(StandardWaiters):
    """The waiters of a task that is done: it keeps none."""

    def append(self, _: Any) -> None:
        pass


NO_WAITERS = _NoWaiters()


class Watchers:
    """Whoever looks at a task before it is done."""

    __slots__ = ("callbacks", "condition", "listeners", "locks", "published", "waiters")

    def __init__(self) -> None:
        self.locks: list[_thread.LockType] | None = None
        self.listeners: list[Callable[[Any], object]] | None = None
        self.callbacks: list[Callable[[Any], object]] | None = None
        self.condition: Any = None
        self.waiters: list[Any] = NO_WAITERS
        self.published: str = _futures.PENDING

    # Whoever adds something, under the lock, looks at the task's status afterwards; `wake` goes through the lock.

    def add_lock(self, lock: _thread.LockType) -> list[_thread.LockType]:
        """Add the lock of a thread that waits; return the list, for removing it again."""
        with lock_of(self):
            if self.locks is None:
                self.locks = []
            self.locks.append(lock)
        return self.locks

    def add_listener(self, listener: Callable[[Any], object]) -> None:
        with lock_of(self):
            if self.listeners is None:
                self.listeners = []
            self.listeners.append(listener)

    def drop_listener(self, listener: Callable[[Any], object]) -> None:
        with contextlib.suppress(ValueError):
            if self.listeners is not None:
                self.listeners.remove(listener)

    def add_callback(self, callback: Callable[[Any], object]) -> None:
        with lock_of(self):
            if self.callbacks is None:
                self.callbacks = []
            self.callbacks.append(callback)

    def wake(self, task: Any) -> None:
        if FREE_THREADED:
            pass_lock_of(self)
        locks = self.locks
        while locks:
            try:
                locks.pop().release()
            except IndexError:
                break
        if self.condition is not None:
            self.publish(task, self.condition)
        if self.listeners:
            self.listen(task)
        if self.callbacks:
            self.call_back(task)

    def publish(self, task: Any, condition: Any) -> None:
        """Show the end of `task` to the waiters of the standard library, once."""
        with condition:
            if self.published != _futures.PENDING:
                return
            self.published = STATE[task._status]
            for waiter in self.waiters:
                if task._status == CANCELLED:
                    waiter.add_cancelled(task)
                elif task._status == RAISED:
                    waiter.add_exception(task)
                else:
                    waiter.add_result(task)

    def listen(self, task: Any) -> None:
        _call_each(self.listeners, task)

    def call_back(self, task: Any) -> None:
        """Call the users' callbacks, in the order in which they were added, here or where `here.defer` does it."""
        callbacks, defer = self.callbacks, getattr(here, "defer", None)
        if defer is None:
            _call_each(callbacks, task)
        else:
            defer(lambda: _call_each(callbacks, task))


def _call_each(functions: list[Callable[[Any], object]] | None, task: Any) -> None:
    """Call functions in order; each is called by whoever takes it out of the list."""
    while functions:
        try:
            function = functions.pop(0)
        except IndexError:
            return
        try:
            function(task)
        except BaseException:  # also SystemExit: it is not this thread's to end
            _futures.LOGGER.exception("exception calling callback for %r", task)


class _OpenCondition(contextlib.nullcontext[None]):
    """The lock of a task that is done: nothing about it changes any more."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


OPEN_CONDITION = _OpenCondition()
