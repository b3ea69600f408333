"""The one thread that watches the clock."""

from __future__ import annotations

import threading
import time

from millpond.local import _timer
from millpond.local._timer import Timer


def test_appointments_are_kept_in_the_order_of_their_time():
    timer, kept, done = Timer(), [], threading.Event()
    timer.after(0.06, done.set)
    timer.after(0.04, lambda: kept.append(2))
    timer.after(0.02, lambda: kept.append(1))
    assert done.wait(10)
    assert kept == [1, 2]


def test_an_appointment_that_was_called_off_is_not_kept():
    timer, kept, done = Timer(), [], threading.Event()
    appointment = timer.after(0.02, lambda: kept.append(1))
    timer.after(0.05, done.set)
    assert appointment.cancel() is True
    assert appointment.cancel() is False
    assert done.wait(10)
    assert kept == []


def test_a_call_that_raises_is_logged_and_harms_no_other(caplog):
    timer, done = Timer(), threading.Event()
    timer.after(0.0, lambda: 1 / 0)
    timer.after(0.01, done.set)
    assert done.wait(10)
    assert "a timer's call raised" in caplog.text


def test_the_thread_ends_when_there_is_nothing_left(monkeypatch):
    monkeypatch.setattr(_timer, "LINGER", 0.02)
    timer = Timer()
    timer.after(60, int).cancel()
    thread = timer._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()
    done = threading.Event()
    timer.after(0.0, done.set)
    assert done.wait(10), "and starts again when it is needed"


def test_called_off_appointments_do_not_pile_up():
    timer = Timer()
    for _ in range(10_000):
        timer.after(3600, int).cancel()
    assert len(timer._heap) <= 1001


def test_a_nearer_appointment_wakes_the_thread():
    timer, done = Timer(), threading.Event()
    later = timer.after(30, int)
    time.sleep(0.01)
    timer.after(0.01, done.set)
    assert done.wait(0.5)
    later.cancel()
