"""What a job leaves in its context is not seen by others, although quick ones share a task."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from millpond.keyed import Job, KeyedPool

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
        assert {receipt.result(10) for receipt in receipts} == {""}


def test_quick_jobs_do_not_hold_up_each_other_when_one_of_them_waits(pool: KeyedPool):
    async def main(job: Job, number: int) -> int:
        if number == 250:
            await asyncio.sleep(0.3)
        return number

    do = pool.job(main)
    with pool.worker():
        receipts = do.dispatch_many([(f"k{number}", number) for number in range(500)])
        assert receipts[-1].result(5) == 499
        assert [receipt.result(5) for receipt in receipts] == list(range(500))


def test_a_job_that_is_cancelled_harms_no_job_that_follows_in_its_task(pool: KeyedPool):
    @pool.job
    async def do(job: Job, number: int) -> int:
        if number == 0:
            await asyncio.sleep(30)
        return number

    with pool.worker():
        warm = do.dispatch_many([(f"w{number}", 1) for number in range(200)])
        assert all(receipt.result(5) for receipt in warm)
        slow = do.dispatch("slow", 0)
        quick = do.dispatch_many([(f"k{number}", 2) for number in range(100)])
        assert all(receipt.result(5) == 2 for receipt in quick)
        assert slow.cancel()
        later = do.dispatch_many([("slow", 3), *((f"k{number}", 3) for number in range(100))])
        assert all(receipt.result(5) == 3 for receipt in later)
