"""Timers: one thread per process that calls functions on time.

It starts with the first timer and ends a little after the last, so an idle program has no extra thread. What it
calls must be quick; an exception is logged.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections.abc import Callable

from millpond._clock import elapsed
from millpond._events import logger
from millpond._interrupts import shielded

LINGER = 1.0
"""Seconds that the thread waits for another timer before it ends."""


MANY = 64
"""So many cancelled timers may stay in any case."""


class Timer:
    """Something to be called at a time; `cancel` forgets it."""

    __slots__ = ("_thread", "call")

    def __init__(self, call: Callable[[], object], timer_thread: _TimerThread) -> None:
        self.call: Callable[[], object] | None = call
        self._thread = timer_thread

    def cancel(self) -> None:
        """Forget it, unless it is being called already."""
        if self.call is not None:
            self.call = None
            self._thread.cancelled += 1  # roughly: it only says when to tidy up


class _TimerThread:
    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.heap: list[tuple[float, int, Timer]] = []
        self.numbers = itertools.count()
        self.cancelled = 0
        self.thread: threading.Thread | None = None

    def set(self, at: float, timer: Timer) -> None:
        with self.condition:
            if self.cancelled > MANY and 2 * self.cancelled > len(self.heap):
                self._tidy()
            heapq.heappush(self.heap, (at, next(self.numbers), timer))
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="millpond-timers", daemon=True)
                self.thread.start()
            elif self.heap[0][2] is timer:
                self.condition.notify()

    def _tidy(self) -> None:
        """Drop what was cancelled. The garbage collector may set something meanwhile: that comes into the new heap."""
        self.cancelled = 0
        old, self.heap = self.heap, []
        for one in old:
            if one[2].call is not None:
                heapq.heappush(self.heap, one)

    def _run(self) -> None:
        while True:
            with self.condition:
                call = self._next()
                if call is None:
                    self.thread = None
                    return
            try:
                call()
            except Exception:
                logger.exception("a timer failed")
            del call

    def _next(self) -> Callable[[], object] | None:
        idle = False
        while True:
            while self.heap and self.heap[0][2].call is None:
                heapq.heappop(self.heap)
                self.cancelled -= 1
            if not self.heap:
                if idle:
                    return None
                idle = not self.condition.wait(LINGER)
                continue
            idle = False
            left = self.heap[0][0] - elapsed()
            if left > 0:
                self.condition.wait(min(left, 3600.0))
                continue
            _, _, timer = heapq.heappop(self.heap)
            call, timer.call = timer.call, None
            if call is not None:
                return call


_timer_thread = _TimerThread()


def _start_over() -> None:
    global _timer_thread
    _timer_thread = _TimerThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over)


def call_at(at: float, call: Callable[[], object]) -> Timer:
    """Call a function at a time of `elapsed()`, in the timers' thread."""
    timer = Timer(call, _timer_thread)
    shielded(lambda: _timer_thread.set(at, timer))
    return timer


def call_later(delay: float, call: Callable[[], object]) -> Timer:
    """Call a function after so many seconds."""
    return call_at(elapsed() + delay, call)
