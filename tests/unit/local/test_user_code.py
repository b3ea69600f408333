"""Users' functions that are slow, that wait or that raise: callbacks, observers, sizing rules. They harm nobody else."""

from __future__ import annotations

import contextlib
import signal
import threading
from concurrent.futures import FIRST_COMPLETED
from functools import partial
from typing import Any

import pytest

from millpond import CancelToken, ProcessPool, Snapshot, Task, TaskTimeout, ThreadPool, as_completed, wait
from millpond._atomic import _LOCKS
from pool_calls import Gate, ended, hold, opened_at_the_end, same
from waiting import HANG, until

# -- done-callbacks of a process pool ----------------------------------------------------------------------------------


def test_a_callback_of_a_process_pool_may_wait_with_a_time_out(tmp_path):
    seen: list[Any] = []

    def look(_: Any) -> None:
        try:
            seen.append(wait([second], timeout=0.05, return_when=FIRST_COMPLETED))
        except BaseException as error:
            seen.append(error)

    with ended(ProcessPool(1)) as pool, opened_at_the_end(Gate(tmp_path)) as gate:
        pool.pause()
        first, second = pool.submit(same), pool.submit(hold, gate.path)
        first.add_done_callback(look)
        pool.resume()
        until(lambda: seen)
        assert not isinstance(seen[0], BaseException), repr(seen[0])
        assert seen[0].not_done == {second}


def test_a_callback_of_a_process_pool_that_waits_for_the_pool_does_not_hang_it():
    seen: list[Any] = []

    def look(_: Any) -> None:
        try:
            seen.append([future.result() for future in as_completed([second])])
        except RuntimeError as error:  # it may be refused
            seen.append(str(error))

    with ended(ProcessPool(1)) as pool:
        pool.pause()
        first, second = pool.submit(same), pool.submit(same, 2)
        first.add_done_callback(look)
        pool.resume()
        until(lambda: seen)
        assert seen[0] == [2] or "callback" in seen[0]
        assert second.result(HANG) == 2
        assert pool.submit(same, 3).result(HANG) == 3


# -- what runs when a time is up ---------------------------------------------------------------------------------------


def test_a_slow_callback_of_a_timed_out_task_holds_up_no_other_time_out():
    go_on = threading.Event()
    with ended(ThreadPool(4)) as pool:
        try:
            first = pool.options(timeout=0.05).submit(go_on.wait)
            first.add_done_callback(lambda _: go_on.wait())
            second = pool.options(timeout=0.2).submit(go_on.wait)
            assert isinstance(second.exception(HANG), TaskTimeout)
            assert isinstance(first.exception(HANG), TaskTimeout)
        finally:
            go_on.set()


def test_a_slow_observer_of_a_timed_out_task_holds_up_no_other_pool():
    go_on, told = threading.Event(), threading.Event()

    def watch(event: Any) -> None:
        if event.name == "worker_lost":
            told.set()
            go_on.wait()

    with ended(ThreadPool(2, on_event=watch)) as pool, ended(ThreadPool(2)) as other:
        try:
            pool.options(timeout=0.05).submit(go_on.wait)
            assert told.wait(HANG)
            assert isinstance(other.options(timeout=0.05).submit(go_on.wait).exception(HANG), TaskTimeout)
        finally:
            go_on.set()


def test_a_slow_call_of_a_token_whose_time_is_up_holds_up_no_other_token():
    go_on, first, second = threading.Event(), threading.Event(), threading.Event()
    slow, quick = CancelToken(timeout=0.02), CancelToken(timeout=0.2)
    register = partial(slow.on_cancel, lambda: (first.set(), go_on.wait()))
    threading.Thread(target=register, daemon=True).start()  # its time may be up already: then it is called right there
    quick.on_cancel(second.set)
    try:
        assert first.wait(HANG)
        assert second.wait(HANG)
    finally:
        go_on.set()


def test_a_thread_that_could_not_start_costs_one_deadline_not_all(monkeypatch):
    until(lambda: not any("timer" in thread.name for thread in threading.enumerate()))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            CancelToken(timeout=0.01)
    fired = threading.Event()
    token = CancelToken(timeout=0.01)
    token.on_cancel(fired.set)
    assert fired.wait(HANG)


def _refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


# -- sizing rules ------------------------------------------------------------------------------------------------------


def test_a_sizing_rule_that_raises_is_asked_again(caplog):
    go_on, main, raised = threading.Event(), threading.current_thread(), []

    def rule(_: Snapshot) -> int:
        if threading.current_thread() is not main and not raised:
            raised.append(True)
            raise ValueError("once")
        return 1

    with ended(ThreadPool(4, sizing=rule)) as pool:
        try:
            pool.submit(go_on.wait)
            second = pool.submit(same, 2)  # waits behind it, until starvation adds a worker
            assert second.result(HANG) == 2
            assert raised
        finally:
            go_on.set()
    assert "once" in caplog.text


def test_a_signal_handler_may_look_at_tasks_while_its_thread_does():
    """The handler strikes in the middle of `add_done_callback`, say, of another task."""
    seen: list[Task[int]] = []

    def handle(number: int, frame: object) -> None:
        task: Task[int] = Task()
        task.add_done_callback(seen.append)
        task.set_result(number)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with contextlib.ExitStack() as held:
            for lock in _LOCKS:
                held.enter_context(lock)
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [task.result() for task in seen] == [signal.SIGUSR1]
