"""The processes around this one, and those below it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from millpond._clock import elapsed

_DIE_WITH_PARENT = 1
_ADOPT_ORPHANS = 36


def _prctl() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    import ctypes  # noqa: PLC0415  (10 ms, and only here)

    prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    return prctl


def adopt_orphans() -> None:
    """Let what the command leaves behind be our child, so that we know of it (Linux)."""
    prctl = _prctl()
    if prctl is not None:
        prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)


def die_with_parent() -> Callable[[], None] | None:
    """Return what lets the kernel kill the command when this process is killed (Linux)."""
    prctl, parent = _prctl(), os.getpid()
    if prctl is None:
        return None

    def promise() -> None:
        prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)

    return promise


def ancestors() -> set[int]:
    """Return the processes around this one, as far as the system tells."""
    found: set[int] = set()
    pid = os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = _parent(pid)
    return found


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass
    if os.path.isdir("/proc/self"):  # it is gone, or not for our eyes
        return 0
    try:
        done = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(done.stdout.strip() or 0)
    except (OSError, ValueError):
        return 0


def descendants() -> list[int]:
    """Return the processes below this one that are alive, as far as the system tells (Linux)."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", errors="replace") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    children.setdefault(int(parent), []).append(int(name))
    found, rest = [], [os.getpid()]
    while rest:
        below = children.get(rest.pop(), [])
        found += below
        rest += below
    return found


def end(patience: float) -> bool:
    """End all that is below this process: kindly, then not; return whether nothing is left."""
    deadline = elapsed() + patience
    told: set[int] = set()
    while left := descendants():
        is_late = elapsed() > deadline
        if elapsed() > deadline + 2.0:
            return False
        for pid in left:
            if is_late or pid not in told:
                told.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        _reap()
        time.sleep(0.01)
    return True


def _reap() -> None:
    """Take note of the end of those that we adopted."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
