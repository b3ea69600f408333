"""One thread for all pools of the process that calls functions when their time has come.

It starts with the first appointment and ends when there is none left, so an idle process soon has no such thread. What
it calls itself must be quick: one slow call would make all others late. A call that may run users' code gets a thread
of its own (`own_thread=True`), which costs 60 µs when it is due, and nothing when it is cancelled before.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable

from millpond._atomic import FREE_THREADED, take_away
from millpond._events import logger

LINGER = 1.0
"""Seconds after which the thread looks for itself, and ends if there is nothing."""


class Appointment:
    """A call at a time; `cancel()` tells whether it came before the call."""

    __slots__ = ("_call", "_own_thread")

    def __init__(self, call: Callable[[], object], *, own_thread: bool) -> None:
        self._call: Callable[[], object] | None = call
        self._own_thread = own_thread

    @property
    def is_off(self) -> bool:
        return self._call is None

    def cancel(self) -> bool:
        """Cancel the call; False when it has been made or is being made."""
        return self._take() is not None

    def keep(self) -> None:
        call = self._take()
        if call is None:
            return
        if self._own_thread:
            try:
                threading.Thread(target=_call_safely, args=(call,), name="millpond-due", daemon=True).start()
                return
            except RuntimeError:  # the system has no thread left: late for others is better than never
                pass
        _call_safely(call)

    def _take(self) -> Callable[[], object] | None:
        if FREE_THREADED:
            taken: Callable[[], object] | None = take_away(self, "_call")
            return taken
        call, self._call = self._call, None
        return call


def _call_safely(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        logger.exception("a timer's call raised")


class Timer:
    """Keeps appointments in one thread of its own.

    Most appointments are cancelled (the task ended in time), so that must cost next to nothing: the thread is not
    woken. It looks for itself, at least every `LINGER` seconds, and ends when it has found nothing for that long.
    """

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Forget everything: in a forked child the thread is gone, and its appointments were the parent's."""
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Appointment]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0
        self._sweep_at = 1000

    def after(self, seconds: float, call: Callable[[], object], *, own_thread: bool = False) -> Appointment:
        """Call `call()` in `seconds` from now, in a thread of its own if it may run users' code."""
        appointment = Appointment(call, own_thread=own_thread)
        due = time.monotonic() + seconds
        with self._changed:
            if len(self._heap) >= self._sweep_at:  # cancelled ones stay in the heap until they surface
                self._heap = [entry for entry in self._heap if not entry[2].is_off]
                heapq.heapify(self._heap)
                self._sweep_at = max(1000, 2 * len(self._heap))
            heapq.heappush(self._heap, (due, next(self._order), appointment))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="millpond-timer", daemon=True)
                thread.start()  # may fail: then the next appointment tries again
                self._thread = thread
            elif due < self._wakes_at:
                self._changed.notify()
        return appointment

    def _run(self) -> None:
        while True:
            due = self._next_due()
            if due is None:
                return
            due.keep()
            del due

    def _next_due(self) -> Appointment | None:
        """Wait for the next appointment; None when there was none for a while, and the thread is to end."""
        with self._changed:
            has_waited = False
            while True:
                while self._heap and self._heap[0][2].is_off:
                    heapq.heappop(self._heap)
                if not self._heap and has_waited:
                    self._thread = None
                    return None
                now = time.monotonic()
                due = self._heap[0][0] if self._heap else now + LINGER
                if due <= now:
                    self._wakes_at = now
                    return heapq.heappop(self._heap)[2]
                self._wakes_at = min(due, now + LINGER)
                has_waited = not self._changed.wait(self._wakes_at - now)


timer = Timer()
