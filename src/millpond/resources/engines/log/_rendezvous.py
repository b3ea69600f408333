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
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from millpond._sqlite._process import namespace
from millpond.errors import EngineError, EngineUnavailable
from millpond.resources.engines.log._log import Witness
from millpond.resources.engines.log._messages import PROTOCOL

START: Final = 20.0
"""Seconds for a companion to be started."""
_PROGRAM: Final = """
import os, sys
if os.fork():
    os._exit(0)
sys.path += sys.argv[2:]
from millpond.resources.engines.log._companion import main
main()
"""


def meet(url: str, here: Witness) -> socket.socket:
    """Return a connection to the companion of this machine for a URL; start one if there is none."""
    path = _path(url)
    found = _connect(path)
    if found is not None:
        return found
    with open(f"{path}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _connect(path)
        if found is None:
            with suppress(FileNotFoundError):
                os.unlink(path)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(1024)
                _start(url, here, listener)
            found = _connect(path)
    if found is None:
        raise EngineUnavailable(f"a companion process was started and ended at once; look at {path}")
    return found


def written_pid(url: str) -> tuple[int, int] | None:
    """Return pid and start of the companion of a URL, as it has written them beside its socket."""
    try:
        pid, start = Path(f"{_path(url)}.pid").read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid), int(start)


def _path(url: str) -> str:
    """Return where those meet who can: of one user, URL, version, and pid namespace."""
    what = f"{PROTOCOL} {metadata.version('millpond')} {namespace()} {url}"
    return str(_folder() / f"{hashlib.sha256(what.encode()).hexdigest()[:24]}.socket")


def _folder() -> Path:
    """Return the folder where processes of this user meet; it must be theirs alone."""
    folder = Path(tempfile.gettempdir()) / f"millpond-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = os.lstat(folder)
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
