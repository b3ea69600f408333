"""The one gate of a database: all writes, checkpoints, opens and closes of all processes happen behind it.

Why, when SQLite has locks of its own:

- SQLite's writer lock is polled, so it starves: with eight writers one made 1 transaction while another made 58,359.
  Here the waiting is done by the kernel, in line.
- SQLite before 3.51.3 can corrupt a WAL when one connection writes and another checkpoints at the same moment. Behind
  the gate there is no such moment, provided that nobody but Millpond writes to the file.

It is a record lock on byte 0 of the side file `<database>-gate`, which the kernel drops with the process, plus a mutex
between the threads of the process. See `_lockfile` for what record locks demand.

*False deadlocks.* The kernel looks for deadlocks between processes, not threads. A thread that waits for gate 1 while
another thread of its process holds gate 2 looks like a process that waits holding something, and two such processes
look like a deadlock (EDEADLK) when there is none. Then we poll.

*A deleted gate file.* A process that gets the lock looks whether the path still names that file; if not, it unlocks and
begins anew. That leaves the process that was inside when the file was deleted: it holds a file that no other finds. A
new gate file (still empty) of a database in use (it has a WAL) opens only `GRACE` seconds after it was made,
which is long compared with a transaction. No more can be done; even then SQLite's own writer lock stands.

*Ctrl-C* while waiting gets through and leaves the gate as if `enter()` had never been called. The one gap: a signal on
the very first bytecode of `leave()` itself, in the main thread, leaves it held until that thread calls `leave()` again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from typing import TYPE_CHECKING, Self

from millpond._sqlite._files import create, mode_of
from millpond._sqlite._haste import haste
from millpond._sqlite._lockfile import LockFile, share
from millpond._sqlite._process import describe
from millpond._sqlite._trouble import translate_os_error

if TYPE_CHECKING:
    from types import TracebackType

GRACE = 0.25
"""Seconds for whoever was inside when the gate file was deleted."""

POLL = 0.0005
"""Seconds between two tries where the kernel will not let us queue; they become longer, up to ten times."""

_BYTE = 0


class Gate:
    """The gate of the database at that path. Any number of these in a process are one gate."""

    def __init__(self, database: str | os.PathLike[str]) -> None:
        self.database = os.fspath(database)
        self.path = self.database + "-gate"
        self._wal = self.database + "-wal"
        self._past: list[LockFile] = []  # of deleted gate files: a thread may still be inside or waiting
        self._inside: dict[int, LockFile] = {}  # by thread: what it entered
        self._file = self._share()

    def try_enter(self) -> bool:
        """Enter if nobody is inside and no thread of this process waits to be; tell whether you are; never wait."""
        file = self._current()
        self._refuse_second_entry()
        is_next = _has(file.turnstile)
        try:
            # Who leaves and comes back at once must not keep out, for ever, one who waits: so by the turnstile.
            if (is_next or file.turnstile.acquire(blocking=False)) and file.mutex.acquire(blocking=False):
                haste.begin()
                if file.try_lock(_BYTE) and self._is_open(file, may_wait=False):
                    self._arrive(file)
                    return True
        except BaseException:
            self._let_go(file)
            raise
        finally:
            if not is_next and _has(file.turnstile):
                file.turnstile.release()
        self._let_go(file)
        return False

    def enter(self) -> None:
        """Enter, waiting as long as it takes. Ctrl-C gets through, and then you are not inside."""
        while True:
            file = self._current()
            self._refuse_second_entry()
            try:
                with file.turnstile:
                    file.mutex.acquire()
                haste.begin()
                self._wait_for(file)
                if self._is_open(file, may_wait=True):
                    self._arrive(file)
                    return
            except BaseException:
                self._let_go(file)
                raise
            self._let_go(file)

    def enter_within(self, seconds: float) -> bool:
        """Enter if that is possible within so many seconds, and tell whether you are inside.

        Without a place in the kernel's line, so this is for a beginning, an end or a fork, not for every day.
        """
        deadline = time.monotonic() + seconds
        file = self._current()
        self._refuse_second_entry()
        try:
            if not file.turnstile.acquire(timeout=max(0.0, seconds)):
                return False
            pause = POLL
            while not self.try_enter():
                if time.monotonic() >= deadline:
                    return False
                time.sleep(pause)
                pause = min(pause * 1.1, 10 * POLL)
            return True
        finally:
            if _has(file.turnstile):
                file.turnstile.release()

    def leave(self) -> None:
        """Leave, so that the next one may enter. In a forked child this does nothing: it was the parent who entered."""
        file = self._inside.get(threading.get_ident())
        if file is None:
            raise RuntimeError(f"this thread is not inside the gate {self.path!r}; leave() follows enter()")
        self._let_go(file)

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is inside, through this or another object."""
        me = threading.get_ident()
        file = self._inside.get(me, self._file)
        return file.holder == me and not file.is_void

    def blocker(self) -> str | None:
        """Say who is inside, for a person: "process 1234 (python, stopped)"; None when nobody else is."""
        file = self._current()
        holder = file.holder
        if holder == threading.get_ident():
            return None
        if holder is not None:
            names = [thread.name for thread in threading.enumerate() if thread.ident == holder]
            return f"thread {names[0]!r} of this process" if names else "a thread of this process that has ended"
        pid = file.locker(_BYTE)
        if pid is None:
            return None
        return describe(pid) if pid else "a process in another container"

    def obstacle(self, waited: float) -> str:
        """Say what has kept us from writing for so many seconds, and what to do."""
        blocker = self.blocker()
        if blocker is None:
            return f"the disk is too slow (waited {waited:.1f} s)"
        return f"its gate is held by {blocker}, for {waited:.1f} s or longer: continue or end that"

    def close(self) -> None:
        """Close it: nobody may be inside through this object. Another Gate of the process stays as it is."""
        for file in (*self._past, self._file):
            file.done()
        self._past.clear()

    def __enter__(self) -> Self:
        try:
            self.enter()
            return self
        except BaseException:
            file = self._inside.get(threading.get_ident())
            if file is not None:
                self._let_go(file)  # a signal came when we had just entered
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.leave()

    # -- parts --------------------------------------------------------------------------------------------------------

    def _share(self) -> LockFile:
        try:
            return share(self.path, _create)
        except OSError as error:
            raise translate_os_error(error, self.database) from error

    def _current(self) -> LockFile:
        """Return the file that we believe is the gate; after a fork, or when it was deleted, another than before."""
        if self._file.is_void:
            self._inside.clear()
            self._file = self._share()
        return self._file

    def _refuse_second_entry(self) -> None:
        if self.is_inside:
            raise RuntimeError(f"this thread is inside the gate {self.path!r} already; call leave() first")

    def _wait_for(self, file: LockFile) -> None:
        try:
            file.lock(_BYTE)
        except OSError as error:
            if error.errno != errno.EDEADLK:
                raise
            while not file.try_lock(_BYTE):
                time.sleep(POLL)

    def _is_open(self, file: LockFile, *, may_wait: bool) -> bool:
        """With the lock held: whether this is still the gate, and not one so new that another may be inside the old."""
        try:
            found = os.lstat(self.path)
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != file.key:
            if self._file is file:  # else another thread has noticed, too
                self._file = self._share()
                self._past.append(file)
            return False
        if found.st_size == 0:
            left = GRACE - abs(time.time() - found.st_mtime)
            if left > 0 and os.path.exists(self._wal):
                if not may_wait:
                    return False
                time.sleep(left)
                return self._is_open(file, may_wait=True)
            with contextlib.suppress(OSError):  # a full disk: the next one looks at the file's age again, that is all
                os.pwrite(file.fd, b"\n", 0)
        return True

    def _arrive(self, file: LockFile) -> None:
        file.holder = threading.get_ident()
        self._inside[file.holder] = file

    def _let_go(self, file: LockFile) -> None:
        """Undo as much of an entry as has been done: lock, mutex, both or neither."""
        self._inside.pop(threading.get_ident(), None)
        if file.is_void or not _has(file.mutex):
            return
        try:
            file.holder = None
            file.unlock(_BYTE)
        finally:
            haste.end()
            file.mutex.release()


def _has(lock: threading.RLock) -> bool:
    """Return whether this thread has the lock, also when a signal came between taking it and noting that it did."""
    owned: bool = lock._is_owned()  # type: ignore[attr-defined]  # what Condition asks, too
    return owned


def _create(path: str) -> None:
    with contextlib.suppress(FileExistsError):  # another was quicker
        os.close(create(path, mode_of(path.removesuffix("-gate"))))
