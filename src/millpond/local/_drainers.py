"""Those who wait in `drain()` until a pool is idle."""

from __future__ import annotations

import _thread
import contextlib
import time
from collections.abc import Callable

from millpond._atomic import length_now


class Drainers:
    """The threads that wait until a pool is idle."""

    __slots__ = ("_is_idle", "_locks")

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._locks: list[_thread.LockType] = []

    def __bool__(self) -> bool:
        return bool(length_now(self._locks))  # through the lock of the list, as `wait` goes before it looks

    def wait(self, timeout: float | None) -> bool:
        """Wait until the pool is idle; False at time-out."""
        deadline = None if timeout is None else time.monotonic() + timeout
        lock = _thread.allocate_lock()
        lock.acquire()
        try:
            while True:
                self._locks.append(lock)  # first, so that whoever ends the last task after this look sees us
                if self._is_idle():
                    return True
                left = -1 if deadline is None else max(0.0, deadline - time.monotonic())
                if not lock.acquire(True, left):
                    return self._is_idle()
        finally:
            with contextlib.suppress(ValueError):
                self._locks.remove(lock)

    def wake(self) -> None:
        """Wake them all if the pool is idle."""
        if self and self._is_idle():
            while self._locks:
                try:
                    self._locks.pop().release()
                except IndexError:
                    return

    def reset(self) -> None:
        """Forget them, in a forked child: they are threads of the parent."""
        self._locks = []
