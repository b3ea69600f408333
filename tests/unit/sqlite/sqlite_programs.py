"""Programs that tests start, talk to line by line, stop and kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

PRELUDE = """
import os, random, signal, sys, threading, time
from millpond._sqlite import *
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def hear():
    return sys.stdin.readline().strip()
"""


class Program:
    def __init__(self, script: str, *args: object, prefix: tuple[str, ...] = ()) -> None:
        command = [*prefix, sys.executable, "-c", PRELUDE + textwrap.dedent(script), *map(str, args)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.pid = self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended with {self.process.wait()}"
        return line.strip()

    def tell(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def ask(self, text: str = "") -> str:
        self.tell(text)
        return self.line()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """SIGSTOP, and return when it has stopped."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        """kill -9, and return when it is a zombie."""
        self.signal(signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def end(self) -> int:
        self.process.communicate()
        return self.process.returncode

    def destroy(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Starter:
    def __init__(self) -> None:
        self.programs: list[Program] = []

    def __call__(self, script: str, *args: object, prefix: tuple[str, ...] = ()) -> Program:
        program = Program(script, *args, prefix=prefix)
        self.programs.append(program)
        return program


@pytest.fixture
def start() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    for program in starter.programs:
        program.destroy()
