"""The witness of a program, as the program sees it: a small process that has its death told to the pools it used.

See `_witness_program.py`. It is told of a pool before anything is asked for there, so that nothing can be held that it
does not know of. When it was killed it is started again; where none can be started, silence tells, as before.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from millpond._clock import elapsed
from millpond._events import logger

PROGRAM = Path(__file__).with_name("_witness_program.py")
AGAIN = 60.0
"""Seconds after which one that cannot live is started again, at the latest."""


class Witness:
    """The process that tells of our end."""

    def __init__(self, url: str, session: str) -> None:
        places = [str(Path(__file__).parents[4]), *(place for place in sys.path if place)]
        self._begin: dict[str, Any] = {"pid": os.getpid(), "url": url, "session": session, "places": places}
        self.pools: set[str] = set()
        """Those that it was told of."""
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._not_before = 0.0
        self._has_warned = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Which process it is."""
        return self._process.pid if self._process is not None else None

    def mention(self, pool: str) -> None:
        """Name a pool to it, before anything is asked for there."""
        with self._lock:
            if pool not in self.pools:
                self.pools.add(pool)
                if self._is_alive():
                    self._say(pool)
                else:
                    self._start()

    def attend(self) -> None:
        """Start it again if it has ended."""
        if self.pools and not self._is_alive():
            with self._lock:
                if not self._is_alive() and elapsed() >= self._not_before:
                    self._start()

    def close(self) -> None:
        """Say goodbye: nothing is held any more."""
        with self._lock:
            self.pools.clear()
            process, self._process = self._process, None
        if process is not None and self._begin["pid"] == os.getpid():
            with contextlib.suppress(OSError, ValueError):
                _write(process, None)
            _end(process)

    def leave_behind(self) -> None:
        """Leave it watching after we have closed without giving everything back: it tells the pools when we end."""
        with self._lock:
            self.pools.clear()
            process, self._process = self._process, None
        if process is not None and self._begin["pid"] == os.getpid():
            assert process.stdin is not None
            process.stdin.close()
            process.returncode = 0  # it is meant to outlive us: no warning that it runs

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _say(self, pool: str) -> None:
        assert self._process is not None
        try:
            _write(self._process, pool)
        except OSError:  # it does not listen
            self._process.kill()

    def _start(self) -> None:
        self._starts += 1
        self._not_before = elapsed() + min(AGAIN, 0.1 * 2.0**self._starts)
        try:
            if not sys.executable or getattr(sys, "frozen", False):
                raise OSError("there is no Python here that could run it")
            if self._process is not None:
                _end(self._process)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what ends the program's group must not end its witness
                cwd="/",
            )
            _write(self._process, self._begin)
            for pool in sorted(self.pools):
                _write(self._process, pool)
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("no witness could be started (%s): if this program dies, its locks are suspect", error)


def _write(process: subprocess.Popen[bytes], message: dict[str, Any] | str | None) -> None:
    assert process.stdin is not None
    data = marshal.dumps(message)
    os.write(process.stdin.fileno(), len(data).to_bytes(4, "big") + data)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(2.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
