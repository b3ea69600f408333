"""What does asyncio pay: for a call in a thread, and for a coroutine in a pool?"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from harness import Question, scale

from millpond import AsyncPool, ThreadPool

N_CALLS = 20_000
N_COROUTINES = 100_000


def noop() -> None:
    pass


async def anoop(_: int) -> None:
    pass


async def stock_calls(workers: int) -> float:
    number = scale(N_CALLS)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(workers) as pool:
        began = time.perf_counter()
        await asyncio.gather(*[loop.run_in_executor(pool, noop) for _ in range(number)])
        return (time.perf_counter() - began) / number * 1e6


async def our_calls(workers: int) -> float:
    number = scale(N_CALLS)
    with ThreadPool(workers) as pool:
        began = time.perf_counter()
        await asyncio.gather(*[pool.run(noop) for _ in range(number)])
        return (time.perf_counter() - began) / number * 1e6


async def gather_semaphore() -> float:
    number = scale(N_COROUTINES)
    limit = asyncio.Semaphore(100)

    async def limited(item: int) -> None:
        async with limit:
            await anoop(item)

    began = time.perf_counter()
    await asyncio.gather(*[limited(n) for n in range(number)])
    return (time.perf_counter() - began) / number * 1e6


async def pool_map() -> float:
    number = scale(N_COROUTINES)
    async with AsyncPool(100) as pool:
        began = time.perf_counter()
        await pool.map(anoop, range(number))
        return (time.perf_counter() - began) / number * 1e6


async def pool_iterate() -> float:
    number = scale(N_COROUTINES)
    async with AsyncPool(100) as pool:
        began = time.perf_counter()
        async for _ in pool.map(anoop, range(number)):
            pass
        return (time.perf_counter() - began) / number * 1e6


async def pool_submit() -> float:
    number = scale(N_COROUTINES)
    async with AsyncPool(100) as pool:
        began = time.perf_counter()
        tasks = [await pool.submit(anoop, n) for n in range(number)]
        for task in tasks:
            await task
        return (time.perf_counter() - began) / number * 1e6


QUESTIONS = [
    Question(
        key="awaited_calls",
        title="20k awaited calls in threads, gathered",
        sides={
            "run_in_executor": lambda workers: asyncio.run(stock_calls(workers)),
            "millpond": lambda workers: asyncio.run(our_calls(workers)),
        },
        unit="µs/call",
        reference="run_in_executor",
        params=[{"workers": 1}, {"workers": 4}],
        must=8,
        aim=12,
    ),
    Question(
        key="coroutines_map",
        title="AsyncPool: 100k coroutine calls at concurrency 100, `await pool.map()`",
        sides={
            "gather + Semaphore": lambda: asyncio.run(gather_semaphore()),
            "millpond": lambda: asyncio.run(pool_map()),
        },
        unit="µs/call",
        reference="gather + Semaphore",
        must=20,
        aim=40,
    ),
    Question(
        key="coroutines_iterate",
        title="The same, `async for … in pool.map()`",
        sides={
            "gather + Semaphore": lambda: asyncio.run(gather_semaphore()),
            "millpond": lambda: asyncio.run(pool_iterate()),
        },
        unit="µs/call",
        reference="gather + Semaphore",
        note="an async iterator costs a step of the consumer's coroutine for each item",
    ),
    Question(
        key="coroutines_submit",
        title="AsyncPool: 100k coroutine calls at concurrency 100, `submit` with a handle each",
        sides={
            "gather + Semaphore": lambda: asyncio.run(gather_semaphore()),
            "millpond": lambda: asyncio.run(pool_submit()),
        },
        unit="µs/call",
        reference="gather + Semaphore",
        note="a handle for each call needs an object for each; no goal set",
    ),
]
