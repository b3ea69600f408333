"""Receipts: results, where a job is, taking it back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import keyed_play as play
import pytest

from millpond.errors import JobFailed, NotFound
from millpond.keyed import AsyncKeyedPool, Job, KeyedPool
from millpond.keyed.client import results
from waiting import HANG, until


def test_a_receipt_follows_its_job(pool: KeyedPool):
    gate = play.Gate()

    @pool.job
    async def do(job: Job) -> str:
        await gate.pass_()
        return "x"

    delayed = do.options(delay=30).dispatch("k")
    assert delayed.status() == "delayed"
    first = do.dispatch("k")
    assert first.status() == "waiting"
    with pool.worker():
        until(lambda: first.status() == "running")
        gate.open()
        assert first.result(HANG) == "x" and first.result(HANG) == "x"
        assert first.status() == "done"
        assert not first.cancel()
    assert repr(first.id)[1:-1] in repr(first)


def test_many_threads_wait_for_one_result(pool: KeyedPool):
    gate = play.Gate()

    @pool.job
    async def do(job: Job) -> int:
        await gate.pass_()
        return 7

    found: list[int] = []
    with pool.worker():
        receipt = do.dispatch("k")
        threads = [threading.Thread(target=lambda: found.append(receipt.result(HANG))) for _ in range(8)]
        for each in threads:
            each.start()
        gate.open()
        for each in threads:
            each.join()
    assert found == [7] * 8


def test_a_result_that_takes_too_long_is_a_timeout_and_the_job_goes_on(pool: KeyedPool):
    gate = play.Gate()

    @pool.job
    async def do(job: Job) -> int:
        await gate.pass_()
        return 7

    with pool.worker():
        receipt = do.dispatch("k")
        for timeout in (0, 0.05):
            with pytest.raises(TimeoutError):
                receipt.result(timeout)
        gate.open()
        assert receipt.result(HANG) == 7


def test_a_waiting_job_is_taken_back(pool: KeyedPool):
    ran: list[int] = []

    @pool.job
    def do(job: Job, number: int) -> None:
        ran.append(number)

    receipts = do.dispatch_many([("k", number) for number in range(5)])
    delayed = do.options(delay=0.01).dispatch("k", 99)
    for one in (receipts[0], receipts[2], receipts[4], delayed):
        assert one.cancel()
        assert one.status() == "cancelled"
        assert not one.cancel()
        with pytest.raises(JobFailed, match="cancelled") as caught:
            one.result(HANG)
        assert caught.value.status == "cancelled"
    with pool.worker():
        receipts[3].result(HANG)
    assert ran == [1, 3]
    assert pool.statistics().jobs == pool.statistics().delayed == 0


def test_a_running_coroutine_is_cancelled(pool: KeyedPool):
    began = threading.Event()
    why: list[str] = []

    @pool.job(max_attempts=5, backoff=0.01)
    async def do(job: Job) -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            why.append(job.lost.reason)

    @pool.job
    async def after(job: Job) -> str:
        return "after"

    with pool.worker():
        receipt, behind = do.dispatch("k"), after.dispatch("k")
        assert began.wait(HANG)
        assert receipt.cancel()
        with pytest.raises(JobFailed, match="cancelled"):
            receipt.result(HANG)
        assert behind.result(HANG) == "after"
        assert why == ["cancelled"]
        assert pool.statistics().dead == 0


@pytest.mark.parametrize("way", ["looks", "checks", "wakes", "fails"])
def test_a_running_function_is_asked_to_stop(pool: KeyedPool, way: str):
    began = threading.Event()

    @pool.job
    def do(job: Job) -> str:
        began.set()
        if way == "looks":
            until(lambda: bool(job.lost))
            return "early"
        if way == "checks":
            while True:
                job.check()
                time.sleep(0.002)
        assert job.lost.wait(HANG)
        if way == "fails":
            raise ValueError("on the way out")
        job.check()
        return "never"

    @pool.job
    async def after(job: Job) -> str:
        return "after"

    with pool.worker():
        receipt, behind = do.dispatch("k"), after.dispatch("k")
        assert began.wait(HANG)
        assert receipt.cancel()
        if way == "looks":
            assert receipt.result(HANG) == "early"
        else:
            with pytest.raises(JobFailed, match="cancelled") as caught:
                receipt.result(HANG)
            assert caught.value.status == "cancelled"
        assert behind.result(HANG) == "after"
        assert pool.statistics().dead == 0


def test_a_job_that_was_taken_but_has_not_begun_is_taken_back(pool: KeyedPool):
    gate = play.Gate()
    ran: list[int] = []

    @pool.job
    async def do(job: Job, number: int) -> int:
        if number == 0:
            await gate.pass_()
        ran.append(number)
        return number

    receipts = do.dispatch_many([("k", number) for number in range(6)])
    with pool.worker():
        until(lambda: receipts[0].status() == "running")
        assert receipts[2].cancel() and receipts[4].cancel()
        gate.open()
        receipts[5].result(HANG)
        for number in (2, 4):
            with pytest.raises(JobFailed, match="cancelled"):
                receipts[number].result(HANG)
    assert ran == [0, 1, 3, 5]


def test_results_are_kept_for_as_long_as_is_said(pool: KeyedPool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "LOOK", 0.05)

    @pool.job(keep_result=100)
    async def short(job: Job) -> int:
        return 1

    @pool.job(keep_result=0)
    async def none(job: Job) -> int:
        return 1

    with pool.worker():
        receipt = short.dispatch("k")
        assert receipt.result(HANG) == 1
        play.skip(pool, 99 - HANG)
        assert receipt.status() == "done"
        play.skip(pool, 1 + HANG)
        assert receipt.status() == "gone"
        with pytest.raises(NotFound, match="keep_result"):
            receipt.result(HANG)
        nothing = none.dispatch("k")
        with pytest.raises(NotFound, match="keep_result"):
            nothing.result(HANG)
        until(lambda: nothing.status() == "gone")
        declared = pool.declare_job("none", keep_result=HANG).dispatch("k")  # the producer says how long
        assert declared.result(HANG) == 1


def test_a_job_that_ends_between_two_questions_is_not_gone(pool: KeyedPool):
    @pool.job
    async def do(job: Job) -> int:
        return 1

    store = play.tamper(pool)
    with pool.worker():
        pool.admin.pause()
        receipt = do.dispatch("k")

        def finish(*args: object) -> None:
            del store.after["Outcomes"]
            pool.admin.resume()
            until(lambda: pool.statistics().done_total == 1)

        store.after["Outcomes"] = finish
        assert receipt.status() == "done"


def test_the_outcome_arrives_although_hints_are_lost(pool: KeyedPool):
    class Deaf:
        def close(self) -> None: ...

    @pool.job
    async def do(job: Job) -> int:
        return 1

    store = play.tamper(pool)
    store.listen = lambda name, heard, handed=None: Deaf()  # type: ignore[attr-defined]
    with pool.worker():
        assert do.dispatch("k").result(HANG) == 1


def test_the_receipt_of_one_program_is_good_in_another(make: Callable[..., KeyedPool]):
    """By its id: the same id is dispatched once, and both wait for the same job."""
    one, two = make(lease=play.LONG), make()
    ran: list[str] = []

    @one.job
    async def do(job: Job) -> str:
        ran.append(job.id)
        return job.id

    with one.worker():
        first = do.options(id="order-1").dispatch("k")
        again = two.declare_job("do").options(id="order-1").dispatch("k")
        assert first.result(HANG) == again.result(HANG) == "order-1"
    assert ran == ["order-1"]


def test_purged_and_replaced_jobs_say_so(pool: KeyedPool):
    @pool.job
    async def do(job: Job, number: int) -> int:
        return number

    first, second = do.dispatch("k", 1), do.dispatch("k", 2)
    third = do.options(on_busy="replace").dispatch("k", 3)
    for one in (first, second):
        assert one.status() == "replaced"
        with pytest.raises(JobFailed, match="replaced"):
            one.result(HANG)
    late = do.options(delay=50).dispatch("k", 4)
    assert pool.admin.purge("k") == 2
    for one in (third, late):
        with pytest.raises(JobFailed, match="purged"):
            one.result(HANG)


@pytest.mark.asyncio
async def test_the_other_colour_waits_and_cancels(apool: AsyncKeyedPool):
    gate = play.Gate()

    @apool.job
    async def do(job: Job) -> int:
        await gate.pass_()
        return 1

    async with apool.worker():
        receipt = await do.dispatch("k")
        with pytest.raises(TimeoutError):
            await receipt.result(0.02)
        waiters = [asyncio.create_task(receipt.result(HANG)) for _ in range(3)]
        await asyncio.sleep(0.01)
        waiters[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiters[0]
        gate.open()
        assert await waiters[1] == await waiters[2] == 1
        slow = await do.options(delay=50).dispatch("k")
        assert await slow.cancel()
        assert await slow.status() == "cancelled"


@pytest.mark.parametrize("many", [1, 40])
def test_a_result_that_nobody_waits_for_any_more_is_not_asked_for(
    pool: KeyedPool, monkeypatch: pytest.MonkeyPatch, many: int
):
    monkeypatch.setattr(results, "LOOK", 0.01)
    store = play.tamper(pool)
    receipts = pool.declare_job("do").dispatch_many([(f"k{number}",) for number in range(many)])
    for receipt in receipts:
        with pytest.raises(TimeoutError):
            receipt.result(0.001)
    assert pool._bridge.results._waits == {}
    before = len(store.calls)
    time.sleep(0.1)  # ten times as long as it takes to look: nothing is to happen
    assert len(store.calls) - before <= 2


def test_one_who_gives_up_takes_nothing_from_those_who_still_wait(pool: KeyedPool):
    @pool.job
    def do(job: Job) -> str:
        return job.key

    receipt = do.dispatch("k")
    found: list[str] = []
    waiter = threading.Thread(target=lambda: found.append(receipt.result(HANG)))
    waiter.start()
    until(lambda: pool._bridge.results._waits)
    with pytest.raises(TimeoutError):
        receipt.result(0.001)
    with pool.worker():
        waiter.join(HANG)
    assert found == ["k"]


def test_those_who_wait_long_cost_the_store_little(pool: KeyedPool, monkeypatch: pytest.MonkeyPatch):
    """Looking for a job makes the store search: that is done for few at a time, and ever more rarely."""
    monkeypatch.setattr(results, "LOOK", 0.01)
    store = play.tamper(pool)
    receipts = pool.declare_job("do").dispatch_many([("k",)] * 200)
    replies = pool._bridge.results
    for receipt in receipts:
        replies.expect(receipt.id, *pool._connection.address("k"))
    until(lambda: store.calls.count("Where") >= 3 * results.DOUBTS)
    calls = list(store.calls)  # it goes on looking
    assert calls.count("Where") <= results.DOUBTS * (calls.count("Outcomes") + 1)
    assert len(replies._waits) == 200


def test_a_store_searches_for_those_who_wait_for_a_small_part_of_its_time(
    pool: KeyedPool, monkeypatch: pytest.MonkeyPatch
):
    """Where a mailbox is deep, a search takes long: then fewer are made."""
    now = 1000.0
    monkeypatch.setattr(results, "elapsed", lambda: now)
    store = play.tamper(pool)

    def search(*_: object) -> None:
        nonlocal now
        now += 0.1

    store.before["Where"] = search
    replies = results.Results(pool._connection)
    for receipt in pool.declare_job("do").dispatch_many([("k",)] * 200):
        replies._waits[receipt.id] = results._Wait(*pool._connection.address("k"))
    for _ in range(100):
        now += results.LOOK
        replies._look()
    searched = store.calls.count("Where") * 0.1
    assert 0 < searched <= 2 * results.SEARCHING * (now - 1000)


def test_results_that_are_fetched_ahead_take_little_memory(pool: KeyedPool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "FETCHED", 1 << 20)
    replies = pool._bridge.results
    most = 0

    @pool.job
    async def do(job: Job) -> bytes:
        return b"x" * 900_000

    batches = [do.dispatch_many([(f"k{number}",) for number in range(6)]) for _ in range(8)]
    with pool.worker():
        until(lambda: pool.statistics().jobs == 0)
        for first, *_ in batches:  # the others of its batch come with it, and nobody asks for them
            assert len(first.result(HANG)) == 900_000
            with replies._lock:  # the others may come just now
                most = max(most, sum(len(one[1]) for one in replies._early.values()))
    assert 0 < most < 8 << 20, "one answer, and what was kept"
    with replies._lock:
        assert replies._early_size == sum(len(one[1]) for one in replies._early.values())


def test_a_wait_without_any_worker_says_so(pool: KeyedPool):
    do = pool.declare_job("do")
    with pytest.raises(TimeoutError, match="it is waiting, and no worker is there: start one"):
        do.dispatch("k").result(timeout=0.01)
