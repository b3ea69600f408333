"""Cancel tokens, deadlines and the time limit of a task."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError

import pytest

from millpond import CancelToken, TaskTimeout, ThreadPool, current_token
from waiting import HANG, until


def test_a_token_is_cancelled_once_and_for_all():
    token, calls = CancelToken(), []
    token.on_cancel(lambda: calls.append(1))
    assert not token.cancelled
    assert token.reason is None
    token.raise_if_cancelled()
    token.cancel("enough")
    token.cancel("again")
    token.on_cancel(lambda: calls.append(2))
    assert token.cancelled
    assert token.reason == "enough"
    assert token.remaining() == 0.0
    assert calls == [1, 2]
    with pytest.raises(CancelledError, match="enough"):
        token.raise_if_cancelled()


def test_a_token_with_a_timeout_cancels_itself():
    token = CancelToken(timeout=0.01)
    assert token.wait(HANG)
    assert token.remaining() == 0.0
    assert token.reason == "its time was up"


def test_a_token_tells_the_time_that_it_has_left():
    left = CancelToken(timeout=3600).remaining()
    assert left is not None
    assert 3000 < left <= 3600


def test_waiting_on_a_token_ends_when_it_is_cancelled():
    token = CancelToken()
    assert token.wait(0.01) is False
    threading.Timer(0.02, token.cancel).start()
    assert token.wait(HANG) is True


def test_a_forgotten_token_with_a_timeout_is_freed():
    token = CancelToken(timeout=60)
    ref = weakref.ref(token)
    del token
    gc.collect()
    assert ref() is None


def test_tasks_in_line_are_cancelled_with_their_token():
    go_on, token = threading.Event(), CancelToken()
    with ThreadPool(1) as pool:
        running = threading.Barrier(2)
        pool.submit(lambda: (running.wait(HANG), go_on.wait(HANG)))
        running.wait(HANG)
        mine = [pool.options(cancel=token).submit(int) for _ in range(3)]
        other = pool.submit(lambda: "other")
        token.cancel()
        assert all(task.cancelled() for task in mine)
        go_on.set()
        assert other.result(HANG) == "other"
        assert pool.statistics().cancelled == 3


def test_a_running_task_sees_its_token():
    token, started = CancelToken(), threading.Event()

    def look() -> str | None:
        started.set()
        assert current_token() is token
        current_token().wait(HANG)
        return current_token().reason

    with ThreadPool(1) as pool:
        task = pool.options(cancel=token).submit(look)
        started.wait(HANG)
        token.cancel("stop please")
        assert task.result(HANG) == "stop please"


def test_a_task_with_a_cancelled_token_is_cancelled_at_once():
    token = CancelToken()
    token.cancel()
    with ThreadPool(1) as pool:
        assert pool.options(cancel=token).submit(int).cancelled()
        pool.options(cancel=token).go(int)
        assert pool.options(cancel=token).try_submit(int) is not None


def test_a_deadline_cancels_what_is_still_in_line():
    go_on = threading.Event()
    with ThreadPool(1) as pool:
        running = threading.Barrier(2)
        pool.submit(lambda: (running.wait(HANG), go_on.wait(HANG)))
        running.wait(HANG)
        task = pool.options(cancel=CancelToken(timeout=0.03)).submit(int)
        with pytest.raises(CancelledError):
            task.result(HANG)
        go_on.set()


def test_outside_of_tasks_there_is_a_token_that_is_never_cancelled():
    assert not current_token().cancelled


def test_a_plain_task_sees_the_token_of_its_pool():
    pool, started = ThreadPool(1), threading.Event()

    def stay() -> str | None:
        started.set()
        current_token().wait(HANG)
        return current_token().reason

    with pytest.raises(KeyboardInterrupt), pool:
        task = pool.submit(stay)
        started.wait(HANG)
        raise KeyboardInterrupt
    assert task.result(HANG) == "the pool was left by KeyboardInterrupt"


def test_a_task_past_its_timeout_ends_with_task_timeout_and_its_worker_is_replaced():
    go_on = threading.Event()
    with ThreadPool(1) as pool:
        stuck = pool.options(timeout=0.05).submit(go_on.wait, HANG)
        after = pool.submit(lambda: "after")
        with pytest.raises(TaskTimeout, match=r"ran longer than its timeout of 0\.05 s"):
            stuck.result(HANG)
        assert after.result(HANG) == "after", "although the thread of the first still runs"
        assert pool.statistics().abandoned == 1
        go_on.set()
        assert pool.drain(HANG)
        assert pool.statistics().failed == 1
        assert pool.statistics().completed == 2


def test_the_timeout_counts_run_time_not_waiting_time(monkeypatch):
    started, go_on = threading.Event(), threading.Event()
    moment = round(time.monotonic())
    with ThreadPool(1) as pool:
        pool.submit(lambda: (started.set(), go_on.wait(HANG)))
        started.wait(HANG)
        monkeypatch.setattr(time, "monotonic", lambda: moment)  # the clock stands
        task = pool.options(timeout=3600).submit(lambda: current_token().remaining())
        moment += 5000
        go_on.set()
        assert task.result(HANG) == 3600


def test_a_task_sees_the_time_that_it_has_left():
    with ThreadPool(1) as pool:
        left = pool.options(timeout=3600).submit(lambda: current_token().remaining()).result(HANG)
        assert left is not None
        assert 3000 < left <= 3600


def test_a_running_task_is_told_of_its_timeout():
    seen = threading.Event()

    def look() -> None:
        if current_token().wait(HANG):
            seen.set()

    with ThreadPool(1) as pool:
        with pytest.raises(TaskTimeout):
            pool.options(timeout=0.03).submit(look).result(HANG)
        assert seen.wait(HANG)


def test_a_task_with_token_and_timeout_hears_of_both():
    token, started = CancelToken(), threading.Event()

    def look() -> str | None:
        started.set()
        current_token().wait(HANG)
        return current_token().reason

    with ThreadPool(1) as pool:
        task = pool.options(timeout=3600, cancel=token).submit(look)
        started.wait(HANG)
        token.cancel()
        assert task.result(HANG) == "cancelled"


def test_abandoned_threads_end_and_none_is_left_behind():
    go_on = threading.Event()
    pool = ThreadPool(2, name="abandoned")
    tasks = [pool.options(timeout=0.02).submit(go_on.wait, HANG) for _ in range(6)]
    for task in tasks:
        assert isinstance(task.exception(HANG), TaskTimeout)
    pool.shutdown()
    go_on.set()
    until(lambda: not any(t.name.startswith("abandoned") for t in threading.enumerate()))


def test_ending_and_timing_out_at_the_same_moment_never_loses_a_task():
    with ThreadPool(4) as pool:
        tasks = [pool.options(timeout=0.002).submit(time.sleep, 0.002) for _ in range(300)]
        for task in tasks:
            assert task.exception(HANG) is None or isinstance(task.exception(), TaskTimeout)
        assert pool.drain(HANG)
        assert pool.statistics().completed == 300
        assert pool.statistics().workers <= 4


def test_a_worker_that_waits_for_a_limited_task_does_not_run_it_itself():
    """It could not be given up there: so another thread is lent."""
    go_on = threading.Event()
    with ThreadPool(1) as pool:

        def wait_for_stuck() -> str:
            try:
                pool.options(timeout=0.05).submit(go_on.wait, HANG).result(HANG)
            except TaskTimeout:
                return "told"
            return "not told"

        assert pool.submit(wait_for_stuck).result(HANG) == "told"
        go_on.set()


def test_a_long_lived_token_does_not_collect_its_tasks():
    token = CancelToken()
    with ThreadPool(2) as pool:
        for _ in range(200):
            pool.options(cancel=token, timeout=3600).submit(int).result(HANG)
    gc.collect()
    assert len(token._watched or ()) == 0


def test_a_task_that_stops_by_itself_at_its_deadline_has_timed_out_all_the_same():
    with ThreadPool(4) as pool:
        tasks = [pool.options(timeout=0.02).submit(lambda: current_token().wait(HANG)) for _ in range(50)]
        assert {type(task.exception(HANG)) for task in tasks} == {TaskTimeout}
