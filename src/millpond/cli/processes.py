"""`millpond worker --processes 4 --reload`: several workers from one command, started again when they die.

Each is a process of its own with its own event loop. This one only looks after them: it passes signals on, once each,
starts another one for one that was killed, and, with `--reload`, all of them anew when a file of the program changes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from millpond._clock import elapsed
from millpond._events import logger
from millpond.cli import family

LOOK: Final = 0.5
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0
SHORT: Final = 5.0
"""Seconds: one that ends sooner failed at its start, so the next one waits."""
REFUSED: Final = 2
"""The exit code of one that was called wrongly."""
SKIPPED: Final = ("node_modules", "site-packages", "__pycache__", "venv")


class Processes:
    """The processes of one command."""

    def __init__(self, command: Sequence[str], number: int, *, reload: bool) -> None:
        self._command = list(command)
        self._number = number
        self._reload = reload
        self._children: dict[subprocess.Popen[bytes], float] = {}
        self._wakened = threading.Event()
        self._signals: list[int] = []
        self._is_ending = False
        self._pause = 0.0
        self._start_at = 0.0
        self._code = 0

    def run(self) -> int:
        """Look after them until all have ended; return the exit code."""
        before = {number: signal.signal(number, self._hear) for number in (signal.SIGTERM, signal.SIGINT)}
        files = _files() if self._reload else {}
        try:
            while True:
                self._pass_on()
                self._collect()
                if self._is_ending and not self._children:
                    return self._code
                if self._reload and not self._is_ending and (now := _files()) != files:
                    self._renew(sorted(set(now.items()) ^ set(files.items()))[0][0])
                    files = _files()
                self._fill()
                self._wakened.wait(LOOK)
                self._wakened.clear()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for child in self._children:
                with contextlib.suppress(OSError):
                    child.kill()
                    child.wait()

    def _hear(self, number: int, _: Any) -> None:
        self._signals.append(number)
        self._wakened.set()

    def _pass_on(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            self._is_ending = True
            for child in self._children:
                with contextlib.suppress(OSError):
                    child.send_signal(number)

    def _fill(self) -> None:
        """Start those that are missing."""
        while not self._is_ending and len(self._children) < self._number and elapsed() >= self._start_at:
            child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=family.die_with_parent()
            )
            self._children[child] = elapsed()

    def _collect(self) -> None:
        """Take note of those that have ended."""
        for child, since in list(self._children.items()):
            code = child.poll()
            if code is None:
                continue
            del self._children[child]
            if self._is_ending:
                self._code = self._code or _shown(code)
            elif code in (0, REFUSED):  # the pool was shut down; or nothing can ever come of it
                self._signals.append(signal.SIGTERM)
                self._pass_on()
                self._code = code
            else:
                self._pause = min(LAST_PAUSE, self._pause * 2 or FIRST_PAUSE) if elapsed() - since < SHORT else 0.0
                self._start_at = elapsed() + self._pause
                how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
                logger.warning("worker process %d %s: another one takes its place", child.pid, how)

    def _renew(self, changed: str) -> None:
        """End all kindly, so that they are started anew."""
        logger.info("%s has changed: %d workers are started anew", changed, len(self._children))
        for child in self._children:
            with contextlib.suppress(OSError):
                child.terminate()
        while any(child.poll() is None for child in self._children) and not self._signals:
            self._wakened.wait(0.05)
        if not self._signals:
            self._children.clear()


def _shown(code: int) -> int:
    return code if code >= 0 else 128 - code


def _files() -> dict[str, float]:
    """Return the source files below this folder, and when they were changed."""
    return dict(_walk(Path.cwd()))


def _walk(folder: Path) -> Iterator[tuple[str, float]]:
    for where, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".") and one not in SKIPPED]
        for name in names:
            if name.endswith(".py"):
                with contextlib.suppress(OSError):
                    path = os.path.join(where, name)
                    yield path, os.stat(path).st_mtime


def run(target: str, number: int, *, reload: bool, options: Sequence[str]) -> int:
    """Run so many workers of a pool."""
    command = [sys.executable, "-m", "millpond", "worker", target, *options]
    return Processes(command, number, reload=reload).run()
