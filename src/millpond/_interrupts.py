"""Ctrl-C at the right moment.

Python runs the handler of a signal between any two instructions of the main thread, so a KeyboardInterrupt can leave a
`with` block whose `__exit__` never ran: a gate that stays shut, a transaction that stays open. A step that must be
whole is shielded: a SIGINT that comes meanwhile is handled right after it. That costs less than a microsecond.

(Rejected: masking it for the thread, since the kernel then gives it to another thread and Python runs the handler in
the main thread all the same; doing such steps in a thread of their own, which costs two switches for each.)
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` is ten times as slow: it makes enumerations
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def shielded(step: Callable[[], T]) -> T:
    """Do a short step that Ctrl-C does not interrupt; it strikes after it."""
    handler = _signal.getsignal(_signal.SIGINT)
    if not callable(handler) or threading.get_ident() != threading.main_thread().ident:
        return step()
    late: list[FrameType | None] = []
    try:
        _signal.signal(_signal.SIGINT, lambda number, frame: late.append(frame))
        return step()
    finally:
        _signal.signal(_signal.SIGINT, handler)
        if late:
            handler(_signal.SIGINT, late[0])
