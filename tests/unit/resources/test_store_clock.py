"""The clock of a store, as a companion knows it from answers that take a while."""

from __future__ import annotations

import pytest

from millpond.resources.engines.log import _hosted
from millpond.resources.engines.log._hosted import StoreClock

SECOND = 1_000_000


class Here:
    """The clock of this machine, in a test that moves it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    clock = Here()
    monkeypatch.setattr(_hosted, "elapsed", clock)
    return clock


def test_a_slow_answer_does_not_set_the_clock_back(here: Here):
    """Else a lease that begins after it ends too early, by as much, when the next answer is quick."""
    clock = StoreClock()
    clock.heard(500 * SECOND)
    here.seconds += 1.0
    clock.heard(500 * SECOND + SECOND * 4 // 10)  # 0.6 s on its way
    here.seconds += 0.1
    began = clock.now()
    here.seconds += 0.1
    clock.heard(501 * SECOND + SECOND * 2 // 10)
    assert clock.now() - began == pytest.approx(0.1 * SECOND, abs=2000)


def test_it_is_never_ahead(here: Here):
    clock = StoreClock()
    clock.heard(500 * SECOND)
    for second in range(1, 60):
        here.seconds += 1.0
        store = 500 * SECOND + second * SECOND * 9996 // 10_000  # its clock is slow
        clock.heard(store - 1000 * (second % 7))
        assert clock.now() <= store


def test_a_clock_that_was_set_back_is_believed_after_a_while(here: Here):
    clock = StoreClock()
    clock.heard(500 * SECOND)
    last = clock.now()
    for _ in range(12):
        here.seconds += 1.0
        clock.heard(int(here.seconds - 100) * SECOND)
        assert clock.now() >= last
        last = clock.now()
    here.seconds += 1.0
    assert clock.now() == last < 513 * SECOND
