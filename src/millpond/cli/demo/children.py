"""The child processes of the demo, and what they say, in the order in which it happened.

One thread reads all of them. A line counts from when it was written, not from when it is read: what was written before
the thread began a round is there to be read in that round, so lines up to that moment are passed on sorted, and later
ones wait for the next round. (A key's next job begins after its last one was reported, on whatever worker: so causes
come before effects.)
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from millpond.cli.demo.telling import FOLDER

Fact = dict[str, Any]
ROUND: Final = 0.02
PATIENCE: Final = 5.0
"""Seconds that a child has to end once its stdin has."""


class Child:
    """One process: a worker, or a user of GPUs."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], hear: Callable[[str, Fact], None]) -> None:
        self.name = name
        self.process = process
        self.hear = hear
        self.rest = b""

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def kill(self) -> float:
        """Kill it with -9; return when."""
        at = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        return at

    def terminate(self) -> float:
        """Ask it to end (SIGTERM); return when that was."""
        at = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return at


class Children:
    """Starts processes, and passes on what they say."""

    def __init__(self, folder: str) -> None:
        self._environment = {**os.environ, FOLDER: folder}
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._children: list[Child] = []
        self._later: list[tuple[float, int, Child, Fact]] = []
        self._count = itertools.count()
        self.heard_until = 0.0
        """What was written before this moment has been passed on."""
        self._is_over = threading.Event()
        self._reader = threading.Thread(target=self._read, name="reads the demo's processes", daemon=True)
        self._reader.start()

    def start(self, name: str, hear: Callable[[str, Fact], None], program: str, *arguments: str) -> Child:
        """Start a process of its own session, which Ctrl-C in this terminal does not reach; `hear` what it says."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"millpond.cli.demo.{program}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        child = Child(name, process, hear)
        with self._lock:
            self._children.append(child)
            self._selector.register(process.stdout, selectors.EVENT_READ, child)
        return child

    def close(self) -> None:
        """End all of them: their stdin ends; who does not heed that is killed."""
        with self._lock:
            children = list(self._children)
        for child in children:
            assert child.process.stdin is not None
            with contextlib.suppress(OSError):
                child.process.stdin.close()
        deadline = time.monotonic() + PATIENCE
        for child in children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self._is_over.set()
        self._reader.join()
        self._selector.close()
        for child in children:
            assert child.process.stdout is not None
            child.process.stdout.close()

    def _read(self) -> None:
        while not self._is_over.wait(ROUND):
            began = time.monotonic()
            with self._lock:
                ready = self._selector.select(0)
            for key, _ in ready:
                self._take(key.data, key.fileobj)
            while self._later and self._later[0][0] <= began:
                _, _, child, fact = heapq.heappop(self._later)
                child.hear(child.name, fact)
            self.heard_until = began

    def _take(self, child: Child, pipe: Any) -> None:
        while True:
            try:
                piece = os.read(pipe.fileno(), 65536)
            except BlockingIOError:
                break
            if not piece:  # it has ended
                with self._lock:
                    self._selector.unregister(pipe)
                child.process.poll()
                break
            child.rest += piece
        *lines, child.rest = child.rest.split(b"\n")
        for line in lines:
            fact = json.loads(line)
            heapq.heappush(self._later, (fact["at"], next(self._count), child, fact))
