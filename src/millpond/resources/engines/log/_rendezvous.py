"""How a process finds the companion of its machine, or starts it.

They meet at a socket in a folder that only this user can enter; its name stands for the URL and the protocol. Who finds
nobody there takes a file lock, binds the socket itself and hands it to a new companion, so calls can be sent at once.

A companion has a session and a process group of its own and no terminal, and its URL comes by a pipe: nobody sees it in
a list of processes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import IO, Final, TypeVar

import msgspec

from millpond._clock import elapsed
from millpond._sqlite._process import is_gone, namespace
from millpond.errors import EngineError, EngineUnavailable
from millpond.resources.engines.log._log import Witness
from millpond.resources.engines.log._messages import PROTOCOL

START: Final = 20.0
"""Seconds for a companion to be started."""
_LONGEST: Final = 107
"""Bytes of a socket's path."""
_NAME: Final = len("/0123456789abcdef01234567.socket")
_PROGRAM: Final = """
import os, sys
if os.fork():
    os._exit(0)
sys.path += sys.argv[2:]
from millpond.resources.engines.log._companion import main
main()
"""


def meet(url: str, here: Witness, *, is_mute: bool = False) -> socket.socket:
    """Return a connection to the companion of this machine for a URL; start one if there is none.

    `is_mute`: whoever has the socket has not said a word. If no companion is known to live, it is a process that was
    forked as the socket was made, and another one is made.
    """
    path = _path(url)
    try:
        found = None if is_mute else _connect(path)
        return found or _meet_alone(url, path, here, is_mute)
    except OSError as error:
        raise EngineUnavailable(f"no companion process can be met at {path}: {error}") from error


def _meet_alone(url: str, path: str, here: Witness, is_mute: bool) -> socket.socket:
    """Do the same while nobody else does."""
    with _locked(f"{path}.lock"):
        found = None if is_mute and _is_deserted(url, path) else _connect(path)
        return found or _start_at(path, url, here)


def _is_deserted(url: str, path: str) -> bool:
    """Return whether no companion can be at a socket: none is known to live, and none has just been started."""
    known = written_pid(url)
    if known is not None and not is_gone(*known):
        return False
    try:
        return time.time() - os.stat(path).st_mtime > START
    except FileNotFoundError:
        return True


def _start_at(path: str, url: str, here: Witness) -> socket.socket:
    with suppress(FileNotFoundError):
        os.unlink(path)
    with _own(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(path)
        listener.listen(1024)
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(path)  # before it is there: so it has a user from the beginning
            _start(url, here, listener)
        except BaseException:
            made.close()
            raise
        return made


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold a file lock, which a process that is forked meanwhile does not keep."""
    deadline = elapsed() + START
    with _own(open(path, "a+")) as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if elapsed() > deadline:
                    lock.seek(0)
                    raise EngineUnavailable(
                        f"process {lock.read() or 'unknown'} has been starting a companion process for {START:g} s: is "
                        f"it stopped? It has the lock of {path}"
                    ) from None
                time.sleep(0.02)
        try:
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)


_T = TypeVar("_T", bound=IO[str] | socket.socket)
_owned: set[IO[str] | socket.socket] = set()


@contextmanager
def _own(made: _T) -> Iterator[_T]:
    """Close it in the end, and at once in a process that another thread forks meanwhile."""
    _owned.add(made)
    try:
        with made:
            yield made
    finally:
        _owned.discard(made)


def _close_in_child() -> None:
    for made in _owned:
        made.close()
    _owned.clear()


os.register_at_fork(after_in_child=_close_in_child)


def written_pid(url: str) -> tuple[int, int] | None:
    """Return pid and start of the companion of a URL, as it has written them beside its socket."""
    try:
        pid, start = Path(f"{_path(url)}.pid").read_text().split()
        return int(pid), int(start)
    except (OSError, ValueError, EngineError):
        return None


def _path(url: str) -> str:
    """Return where those meet who can: of one user, URL, version, and pid namespace."""
    what = f"{PROTOCOL} {metadata.version('millpond')} {namespace()} {url}"
    return str(_folder() / f"{hashlib.sha256(what.encode()).hexdigest()[:24]}.socket")


def _folder() -> Path:
    """Return the folder where processes of this user meet; it must be theirs alone."""
    folder = Path(tempfile.gettempdir()) / f"millpond-{os.getuid()}"
    if len(os.fsencode(folder)) + _NAME > _LONGEST:  # for the kernel
        folder = Path("/tmp") / folder.name
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = os.lstat(folder)
    except OSError as error:
        raise EngineError(f"{folder} cannot be used ({error.strerror}): set TMPDIR to another place") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise EngineError(f"{folder} is not a folder of this user alone: remove it, or set TMPDIR to another place")
    return folder


def _connect(path: str) -> socket.socket | None:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(path)
        return made
    except (FileNotFoundError, ConnectionRefusedError):
        made.close()
        return None
    except BaseException:
        made.close()
        raise


def _start(url: str, here: Witness, listener: socket.socket) -> None:
    """Start a companion, which goes on by itself."""
    places = [str(Path(__file__).parents[4]), *(place for place in sys.path if place)]
    command = [sys.executable, "-I", "-c", _PROGRAM, str(listener.fileno()), *places]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(listener.fileno(),),
        start_new_session=True,
        cwd="/",
    ) as process:
        try:
            process.communicate(msgspec.msgpack.encode((url, here)), START)
        except subprocess.TimeoutExpired:
            process.kill()
            raise EngineUnavailable(f"a companion process did not start within {START:g} s") from None
    if process.returncode:
        raise EngineUnavailable(
            f"a companion process could not be started: {sys.executable} ended with {process.returncode}"
        )
