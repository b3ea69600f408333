"""What keeps a resource locked after its `millpond run` was killed, until the command has ended too.

A run holds its resources by a grant, which ends with its process, whatever kills that. Its command lives a moment
longer, or for good if it started something in the background. So the command inherits a locked descriptor (`flock`) of
a file per resource; who is granted the resource next waits for that file as well. A run whose command ends by itself
unlocks it, whatever the command has left behind.

A run inside a run, which uses what the outer one holds, has a second file locked for reading meanwhile; the outer one
ends when that is free.

Only for locks of resources that one holder has at a time, in a file of this machine; and a process that closes what it
inherits (as the children of Python's `subprocess` do) and outlives a *killed* run is not seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from millpond._clock import elapsed
from millpond.errors import AcquireTimeout
from millpond.resources import ResourceView

LOOK = 0.02
PATIENCE = 1.0
"""Seconds for which nothing is said: others are just leaving."""


class Tails:
    """The locked files of one run."""

    def __init__(self, file: Path | None) -> None:
        self._place = file
        self._folder = None if file is None else Path(f"{file}.held")
        self.files: list[int] = []
        self._inner: list[str] = []

    def lock(
        self, pool: str, resources: Iterable[str], say: Callable[[str], None], deadline: float | None = None
    ) -> None:
        """Wait until nothing is left of runs that were killed."""
        for resource in sorted(resources):
            file = self._open(pool, resource)
            if file is not None:
                self.files.append(file)
                self._inner.append(resource)
                _wait(
                    lambda file=file: _lock(file, fcntl.LOCK_EX),  # type: ignore[misc]
                    lambda file=file, name=resource: say(  # type: ignore[misc]
                        f"{name} is yours, but what a killed run left behind still uses it: process {_named(file)}"
                    ),
                    deadline,
                )

    def unused_first(self, pool: str, found: Sequence[ResourceView]) -> list[ResourceView]:
        """Rank resources: those that a killed run has left something behind on come last."""
        return sorted(found, key=lambda one: bool(self.left_behind(pool, one.name)))

    def left_behind(self, pool: str, resource: str) -> str:
        """Say which processes still use a resource whose run was killed; nothing: none."""
        if self._folder is None or not self._folder.exists():
            return ""
        try:
            file = os.open(self._folder / _name(pool, resource), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return ""
        try:
            return "" if _lock(file, fcntl.LOCK_EX) else _named(file)
        finally:
            os.close(file)  # which unlocks it

    def borrow(self, pool: str, resources: Sequence[str], number: int, deadline: float) -> list[str]:
        """Choose some of what a run around this process holds that nobody else inside it uses; wait for them."""
        if self._folder is None:
            return list(resources[:number])
        while True:
            chosen: list[str] = []
            for resource in resources:
                file = self._open(pool, resource, ".inner")
                if file is not None and len(chosen) < number and _lock(file, fcntl.LOCK_EX):
                    self.files.append(file)
                    chosen.append(resource)
                elif file is not None:
                    os.close(file)
            if len(chosen) == number:
                return chosen
            self.unlock()
            if elapsed() > deadline:
                raise AcquireTimeout(f"others inside the run around this one use {', '.join(resources)} of {pool!r}")
            time.sleep(LOOK)

    def share(self, pool: str, resources: Iterable[str]) -> None:
        """Take note that a run inside this one uses what it holds."""
        for resource in resources:
            file = self._open(pool, resource, ".inner")
            if file is not None:
                self.files.append(file)
                _lock(file, fcntl.LOCK_SH)

    def wait_for_inner(self, pool: str, say: Callable[[str], None]) -> None:
        """Wait until no run inside this one uses what it holds."""
        for resource in self._inner:
            file = self._open(pool, resource, ".inner")
            if file is not None:
                _wait(
                    lambda file=file: _lock(file, fcntl.LOCK_EX),  # type: ignore[misc]
                    lambda name=resource: say(f"{name} is still used by a run inside this one"),  # type: ignore[misc]
                )
                os.close(file)

    def unlock(self) -> None:
        """Release the locks, also those that the command has left behind."""
        for file in self.files:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Close the files; what the command has left behind keeps its own."""
        for file in self.files:
            with contextlib.suppress(OSError):
                os.close(file)
        self.files.clear()

    def _open(self, pool: str, resource: str, more: str = "") -> int | None:
        if self._folder is None or self._place is None:
            return None
        mode = self._place.stat().st_mode  # who may use the one may use the other
        if not self._folder.exists():
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(0o700)
                self._folder.chmod(0o700 | (0o070 if mode & 0o020 else 0) | (0o007 if mode & 0o002 else 0))
        path = self._folder / (_name(pool, resource) + more)
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with contextlib.suppress(OSError):
                os.fchmod(file, mode & 0o666)
            return file


def _name(pool: str, resource: str) -> str:
    return hashlib.blake2b(f"{pool}/{resource}".encode(), digest_size=16).hexdigest()


def _lock(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(is_done: Callable[[], bool], complain: Callable[[], None], deadline: float | None = None) -> None:
    began, has_said = elapsed(), False
    while not is_done():
        if deadline is not None and elapsed() > deadline:
            raise AcquireTimeout("what a killed run left behind still uses it")
        if not has_said and elapsed() - began > PATIENCE:
            has_said = True
            complain()
        time.sleep(LOOK)


def _named(file: int) -> str:
    return ", ".join(map(str, users(file))) or "that cannot be seen from here"


def users(file: int) -> list[int]:
    """Return the other processes that have a file open, where the system tells (Linux)."""
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
