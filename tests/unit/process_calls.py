"""What the tests of `ProcessPool` run in worker processes: functions that a worker can import by name."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import sys
import time
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

state: dict[str, Any] = {}


class Gate:
    """Holds a task in a worker: `hold(gate.path)` there; `wait()` here until it has come, `open()` to let it go on."""

    numbers = itertools.count()

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / f"gate-{next(self.numbers)}")
        os.mkfifo(self.path)
        self._file: Any = None

    def wait(self) -> Gate:
        self._file = open(self.path, "w")  # returns when the other side opens it, too
        return self

    def has_come(self) -> bool:
        """Say whether a task is held by now; if so, as after `wait`, it is for `open` to let it go on."""
        try:
            self._file = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK), "w")
        except OSError as error:
            if error.errno == errno.ENXIO:  # nobody reads
                return False
            raise
        return True

    def open(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def hold(path: str, value: Any = None) -> Any:
    with open(path) as file:
        file.read()
    return value


def noop() -> None:
    pass


def square(x: int) -> int:
    return x * x


def square_with_pauses(x: int) -> int:
    """Take long enough now and then to be struck in the middle."""
    if x % 250 == 0:
        time.sleep(0.002)
    return x * x


def add(*numbers: int, scale: int = 1) -> int:
    return sum(numbers) * scale


def same(value: Any) -> Any:
    return value


def size(data: bytes) -> int:
    return len(data)


def blow_up(data: bytes, times: int) -> bytes:
    return data * times


def pid(*_: Any) -> int:
    return os.getpid()


def fail(message: str = "bad") -> None:
    raise ValueError(message)


def fail_at(x: int, bad: int) -> int:
    if x == bad:
        raise ValueError(f"bad {x}")
    return x


def fail_at_or_wait(x: int, bad: int, last: int, path: str) -> int:
    """Return `x`; those after `last` wait until the file is there."""
    while x > last and not os.path.exists(path):
        time.sleep(0.002)
    return fail_at(x, bad)


def fail_with_note() -> None:
    error = ValueError("bad")
    error.add_note("look here")
    raise error


def exit_politely() -> None:
    sys.exit(7)


def die(code: int = 3) -> None:
    os._exit(code)


def die_at(x: int, bad: int) -> int:
    if x == bad:
        os._exit(3)
    return x


def die_once(path: str) -> str:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "second time"
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def write_line(path: str, line: Any) -> Any:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)
    return line


def write_pid(path: str) -> None:
    write_line(path, os.getpid())


def remember(value: Any) -> None:
    state["value"] = value


def recall() -> Any:
    return state.get("value")


def count_up() -> tuple[int, int]:
    state["count"] = state.get("count", 0) + 1
    return os.getpid(), state["count"]


def grow(number: int) -> int:
    state["ballast"] = b"x" * number
    return os.getpid()


def make_function() -> Any:
    return lambda: None


def nested(number: int) -> int:
    from millpond import ProcessPool

    pool = ProcessPool(1)  # never shut down: the worker's end does that
    return sum(pool.map(square, range(number)))


def cancelled_error() -> None:
    raise CancelledError("of my own")


class Unloadable(Exception):
    """Can be pickled, but not loaded."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def raise_unloadable() -> None:
    raise Unloadable(1, 2)


class Grumpy:
    """Refuses to be loaded anywhere."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("not here")


def make_grumpy() -> Grumpy:
    return Grumpy()


class Adder:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, x: int) -> int:
        return self.number + x

    def add(self, x: int) -> int:
        return self.number + x


class Mute(Exception):
    """An error that cannot say what it is, nor be loaded where it is sent."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__()

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


def raise_mute() -> None:
    raise Mute("a", "b")


def raise_exit() -> None:
    raise SystemExit(3)


class RunsWhenPickled:
    """Something that runs a function when it is pickled."""

    def __init__(self, when_pickled: Any) -> None:
        self.when_pickled = when_pickled

    def __reduce__(self) -> Any:
        return self.when_pickled()


class RunsWhenLoaded:
    """Something that runs a function when it is loaded."""

    def __init__(self, when_loaded: Any) -> None:
        self.when_loaded = when_loaded

    def __reduce__(self) -> Any:
        return self.when_loaded, ()


class Nameless:
    """Something to call that has no name and cannot be shown."""

    def __call__(self) -> None:
        raise ValueError("bad")

    def __repr__(self) -> str:
        raise ValueError("no words")


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception to which nothing can be assigned."""

    code: int


def raise_frozen() -> None:
    raise Frozen(7)


async def raise_frozen_later() -> None:
    raise Frozen(7)
