"""What a bound lets in stays the same for ever, and what it turns away is what it says."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from millpond import AsyncPool, PoolFull, ProcessPool, ThreadPool
from pool_calls import Gate, ended, hold, interrupt, opened_at_the_end, same
from waiting import HANG, until


def let_in(pool: ThreadPool) -> int:
    """Count the tasks that a pool takes before it is full."""
    held, number = threading.Event(), 0
    try:
        while number < 500:
            pool.submit(held.wait)
            number += 1
    except PoolFull:
        pass
    finally:
        held.set()
    assert pool.drain(HANG)
    return number


def test_calls_in_a_subpool_do_not_widen_the_bound_of_its_parent():
    with ThreadPool(1, max_queued=0, when_full="raise") as pool:
        assert let_in(pool) == 1
        part = pool.subpool(1)
        for number in range(100):
            assert part.submit(same, number).result(HANG) == number
        pool.drain(HANG)
        assert let_in(pool) == 1


def fail() -> None:
    raise ValueError("by design")


def leave_by(way: str, pool: ThreadPool) -> None:
    """Take a task out of the pool in this way while another runs."""
    held, started = threading.Event(), threading.Event()

    def run_first() -> None:
        started.set()
        inner = pool.submit(same, 1)  # it waits behind the others
        if way == "help":
            inner.result(HANG)
        held.wait(HANG)

    running = pool.submit(run_first)
    assert started.wait(HANG)
    try:
        task = pool.submit(fail) if way == "raise" else pool.submit(same, 1)
        if way == "cancel":
            assert task.cancel()
        elif way == "purge":
            pool.purge()
        elif way == "drop_oldest":
            pool.submit(same, 1)
    finally:
        held.set()
    running.exception(HANG)
    assert pool.drain(HANG)


@pytest.mark.parametrize("on_event", [None, lambda event: None])
@pytest.mark.parametrize("way", ["return", "raise", "cancel", "purge", "drop_oldest", "help"])
def test_a_task_gives_its_place_back_once_however_it_leaves(way, on_event):
    with ThreadPool(1, max_queued=2, when_full="drop_oldest", on_event=on_event) as pool:
        for _ in range(5):
            leave_by(way, pool)
        pool._runner.admission.when_full = "raise"
        assert let_in(pool) == 3


@pytest.mark.parametrize("options", [{}, {"max_queued": 5}, {"on_event": str}, {"max_queued": 5, "on_event": str}])
def test_the_traceback_of_a_task_begins_with_its_function(options):
    with ThreadPool(1, **options) as pool:
        error = pool.submit(fail).exception(HANG)
    assert error is not None and error.__traceback__ is not None
    assert error.__traceback__.tb_frame.f_code is fail.__code__


def test_a_map_does_not_widen_the_bound_of_its_pool():
    with ThreadPool(2, max_queued=1, when_full="raise") as pool:
        assert let_in(pool) == 3
        assert list(pool.map(same, range(100))) == list(range(100))
        assert list(pool.map(same, range(100), chunksize=1)) == list(range(100))
        pool.drain(HANG)
        assert let_in(pool) == 3


def test_the_counts_of_a_subpools_map_are_the_subpools():
    with ThreadPool(4) as pool:
        part = pool.subpool(2)
        assert list(part.map(same, range(10_000))) == list(range(10_000))
        assert part.drain(HANG) and pool.drain(HANG)
        assert part.statistics().completed == 10_000
        assert part.statistics().submitted == 10_000
        assert pool.statistics().completed in (0, 10_000)  # its own tasks, or all that ran in its workers; no mixture


def test_a_caller_runs_plain_tasks_and_lets_those_with_a_key_wait_for_their_turn():
    held = threading.Event()
    with ThreadPool(1, max_queued=0, when_full="caller_runs") as pool:
        pool.submit(held.wait)
        try:
            assert pool.submit(threading.get_ident).result(HANG) == threading.get_ident()
            keyed = pool.options(key="a").submit(threading.get_ident)
            assert not keyed.done()  # it is one more than the bound, so that the order of its key holds
        finally:
            held.set()
        assert keyed.result(HANG) != threading.get_ident()
        assert pool.drain(HANG)
        assert pool.options(key="a").submit(same, 5).result(HANG) == 5


def test_dropping_the_oldest_task_never_drops_a_map(tmp_path):
    with (
        ended(ThreadPool(1, max_queued=1, when_full="drop_oldest")) as pool,
        opened_at_the_end(Gate(tmp_path)) as gate,
    ):
        pool.submit(hold, gate.path)
        gate.wait_for(1)
        results = pool.map(same, range(50))
        tasks = [pool.submit(same, number) for number in range(3)]
        gate.open()
        assert list(results) == list(range(50))
        assert [task.cancelled() for task in tasks] == [True, True, False]
        assert tasks[2].result(HANG) == 2


@pytest.mark.parametrize("kind", [ThreadPool, ProcessPool])
@pytest.mark.parametrize("keys", [(None, "k", None), ("k", None, "k"), ("j", "k", None), (None, None, "k")])
def test_the_oldest_task_is_dropped_first_with_a_key_or_without(kind, keys):
    with ended(kind(1, max_queued=3, when_full="drop_oldest")) as pool:
        pool.pause()
        tasks = [pool.options(key=key).submit(int) for key in (*keys, "k", None, "k")]
        assert [task.cancelled() for task in tasks] == [True] * 3 + [False] * 3


def test_dropping_the_oldest_task_never_drops_a_subpools_turn(tmp_path):
    with (
        ended(ThreadPool(1, max_queued=1, when_full="drop_oldest")) as pool,
        opened_at_the_end(Gate(tmp_path)) as gate,
    ):
        pool.submit(hold, gate.path)
        gate.wait_for(1)
        part = pool.subpool(1)
        inner = [part.submit(same, number) for number in range(50)]
        tasks = [pool.submit(same, number) for number in range(3)]
        gate.open()
        assert [task.result(HANG) for task in inner] == list(range(50))
        assert [task.cancelled() for task in tasks] == [True, True, False]


@pytest.mark.parametrize("kind", [ThreadPool, ProcessPool])
def test_ctrl_c_in_a_task_that_its_caller_runs_reaches_the_caller(kind, tmp_path):
    with (
        ended(kind(1, max_queued=0, when_full="caller_runs")) as pool,
        opened_at_the_end(Gate(tmp_path)) as gate,
    ):
        pool.submit(hold, gate.path)
        gate.wait_for(1)
        with pytest.raises(KeyboardInterrupt):
            pool.submit(interrupt)
        gate.open()
        assert pool.drain(HANG)
        assert pool.submit(same, 5).result(HANG) == 5


@pytest.mark.parametrize("kind", [ThreadPool, ProcessPool, AsyncPool])
@pytest.mark.parametrize("word", ["raise", "drop", "drop_oldest", "caller_runs"])
def test_what_happens_when_full_needs_a_bound(kind, word):
    with pytest.raises(ValueError, match="max_queued"):
        kind(2, when_full=word)


def test_a_caller_that_runs_a_task_is_not_counted_as_a_waiting_one(tmp_path):
    """The bound is what it was when its callers have run more tasks than it holds."""
    outcome: list[Any] = []
    with (
        ended(ThreadPool(1, max_queued=1, when_full="caller_runs")) as pool,
        opened_at_the_end(Gate(tmp_path)) as gate,
    ):
        pool.submit(hold, gate.path)
        gate.wait_for(1)
        queued = pool.submit(threading.get_ident)
        outcome += [pool.submit(threading.get_ident).result(HANG) for _ in range(20)]
        assert outcome == [threading.get_ident()] * 20
        assert not queued.done()
        gate.open()
        assert queued.result(HANG) != threading.get_ident()
        until(lambda: pool.statistics().completed == 22)
