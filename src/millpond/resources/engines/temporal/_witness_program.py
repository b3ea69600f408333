"""What a program's witness runs: it watches one process and has its death told. Standard library only: it is small.

It reads marshalled messages from its standard input, each after four bytes of length: first what it has to know, then
the name of each pool in which the process asks for something, and None as goodbye. The kernel's word alone is a death:
a process that stands still, or that has become another program (`exec`), lives. Then this becomes the program that
tells the pools, which needs Temporal's client and so ten times the memory.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
from typing import Any

LOOK = 0.2
"""Seconds between two looks at the parent where the kernel cannot be waited for."""
TELL = (
    "import marshal, sys\n"
    "left = marshal.load(sys.stdin.buffer)\n"
    "sys.path[:0] = left['places']\n"
    "from millpond.resources.engines.temporal._burial import tell\n"
    "tell(left['url'], left['session'], left['pools'])\n"
)


class Witness:
    """Watches a process."""

    def __init__(self) -> None:
        self._inbox = b""
        self._begin: dict[str, Any] = {}
        self._pools: list[str] = []
        self._has_left = False
        self._mouth: int | None = 0
        self._pidfd: int | None = None

    def watch(self) -> None:
        """Watch until the process has ended or said goodbye."""
        while not self._begin and self._read():
            pass
        if not self._begin or os.getppid() == 0:
            return  # nothing was said, or the process is in a pid namespace that cannot be seen from here
        try:
            self._pidfd = os.pidfd_open(self._begin["pid"])
        except (AttributeError, OSError):
            self._pidfd = None
        if os.getppid() != self._begin["pid"]:
            self._pidfd = None  # it had ended before it could be looked at, and its number may be another's
        while not self._has_left and not self._has_ended():
            sources = [one for one in (self._mouth, self._pidfd) if one is not None]
            ready, _, _ = select.select(sources, [], [], None if self._pidfd is not None else LOOK)
            if self._mouth in ready and not self._read():
                self._mouth = None
        os.set_blocking(0, False)
        try:
            while self._mouth is not None and not self._has_left and self._read():
                pass  # what was said last
        except BlockingIOError:
            pass  # a forked child has the other end, too
        if not self._has_left and self._pools:
            self._tell()

    def _has_ended(self) -> bool:
        if self._pidfd is not None:
            return bool(select.select([self._pidfd], [], [], 0)[0])
        return bool(os.getppid() != self._begin["pid"])

    def _read(self) -> bool:
        """Take in what the process says; False at the end."""
        data = os.read(0, 65536)
        self._inbox += data
        while len(self._inbox) >= 4 and len(self._inbox) >= 4 + int.from_bytes(self._inbox[:4], "big"):
            size = int.from_bytes(self._inbox[:4], "big")
            message = marshal.loads(self._inbox[4 : 4 + size])
            self._inbox = self._inbox[4 + size :]
            if message is None:
                self._has_left = True
            elif isinstance(message, dict):
                self._begin = message
            else:
                self._pools.append(message)
        return bool(data)

    def _tell(self) -> None:
        left = marshal.dumps({**self._begin, "pools": self._pools})
        if hasattr(os, "memfd_create"):
            read = os.memfd_create("millpond")
            os.write(read, left)
            os.lseek(read, 0, os.SEEK_SET)
        else:
            read, write = os.pipe()
            os.write(write, left)
            os.close(write)
        os.dup2(read, 0)
        os.execv(sys.executable, [sys.executable, "-I", "-c", TELL])


if __name__ == "__main__":
    Witness().watch()
