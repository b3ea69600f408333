"""The commands in a real terminal: what moves on the screen, and Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond import ResourcePool
from waiting import HANG, until

COMMAND = [sys.executable, "-c", "from millpond.cli import main; main()"]

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the child runs another program at once


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, pid: int, leader: int) -> None:
        self.pid, self._leader = pid, leader
        self.screen = ""

    def shows(self, *words: str) -> None:
        """Wait until all of these have been on the screen, in this order, since the last time."""
        deadline = time.monotonic() + HANG
        start = 0
        for word in words:
            while (found := self.screen.find(word, start)) < 0:
                assert time.monotonic() < deadline, f"{word!r} is not in {self.screen!r}"
                self._read()
            start = found + len(word)
        self.screen = self.screen[start:]

    def _read(self) -> None:
        if select.select([self._leader], [], [], 0.5)[0]:
            try:
                self.screen += os.read(self._leader, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"it has ended: {self.screen!r}") from None

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def code(self) -> int:
        """Wait for the end of the command."""
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            if select.select([self._leader], [], [], 0.05)[0]:  # or it waits for somebody who reads
                try:
                    os.read(self._leader, 65536)
                except OSError:
                    time.sleep(0.01)
        raise AssertionError("it does not end")


@contextmanager
def terminal(folder: Path, url: str, *arguments: str) -> Iterator[Terminal]:
    environment = {**os.environ, "MILLPOND_URL": url, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    environment.pop("MILLPOND_HELD", None)
    pid, leader = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(COMMAND[0], [*COMMAND, *arguments], environment)
    made = Terminal(pid, leader)
    try:
        yield made
    finally:
        if made.pid:
            os.kill(made.pid, signal.SIGKILL)
            os.waitpid(made.pid, 0)
        os.close(leader)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/pools.db"


@pytest.fixture
def lab(url: str) -> Iterator[ResourcePool]:
    with ResourcePool("lab", url, holder="ann") as pool:
        pool.add("board")
        yield pool


def test_who_goes_on_to_show_who_holds_what(tmp_path: Path, url: str, lab: ResourcePool):
    with terminal(tmp_path, url, "who", "--watch") as screen:
        screen.shows("nobody holds anything")
        with lab.acquire(reason="soak test"):
            screen.shows("board", "ann", "soak test")
        screen.shows("nobody holds anything")
        screen.type("\x03")
        assert screen.code() == 130


def test_top_is_one_screen_that_goes_on(tmp_path: Path, url: str, lab: ResourcePool):
    with terminal(tmp_path, url, "top", "--every", "0.1") as screen:
        screen.shows("resources", "lab", "0 of 1 units held")
        with lab.acquire(reason="soak test"):
            screen.shows("1 of 1 units held", "soak test")
        screen.shows("0 of 1 units held")
        screen.type("\x03")
        assert screen.code() == 130


def test_who_waits_sees_why_and_may_leave(tmp_path: Path, url: str, lab: ResourcePool):
    lab.admin.reserve("board", holder="bob", reason="soak test")  # not this process, which is around the command
    with terminal(tmp_path, url, "run", "--hold", "lab", "--", "true") as screen:
        screen.shows("waiting for lab", "bob", "soak test", "you are next")
        screen.type("\x03")
        assert screen.code() == 130
        until(lambda: not lab.waiters())


def test_a_person_is_asked_before_something_is_done(tmp_path: Path, url: str, lab: ResourcePool):
    with terminal(tmp_path, url, "cordon", "lab/board", "--reason", "loud") as screen:
        screen.shows("cordon lab/board?")
        screen.type("n\n")
        assert screen.code() == 1 and lab.resources()[0].state == "active"
    with terminal(tmp_path, url, "cordon", "lab/board", "--reason", "loud") as screen:
        screen.shows("cordon lab/board?")
        screen.type("y\n")
        assert screen.code() == 0 and lab.resources()[0].note == "loud"
