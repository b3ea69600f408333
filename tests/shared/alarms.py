"""Signals whose handlers raise, at any moment at which Python may run them: as Ctrl-C, and a program's own alarms."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Alarm(Exception):
    """What a program's own signal handler raises."""


@contextmanager
def alarm_at(moment: int) -> Iterator[None]:
    """Send a signal whose handler raises: at the n-th start of a function of ours, or end of one of C that ours calls.

    Those are the moments at which Python runs handlers, but for loops. Not between taking a lock and the block of its
    `with`: from 3.14 on Python itself lets a handler in there, and then nobody gives the lock back, whatever program it
    is. It is a real signal, so that a step which holds signals back is struck after it.
    """
    left = moment

    def strike(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        is_with = event == "c_return" and argument.__name__ == "__enter__"
        if event in ("call", "c_return") and not is_with and "/millpond/" in frame.f_code.co_filename:
            left -= 1
            if left == 0:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGUSR1)

    def fail(number: int, frame: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, fail)
    gc.disable()  # what is freed here may be a pool of another test, with calls of ours
    sys.setprofile(strike)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()
        signal.signal(signal.SIGUSR1, before)
