"""What keeps a resource locked after its `millpond run` was killed, until the command has ended too.

A run holds its resources by a grant, which ends with its process, whatever kills that. Its command lives a moment
longer, or for good if it started something in the background. So the command inherits a locked descriptor (`flock`) of
a file per resource; who is granted the resource next waits for that file as well. A run that ends by itself unlocks it,
whatever the command has left behind. So nothing overlaps, and only what outlives a *killed* run holds others up.

Only for resources that one holder has at a time, in a file of this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable
from urllib.parse import quote, unquote, urlsplit

LOOK = 0.05


class Tails:
    """The locked files of one run."""

    def __init__(self, url: str) -> None:
        file = os.path.realpath(unquote(urlsplit(url).path[1:])) if url.startswith("sqlite:") else ""
        self._folder = f"{file}.held" if file else None
        self.files: list[int] = []

    def lock(self, pool: str, resources: Iterable[str], say: Callable[[str], None]) -> None:
        """Wait until nothing is left of runs that were killed."""
        if self._folder is None:
            return
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for resource in sorted(resources):
            name = quote(f"{pool}/{resource}", safe="")[:200]
            file = os.open(f"{self._folder}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self.files.append(file)
            has_said = False
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not has_said:
                        has_said = True
                        left = ", ".join(map(str, users(file))) or "that cannot be seen from here"
                        say(f"{resource} is yours, but what a killed run left behind still uses it: process {left}")
                    time.sleep(LOOK)

    def unlock(self) -> None:
        """Let go, also of what the command has left behind."""
        for file in self.files:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
            with contextlib.suppress(OSError):
                os.close(file)
        self.files.clear()


def users(file: int) -> list[int]:
    """Return the other processes of this user that have a file open, where the system tells (Linux)."""
    wanted, me, found = os.fstat(file), os.getpid(), []
    with contextlib.suppress(OSError):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        other = os.stat(f"/proc/{pid}/fd/{fd}")
                        if (other.st_dev, other.st_ino) == (wanted.st_dev, wanted.st_ino) and int(pid) != me:
                            found.append(int(pid))
                            break
    return sorted(found)
