"""What tests of local pools run in their workers: functions that a worker process can import by name, and twins of them
for an event loop. What they do, they write into files, so that tests can compare what a pool says with what was done."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from waiting import HANG, until

P = TypeVar("P", bound=Executor)

_POLL = 0.002


class Journal:
    """Lines that tasks write, each with one atomic append, whatever process or thread they run in."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        path.touch()

    def lines(self) -> list[list[str]]:
        return [line.split() for line in Path(self.path).read_text().splitlines()]

    def of(self, verb: str) -> list[str]:
        """Return the first word after `verb`, of every line that starts with it."""
        return [line[1] for line in self.lines() if line[0] == verb]


class Gate:
    """Holds tasks that call `hold(gate.path, ...)` until it is opened."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self.path = str(folder / name)
        self.journal = Journal(folder / f"{name}.journal")

    def began(self) -> int:
        """Count the tasks that have come here so far."""
        return len(self.journal.of("begin"))

    def wait_for(self, number: int) -> None:
        until(lambda: self.began() >= number, f"{number} tasks in the gate")

    def open(self) -> None:
        Path(self.path).touch()

    def is_open(self) -> bool:
        return Path(self.path).exists()


@contextmanager
def opened_at_the_end(gate: Gate) -> Iterator[Gate]:
    try:
        yield gate
    finally:
        gate.open()


@contextmanager
def ended(pool: P) -> Iterator[P]:
    """Leave a pool as `with pool:` does, but do not wait for it when the test has failed: it may never end."""
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def write(path: str, *words: Any) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)


def hold(path: str, value: Any = None) -> Any:
    """Wait in the gate at `path`, and return `value`."""
    write(f"{path}.journal", "begin", value)
    deadline = time.monotonic() + HANG
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(_POLL)
    write(f"{path}.journal", "end", value)
    return value


async def async_hold(path: str, value: Any = None) -> Any:
    write(f"{path}.journal", "begin", value)
    deadline = time.monotonic() + HANG
    while not os.path.exists(path) and time.monotonic() < deadline:  # noqa: ASYNC240
        await asyncio.sleep(_POLL)
    write(f"{path}.journal", "end", value)
    return value


def same(value: Any = None) -> Any:
    return value


def fail(message: str = "bad") -> None:
    raise ValueError(message)


def fail_at(value: int, bad: int) -> int:
    if value == bad:
        raise ValueError(f"bad {value}")
    return value


def note(path: str, value: Any, error: str = "") -> Any:
    """Write that a task began and how it ended; raise `error` if there is one."""
    write(path, "begin", value, worker())
    if error:
        write(path, "fail", value)
        raise ValueError(error)
    write(path, "end", value, worker())
    return value


def worker(*_: Any) -> str:
    """Say where this runs."""
    return f"{os.getpid()}-{threading.get_ident()}"


def is_quick(value: int, slow: int, path: str) -> int:
    """Return `value`; the slow one waits in the gate at `path` first."""
    return hold(path, value) if value == slow else value  # type: ignore[no-any-return]


async def async_is_quick(value: int, slow: int, path: str) -> int:
    return await async_hold(path, value) if value == slow else value  # type: ignore[no-any-return]


def hide_cloudpickle() -> None:
    """Make this process one where cloudpickle is not installed."""
    sys.modules["cloudpickle"] = None  # type: ignore[assignment]


def make_function() -> Callable[[], int]:
    return lambda: 1


def interrupt() -> str:
    signal.raise_signal(signal.SIGINT)
    return "went on"


_TWINS: dict[Any, Any] = {hold: async_hold, is_quick: async_is_quick}


@functools.cache
def in_a_loop(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the coroutine function that does what `fn` does."""
    if fn in _TWINS:
        return _TWINS[fn]  # type: ignore[no-any-return]

    @functools.wraps(fn)
    async def twin(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return twin
