"""A step that must be whole: signals strike after it, none is lost."""

from __future__ import annotations

import signal
import threading

import pytest

from alarms import Alarm, alarm_at
from millpond import _interrupts
from millpond._interrupts import shielded


@pytest.fixture
def struck():
    """Count SIGUSR1 and raise at SIGUSR2, as a program's own handlers may."""
    heard: list[int] = []

    def fail(number: int, frame: object) -> None:
        heard.append(number)
        raise TimeoutError("the alarm")

    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    signal.signal(signal.SIGUSR2, fail)
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_strikes_after_the_step(struck):
    order = []

    def step() -> str:
        signal.raise_signal(signal.SIGUSR1)
        order.append(("in the step", list(struck)))
        return "done"

    assert shielded(step) == "done"
    assert order == [("in the step", [])]
    assert struck == [signal.SIGUSR1]


def test_a_handler_that_raises_does_so_after_the_whole_step_and_hides_no_other(struck):
    done = []

    def step() -> None:
        signal.raise_signal(signal.SIGUSR2)
        signal.raise_signal(signal.SIGUSR1)
        done.append(True)

    with pytest.raises(TimeoutError, match="the alarm"):
        shielded(step)
    assert done == [True]
    assert struck == [signal.SIGUSR2, signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL


def test_an_error_of_the_step_comes_out_and_handlers_are_back(struck):
    handler = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(ZeroDivisionError):
        shielded(lambda: 1 // 0)
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_another_thread_just_does_the_step(struck):
    results = []
    thread = threading.Thread(target=lambda: results.append(shielded(lambda: 7)))
    thread.start()
    thread.join()
    assert results == [7]


def test_all_signals_are_heard_again_whenever_one_strikes(struck):
    moment = 0
    while True:
        moment += 1
        others = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR2)}
        try:
            with alarm_at(moment):
                shielded(int)
        except Alarm:
            assert {number: signal.getsignal(number) for number in others} == others, moment
            assert not _interrupts._shielded, moment
        else:
            break
    assert moment > 10
