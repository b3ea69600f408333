"""Who of this machine lives: the kernel's own word about each process that a companion serves.

A descriptor of a process (pidfd) becomes readable when the process has ended, whatever ended it, and cannot be mistaken
for a later process with the same pid. A process that is stopped, computes, or is being debugged has not ended.
"""

from __future__ import annotations

import os
import select

from millpond._sqlite._process import is_gone, read_stat
from millpond.resources.engines.log._log import Witness


class Process:
    """One process, watched over. `fileno` is readable when it has ended, where the kernel can do that."""

    def __init__(self, pid: int, start: int) -> None:
        self.pid, self.start = pid, start
        self._descriptor = -1
        try:
            self._descriptor = os.pidfd_open(pid)
        except (AttributeError, OSError):
            return
        stat = read_stat(pid)
        if start and (stat is None or stat.start != start):  # the pid is another's by now
            self.close()

    def fileno(self) -> int:
        """Return the descriptor; -1 when one must ask `has_ended` now and then."""
        return self._descriptor

    def has_ended(self) -> bool:
        """Return whether the process is gone."""
        if self._descriptor >= 0:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            return bool(poll.poll(0))
        return is_gone(self.pid, self.start) is True

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def seen_from(one: Witness, here: Witness) -> bool | None:
    """Return whether the process of a session is gone, by the word of their common kernel; None if there is none."""
    if one.boot and one.boot == here.boot and one.namespace and one.namespace == here.namespace:
        return is_gone(one.pid, one.start)
    return None


def verdict(one: Witness, here: Witness) -> bool | None:
    """Return the same of a session whose witness is silent: a machine that was started anew has no old processes left.

    Ask only then: two machines may have been made from one image, and have one id.
    """
    if one.boot and one.boot == here.boot:
        return seen_from(one, here)
    if one.machine and one.machine == here.machine and one.boot and here.boot:
        return True
    return None
