"""A program as a user would write it: checked by mypy and pyright against the installed package, and run once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from typing import assert_type

import millpond
from millpond import (
    AcquireTimeout,
    AsyncPool,
    AsyncResourcePool,
    AsyncTask,
    CancelToken,
    Grant,
    Job,
    JobFailed,
    KeyedPool,
    PoolFull,
    Receipt,
    ResourcePool,
    Statistics,
    Task,
    ThreadPool,
    as_completed,
)
from millpond.resources import want
from millpond.testing import in_memory

shop = KeyedPool("shop", "redis://store.example:6379")


@shop.job(max_attempts=2, backoff=0.01)
def charge(job: Job, amount: int, *, currency: str = "EUR") -> str:
    if amount < 0:
        raise ValueError("a negative amount")
    return f"{job.key} paid {amount} {currency}"


@shop.job
async def thank(job: Job, words: list[str]) -> int:
    await asyncio.sleep(0)
    return len(words)


def area(width: int, *, height: float = 1.0) -> float:
    return width * height


def local() -> float:
    with ThreadPool(2, max_queued=10, when_full="raise") as pool:
        executor: Executor = pool
        task = pool.submit(area, 3, height=2.0)
        assert_type(task, Task[float])
        assert_type(task.result(timeout=60), float)
        assert_type(pool.map(area, [1, 2]), Iterator[float])
        assert_type(pool.statistics(), Statistics)
        done = [each.result() for each in as_completed([task])]
        try:
            done.append(executor.submit(area, 1).result())
            done += pool.options(timeout=60).map(area, [1, 2])
        except PoolFull:
            done.clear()
        token = CancelToken()
        assert_type(token.remaining(), float | None)
        return sum(done)


async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def awaited() -> int:
    async with AsyncPool(2) as pool, AsyncResourcePool("boards", "memory:consumer-async") as boards:
        await boards.add("board-1")
        async with boards.acquire(timeout=60) as grant:
            assert_type(grant.token, int)
            task = await pool.submit(doubled, 21)
            assert_type(task, AsyncTask[int])
        return await task


def keyed() -> list[str]:
    told: list[str] = []
    with in_memory(shop):
        receipt = charge.dispatch("ann", 30)
        assert_type(receipt, Receipt[str])
        told.append(receipt.result(timeout=60))
        told.append(str(thank.dispatch("ann", ["many", "thanks"]).result(timeout=60)))
        try:
            charge.dispatch("bob", -1, currency="CHF").result(timeout=60)
        except JobFailed as error:
            told.append(error.error)
        told += [letter.key for letter in shop.admin.dead_letters()]
        assert_type(shop.statistics().dead, int)
    return told


def resources() -> Mapping[str, int]:
    with ResourcePool("gpus", "memory:consumer") as pool:
        pool.add("gpu-0", labels={"model": "a100", "nvlink": True}, capacity=2)
        with pool.acquire({"model": "a100"}, units=2, timeout=60, reason="train") as grant:
            assert_type(grant, Grant)
            assert_type(grant.resource, str)
            grant.check()
            assert_type(pool.try_acquire(name="gpu-0"), Grant | None)
            try:
                pool.acquire_all([want(name="gpu-0", units=1)], timeout=0.01)
            except AcquireTimeout as error:
                print(error)
            for holder in pool.holders():
                print(holder.resources, holder.reason)
            return dict(grant.units)


def mistakes() -> None:
    """Each line is refused by both checkers; one that were accepted would make its comment a mistake."""
    millpond.ThreadPond()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    charge.dispatch("ann", "30")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    charge.dispatch("ann", 30, colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ThreadPool(1).submit(area, "3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ThreadPool(when_full="explode")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ResourcePool("gpus").acquire(units="some")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    print(local(), asyncio.run(awaited()), keyed(), resources())
