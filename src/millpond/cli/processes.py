"""`millpond worker --processes 4 --reload`: several workers from one command, started again when they die.

Each is a process of its own with its own event loop. This one only looks after them: it passes signals on, once each,
starts another one for one that has ended, and, with `--reload`, all of them anew when a file of the program changes. It
imports nothing of the program itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from millpond._clock import elapsed
from millpond._events import logger

LOOK: Final = 0.5
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0
SHORT: Final = 5.0
"""Seconds: one that ends sooner failed at its start, so the next one waits."""
REFUSED: Final = 2
"""The exit code of one that was called wrongly."""
LEFT: Final = 3
"""The exit code of one that left although nobody here told it to: the pool goes on."""
SKIPPED: Final = ("node_modules", "site-packages", "__pycache__", "venv")
ENDING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))


class Processes:
    """The processes of one command."""

    def __init__(self, command: Sequence[str], number: int, *, reload: bool) -> None:
        self._command = list(command)
        self._number = number
        self._reload = reload
        self._folder = os.getcwd()
        self._children: dict[subprocess.Popen[bytes], float] = {}
        self._told: set[subprocess.Popen[bytes]] = set()
        """Those that were told to end so that they are started anew."""
        self._signals: list[int] = []
        self._is_ending = False
        self._pause = 0.0
        self._start_at = 0.0
        self._code = 0
        self._wake_receiver, self._wake_sender = os.pipe()  # a handler must take no lock
        os.set_blocking(self._wake_sender, False)
        os.set_blocking(self._wake_receiver, False)

    def run(self) -> int:
        """Look after them until all have ended; return the exit code."""
        ours = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._hear) for number in ours}
        files = dict(self._walk()) if self._reload else {}
        try:
            while True:
                self._pass_on()
                self._collect()
                if self._is_ending and not self._children:
                    return self._code
                if self._reload and not self._is_ending and (now := dict(self._walk())) != files:
                    self._renew(sorted(set(now.items()) ^ set(files.items()))[0][0])
                    files = dict(self._walk())
                self._fill()
                self._wait(LOOK)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for child in self._children:
                with contextlib.suppress(OSError):
                    child.kill()
                    child.wait()
            os.close(self._wake_receiver)
            os.close(self._wake_sender)

    def _hear(self, number: int, _: Any) -> None:
        self._signals.append(number)
        with contextlib.suppress(OSError):
            os.write(self._wake_sender, b"!")

    def _wait(self, seconds: float) -> None:
        select.select([self._wake_receiver], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_receiver, 4096)

    def _pass_on(self) -> None:
        """Pass signals on to the workers; those just told to end for another reason have heard the first one."""
        while self._signals:
            number = self._signals.pop(0)
            self._is_ending = True
            for child in self._children:
                if child in self._told:
                    continue
                with contextlib.suppress(OSError):
                    child.send_signal(number if number == signal.SIGINT else signal.SIGTERM)
            self._told.clear()

    def _fill(self) -> None:
        """Start those that are missing."""
        while not self._is_ending and len(self._children) < self._number and elapsed() >= self._start_at:
            try:
                child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, process_group=0)
            except OSError as error:  # no memory, or too many processes: the others go on
                self._wait_longer()
                logger.warning("no worker process could be started: %s", error)
                return
            self._children[child] = elapsed()

    def _wait_longer(self) -> None:
        self._pause = min(LAST_PAUSE, self._pause * 2 or FIRST_PAUSE)
        self._start_at = elapsed() + self._pause

    def _collect(self) -> None:
        """Take note of those that have ended."""
        for child, since in list(self._children.items()):
            code = child.poll()
            if code is None:
                continue
            del self._children[child]
            if self._is_ending:
                is_well = code in (LEFT, -signal.SIGTERM, -signal.SIGINT)  # it had left when it heard us, or hurried
                self._code = self._code or (0 if is_well else code if code >= 0 else 128 - code)
            elif code == REFUSED and self._reload:
                logger.warning("worker process %d could not begin: it is tried again when a file changes", child.pid)
                self._start_at = float("inf")
            elif code in (0, REFUSED):  # the pool was shut down; or nothing can ever come of it
                self._hear(signal.SIGTERM, None)
                self._pass_on()
                self._code = code
            else:
                self._pause = 0.0 if elapsed() - since >= SHORT else self._pause
                if elapsed() - since < SHORT:
                    self._wait_longer()
                how = f"was killed by signal {-code}" if code < 0 else "left" if code == LEFT else f"ended with {code}"
                logger.warning("worker process %d %s: another one takes its place", child.pid, how)

    def _renew(self, changed: str) -> None:
        """End all kindly, so that they are started anew."""
        logger.info("%s has changed: %d workers are started anew when they have ended", changed, len(self._children))
        self._pause = self._start_at = 0.0
        self._told = set(self._children)
        for child in self._children:
            with contextlib.suppress(OSError):
                child.terminate()
        while any(child.poll() is None for child in self._children) and not self._signals:
            self._wait(0.05)
        if not self._signals:
            self._children.clear()
            self._told.clear()

    def _walk(self) -> Iterator[tuple[str, float]]:
        """Return the source files below this folder, and when they were changed."""
        for where, folders, names in os.walk(self._folder):
            folders[:] = [one for one in folders if not one.startswith(".") and one not in SKIPPED]
            for name in names:
                if name.endswith(".py"):
                    with contextlib.suppress(OSError):
                        path = os.path.join(where, name)
                        yield path, os.stat(path).st_mtime


def run(target: str, number: int, *, reload: bool, options: Sequence[str]) -> int:
    """Run so many workers of a pool."""
    command = [sys.executable, "-P", "-m", "millpond", "worker", target, *options]
    if not reload:  # what is wrong with the program is said once
        checked = subprocess.run([*command, "--check"], stdin=subprocess.DEVNULL, check=False).returncode
        if checked:
            return checked
    return Processes([*command, f"--supervised={os.getpid()}"], number, reload=reload).run()
