"""Haste: while a thread of this process is in a gate, the other threads give up the GIL at once when it wants it.

A transaction makes about seven calls that release the GIL (lock, stat, BEGIN, SELECT, INSERT, COMMIT, unlock). In a
process that computes, each of them may have to wait for a *switch interval*, 5 ms, to get it back; and meanwhile every
other process waits at the gate. With a shorter one for the moment, that costs a tenth of a millisecond.

The interval belongs to the whole interpreter. So it is set back when the last thread has left, unless somebody has set
another one meanwhile: then that is left alone.
"""

from __future__ import annotations

import os
from sys import getswitchinterval, setswitchinterval
from threading import get_ident

SHORT = 0.0001
"""Seconds of the switch interval while a thread is inside."""
LONG = 2 * SHORT
"""An interval above this is not of our making."""


class _Haste:
    """Needs no lock: two that begin or end at one moment may cost one of them its haste, and nothing else."""

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._usual = 0.0

    def begin(self) -> None:
        """Make haste: the calling thread is at a gate, or inside."""
        self._threads.add(get_ident())
        now = getswitchinterval()
        if now > LONG:
            self._usual = now
            setswitchinterval(SHORT)

    def end(self) -> None:
        """Restore the usual interval. Doing so without having begun does nothing."""
        self._threads.discard(get_ident())
        if not self._threads and self._usual and getswitchinterval() < LONG:
            setswitchinterval(self._usual)

    def start_over(self) -> None:
        """Set it back in a forked child, where no thread is inside."""
        self._threads.clear()
        self.end()


haste = _Haste()
os.register_at_fork(after_in_child=haste.start_over)
