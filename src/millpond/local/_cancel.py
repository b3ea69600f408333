"""Cancellation that a running task can see, and the time limit of a task.

A thread cannot be stopped from outside, so a running task is *asked*: it looks at `current_token()` now and then.
What the pool can do alone, it does: tasks of a cancelled token that are still in line are cancelled, and a task
past its `timeout=` (run time, counted from its start) is given up: its future ends with `TaskTimeout`, its token
is cancelled, its thread no longer counts and is replaced. The thread itself ends when its function returns.
"""

from __future__ import annotations

import _thread
import threading
import time
import weakref
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from millpond.errors import TaskTimeout
from millpond.local._task import CANCELLED, OPEN, RAISED, here
from millpond.local._timer import timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.local._task import Task


class CancelToken:
    """A wish to stop, shared by whoever cancels and the tasks that look.

    `CancelToken(timeout=5)` cancels itself in five seconds. Cancelling is final. `pool.options(cancel=token)`
    gives it to tasks: those in line are cancelled with it, running ones see it by `current_token()`.
    """

    def __init__(self, *, timeout: float | None = None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be 0 or more seconds, not {timeout!r}")
        self._lock = _thread.allocate_lock()
        self._is_set = False
        self._reason: str | None = None
        # Each of these is made when it is first needed: every task with a time-out has a token that few look at.
        self._event: threading.Event | None = None
        self._calls: list[Callable[[], object]] = []
        self._watched: weakref.WeakSet[Any] | None = None  # tasks in line, and tokens below this one
        self.deadline: float | None = None
        """When it cancels itself, on `time.monotonic()`; None for never."""
        if timeout is not None:
            self._expire_at(time.monotonic() + timeout)

    def _expire_at(self, deadline: float) -> None:
        self.deadline = deadline
        ref = weakref.ref(self)

        def expire() -> None:
            token = ref()
            if token is not None:
                token.cancel("its time was up")

        appointment = timer.after(deadline - time.monotonic(), expire)
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
            call()

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
        """Call `call()` when cancelled (at once when it is), in the thread that cancels."""
        with self._lock:
            if not self._is_set:
                self._calls.append(call)
                return
        call()

    def _watch(self, each: Task[Any] | CancelToken) -> None:
        """Cancel `each`, a task in line or a token below this one, together with this token."""
        with self._lock:
            if not self._is_set:
                if self._watched is None:
                    self._watched = weakref.WeakSet()
                self._watched.add(each)
                return
        each.cancel()

    def _unwatch(self, each: Task[Any] | CancelToken) -> None:
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
    return _NEVER if worker is None else worker.crew.token


class GivenUp(BaseException):
    """Thrown at a worker by a task that was settled without it; `worker_is_lost` says that it was replaced too."""

    def __init__(self, *, worker_is_lost: bool) -> None:
        super().__init__()
        self.worker_is_lost = worker_is_lost


class LimitedCall:
    """The call of a task with a token or a time limit, in the place of the user's function."""

    __slots__ = ("_is_over", "_lock", "_task", "_worker", "fn", "timeout", "token")

    def __init__(
        self, fn: Callable[..., Any], task: Task[Any], timeout: float | None, token: CancelToken | None
    ) -> None:
        self.fn = fn
        self.timeout = timeout
        self.token = token
        self._task: Task[Any] | None = task
        self._lock = threading.Lock()
        self._is_over = False
        self._worker: Any = None

    def __call__(self, *args: Any) -> Any:
        task, self._task = self._task, None
        assert task is not None
        shared = self.token
        if shared is not None:
            shared._unwatch(task)
            if shared.cancelled:
                task._settle(CANCELLED, None)
                raise GivenUp(worker_is_lost=False)
        own = shared
        if self.timeout is not None:
            own = CancelToken()
            own.deadline = time.monotonic() + self.timeout
            if shared is not None:
                shared._watch(own)
        worker = getattr(here, "worker", None)
        if worker is not None and worker.depth == 0:  # else another task of this thread waits below: keep it
            self._worker = worker
        alarm = None
        if self.timeout is not None:
            alarm = timer.after(self.timeout, lambda: self._expire(task, own))
        before = getattr(here, "token", None)
        here.token = own
        try:
            value = self.fn(*args)
        finally:
            here.token = before
            if alarm is not None and not alarm.cancel():
                self._yield_to_alarm()
        if own is not shared and own is not None and own.cancelled and not own._is_set:
            raise self._late()  # it saw its deadline and stopped, a moment before the alarm
        return value

    def _yield_to_alarm(self) -> None:
        """Leave the task to the alarm if that was quicker."""
        with self._lock:
            was_late, self._is_over = self._is_over, True
        if was_late:
            raise GivenUp(worker_is_lost=self._worker is not None and self._worker.is_lost)

    def _expire(self, task: Task[Any], token: CancelToken | None) -> None:
        """Give the task up, unless it has just ended. Runs in the timer's thread."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            if self._worker is not None:
                self._worker.lose()
        if token is not None:
            token.cancel("its time-out passed")
        if task._status == OPEN:
            task._settle(RAISED, self._late())

    def _late(self) -> TaskTimeout:
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        return TaskTimeout(
            f"{name} ran longer than its timeout of {self.timeout} s and was given up; raise the timeout, "
            "or let the function look at current_token()"
        )
