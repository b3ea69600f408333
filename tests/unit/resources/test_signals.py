"""Signals while something is asked for, held and given back: nothing stays held, whatever instruction they strike at."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from millpond._interrupts import shielded
from millpond.resources import ResourcePool, _bridge, _grant
from millpond.resources._rules.commands import Acquire
from waiting import HANG, until

STRUCK = (_grant.__file__, _bridge.__file__)


class Alarm(Exception):
    """What a handler of a user's raises."""


class Strike:
    """Raises an exception at the n-th instruction of some modules, as the handler of a signal would."""

    def __init__(self, number: int, error: type[BaseException]) -> None:
        self._left, self._error = number, error
        self.has_struck = False

    def __enter__(self) -> Strike:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_name
        if frame.f_code.co_filename not in STRUCK or name in ("__del__", "set"):  # engines shield who sets a latch
            return None
        frame.f_trace_opcodes = True
        return self._look

    def _look(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and not self.has_struck:
            self._left -= 1
            if self._left < 0:
                self.has_struck = True
                sys.settrace(None)
                raise self._error("struck")
        return self._look


@pytest.fixture(params=["memory", "sqlite"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ResourcePool]:
    url = f"memory:signals-{time.monotonic_ns()}" if request.param == "memory" else f"sqlite:///{tmp_path}/pools.db"
    with ResourcePool("lab", url) as made:
        made.add("a")
        yield made


def use(pool: ResourcePool) -> None:
    with pool.acquire(timeout=HANG):
        pass


def is_free(pool: ResourcePool) -> bool:
    if pool.holders() or pool.waiters():
        gc.collect(0)  # only then: a free-threaded build collects everything, each time
    return not pool.holders() and not pool.waiters()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Alarm])
def test_nothing_stays_held_wherever_a_signal_strikes(pool: ResourcePool, error: type[BaseException]):
    every = 1 if pool.url.startswith("memory") else 5
    with Strike(1 << 30, error):
        use(pool)  # some Pythons trace the instructions of a function from its second call on
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for number in itertools.count(0, every):
            strike = Strike(number, error)
            try:
                with strike:
                    use(pool)
            except error:
                pass
            until(lambda: is_free(pool), f"nothing is held after a strike at {number}")
            if not strike.has_struck:
                break
    assert number > 100
    use(pool)


def test_a_grant_whose_end_of_life_a_signal_strikes_is_given_back(pool: ResourcePool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: None)

    def struck(grant: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_grant.Grant, "__del__", struck)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        pool.acquire(request_id="mine")
        until(lambda: is_free(pool))
        pool.acquire()
        pool.acquire(timeout=HANG)  # who asks next finds it
        until(lambda: is_free(pool))


def test_grants_that_were_freed_are_not_kept(pool: ResourcePool):
    for _ in range(20):
        use(pool)
    assert len(pool._own._gone) <= 2


def test_a_child_that_is_forked_while_signals_are_held_back_hears_them():
    inside, forked = threading.Event(), threading.Event()
    codes: list[int] = []

    def fork() -> None:
        inside.wait(HANG)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it does nothing but wait
            child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                time.sleep(0.01)
            os._exit(8)  # it is deaf
        forked.set()
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(7)

    before = signal.signal(signal.SIGTERM, end)
    thread = threading.Thread(target=fork)
    thread.start()
    try:

        def step() -> None:
            inside.set()
            forked.wait(HANG)

        shielded(step)
        thread.join(HANG)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert codes == [7]


def test_a_bad_call_fails_alone(tmp_path: Path):
    """Who breaks a rule of the engine harms none of those whose calls go with it."""
    with ResourcePool("lab", f"sqlite:///{tmp_path}/pools.db") as pool:
        for number in range(4):
            pool.add(f"r{number}")
        engine: Any = pool._engine
        answers: list[Any] = []
        troubles: list[BaseException] = []
        is_over = threading.Event()

        def honest(name: str) -> None:
            while not is_over.is_set():
                try:
                    with pool.acquire(name=name, timeout=HANG):
                        pass
                except BaseException as error:
                    troubles.append(error)
                    return

        threads = [threading.Thread(target=honest, args=(f"r{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for number in range(20):
            command = Acquire(f"bad {number}", engine.session, 0, engine.holder, wants=object())  # type: ignore[arg-type]
            engine.apply("lab", command, answers.append, block=bool(number % 2))
            until(lambda: len(answers) == number + 1)  # noqa: B023
        is_over.set()
        for thread in threads:
            thread.join(HANG)
        assert not troubles
        assert all(isinstance(one, Exception) for one in answers)
        assert not pool.holders() and not pool.waiters()
