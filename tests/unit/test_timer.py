"""The one thread that watches the clock."""

from __future__ import annotations

import threading
import time

from millpond.local import _timer
from millpond.local._timer import Timer
from waiting import HANG, until


def busy_timer() -> tuple[Timer, threading.Event]:
    """A timer whose thread is kept busy by an appointment until the event is set, so that it keeps no other."""
    timer, go_on, is_busy = Timer(), threading.Event(), threading.Event()
    timer.after(0.0, lambda: (is_busy.set(), go_on.wait(HANG)))
    assert is_busy.wait(HANG)
    return timer, go_on


def test_appointments_are_kept_in_the_order_of_their_time(monkeypatch):
    timer, go_on = busy_timer()
    kept, done = [], threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: 0.0)  # all three are made at the same moment, long ago
        timer.after(0.06, done.set)
        timer.after(0.04, lambda: kept.append(2))
        timer.after(0.02, lambda: kept.append(1))
    go_on.set()
    assert done.wait(HANG)
    assert kept == [1, 2]


def test_an_appointment_that_was_called_off_is_not_kept():
    timer, go_on = busy_timer()
    kept, done = [], threading.Event()
    appointment = timer.after(0.0, lambda: kept.append(1))
    timer.after(0.0, done.set)
    assert appointment.cancel() is True
    assert appointment.cancel() is False
    go_on.set()
    assert done.wait(HANG)
    assert kept == []


def test_a_call_that_raises_is_logged_and_harms_no_other(caplog):
    timer, done = Timer(), threading.Event()
    timer.after(0.0, lambda: 1 / 0)
    timer.after(0.01, done.set)
    assert done.wait(HANG)
    assert "a timer's call raised" in caplog.text


def test_the_thread_ends_when_there_is_nothing_left(monkeypatch):
    monkeypatch.setattr(_timer, "LINGER", 0.02)
    timer = Timer()
    appointment = timer.after(3600, int)
    thread = timer._thread
    assert thread is not None
    appointment.cancel()
    thread.join(HANG)
    assert not thread.is_alive()
    done = threading.Event()
    timer.after(0.0, done.set)
    assert done.wait(HANG), "and starts again when it is needed"


def test_called_off_appointments_do_not_pile_up():
    timer = Timer()
    for _ in range(10_000):
        timer.after(3600, int).cancel()
    assert len(timer._heap) <= 1001


def test_a_nearer_appointment_wakes_the_thread(monkeypatch):
    timer, done = Timer(), threading.Event()
    monkeypatch.setattr(_timer, "LINGER", 3600.0)  # it does not look for itself
    later = timer.after(7200, int)
    until(lambda: timer._wakes_at > 0)
    timer.after(0.01, done.set)
    assert done.wait(HANG)
    monkeypatch.undo()
    later.cancel()
    timer.after(0.0, int)  # wakes the thread, which sees that there is nothing left
