"""What happens when a bounded pool is full."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from millpond import Block, PoolClosed, PoolFull, ThreadPool
from waiting import HANG, becomes


class FullPool:
    """A pool of one worker and one queued task, both taken."""

    def __init__(self, when_full="block", **more) -> None:
        self.go_on = threading.Event()
        self.started = threading.Event()
        self.pool = ThreadPool(1, max_queued=1, when_full=when_full, **more)

    def _hold(self) -> str:
        self.started.set()
        self.go_on.wait(HANG)
        return "held"

    def __enter__(self):
        self.running = self.pool.submit(self._hold)
        assert self.started.wait(HANG)
        self.queued = self.pool.submit(lambda: "queued")
        return self

    def __exit__(self, *_):
        self.go_on.set()
        self.pool.shutdown()

    def wait_for_blocked(self, number: int = 1) -> None:
        becomes(lambda: self.pool.statistics().waiting_submitters, number)

    def once_blocked(self, act) -> None:
        """Call `act` in another thread when a submitter is blocked."""
        threading.Thread(target=lambda: (self.wait_for_blocked(), act())).start()


def test_as_many_tasks_fit_as_there_are_workers_and_places():
    """All of them at once, also before the workers have taken theirs."""
    go_on = threading.Event()
    with ThreadPool(4, max_queued=2, when_full="raise") as pool:
        for _ in range(6):
            pool.submit(go_on.wait, HANG)
        with pytest.raises(PoolFull, match="4 workers and 2 queued"):
            pool.submit(int)
        go_on.set()


def test_no_queue_at_all_means_hand_over_only():
    go_on = threading.Event()
    with ThreadPool(2, max_queued=0, when_full="raise") as pool:
        pool.submit(go_on.wait, HANG)
        pool.submit(go_on.wait, HANG)
        with pytest.raises(PoolFull):
            pool.submit(int)
        go_on.set()


def test_block_waits_for_room():
    with FullPool("block") as full:
        full.once_blocked(full.go_on.set)
        assert full.pool.submit(lambda: "in").result(HANG) == "in"


def test_blocked_submitters_come_in_in_the_order_they_came():
    ran = []
    with FullPool("block") as full:
        submitters = []
        for number in range(5):
            thread = threading.Thread(target=lambda n=number: full.pool.submit(ran.append, n))
            thread.start()
            full.wait_for_blocked(number + 1)
            submitters.append(thread)
        full.go_on.set()
        for thread in submitters:
            thread.join(HANG)
        full.pool.drain(HANG)
    assert ran == [0, 1, 2, 3, 4]


def test_block_gives_up_after_its_timeout():
    with FullPool(Block(timeout=0.02)) as full:
        with pytest.raises(PoolFull, match=r"no room came within 0\.02 s"):
            full.pool.submit(int)
        assert full.pool.statistics().waiting_submitters == 0


def test_the_number_of_blocked_submitters_can_be_bounded():
    with FullPool(Block(max_waiting=1)) as full:
        blocked = threading.Thread(target=full.pool.submit, args=(int,))
        blocked.start()
        full.wait_for_blocked()
        with pytest.raises(PoolFull, match="1 submitters wait already"):
            full.pool.submit(int)
        full.go_on.set()
        blocked.join(HANG)


def test_raise_says_what_is_full():
    with FullPool("raise", name="thumbs") as full, pytest.raises(PoolFull, match="pool 'thumbs' is full"):
        full.pool.submit(int)


def test_drop_gives_back_a_cancelled_task_that_never_runs():
    ran = []
    with FullPool("drop") as full:
        dropped = full.pool.submit(ran.append, 1)
        assert dropped.cancelled()
        assert full.pool.statistics().rejected == 1
    assert ran == []


def test_drop_oldest_cancels_the_one_that_waits_longest():
    with FullPool("drop_oldest") as full:
        newest = full.pool.submit(lambda: "newest")
        assert full.queued.cancelled()
        full.go_on.set()
        assert newest.result(HANG) == "newest"


def test_drop_oldest_drops_the_new_one_when_none_waits():
    go_on = threading.Event()
    with ThreadPool(1, max_queued=0, when_full="drop_oldest") as pool:
        running = pool.submit(go_on.wait, HANG)
        assert pool.submit(int).cancelled()
        go_on.set()
        assert running.result(HANG)


def test_caller_runs_runs_it_in_the_submitters_thread():
    with FullPool("caller_runs") as full:
        assert full.pool.submit(threading.get_ident).result(0) == threading.get_ident()
        error = full.pool.submit(lambda: 1 / 0).exception(0)
        assert isinstance(error, ZeroDivisionError)
        assert full.pool.statistics().completed == 2


def test_a_callable_decides_by_what_it_sees():
    seen = []

    def decide(statistics, task):
        seen.append((statistics.queued, task.done()))
        return "caller_runs" if len(seen) == 1 else "drop"

    with FullPool(decide) as full:
        assert full.pool.submit(threading.get_ident).result(0) == threading.get_ident()
        assert full.pool.submit(int).cancelled()
    assert seen == [(1, False), (1, False)]


def test_a_callable_may_accept_beyond_the_bound():
    with FullPool(lambda statistics, task: "accept") as full:
        extra = full.pool.submit(lambda: "extra")
        assert full.pool.statistics().queued == 2
        full.go_on.set()
        assert extra.result(HANG) == "extra"


def test_a_callable_that_returns_nonsense_is_told_so():
    with FullPool(lambda statistics, task: "perhaps") as full, pytest.raises(ValueError, match="'perhaps'"):
        full.pool.submit(int)


@pytest.mark.parametrize("verdict", ["block", "raise", "drop", "drop_oldest", "caller_runs", "accept"])
def test_a_callable_may_cancel_the_task_that_it_is_asked_about(verdict):
    """The counts stay true, and so does the room in the pool."""
    with FullPool(lambda statistics, task: verdict if task.cancel() else "raise") as full:
        assert full.pool.submit(int).cancelled()
        now = full.pool.statistics()
        assert (now.queued, now.running, now.cancelled, now.rejected) == (1, 1, 1, 0)
        full.go_on.set()
        assert full.queued.result(HANG) == "queued"
        assert full.pool.drain(HANG)
        assert full.pool.statistics().submitted == 3


def test_try_submit_never_waits_and_never_drops():
    with FullPool("block") as full:
        assert full.pool.try_submit(int) is None
        full.go_on.set()
        full.pool.drain(HANG)
        task = full.pool.try_submit(int)
        assert task is not None
        assert task.result(HANG) == 0


def test_a_worker_that_submits_to_its_own_full_pool_runs_the_task_itself():
    with ThreadPool(1, max_queued=0) as pool:
        outer = pool.submit(lambda: (threading.get_ident(), pool.submit(threading.get_ident).result(HANG)))
        mine, inner = outer.result(HANG)
        assert mine == inner


def test_cancelling_a_queued_task_makes_room():
    with FullPool("raise") as full:
        assert full.queued.cancel()
        full.pool.submit(int)
        with pytest.raises(PoolFull):
            full.pool.submit(int)


def test_a_cancelled_task_lets_a_blocked_submitter_in():
    with FullPool("block") as full:
        full.once_blocked(full.queued.cancel)
        task = full.pool.submit(lambda: "in")
        full.go_on.set()
        assert task.result(HANG) == "in"


def test_closing_the_pool_frees_blocked_submitters_with_pool_closed():
    caught = []
    with FullPool("block") as full:

        def submit() -> None:
            try:
                full.pool.submit(int)
            except PoolClosed as error:
                caught.append(error)

        blocked = threading.Thread(target=submit)
        blocked.start()
        full.wait_for_blocked()
        full.pool.shutdown(wait=False)
        blocked.join(HANG)
        assert len(caught) == 1


def test_a_paused_pool_is_full_when_its_queue_is():
    with ThreadPool(4, max_queued=2, when_full="raise") as pool:
        pool.pause()
        pool.submit(int)
        pool.submit(int)
        with pytest.raises(PoolFull):
            pool.submit(int)
        pool.resume()
        assert pool.drain(HANG)


def test_a_bounded_pool_never_holds_more_than_it_may():
    most = 0
    with ThreadPool(3, max_queued=5, when_full="block") as pool:
        for _ in range(3000):
            pool.submit(int)
            most = max(most, pool.statistics().queued)
        assert pool.drain(HANG)
        assert pool.statistics().completed == 3000
    assert most <= 8


@pytest.mark.parametrize("when_full", ["explode", 3, None, int])
def test_an_unknown_policy_is_refused(when_full):
    with pytest.raises(ValueError, match="when_full must be one of 'block'"):
        ThreadPool(1, max_queued=1, when_full=when_full)


def test_block_refuses_senseless_bounds():
    with pytest.raises(ValueError, match="timeout"):
        Block(timeout=-1)
    with pytest.raises(ValueError, match="max_waiting"):
        Block(max_waiting=-1)


def test_a_policy_without_a_bound_is_refused():
    with pytest.raises(ValueError, match="no meaning without a bound"):
        ThreadPool(1, when_full="raise")


@pytest.mark.parametrize(
    ("when_full", "rejected", "cancelled"),
    [("raise", 4, 0), ("drop", 4, 4), ("drop_oldest", 4, 4), (Block(timeout=0), 4, 0)],
)
def test_every_task_that_is_turned_away_is_counted(when_full, rejected, cancelled):
    with FullPool(when_full) as full:
        for _ in range(4):
            with contextlib.suppress(PoolFull):
                full.pool.submit(int)
        now = full.pool.statistics()
        assert (now.rejected, now.cancelled) == (rejected, cancelled)


def test_awaiting_a_full_pool_does_not_hold_up_the_loop():
    """Each task needs the loop, which would be blocked if `run` waited for room in its thread."""

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()

        async def one() -> int:
            await asyncio.sleep(0)
            return 1

        def work() -> int:
            return asyncio.run_coroutine_threadsafe(one(), loop).result(HANG)

        with ThreadPool(2, max_queued=2) as pool:
            return await asyncio.gather(*[pool.run(work) for _ in range(20)])

    assert asyncio.run(main()) == [1] * 20


def test_awaiting_a_full_pool_gives_up_at_its_timeout_and_when_it_is_closed():
    async def main() -> None:
        with FullPool(Block(timeout=0.02)) as full, pytest.raises(PoolFull, match=r"within 0\.02 s"):
            await full.pool.run(int)
        with FullPool("block") as full:
            waiting = full.pool.run(int)
            full.pool.shutdown(wait=False)
            with pytest.raises(PoolClosed):
                await waiting
        with FullPool("block") as full:
            cancelled = full.pool.run(int)
            cancelled.cancel()
            last = full.pool.run(lambda: "last")
            full.go_on.set()
            assert await last == "last"

    asyncio.run(main())
