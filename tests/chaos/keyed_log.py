"""What happened, as every process of a storm saw it: one line per event, in one file that all append to.

A line of less than a page that is written at once to a file opened with O_APPEND is there whole or not at all, whoever
is killed meanwhile. Times are of the machine's monotonic clock, which all its processes share. A handler takes the time
of its start after it began and that of its end before it returns, so what the file says is never longer than the truth.

    S t pid lane key number token attempt   a handler begins; lane: j (jobs of a key) or r (the resident of a key)
    E t pid lane key number token how       it ends: ok, stopped (it was told to), failed
    R t pid key token done                  the store has confirmed that so many jobs of a take have ended
    M t pid key number token                a resident has handled a message
    W t pid what                            what a worker says of itself: joined, lost, left, ...
    D t pid key number                      a job is about to be dispatched
    A t pid key number                      it was acknowledged
    N t pid key number                      a message to a resident was acknowledged
    + t pid key       - t pid key           a resident was started, stopped: acknowledged
    K t pid           G t pid               a process is killed, it is dead for sure
    P t pid           C t pid               it stands still (SIGSTOP), it goes on (SIGCONT)
    I t pid since                           it may have stood still since then, whoever saw to that
    T t pid           X t pid code          it was asked to leave (SIGTERM), it ended by itself
    O t pid           U t pid               the store is out of reach of this process (0: of all), it is back
"""

from __future__ import annotations

import os
import time
from pathlib import Path


class Log:
    """The file, open for appending."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._pid = os.getpid()

    def write(self, what: str, *fields: object, pid: int | None = None, at: float | None = None) -> None:
        os.write(self._file, self.line(what, *fields, pid=pid, at=at))

    def line(self, what: str, *fields: object, pid: int | None = None, at: float | None = None) -> bytes:
        moment = time.monotonic() if at is None else at
        words = (what, f"{moment:.6f}", self._pid if pid is None else pid, *fields)
        return (" ".join(map(str, words)) + "\n").encode()

    def write_lines(self, lines: list[bytes]) -> None:
        """Write many at once: they are all there, or none."""
        os.write(self._file, b"".join(lines))

    def close(self) -> None:
        os.close(self._file)
