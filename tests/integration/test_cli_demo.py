"""The demo as people meet it: keys in a real terminal, lines without one, and nothing left behind however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from waiting import HANG, until

COMMAND = [sys.executable, "-c", "from millpond.cli import main; main()", "demo"]
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the child runs another program at once

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SENTENCE = re.compile(
    r"(w\d+): (\d+) keys? moved in ([\d.]+ (?:ms|s)), (\d+) jobs? re-run, 0 lost, order kept", re.ASCII
)


class Demo:
    """A demo in a terminal of its own."""

    def __init__(self, pid: int, leader: int) -> None:
        self.pid, self._leader = pid, leader
        self.raw = ""

    @property
    def screen(self) -> str:
        """All that was ever drawn, without what moves the cursor."""
        return ESCAPES.sub("", self.raw)

    def shows(self, pattern: str) -> re.Match[str]:
        """Wait until this has been drawn since the last `type`."""
        deadline = time.monotonic() + HANG
        while not (found := re.search(pattern, self.screen)):
            assert time.monotonic() < deadline, f"{pattern} is not in {self.screen[-3000:]!r}"
            assert self._read(), f"it has ended: {self.screen[-3000:]!r}"
        return found

    def type(self, text: str) -> None:
        self.raw = ""
        os.write(self._leader, text.encode())

    def _read(self) -> bool:
        if select.select([self._leader], [], [], 0.5)[0]:
            try:
                self.raw += os.read(self._leader, 65536).decode(errors="replace")
            except OSError:
                return False
        return True

    def code(self) -> int:
        """Wait for the end; return the exit code."""
        while self._read():
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


@contextmanager
def demo(folder: Path, *arguments: str, size: tuple[int, int] = (40, 120), **environment: str) -> Iterator[Demo]:
    pid, leader = pty.fork()
    if pid == 0:
        surroundings = {**os.environ, "TERM": "xterm-256color", "TMPDIR": str(folder), **environment}
        for name in ("COLUMNS", "LINES"):
            surroundings.pop(name, None)
        os.execvpe(COMMAND[0], [*COMMAND, *arguments], surroundings)
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    made = Demo(pid, leader)
    try:
        yield made
    finally:
        if made.pid:
            os.kill(made.pid, signal.SIGKILL)
            os.waitpid(made.pid, 0)
        os.close(leader)


def family(pid: int) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return found


def hears_ctrl_c(process: psutil.Process, demo: int) -> bool:
    """Return whether Ctrl-C in the terminal reaches a process: one that still imports would die of it, with a traceback."""
    if os.getsid(process.pid) != os.getsid(demo):
        return False
    masks = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return not any(int(masks[kind], 16) & 1 << signal.SIGINT - 1 for kind in ("SigBlk", "SigIgn"))


def are_gone(processes: list[psutil.Process]) -> bool:
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)


def test_single_keys_kill_join_drain_burst_and_steal(tmp_path: Path) -> None:
    with demo(tmp_path) as shown:
        shown.shows("starting 4 workers")
        shown.shows(r"w4 +\d+ keys?")
        shown.type("?")
        shown.shows("kill the busiest worker with -9")
        shown.type("?")
        shown.shows(r"\[\d\d\]")  # a key that runs, readable without colour
        shown.type("k")
        shown.shows("KILLED -9")
        found = shown.shows(SENTENCE.pattern)
        assert int(found[2]) > 0
        shown.shows(r"gpu-0 +\w+ +train")
        shown.type("g")
        while not (victim := shown.shows(r"killed with -9 while holding (gpu-\d)|nobody holds a GPU just now"))[1]:
            shown.type("g")  # all of them were between two turns
        shown.shows(rf"{victim[1]}: \w+ was next in line, and has it")
        shown.type("j")
        shown.shows("w5 has joined")
        shown.type("d")
        leaver = shown.shows(r"(w\d+) told to leave")[1]
        shown.shows(leaver + r": \d+ keys? moved in [\d.]+ m?s, 0 jobs re-run, 0 lost, order kept")
        shown.type("b")
        shown.shows("dispatches 60 jobs at once")
        shown.type("s")
        shown.shows(r"you steal gpu-\d from \w+|nobody holds a GPU|nothing was stolen")
        children = family(shown.pid)
        assert len(children) > 5
        shown.type("q")
        assert shown.code() == 0
        assert "0 lost, order kept" in shown.screen and "Traceback" not in shown.screen
        until(lambda: are_gone(children))
        assert not list(tmp_path.glob("millpond-*"))


def test_a_demo_that_is_killed_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    with demo(tmp_path) as shown:
        shown.shows(r"w1 +\d+ keys?")
        children = family(shown.pid)
        os.kill(shown.pid, signal.SIGKILL)
        shown.code()
        until(lambda: are_gone(children))
        until(lambda: not list(tmp_path.glob("millpond-*")))


def test_the_demo_fits_a_small_terminal_needs_no_colour_and_is_left_by_ctrl_c(tmp_path: Path) -> None:
    with demo(tmp_path, size=(16, 44), NO_COLOR="1") as shown:
        shown.shows(r"w1 +\d+ keys?")
        shown.shows(r"\[\d\d\]")
        assert not re.search(r"\x1b\[[0-9;]*(?:3[0-7]|38;|4[0-7]|48;|9[0-7])[0-9;]*m", shown.raw)
        until(lambda: any("forkserver" in str(one.cmdline()) for one in family(shown.pid)))
        children = family(shown.pid)
        assert [one.cmdline() for one in children if hears_ctrl_c(one, shown.pid)] == []
        shown.type("\x03")
        assert shown.code() == 0
        assert "left by Ctrl-C" in shown.screen and "Traceback" not in shown.screen
        until(lambda: are_gone(children))
        assert not list(tmp_path.glob("millpond-*"))


def test_a_tiny_terminal_shows_the_keys_and_what_happens_last(tmp_path: Path) -> None:
    with demo(tmp_path, size=(10, 40)) as shown:
        shown.shows(r"k g b j d s \? q")
        shown.shows(r"w1 +\d+ keys?")
        shown.type("k")
        shown.shows(r"w\d+ killed with -9; it owned")
        shown.type("q")
        assert shown.code() == 0


def test_without_a_terminal_it_plays_prints_what_it_counted_and_records_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    done = subprocess.run(
        [*COMMAND, "--seconds", "1", "-o", "json", "--record", str(picture)],
        capture_output=True,
        text=True,
        timeout=2 * HANG,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["lost"] == 0 and outcome["order_kept"] and outcome["jobs_done"] == outcome["jobs_dispatched"] > 0
    (killed,) = outcome["workers_ended"]
    assert killed["killed"] and killed["keys_moved"] > 0 and SENTENCE.fullmatch(killed["sentence"])
    assert all(one["next"] not in ("", one["victim"]) for one in outcome["gpu_holders_killed"])
    assert set(outcome["local_pools"]) == {"thumbnails", "primes", "fetches"}
    assert killed["sentence"] in done.stderr  # what happens is told as it happens
    drawn = picture.read_text()
    ElementTree.fromstring(drawn)
    assert "@keyframes" in drawn and "prefers-reduced-motion" in drawn and killed["sentence"] in drawn
    assert "<script" not in drawn and not re.search(r"(?:href|url\()", drawn) and len(drawn) < 100_000
    assert not list(tmp_path.glob("millpond-*"))


def test_what_the_demo_cannot_do_is_refused_before_it_plays(tmp_path: Path) -> None:
    for wrong, said in (
        (["--record", str(tmp_path / "missing" / "demo.svg")], "its folder must be there, and writable"),
        (["--record", ""], "its folder must be there, and writable"),
        (["--seconds", "nan"], "nan is no number of seconds"),
    ):
        done = subprocess.run([*COMMAND, *wrong], capture_output=True, text=True, timeout=HANG)
        assert (done.returncode, done.stdout) == (2, "") and said in done.stderr, done.stderr


def test_a_demo_without_a_terminal_that_is_told_to_end_is_no_success(tmp_path: Path) -> None:
    for number, said in ((signal.SIGTERM, "left by SIGTERM"), (signal.SIGINT, "left by Ctrl-C")):
        with subprocess.Popen(
            [*COMMAND, "--seconds", "1000"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline()
            running.send_signal(number)
            assert said in running.stdout.read()
            assert running.wait(HANG) == 128 + number
        assert not list(tmp_path.glob("millpond-*"))


def test_who_is_killed_already_is_not_killed_again(tmp_path: Path) -> None:
    with demo(tmp_path) as shown:
        shown.shows(r"gpu-2 +\w+ +train")
        shown.type("g" * 9)  # more often than there are GPUs
        shown.shows("nobody holds a GPU just now")
        victims = re.findall(r"(\w+) killed with -9 while holding", shown.screen)
        shown.type("q")
        assert shown.code() == 0
        counted = re.findall(r"gpu-\d: (\w+) killed, \w+ had it", shown.screen)
        assert len(counted) == len(set(counted)) <= 3 and set(counted) <= set(victims)
