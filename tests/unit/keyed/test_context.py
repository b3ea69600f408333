"""What a job leaves in its context is not seen by others, although quick ones share a task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar

import keyed_play as play
import pytest

from millpond.keyed import Job, KeyedPool
from waiting import HANG, until

mark: ContextVar[str] = ContextVar("mark", default="")


@pytest.mark.parametrize("keys", [1, 7, 400])
def test_a_context_variable_is_seen_by_no_other_job(pool: KeyedPool, keys: int):
    @pool.job
    async def look(job: Job, number: int) -> str:
        before = mark.get()
        if number % 5 == 0:
            mark.set(job.id)
        if number % 7 == 0:
            await asyncio.sleep(0)
        return before

    with pool.worker():
        receipts = look.dispatch_many([(f"k{number % keys}", number) for number in range(400)])
        assert {receipt.result(HANG) for receipt in receipts} == {""}


def test_quick_jobs_do_not_hold_up_each_other_when_one_of_them_waits(pool: KeyedPool):
    gate = play.Gate()

    async def main(job: Job, number: int) -> int:
        if number == 250:
            await gate.pass_()
        return number

    do = pool.job(main)
    with pool.worker():
        receipts = do.dispatch_many([(f"k{number}", number) for number in range(500)])
        assert [receipt.result(HANG) for receipt in receipts if receipt is not receipts[250]]
        gate.open()
        assert [receipt.result(HANG) for receipt in receipts] == list(range(500))


def test_a_job_that_is_cancelled_harms_no_job_that_follows_in_its_task(pool: KeyedPool):
    @pool.job
    async def do(job: Job, number: int) -> int:
        if number == 0:
            await asyncio.sleep(3600)
        return number

    with pool.worker():
        warm = do.dispatch_many([(f"w{number}", 1) for number in range(200)])
        assert all(receipt.result(HANG) for receipt in warm)
        slow = do.dispatch("slow", 0)
        quick = do.dispatch_many([(f"k{number}", 2) for number in range(100)])
        assert all(receipt.result(HANG) == 2 for receipt in quick)
        assert slow.cancel()
        later = do.dispatch_many([("slow", 3), *((f"k{number}", 3) for number in range(100))])
        assert all(receipt.result(HANG) == 3 for receipt in later)


def test_what_was_taken_ahead_goes_back_at_once_when_its_worker_leaves(make: Callable[..., KeyedPool]):
    """Quick jobs are taken ahead. When they turn out to be slow, those that have not begun are handed over."""
    one, two = make(lease=play.LONG, drain=play.LONG), make()
    log, gate = play.Log(), play.Gate()

    async def do(job: Job, slow: bool) -> str:
        if slow:
            with log.run(job.key, job.attempt):
                await gate.pass_()
        return job.key

    first, _ = one.job(do), two.job(do)
    with one.worker(concurrency=2) as leaving:
        warm = first.dispatch_many([(f"w{number}", False) for number in range(300)])
        assert all(receipt.result(HANG) for receipt in warm)
        slow = first.dispatch_many([(f"k{number}", True) for number in range(20)])
        until(lambda: len(log.begun) == 2)
        with two.worker(concurrency=30):
            closing = threading.Thread(target=leaving.close)
            closing.start()
            until(lambda: len(log.begun) == 20)  # the two that run here are waited for, the others run there
            gate.open()
            closing.join()
            assert [receipt.result(HANG) for receipt in slow] == [f"k{number}" for number in range(20)]
    assert not log.overlaps and all(attempt == 1 for _, attempt in log.begun)
