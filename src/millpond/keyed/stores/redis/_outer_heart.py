"""A worker's heart outside its interpreter, as the worker sees it: it starts it, speaks to it, and reads its page.

See `_heart_program.py`. When it cannot be started, or was killed, the worker goes on with its own thread alone, and
tries again later.
"""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import mmap
import os
import secrets
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from millpond._clock import elapsed
from millpond._events import logger

PROGRAM = Path(__file__).with_name("_heart_program.py")
PAGE = struct.Struct("dQ")
"""What stands in the page: when it last renewed, and for which membership."""
AGAIN = 60.0
"""Seconds after which one that cannot live is started again, at the latest."""


class OuterHeart:
    """The process that keeps up a membership while this one cannot."""

    def __init__(self, begin: dict[str, Any]) -> None:
        self._begin = begin
        self._worker = ""
        self._number = 0
        """Counts the memberships, so that a renewal of an old one is not taken for one of this."""
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._not_before = 0.0
        self._has_warned = False
        self._is_closed = False
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._file: int | None = None
        try:
            self._file = _shared_file()
            self._page = mmap.mmap(self._file, PAGE.size)
        except OSError as error:
            self._page = mmap.mmap(-1, PAGE.size)
            self._warn(error)

    def join(self, worker: str) -> None:
        """Keep up this membership from now on."""
        with self._lock:
            self._worker = worker
            self._number += 1
            self._say("join", worker, self._number)

    def beat(self) -> None:
        """Give a sign of life: the worker has renewed its lease itself."""
        with self._lock:
            self._say("beat")

    def renewed_at(self) -> float:
        """Return when a renewal was last sent from there, on the clock of this machine; 0.0 for never."""
        try:
            when, number = PAGE.unpack(self._page[: PAGE.size])
        except ValueError:  # it was closed meanwhile
            return 0.0
        return float(when) if number == self._number else 0.0

    def give_up(self, worker: str) -> None:
        """Go on: others may wait for the lease, or for the death, of what cannot be stopped there."""

    def close(self) -> None:
        """End it; the worker has left, or will."""
        with self._lock:
            if self._pid != os.getpid() or self._is_closed:
                return
            self._is_closed = True
            process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError, ValueError):
                _write(process, ["leave"])
            _end(process, 2.0)
        self._page.close()
        if self._file is not None:
            os.close(self._file)

    def _say(self, *message: str | int) -> None:
        if self._pid != os.getpid() or self._is_closed or self._file is None:
            return
        try:
            if self._process is None or self._process.poll() is not None:
                self._drop()
                if elapsed() < self._not_before:
                    return
                self._start()
            if self._process is not None:
                _write(self._process, list(message))
        except Exception as error:  # whatever it is: the worker lives without one
            self._drop()
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "a worker has no heart outside its process (%s): a function that holds the GIL for long may cost it "
                "its lease, and its death is known when its lease is over",
                error,
            )

    def _start(self) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise OSError("there is no Python here that could run it")
        self._starts += 1
        self._not_before = elapsed() + min(AGAIN, 0.1 * 2.0**self._starts)
        assert self._file is not None
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), str(self._file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._file],
            start_new_session=True,  # Ctrl-C in a terminal is for the worker
            restore_signals=True,
        )
        _write(process, self._begin)  # as long as it takes
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        if self._worker:
            _write(process, ["join", self._worker, self._number])

    def _drop(self) -> None:
        """Forget one that has ended, or does not listen."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            _end(process, None)

    def kill(self) -> None:
        """End it hard; for tests."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


def _shared_file() -> int:
    """Return the descriptor of a file without a name, which is not one of the first three: those a child replaces."""
    if hasattr(os, "memfd_create"):
        found = os.memfd_create("millpond-heart")
    else:
        path = f"{os.environ.get('TMPDIR', '/tmp')}/millpond-heart-{secrets.token_hex(8)}"
        found = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
    try:
        os.truncate(found, PAGE.size)
        return fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(found)


def _write(process: subprocess.Popen[bytes], message: Any) -> None:
    assert process.stdin is not None
    data = marshal.dumps(message)
    data = struct.pack("!I", len(data)) + data
    while data:
        data = data[os.write(process.stdin.fileno(), data) :]


def _end(process: subprocess.Popen[bytes], patience: float | None) -> None:
    """Wait for a process that was told to end, and let go of it."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
