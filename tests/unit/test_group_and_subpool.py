"""Groups, and subpools that share the parent's budget."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError

import pytest

from millpond import PoolClosed, PoolFull, ThreadPool
from waiting import HANG


def test_a_group_waits_for_all_and_gives_results_in_order():
    with ThreadPool(4) as pool:
        with pool.group() as group:
            for delay in (0.03, 0.0, 0.01):
                group.submit(lambda d: time.sleep(d) or d, delay)
        assert group.results() == [0.03, 0.0, 0.01]
        assert len(group) == 3
        assert "3 done" in repr(group)


def test_the_first_error_of_a_group_cancels_what_is_queued_and_is_raised_as_it_is():
    ran = []
    error = LookupError("first")

    def fail() -> None:
        raise error

    with ThreadPool(1) as pool:
        pool.pause()
        with pytest.raises(LookupError) as caught, pool.group() as group:
            group.submit(fail)
            later = [group.submit(ran.append, n) for n in range(5)]
            pool.resume()
        assert caught.value is error
        assert all(task.cancelled() for task in later)
        assert ran == []
        with pytest.raises(LookupError):
            group.results()


def test_a_failed_group_takes_no_more_tasks():
    with ThreadPool(1) as pool, pytest.raises(ZeroDivisionError), pool.group() as group:
        group.submit(lambda: 1 / 0).exception(HANG)
        assert group.submit(int).cancelled()


def test_a_group_that_has_ended_takes_no_more_tasks():
    with ThreadPool(1) as pool:
        with pool.group() as group:
            group.submit(int)
        with pytest.raises(RuntimeError, match="this group has ended"):
            group.submit(int)


def test_an_error_in_the_block_cancels_what_is_queued():
    with ThreadPool(1) as pool:
        pool.pause()
        with pytest.raises(KeyError), pool.group() as group:
            task = group.submit(int)
            raise KeyError
        assert task.cancelled()
        pool.resume()


def test_a_cancelled_group_says_so():
    with ThreadPool(1) as pool:
        pool.pause()
        group = pool.group()
        group.submit(int)
        group.cancel()
        with pytest.raises(CancelledError, match="the group was cancelled"):
            group.results(HANG)
        pool.resume()


def test_waiting_for_a_group_can_time_out():
    go_on = threading.Event()
    with ThreadPool(1) as pool:
        group = pool.group()
        group.submit(go_on.wait, HANG)
        assert group.wait(0.01) is False
        with pytest.raises(TimeoutError):
            group.results(0.01)
        go_on.set()
        assert group.wait(HANG) is True


def test_a_group_inside_a_task_of_the_same_pool_does_not_deadlock():
    def family(pool: ThreadPool) -> list[int]:
        with pool.group() as group:
            for n in range(10):
                group.submit(pow, n, 2)
        return group.results()

    with ThreadPool(1) as pool:
        assert pool.submit(family, pool).result(HANG) == [n * n for n in range(10)]


class Gauge:
    """Counts how many run at once; as many as it is told wait for one another."""

    def __init__(self, meet: int) -> None:
        self.lock = threading.Lock()
        self.meeting = threading.Barrier(meet)
        self.now = self.most = 0

    def __call__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.meeting.wait(HANG)
        time.sleep(0.001)
        with self.lock:
            self.now -= 1


def test_a_subpool_never_runs_more_at_once_than_its_share():
    gauge = Gauge(2)
    with ThreadPool(8) as pool:
        share = pool.subpool(2)
        for _ in range(60):
            share.submit(gauge)
        assert share.drain(HANG)
    assert gauge.most == 2


def test_subpools_share_the_threads_of_the_parent():
    gauge = Gauge(1)
    with ThreadPool(3) as pool:
        shares = [pool.subpool(3) for _ in range(4)]
        names = [share.submit(lambda: threading.current_thread().name) for share in shares]
        assert all(task.result(HANG).startswith(pool.name) for task in names)
        for _ in range(20):
            for share in shares:
                share.submit(gauge)
        for share in shares:
            assert share.drain(HANG)
        assert pool.statistics().largest <= 3
    assert gauge.most <= 3


def test_a_busy_subpool_does_not_starve_the_parent():
    order: list[int | str] = []
    with ThreadPool(1) as pool:
        share = pool.subpool(1)
        pool.pause()
        for number in range(100):
            share.submit(lambda n: (time.sleep(0.002), order.append(n)), number)
        pool.submit(order.append, "parent's")
        pool.resume()
        assert share.drain(HANG)
        assert pool.drain(HANG)
    assert order.index("parent's") < 50


def test_a_subpool_has_the_verbs_of_a_pool():
    with ThreadPool(2) as pool:
        share = pool.subpool(1, name="share")
        assert list(share.map(abs, [-1, -2, -3])) == [1, 2, 3]
        with share.group() as group:
            group.submit(pow, 2, 2)
        assert group.results() == [4]
        share.pause()
        task = share.submit(lambda: "paused")
        assert pool.submit(int).result(HANG) == 0, "the parent goes on"
        assert not task.done()
        share.resume()
        assert task.result(HANG) == "paused"
        assert "SubPool 'share'" in repr(share)
        assert share.statistics().completed >= 4


def test_a_subpool_closes_alone():
    with ThreadPool(2) as pool:
        share = pool.subpool(1)
        task = share.submit(lambda: "done")
        share.shutdown()
        assert task.result(0) == "done"
        with pytest.raises(PoolClosed):
            share.submit(int)
        assert pool.submit(lambda: 1).result(HANG) == 1


def test_a_subpool_of_a_closed_pool_refuses():
    pool = ThreadPool(2)
    share = pool.subpool(1)
    pool.shutdown()
    with pytest.raises(PoolClosed):
        share.submit(int)


def test_closing_the_parent_finishes_what_its_subpools_have_queued():
    pool = ThreadPool(2)
    share = pool.subpool(1)
    tasks = [share.submit(time.sleep, 0.002) for _ in range(20)]
    pool.shutdown()
    assert all(task.done() and not task.cancelled() for task in tasks)


def test_purging_the_parent_cancels_what_its_subpools_have_queued():
    go_on = threading.Event()
    with ThreadPool(1) as pool:
        running = threading.Barrier(2)
        pool.submit(lambda: (running.wait(HANG), go_on.wait(HANG)))
        running.wait(HANG)
        task = pool.subpool(1).submit(int)
        pool.purge()
        assert task.cancelled()
        go_on.set()


def test_nested_waits_in_a_subpool_do_not_deadlock():
    with ThreadPool(1) as pool:
        share = pool.subpool(1)

        def nest(depth: int) -> int:
            return 0 if depth == 0 else 1 + share.submit(nest, depth - 1).result()

        assert share.submit(nest, 100).result(HANG) == 100
        assert pool.submit(lambda: share.submit(lambda: 5).result(HANG)).result(HANG) == 5


def test_a_task_of_a_subpool_past_its_timeout_gives_its_place_back():
    go_on = threading.Event()
    with ThreadPool(1) as pool:
        share = pool.subpool(1)
        stuck = share.options(timeout=0.05).submit(go_on.wait, HANG)
        after = share.submit(lambda: "after")
        assert isinstance(stuck.exception(HANG), TimeoutError)
        assert after.result(HANG) == "after"
        assert pool.submit(lambda: "parent").result(HANG) == "parent"
        go_on.set()


def test_full_is_full_for_the_parent_only():
    go_on = threading.Event()
    with ThreadPool(1, max_queued=0, when_full="raise") as pool:
        share = pool.subpool(1)
        task = pool.submit(go_on.wait, HANG)
        with pytest.raises(PoolFull):
            pool.submit(int)
        queued = [share.submit(int) for _ in range(5)]
        go_on.set()
        assert task.result(HANG)
        assert [each.result(HANG) for each in queued] == [0] * 5
