"""Proof of death: whether the process behind a session is gone, told by the kernel and never by a clock.

A session is a number in the database and a `Passport`. While its process lives, that holds the record lock on byte
*number* of the side file `<database>-live`; the kernel drops it with the process, and not before: a stopped process is
alive. Numbers are never used twice. The lock is taken before the session's row is committed.

Two witnesses, and what each is worth:

    the pid    The process of that pid and start time is gone: proof, where pids mean the same to both (same boot, same
               namespaces). Still there: alive, whatever the lock says, since a lock can be lost by accident.
    the lock   Free: proof where the pid cannot be seen (another container, an earlier boot), provided that the live
               file is the very one of the passport (inode and random nonce): in a file that was deleted and made anew
               nobody's lock can be found. And free is not yet gone: the kernel closes a dying process's files one by
               one. So this is only `FREED`, and becomes a death when seen again at least `CONFIRM` seconds later.
               (`DeathWatch` does that.)

    verdict    pid seen                  pid not seen, file is the passport's    pid not seen, other file
    lock held  ALIVE / DEAD by the pid   ALIVE                                   UNKNOWN
    lock free  ALIVE / DEAD by the pid   FREED, then dead                        UNKNOWN

One's own process is never probed: the kernel says "free" of one's own lock.

What it does not prove: that the *work* has ended, which may be a child process. A process that replaced itself by
`exec` is still that process, and keeps the lock as well as the pid: what it held stays until it ends or an operator
decides.
"""

from __future__ import annotations

import enum
import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass
from typing import Final, Self

from millpond._sqlite._files import create, mode_of
from millpond._sqlite._lockfile import LockFile, share
from millpond._sqlite._process import boot_id, is_gone, namespace, own_start
from millpond._sqlite._trouble import translate_os_error
from millpond.errors import EngineError

CONFIRM = 0.05
"""Seconds between two looks at a free lock before it counts as a death."""

_NONCE_BYTES = 16


class Verdict(enum.Enum):
    """What is known about the process of a session."""

    ALIVE = "alive"
    DEAD = "dead"
    FREED = "freed"
    """Its lock is free and its pid cannot be seen: dead if it still is after `CONFIRM` seconds."""
    UNKNOWN = "unknown"
    """Nobody can say: never treat it as dead."""


class LiveFile:
    """The file `<database>-live`, on which every session of every process has a byte to lock."""

    def __init__(self, database: str | os.PathLike[str]) -> None:
        path = os.fspath(database)
        self.path = path + "-live"
        self._numbers: set[int] = set()
        try:
            self._file = share(self.path, _create, keep_on_exec=True)
            nonce = os.pread(self._file.fd, 2 * _NONCE_BYTES, 0).decode("ascii", "replace")
        except OSError as error:
            raise translate_os_error(error, path) from error
        self.identity: tuple[int, str] = (self._file.key[1], nonce)
        """Inode and nonce: the same for two processes only if they see each other's locks."""
        if len(nonce) != 2 * _NONCE_BYTES:
            self._file.done()
            raise EngineError(f"{self.path!r} is damaged; stop all users of {path!r}, delete it and try again")

    def lock(self, number: int) -> None:
        """Hold the byte of a session for as long as this process lives, or until `unlock()`."""
        if not self._own_file().try_lock(number):
            raise EngineError(
                f"session {number} of {self.path!r} belongs to another process that lives; open the pool again"
            )
        self._numbers.add(number)
        self._file.held.add(number)

    def unlock(self, number: int) -> None:
        """Unlock the byte of a session that has ended."""
        self._numbers.discard(number)
        self._file.held.discard(number)
        if not self._file.is_void:
            self._file.unlock(number)

    def reassert(self) -> bool:
        """Take one's locks again, should some code in this process have opened and closed the file; and say whether
        the path still names this file.

        When it does not, others can no longer see the locks, only the pid. To mend that: go on with the `successor()`,
        and write a new passport into the session's row.
        """  # noqa: D205
        file = self._own_file()
        for number in self._numbers:
            file.try_lock(number)
        try:
            found = os.lstat(self.path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == file.key

    def successor(self) -> LiveFile:
        """Return the file that the path names now, with all that is locked through this object locked there, too."""
        new = LiveFile(self.path.removesuffix("-live"))
        try:
            for number in self._numbers:
                new.lock(number)
        except BaseException:
            new.close()
            raise
        return new

    def is_locked(self, number: int) -> bool:
        """Return whether any process holds the byte of that session."""
        file = self._own_file()
        return number in file.held or file.locker(number) is not None

    def close(self) -> None:
        """Unlock one's numbers and be done; locks taken through other objects of this process stay."""
        for number in list(self._numbers):
            self.unlock(number)
        self._file.done()

    def _own_file(self) -> LockFile:
        if self._file.is_void:
            raise RuntimeError(f"{self.path!r} was opened before a fork, or closed; open a new LiveFile and session")
        return self._file


def _create(path: str) -> None:
    """Make the file with its nonce inside, in one step: nobody sees it empty."""
    draft = f"{path}.{secrets.token_hex(4)}"
    fd = create(draft, mode_of(path.removesuffix("-live")))
    try:
        os.write(fd, secrets.token_hex(_NONCE_BYTES).encode())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # another process was quicker
        except OSError:  # no hard links here; behind the gate nobody else is making it
            if not os.path.exists(path):
                os.replace(draft, path)
                return
        os.unlink(draft)
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Passport:
    """Who is behind a session: enough to find the process again, and to know when that is impossible."""

    host: str
    pid: int
    start: int
    boot: str
    namespace: str
    live_inode: int
    live_nonce: str

    @classmethod
    def of_this_process(cls, live: LiveFile) -> Self:
        """Make out a passport for the calling process."""
        return cls(socket.gethostname(), os.getpid(), own_start(), boot_id(), namespace(), *live.identity)

    def encode(self) -> str:
        """Return it as JSON, for the session's row."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def decode(text: str) -> Passport:
        """Read it back; fields that a newer version added are ignored.

        One that cannot be read is of nobody who could be found: such a session is never taken for dead.
        """
        try:
            fields = json.loads(text)
            found = [fields[name] for name in Passport.__slots__]
        except (ValueError, LookupError, TypeError):
            return _STRANGER
        kinds = [type(getattr(_STRANGER, name)) for name in Passport.__slots__]
        return Passport(*found) if [type(one) for one in found] == kinds else _STRANGER

    @property
    def is_own(self) -> bool:
        """Whether this is the calling process."""
        return (self.pid, self.start, self.boot, self.namespace) == (os.getpid(), own_start(), boot_id(), namespace())

    @property
    def is_visible(self) -> bool:
        """Whether its pid means the same here as there."""
        return self.namespace != "" and (self.boot, self.namespace) == (boot_id(), namespace())


_STRANGER: Final = Passport("", 0, 0, "", "", 0, "")


def verdict(passport: Passport, number: int, live: LiveFile) -> Verdict:
    """Say what the kernel knows now about the process of session `number`; see the table above."""
    if passport.is_own:
        return Verdict.ALIVE
    gone = is_gone(passport.pid, passport.start) if passport.is_visible else None
    if gone is not None:
        return Verdict.DEAD if gone else Verdict.ALIVE
    if live.identity != (passport.live_inode, passport.live_nonce):
        return Verdict.UNKNOWN
    if live.is_locked(number):
        return Verdict.ALIVE
    return Verdict.UNKNOWN if passport.is_visible else Verdict.FREED
