"""A worker's heart outside its interpreter, as the worker sees it: it starts it, speaks to it, and reads its page.

See `_heart_program.py`. When it cannot be started, or was killed, the worker goes on with its own thread alone, and
tries again with the next heartbeat.
"""

from __future__ import annotations

import contextlib
import marshal
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from millpond._events import logger

PROGRAM = Path(__file__).with_name("_heart_program.py")


class OuterHeart:
    """The process that keeps up a membership while this one cannot."""

    def __init__(self, begin: dict[str, Any]) -> None:
        self._begin = begin
        self._worker = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._has_warned = False
        self._is_closed = False
        self._pid = os.getpid()
        file = tempfile.TemporaryFile()  # noqa: SIM115  (it is gone with its descriptors)
        file.write(bytes(8))
        file.flush()
        self._file = file
        self._page = mmap.mmap(file.fileno(), 8)

    def join(self, worker: str) -> None:
        """Keep up this membership from now on."""
        self._worker = worker
        self._page[:8] = bytes(8)
        self._say("join", worker)

    def beat(self) -> None:
        """Give a sign of life: the worker has renewed its lease itself."""
        self._say("beat")

    def renewed_at(self) -> float:
        """Return when a renewal was last sent from there, on the clock of this machine; 0.0 for never."""
        try:
            return float(struct.unpack("d", self._page[:8])[0])
        except ValueError:  # it was closed meanwhile
            return 0.0

    def close(self) -> None:
        """End it; the worker has left, or will."""
        if self._pid != os.getpid() or self._is_closed:
            return
        self._is_closed = True
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError, ValueError):
                _write(process, ["leave"])
            _end(process, 2.0)
        self._page.close()
        self._file.close()

    def _say(self, *message: str) -> None:
        if self._pid != os.getpid() or self._is_closed:
            return
        try:
            if self._process is None or self._process.poll() is not None:
                self._start()
            if self._process is not None:
                _write(self._process, list(message))
        except (OSError, ValueError) as error:
            self._drop()
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "a worker has no heart outside its process (%s): a function that holds the GIL for long may cost "
                    "it its lease",
                    error,
                )

    def _start(self) -> None:
        self._drop()
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), str(self._file.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._file.fileno()],
            start_new_session=True,  # Ctrl-C in a terminal is for the worker
            restore_signals=True,
        )
        os.set_blocking(process.stdin.fileno(), False)  # type: ignore[union-attr]
        _write(process, self._begin)
        if self._worker:
            _write(process, ["join", self._worker])

    def _drop(self) -> None:
        """Let go of one that has ended, or does not listen: another is started with the next heartbeat."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            _end(process, None)

    def kill(self) -> None:
        """End it hard; for tests."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


def _write(process: subprocess.Popen[bytes], message: Any) -> None:
    assert process.stdin is not None
    data = marshal.dumps(message)
    os.write(process.stdin.fileno(), struct.pack("!I", len(data)) + data)


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
