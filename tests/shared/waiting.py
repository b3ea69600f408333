"""How tests wait: for what must have happened, never for so many seconds.

A test that must be green on a busy machine follows four rules (CONTRIBUTING.md tells them with examples):

1. Wait for the event, with `until`: its limit only tells a hang from slowness, so it is the same for all and large.
2. Strike after progress, never after time: kill a worker once it is seen to hold, to run, to own.
3. Compare with what was caused: an order, a count, a state. How quick something is, is for `benchmarks/`.
4. "It does not happen" is shown by something later that did (the next job ran, and this one still has not), or, where
   there is nothing later, by `never`: a short look that a slow machine can only make too kind, not red.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import sys
import time
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")

HANG = 60.0
"""Seconds after which what must happen is taken to hang. A test that needs all of them is red anyway."""

_POLL = 0.002


class Pace:
    """When to ask again: soon at first, then less often, and never so often that the asking itself takes most of a core."""

    def __init__(self, timeout: float) -> None:
        self._began = self._asked = time.monotonic()
        self._timeout = timeout

    def pause(self) -> float:
        """Return after how many seconds to ask again; 0.0 when the time is over."""
        now = time.monotonic()
        waited, cost = now - self._began, now - self._asked
        if waited > self._timeout:
            return 0.0
        pause = max(_POLL, min(waited / 50, 0.01), min(2 * cost, 0.1))
        self._asked = now + pause
        return pause


def until(question: Callable[[], T], what: str = "", timeout: float = HANG) -> T:
    """Return the first answer that is true; fail with the last one after `timeout` seconds."""
    pace = Pace(timeout)
    while not (answer := question()):
        pause = pace.pause()
        if not pause:
            raise AssertionError(f"{what or 'it'} did not come true in {timeout:g} s: {answer!r}")
        time.sleep(pause)
    return answer


def freed(*refs: weakref.ref[Any]) -> bool:
    """Return whether things are gone. Without the GIL what a sleeping thread has made waits for it, or for the collector."""
    if "t" in sys.abiflags:
        gc.collect()
    return all(ref() is None for ref in refs)


@contextlib.contextmanager
def warnings_of_all_threads() -> Iterator[list[warnings.WarningMessage]]:
    """Record the warnings of all threads. On a free-threaded build `catch_warnings` has those of its own context only."""
    with warnings.catch_warnings(record=True) as caught, contextlib.ExitStack() as stack:
        warnings.simplefilter("always")
        if getattr(sys.flags, "context_aware_warnings", False):

            def warn(text: str, category: type[Warning], stacklevel: int = 1) -> None:
                caught.append(warnings.WarningMessage(category(text), category, "", 0))

            stack.enter_context(mock.patch.object(warnings, "warn", warn))
        yield caught


def becomes(question: Callable[[], Any], value: object, timeout: float = HANG) -> None:
    """Wait until the answer is `value`; fail with the last answer after `timeout` seconds."""
    pace = Pace(timeout)
    while (answer := question()) != value:
        pause = pace.pause()
        if not pause:
            raise AssertionError(f"after {timeout:g} s it is {answer!r}, not {value!r}")
        time.sleep(pause)


async def auntil(question: Callable[[], T | Awaitable[T]], what: str = "", timeout: float = HANG) -> T:
    """Do the same in an event loop; the question may be a coroutine function."""
    pace = Pace(timeout)
    while True:
        asked = question()
        answer: T = await asked if inspect.isawaitable(asked) else asked  # type: ignore[assignment]
        if answer:
            return answer
        pause = pace.pause()
        if not pause:
            raise AssertionError(f"{what or 'it'} did not come true in {timeout:g} s: {answer!r}")
        await asyncio.sleep(pause)


def never(question: Callable[[], object], what: str = "", seconds: float = 0.1) -> None:
    """Look for a short while, and fail if the answer becomes true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = question()
        assert not answer, f"{what or 'it'} came true: {answer!r}"
        time.sleep(_POLL)
