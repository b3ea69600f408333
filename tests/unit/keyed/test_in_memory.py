"""`millpond.testing.in_memory`: the jobs of a program, run in a test without its server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from millpond.errors import JobFailed, PoolClosed
from millpond.keyed import AsyncKeyedPool, Job, KeyedPool
from millpond.testing import in_memory
from waiting import HANG, until

NOWHERE = "redis://127.0.0.1:1/0"
"""Nobody listens there."""


def program(url: str) -> tuple[KeyedPool, Any]:
    pool = KeyedPool("tenants", url)

    @pool.job
    def double(job: Job, number: int) -> int:
        return 2 * number

    return pool, double


def test_jobs_run_without_the_server_of_their_pool():
    pool, double = program(NOWHERE)
    for _ in range(2):  # each time with a pool that knows nothing of the last
        with in_memory(pool, concurrency=3) as same:
            assert same is pool and pool.statistics().dispatched_total == 0
            assert double.dispatch("k", 21).result(HANG) == 42
            assert [one.concurrency for one in pool.workers()] == [3]
    assert pool.url == NOWHERE and pool._connection.url == NOWHERE
    with in_memory(pool, worker=False):
        double.dispatch("k", 1)
        assert not pool.workers() and pool.statistics().jobs == 1


def test_the_pool_is_afterwards_where_it_was(tmp_path: Path):
    pool, double = program(f"sqlite:///{tmp_path}/pools.db")
    kept = double.dispatch("k", 4)
    with in_memory(pool):
        double.dispatch("k", 21).result(HANG)
    assert pool.statistics().jobs == 1
    with pool.worker():
        assert kept.result(HANG) == 8
        with pytest.raises(RuntimeError, match="end its workers first"), in_memory(pool):
            pass
    pool.close()
    with in_memory(pool):
        assert double.dispatch("k", 21).result(HANG) == 42
    with pytest.raises(PoolClosed):
        double.dispatch("k", 1)


@pytest.mark.asyncio
async def test_an_async_pool_lives_in_memory_for_a_block():
    pool = AsyncKeyedPool("tenants", NOWHERE)

    @pool.job
    async def fail(job: Job) -> None:
        raise ValueError("no")

    async with in_memory(pool):
        with pytest.raises(JobFailed, match="ValueError: no"):
            await (await fail.dispatch("k")).result(HANG)
        assert (await pool.statistics()).dead == 1
    with pytest.raises(TypeError, match="async with"), in_memory(pool):
        pass
    with pytest.raises(TypeError, match="takes a KeyedPool"):
        in_memory(7)  # type: ignore[arg-type]


def test_what_a_test_does_stays_in_it(tmp_path: Path):
    pool = KeyedPool("tenants", f"sqlite:///{tmp_path}/pools.db", lease=7)
    release = threading.Event()

    @pool.job
    def stubborn(job: Job) -> None:
        release.wait(HANG)

    with in_memory(pool, grace=0):
        stubborn.dispatch("k")
        until(lambda: pool.statistics().keys_running == 1)  # it outlives the block
    assert pool.admin.settings()["lease"] == 7
    release.set()
    with in_memory(pool, worker=False):
        pool.admin.configure(lease=3)
        pool.close()
    assert pool.admin.settings()["lease"] == 7
