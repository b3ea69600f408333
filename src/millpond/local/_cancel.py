"""Cancellation that a running task can see.

A thread cannot be stopped from outside, so a running task is *asked*: it looks at `current_token()` now and then.
What the pool can do alone, it does: tasks of a cancelled token that are still queued are cancelled.
"""

from __future__ import annotations

import _thread
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Protocol

from millpond._events import logger
from millpond.local._checks import check_seconds
from millpond.local._timer import timer
from millpond.local._watchers import here


class Cancellable(Protocol):
    """What a token can cancel: a queued task, a token below it, or the link to a task in another process."""

    def cancel(self) -> object: ...


class CancelToken:
    """A request to stop, shared by whoever cancels and the tasks that look.

    `CancelToken(timeout=5)` cancels itself in five seconds. Cancelling is final. `pool.options(cancel=token)`
    gives it to tasks: queued ones are cancelled with it, running ones see it by `current_token()`.
    """

    def __init__(self, *, timeout: float | None = None) -> None:
        timeout = check_seconds("timeout", timeout)
        self._lock = _thread.allocate_lock()
        self._is_set = False
        self._reason: str | None = None
        # Each of these is made when it is first needed: every task with a time-out has a token that few look at.
        self._event: threading.Event | None = None
        self._calls: list[Callable[[], object]] = []
        self._watched: weakref.WeakSet[Any] | None = None  # queued tasks, and tokens below this one
        self.deadline: float | None = None
        """When it cancels itself, on `time.monotonic()`; None for never."""
        if timeout is not None:
            self._expire_after(timeout)

    def _expire_after(self, timeout: float) -> None:
        self.deadline = time.monotonic() + timeout
        ref = weakref.ref(self)

        def expire() -> None:
            token = ref()
            if token is not None:
                token.cancel("its time was up")

        appointment = timer.after(timeout, expire, own_thread=True)
        weakref.finalize(self, appointment.cancel).atexit = False
        self.on_cancel(appointment.cancel)

    def cancel(self, reason: str = "cancelled") -> None:
        """Ask every task of this token to stop; a second call changes nothing."""
        with self._lock:
            if self._is_set:
                return
            self._reason = reason
            self._is_set = True
            if self._event is not None:
                self._event.set()
            calls, self._calls = self._calls, []
            watched = list(self._watched or ())
        for each in watched:
            each.cancel()
        for call in calls:
            try:
                call()
            except Exception:  # the others are called all the same, as done-callbacks are
                logger.exception("on_cancel raised")

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled or its deadline has passed."""
        return self._is_set or (self.deadline is not None and time.monotonic() >= self.deadline)

    @property
    def reason(self) -> str | None:
        """Why it was cancelled; None when it was not."""
        return self._reason or ("its time was up" if self.cancelled else None)

    def remaining(self) -> float | None:
        """Seconds left until the deadline (0.0 when past, or cancelled), or None when there is no deadline."""
        if self._is_set:
            return 0.0
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until cancelled or `timeout` seconds have passed; return whether it is cancelled."""
        left = self.remaining()
        if left is not None:
            timeout = left if timeout is None else min(timeout, left)
        with self._lock:
            if self._event is None:
                self._event = threading.Event()
                if self._is_set:
                    self._event.set()
        self._event.wait(timeout)
        return self.cancelled

    def raise_if_cancelled(self) -> None:
        """Raise `CancelledError` when cancelled: the short way out of a loop."""
        if self.cancelled:
            raise CancelledError(self.reason)

    def on_cancel(self, call: Callable[[], object]) -> None:
        """Call `call()` when cancelled (at once when it is), in the thread that cancels; what it raises is logged."""
        with self._lock:
            if not self._is_set:
                self._calls.append(call)
                return
        call()

    def _watch(self, each: Cancellable) -> None:
        """Cancel `each` together with this token."""
        with self._lock:
            if not self._is_set:
                if self._watched is None:
                    self._watched = weakref.WeakSet()
                self._watched.add(each)
                return
        each.cancel()

    def _unwatch(self, each: Cancellable) -> None:
        with self._lock:
            if self._watched is not None:
                self._watched.discard(each)

    def __repr__(self) -> str:
        return f"<CancelToken {'cancelled: ' + str(self.reason) if self.cancelled else 'live'}>"


_NEVER = CancelToken()


def current_token() -> CancelToken:
    """Return the token of the task that this thread is running.

    A task without a token of its own gets its pool's, which is cancelled when the pool is left by Ctrl-C.
    Outside of any task it is a token that is never cancelled.
    """
    token: CancelToken | None = getattr(here, "token", None)
    if token is not None:
        return token
    worker = getattr(here, "worker", None)
    return _NEVER if worker is None else worker.token
