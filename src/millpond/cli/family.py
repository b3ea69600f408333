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
    """Become the parent of what the command leaves behind, so that we know of it (Linux)."""
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


def _is_proc_ours() -> bool:
    """Return whether `/proc` speaks of the pids that we see: not so in a pid namespace without one of its own."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def end_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent is killed (Linux); end now, if that has happened already."""
    prctl = _prctl()
    if prctl is not None:
        prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def ancestors() -> dict[int, int]:
    """Return the processes around this one by pid, and when each began, as far as the system tells.

    Another pid namespace has the same pids for others, but not at the same time (in ticks since the boot; 0: unknown).
    """
    found: dict[int, int] = {}
    if os.path.isdir("/proc/self") and not _is_proc_ours():
        return found
    pid = os.getppid()
    while pid > 0 and pid not in found:
        parent, found[pid] = _about(pid)
        pid = parent
    return found


def _about(pid: int) -> tuple[int, int]:
    """Return the parent of a process, and when it began."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
            return int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError):
        pass
    if os.path.isdir("/proc/self"):  # it is gone, or not for our eyes
        return 0, 0
    try:
        done = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(done.stdout.strip() or 0), 0
    except (OSError, ValueError):
        return 0, 0


def descendants() -> list[int]:
    """Return the processes below this one that are alive, as far as the system tells (Linux)."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc") if _is_proc_ours() else ()):
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
