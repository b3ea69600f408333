"""Wakes another process: every session has a Unix datagram socket, and whoever changed something for it rings there.

A bell is a hint, never a message: it says "look at the database". So it may be lost (the peer is full, gone or just
starting), and a slow poll is the net below it; and it costs next to nothing (0.11 ms from commit to the other process).

The socket is the file `<database>-bells/<number>`. A socket's path is limited to 108 bytes, so on Linux it is reached
through the descriptor of the folder (`/proc/self/fd/<fd>/<number>`), however deep that lies. Elsewhere a path that is
too long means doing without.

*Full peers.* What a stopped peer has not read counts against the *sender's* buffer, so a few of them could silence it
for everybody. When the kernel refuses, we try once more from a fresh socket: if that is refused too, it is the peer
who is full, and has been rung already.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from millpond._sqlite._files import make_folder, mode_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_HAS_PROC = os.path.isdir("/proc/self/fd")

_LONGEST = 103
"""Bytes of a socket's path that every system takes."""


class Bell:
    """The bell of one session of this process, and the rope to those of the others."""

    def __init__(self, database: str | os.PathLike[str], number: int) -> None:
        self.number = number
        self.folder = os.fspath(database) + "-bells"
        self._pid = os.getpid()
        self._is_rung = False
        self._folder_fd = -1
        self._inode = 0
        self.is_audible = True
        """Whether other processes can ring it; if not, only the slow poll wakes this one."""
        self._far = _datagram()
        try:
            self._mode = mode_of(os.fspath(database))
            self._folder_fd = make_folder(self.folder, self._mode)
            self._ear, self._near = self._hang(self._address(number))
        except OSError:
            self.is_audible = False
            self._ear, self._near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._ear.setblocking(False)
            self._near.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor that is readable when the bell was rung."""
        return self._ear.fileno()

    def drain(self) -> None:
        """Take note of the rings so far. Look at the database *after* this: what is rung later is heard again."""
        if self._pid != os.getpid():
            return  # the rings are the parent's
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                self._ear.recv(1)
        self._is_rung = False  # only now: a ring that was spared meanwhile is followed by the caller's look

    def ring(self, numbers: Iterable[int]) -> None:
        """Wake those sessions, as far as they can hear; never wait and never raise."""
        for number in numbers:
            if number == self.number:
                self.ring_self()
                continue
            address = self._address(number)
            try:
                self._far.sendto(b"!", address)
            except BlockingIOError:
                _ring_afresh(address)
            except OSError:
                pass  # gone, not yet there, or out of reach: it will look by itself

    def ring_self(self) -> None:
        """Wake the thread that waits for this bell, from any thread; costs nothing if it has been rung already."""
        if self._is_rung or self._pid != os.getpid():
            return
        self._is_rung = True
        with contextlib.suppress(OSError):  # full: then it is readable anyway
            self._near.send(b"!")

    def sweep(self, number: int) -> None:
        """Remove what a dead session left behind."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, str(number)))

    def close(self) -> None:
        """Take the bell down. In a forked child only its copies of the descriptors are closed."""
        if self.is_audible and self._pid == os.getpid() and self._ear.fileno() >= 0 and self._is_ours():
            self.sweep(self.number)
        for each in (self._ear, self._near, self._far):
            each.close()
        if self._folder_fd >= 0:
            os.close(self._folder_fd)
            self._folder_fd = -1

    # -- parts --------------------------------------------------------------------------------------------------------

    def _address(self, number: int) -> str:
        return f"/proc/self/fd/{self._folder_fd}/{number}" if _HAS_PROC else os.path.join(self.folder, str(number))

    def _is_ours(self) -> bool:
        """Return whether the socket in our place is ours: in a file that replaced ours, another has our number."""
        try:
            return os.lstat(os.path.join(self.folder, str(self.number))).st_ino == self._inode
        except OSError:
            return False

    def _hang(self, address: str) -> tuple[socket.socket, socket.socket]:
        if len(os.fsencode(address)) > _LONGEST:
            raise OSError("the path is too long for a socket")
        ear, near = _datagram(), _datagram()
        try:
            self.sweep(self.number)  # the number is ours: this is of a process that died before it could commit it
            ear.bind(address)
            os.chmod(address, self._mode)
            self._inode = os.lstat(address).st_ino
            near.connect(address)
        except OSError:
            ear.close()
            near.close()
            raise
        return ear, near


def _ring_afresh(address: str) -> None:
    with contextlib.suppress(OSError), _datagram() as fresh:
        fresh.sendto(b"!", address)


def _datagram() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made
