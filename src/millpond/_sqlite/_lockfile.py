"""One descriptor per process and file, for record locks.

`fcntl` record locks have three properties that rule this module:

- They belong to the process, so `F_GETLK` on one's own lock says "free": no process may ask about itself.
- Closing *any* descriptor of the file in the process drops them all: so there is one descriptor per (device, inode),
  shared by all who use the file under whatever name, and closed when the last of them is done. A second one that was
  opened by a race is kept as a spare and closed with the first.
- A forked child does not have them: so in the child every file is void, and must be asked for again.
- They outlive `exec`, with the descriptor: so one that proves life stays open across it (`keep_on_exec`). The program
  that comes after may use Millpond, too. Closing its descriptor would drop the locks of the program before, so a file
  of which this process has a descriptor that is not ours is never closed.

(Rejected: `flock`, which a forked child keeps for its whole life, and open-file-description locks, which it keeps too
and which macOS does not have.)
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_VOID = -1

# struct flock: Linux has type, whence, start, len, pid; the BSDs and macOS have start, len, pid, type, whence.
_FLOCK = struct.Struct("hhqqi4x" if sys.platform == "linux" else "qqihh")


class LockFile:
    """The one descriptor of this process on a file; made by `share()` only."""

    __slots__ = ("_is_kept", "_spares", "_users", "fd", "held", "holder", "key", "mutex", "turnstile")

    def __init__(self, fd: int, key: tuple[int, int], *, is_kept: bool = False) -> None:
        self.fd = fd
        self.key = key
        self.mutex = threading.RLock()
        """For whoever needs exclusion between threads, which record locks do not give."""
        self.turnstile = threading.RLock()
        """To be held while waiting for the mutex: then who releases that cannot take it again before one who waits."""
        self.holder: int | None = None
        """The thread that holds the mutex, for messages."""
        self.held: set[int] = set()
        """Bytes that this process has locked for good, since it cannot ask the kernel about its own."""
        self._users = 1
        self._spares: list[int] = []
        self._is_kept = is_kept

    @property
    def is_void(self) -> bool:
        """Whether this was inherited by fork, or closed: it must be asked for again."""
        return self.fd == _VOID

    def try_lock(self, byte: int) -> bool:
        """Take the lock on a byte unless another process has it; taking it again changes nothing."""
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def lock(self, byte: int) -> None:
        """Wait in the kernel for the lock on a byte, with the GIL released. May raise OSError(EDEADLK)."""
        fcntl.lockf(self.fd, fcntl.LOCK_EX, 1, byte)

    def unlock(self, byte: int) -> None:
        """Unlock a byte."""
        fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, byte)

    def locker(self, byte: int) -> int | None:
        """Return the pid of the *other* process that has the byte; 0 when it cannot be seen from here; None if free."""
        if sys.platform == "linux":
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_GETLK, asked))
        else:
            asked = _FLOCK.pack(byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
            _, _, pid, kind, _ = _FLOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else max(int(pid), 0)

    def done(self) -> None:
        """Give up one use; the last one closes the descriptor, and with it drops every lock of this process."""
        with _state.lock:
            self._users -= 1
            if self._users == 0 and not self.is_void and not self._is_kept:
                del _state.files[self.key]
                self._close()

    def _close(self) -> None:
        for fd in (self.fd, *self._spares):
            os.close(fd)
        self.fd = _VOID


class _State:
    """The files of this process. In a forked child it begins anew."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.files: dict[tuple[int, int], LockFile] = {}

    def reset(self) -> None:
        inherited = list(self.files.values())
        self.__init__()  # type: ignore[misc]  # the old lock may be held by a thread that does not exist here
        for file in inherited:
            file._close()  # in the child this drops no lock of the parent


_state = _State()
os.register_at_fork(after_in_child=_state.reset)


def share(path: str, create: Callable[[str], None], *, keep_on_exec: bool = False) -> LockFile:
    """Return this process's descriptor of the file, which `create(path)` makes if it is missing.

    Every call must be paired with one `done()`. With `keep_on_exec` its locks outlive `exec`, and end with the process.
    """
    with _state.lock:
        while True:
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                create(path)
                continue
            file = _state.files.get((found.st_dev, found.st_ino))
            if file is None:
                try:
                    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                except FileNotFoundError:
                    continue
                found = os.fstat(fd)
                file = _state.files.get((found.st_dev, found.st_ino))
                if file is None:
                    key = (found.st_dev, found.st_ino)
                    is_kept = keep_on_exec and _is_open_elsewhere(key, fd)
                    os.set_inheritable(fd, keep_on_exec)
                    file = _state.files[key] = LockFile(fd, key, is_kept=is_kept)
                    return file
                file._spares.append(fd)  # the name has just moved to a file that we have: closing this would unlock it
            file._users += 1
            return file


def _is_open_elsewhere(key: tuple[int, int], own: int) -> bool:
    """Return whether this process has another descriptor of the file: the program before `exec` left it."""
    for name in os.listdir("/dev/fd"):
        try:
            found = os.fstat(int(name))
        except OSError:  # the descriptor by which the folder was listed
            continue
        if (found.st_dev, found.st_ino) == key and int(name) != own:
            return True
    return False
