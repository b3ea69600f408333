"""Signals at the right moment.

Python runs the handler of a signal between any two instructions of the main thread, and what it raises (Ctrl-C, an
alarm, a test's time limit) can leave a `with` block whose `__exit__` never ran: a gate that stays shut, a transaction
that stays open. A step that must be whole is shielded: a signal that comes meanwhile is handled right after it. That
costs about a microsecond.

(Rejected: masking signals for the thread, since the kernel then gives them to another thread and Python runs the
handler in the main thread all the same; doing such steps in a thread of their own, which costs two switches for each.)
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` is ten times as slow: it makes enumerations
import os
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeVar

T = TypeVar("T")
_NAMES = ("SIGINT", "SIGALRM", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF")
_SIGNALS: Final[tuple[int, ...]] = tuple(getattr(_signal, name) for name in _NAMES if hasattr(_signal, name))


_shielded: dict[int, Callable[[int, FrameType | None], object]] = {}
"""The handlers of signals that are held back now."""


def _restore() -> None:
    """Hear signals in a child that another thread has forked meanwhile: who held them back is not there."""
    for number, handler in _shielded.items():
        _signal.signal(number, handler)
    _shielded.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore)


def shielded(step: Callable[[], T]) -> T:
    """Do a short step that no signal interrupts; it strikes after it."""
    if threading.get_ident() != threading.main_thread().ident:
        return step()
    handlers = {number: found for number in _SIGNALS if callable(found := _signal.getsignal(number))}
    if not handlers:
        return step()
    late: list[tuple[int, FrameType | None]] = []
    is_outermost = not _shielded
    try:
        if is_outermost:
            _shielded.update(handlers)
        for number in handlers:
            _signal.signal(number, lambda number, frame: late.append((number, frame)))
        return step()
    finally:
        try:
            _hear(list(handlers.items()))
        finally:
            try:
                if is_outermost:
                    _shielded.clear()
            finally:
                _handle(handlers, late)


def _hear(held: list[tuple[int, Callable[[int, FrameType | None], object]]]) -> None:
    """Hear signals again, all of them, also when one strikes as soon as it is heard."""
    try:
        while held:
            _signal.signal(*held[-1])
            held.pop()
    finally:
        if held:
            _hear(held)


def _handle(
    handlers: dict[int, Callable[[int, FrameType | None], object]], late: list[tuple[int, FrameType | None]]
) -> None:
    """Handle what came late, all of it, also when one handler raises."""
    while late:
        number, frame = late.pop(0)
        try:
            handlers[number](number, frame)
        finally:
            _handle(handlers, late)
