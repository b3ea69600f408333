"""What a worker asks of its store: little when it works, next to nothing when it does not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import keyed_play as play
import pytest

from millpond.keyed import Job, KeyedPool, Resident


def calls_while(store: play.Tampered, seconds: float) -> Counter[str]:
    """Return what is asked for so long, once things are quiet."""
    time.sleep(0.15)
    start = len(store.calls)
    time.sleep(seconds)
    return Counter(store.calls[start:])


def test_jobs_go_in_batches(pool: KeyedPool):
    @pool.job
    async def do(job: Job, number: int) -> int:
        return number

    store = play.tamper(pool)
    with pool.worker():
        do.dispatch("warm", 0).result(5)
        start = len(store.calls)
        for one in do.dispatch_many([(f"k{number % 50}", number) for number in range(2000)]):
            one.result(10)
        spent = Counter(store.calls[start:])
    assert spent["dispatch"] == 4
    assert spent["work"] < 700
    assert sum(spent.values()) < 2800  # an outcome is asked for by itself


def test_one_job_at_a_time_costs_few_calls(pool: KeyedPool):
    @pool.job
    async def do(job: Job) -> None: ...

    store = play.tamper(pool)
    with pool.worker():
        do.dispatch("warm").result(5)
        time.sleep(0.1)
        start = len(store.calls)
        for _ in range(100):
            do.dispatch("k").result(5)
        spent = Counter(store.calls[start:])
    assert spent["dispatch"] == 100
    assert spent["work"] <= 320
    assert spent["outcomes"] <= 320


STATES = ["idle", "busy", "paused", "held", "shut", "shelved", "retry", "delayed", "resident", "full"]


@pytest.mark.parametrize("state", STATES)
def test_a_worker_that_has_nothing_to_do_is_quiet(make: Callable[..., KeyedPool], state: str):
    pool = make(slots=16, lease=1.5)
    gate = play.Gate()

    @pool.job(max_attempts=3, backoff=50)
    async def do(job: Job, bad: bool = False) -> None:
        if bad:
            raise ValueError
        await gate.pass_()

    @pool.resident
    async def stay(resident: Resident) -> None:
        await asyncio.sleep(20)

    store = play.tamper(pool)
    with pool.worker(concurrency=1 if state == "full" else 100):
        match state:
            case "busy":
                do.dispatch("k"), do.dispatch("k")
            case "paused":
                pool.admin.pause()
                do.dispatch("k"), stay.start("k")
            case "held":
                pool.admin.pause("k")
                do.dispatch("k")
            case "shut":
                do.dispatch("k")
                pool.admin.shutdown()
            case "shelved":
                pool.declare_job("x").dispatch("k"), pool.declare_resident("y").start("k")
            case "retry":
                do.dispatch("k", bad=True)
            case "delayed":
                do.options(delay=50).dispatch("k")
            case "resident":
                stay.start("k")
            case "full":
                for number in range(20):
                    do.dispatch(f"k{number}")
        spent = calls_while(store, 0.5)
        gate.open()
    assert sum(spent.values()) < 12, spent


def test_a_producer_that_waits_is_quiet(pool: KeyedPool):
    do = pool.declare_job("do")
    store = play.tamper(pool)
    receipts = do.dispatch_many([(f"k{number}",) for number in range(300)])
    for one in receipts:
        with pytest.raises(TimeoutError):
            one.result(0)
    start = len(store.calls)
    with pytest.raises(TimeoutError):
        receipts[0].result(0.8)
    spent = Counter(store.calls[start:])
    assert sum(spent.values()) < 10, spent
