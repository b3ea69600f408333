"""What the kernel tells about a process: its name, state and start, and in which world a pid means something.

A pid alone names nobody: it is given out again, and every pid namespace (container) counts from 1. So a process is
(boot id, namespace, pid, start time). The start time is in clock ticks since boot *as the reader's time namespace
shows it*, hence that namespace is a part of the world too.

`/proc` may belong to another pid namespace than this process (`unshare --pid` without mounting a new `/proc`), may hide
the processes of others (`hidepid`), or may be missing (macOS). Where it cannot be trusted, `namespace()` is empty and
nobody's pid counts.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import NamedTuple


class ProcessStat(NamedTuple):
    """The few fields of `/proc/<pid>/stat` that matter here."""

    name: str
    state: str
    threads: int
    start: int
    spent: int
    """Clock ticks for which it has used a processor."""

    @property
    def is_stopped(self) -> bool:
        """Whether it stands still by somebody's will: SIGSTOP, or a debugger."""
        return self.state in "Tt"

    @property
    def is_remains(self) -> bool:
        """Whether only the entry is left, its files closed and locks gone (a zombie leader may have live threads)."""
        return self.state in "ZX" and self.threads <= 1


_STATES = {"T": "stopped", "t": "traced", "Z": "zombie", "D": "in an uninterruptible wait", "X": "dead"}


def parse_stat(data: bytes) -> ProcessStat:
    """Read the text of `/proc/<pid>/stat`; the name may contain blanks and brackets."""
    opened, closed = data.index(b"("), data.rindex(b")")
    fields = data[closed + 2 :].split()
    name = data[opened + 1 : closed].decode(errors="replace")
    spent = int(fields[11]) + int(fields[12])
    return ProcessStat(name, fields[0].decode(), int(fields[17]), int(fields[19]), spent)


def read_stat(pid: int | str) -> ProcessStat | None:
    """Read what `/proc` tells of a process; None when it tells nothing."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_stat(file.read())
    except OSError:
        return None


def is_gone(pid: int, start: int) -> bool | None:
    """Return whether the process of that pid and start time is gone; None when nobody can say.

    A zombie is gone. A stopped process is not. Only meaningful within one namespace and boot.
    """
    stat = read_stat(pid)
    if stat is not None:
        return stat.start != start or stat.is_remains
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return None  # somebody has that pid, but `/proc` hides who


def describe(pid: int) -> str:
    """Say who that is, for a person: "process 1234 (python, stopped)"."""
    stat = read_stat(pid)
    if stat is None:
        return f"process {pid}"
    state = _STATES.get(stat.state)
    return f"process {pid} ({stat.name}{', ' + state if state else ''})"


@functools.cache
def boot_id() -> str:
    """Return what changes with every boot of the machine; empty where there is no such thing."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


@functools.cache
def namespace() -> str:
    """Name the pid and time namespaces of this process; empty when `/proc` does not show the same one."""
    if sys.platform != "linux":
        return "machine"
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""
        pids = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    try:
        times = os.stat("/proc/self/ns/time").st_ino
    except OSError:
        times = 0  # before Linux 5.6
    return f"{pids}/{times}"


@functools.cache
def own_start() -> int:
    """Return the start time of this process; 0 where `/proc` is missing."""
    stat = read_stat("self")
    return 0 if stat is None else stat.start


def _forget() -> None:
    namespace.cache_clear()
    own_start.cache_clear()


os.register_at_fork(after_in_child=_forget)
