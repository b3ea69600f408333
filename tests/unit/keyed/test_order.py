"""The jobs of one key run in order, one at a time; other keys run beside it."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import keyed_play as play
import pytest

from millpond.keyed import AsyncKeyedPool, Job, KeyedPool
from millpond.keyed.client.sender import Pending
from waiting import HANG, auntil, until


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
def test_jobs_of_a_key_run_in_order_one_at_a_time(pool: KeyedPool, colour: str):
    log = play.Log()
    dice = random.Random(1)

    def plain(job: Job, number: int) -> None:
        with log.run(job.key, number):
            until(lambda: log.most > 1)
            time.sleep(dice.random() * 0.001)

    async def coroutine(job: Job, number: int) -> None:
        with log.run(job.key, number):
            await auntil(lambda: log.most > 1)
            await asyncio.sleep(dice.random() * 0.001)

    do = pool.job(name="do")(plain if colour == "plain" else coroutine)
    keys = [f"k{number}" for number in range(10)]
    with pool.worker(concurrency=8):
        for number in range(40):
            for key in keys:
                do.dispatch(key, number)
        until(lambda: len(log.ended) == 400)
    assert not log.overlaps
    for key in keys:
        assert log.of(key) == list(range(40))


def test_many_threads_dispatch_in_their_own_order(pool: KeyedPool):
    log = play.Log()

    @pool.job(keep_result=0)
    async def do(job: Job, thread: int, number: int) -> None:
        with log.run(job.key, (thread, number)):
            pass

    def produce(thread: int) -> None:
        for number in range(50):
            do.dispatch("shared", thread, number)

    with pool.worker():
        threads = [threading.Thread(target=produce, args=(each,)) for each in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        until(lambda: len(log.ended) == 400)
    assert not log.overlaps
    for thread in range(8):
        assert [number for one, number in log.of("shared") if one == thread] == list(range(50))


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
def test_a_slow_key_holds_up_no_other(pool: KeyedPool, colour: str):
    gate = play.Gate()

    def plain(job: Job, slow: bool = False) -> str:
        if slow:
            gate.wait()
        return job.key

    async def coroutine(job: Job, slow: bool = False) -> str:
        if slow:
            await gate.pass_()
        return job.key

    do = pool.job(name="do")(plain if colour == "plain" else coroutine)
    with pool.worker(concurrency=2):
        stuck = do.dispatch("slow", slow=True)
        behind = do.dispatch_many([("slow",)] * 50)
        assert [do.dispatch(f"k{number}").result(HANG) for number in range(40)]
        assert stuck.status() == "running"
        gate.open()
        assert behind[-1].result(HANG) == "slow"


def test_a_deep_key_takes_turns_with_others_on_one_handler(pool: KeyedPool):
    log = play.Log()

    @pool.job(keep_result=0)
    async def do(job: Job, number: int) -> None:
        with log.run(job.key, number):
            await asyncio.sleep(0)

    pool.admin.pause()
    do.dispatch_many([("deep", number) for number in range(1000)])
    do.dispatch_many([(f"k{number}", number) for number in range(20)])
    with pool.worker(concurrency=1):
        pool.admin.resume()
        until(lambda: len(log.ended) == 1020)
    last_of_others = max(index for index, (key, _) in enumerate(log.ended) if key != "deep")
    assert last_of_others < 20 * 17 + 64
    assert log.of("deep") == list(range(1000))


def test_a_poisoned_key_holds_up_no_other(pool: KeyedPool):
    @pool.job(max_attempts=50, backoff=0.001, backoff_limit=0.002)
    async def do(job: Job) -> str:
        if job.key == "poison":
            raise ValueError
        return job.key

    with pool.worker(concurrency=1):
        do.dispatch_many([("poison",)] * 20)
        for number in range(50):
            assert do.dispatch(f"k{number}").result(HANG)


def test_concurrency_is_a_limit(pool: KeyedPool):
    log = play.Log()

    @pool.job
    async def do(job: Job) -> None:
        with log.run(job.key):
            await auntil(lambda: log.most == 3)
            await asyncio.sleep(0.01)

    @pool.job
    def plain(job: Job) -> None:
        with log.run(job.key):
            until(lambda: log.most == 3)
            time.sleep(0.01)

    with pool.worker(concurrency=3):
        receipts = do.dispatch_many([(f"k{number}",) for number in range(20)])
        receipts += plain.dispatch_many([(f"p{number}",) for number in range(20)])
        for one in receipts:
            one.result(HANG)
    assert log.most == 3


def test_tokens_of_a_key_grow(pool: KeyedPool):
    tokens: list[int] = []

    @pool.job
    def do(job: Job) -> int:
        tokens.append(job.token)
        return job.token

    for _ in range(3):
        with pool.worker():
            for _ in range(5):
                do.dispatch("k").result(HANG)
    assert tokens == sorted(tokens) and len(set(tokens)) >= 3


def test_a_job_knows_itself(pool: KeyedPool):
    seen: list[Job] = []

    @pool.job
    def do(job: Job) -> None:
        seen.append(job)

    with pool.worker():
        receipt = do.options(id="mine").dispatch("k")
        receipt.result(HANG)
    (job,) = seen
    assert (job.key, job.id, job.name, job.attempt, job.pool) == ("k", "mine", "do", 1, "p")
    assert abs(job.dispatched_at - time.time()) < HANG
    assert not job.lost
    job.check()


def test_a_job_may_dispatch_more_for_its_own_key(pool: KeyedPool):
    log = play.Log()

    @pool.job
    def chain(job: Job, left: int) -> None:
        with log.run(job.key, left):
            if left:
                chain.dispatch(job.key, left - 1)

    with pool.worker():
        chain.dispatch("k", 20)
        until(lambda: len(log.ended) == 21)
    assert log.of("k") == list(range(20, -1, -1)) and not log.overlaps


def test_what_waits_for_a_worker_is_run_when_one_comes(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG)

    @pool.job
    async def do(job: Job, number: int) -> int:
        return number

    receipts = do.dispatch_many([(f"k{number % 7}", number) for number in range(1200)])
    assert pool.statistics().jobs == 1200
    with pool.worker():
        assert [one.result(HANG) for one in receipts] == list(range(1200))


def test_jobs_that_only_another_worker_knows_are_left_for_it_in_order(make: Callable[..., KeyedPool]):
    one, two = make(slots=4, lease=play.LONG), make()
    log = play.Log()

    @one.job
    async def old(job: Job, number: int) -> None:
        with log.run(job.key, number):
            pass

    @two.job
    async def new(job: Job, number: int) -> None:
        with log.run(job.key, number):
            await asyncio.sleep(0.002)

    declared = one.declare_job("new")
    with one.worker():
        for number in range(0, 20, 2):
            old.dispatch("k", number)
            declared.dispatch("k", number + 1)
        until(lambda: log.of("k") == [0])
        until(lambda: [each.state for each in one.keys()] == ["parked"])  # noqa: SIM118
        assert old.dispatch("other", 1).result(HANG) is None
        with two.worker():
            until(lambda: len(log.of("k")) == 20)
    assert log.of("k") == list(range(20)) and not log.overlaps
    assert one.statistics().dead == 0


def test_an_unknown_job_that_is_cancelled_frees_its_key(pool: KeyedPool):
    @pool.job
    async def known(job: Job) -> str:
        return "known"

    with pool.worker():
        strange = pool.declare_job("strange").dispatch("k")
        after = known.dispatch("k")
        until(lambda: [each.state for each in pool.keys()] == ["parked"])  # noqa: SIM118
        assert strange.cancel()
        assert after.result(HANG) == "known"
        assert strange.status() == "cancelled"


@pytest.mark.asyncio
async def test_tasks_that_dispatch_one_after_another_keep_their_order(apool: AsyncKeyedPool):
    log = play.Log()

    @apool.job(keep_result=0)
    async def do(job: Job, number: int) -> None:
        with log.run(job.key, number):
            await asyncio.sleep(0)

    async with apool.worker():
        await asyncio.gather(*(do.dispatch("k", number) for number in range(200)))
        await auntil(lambda: len(log.ended) == 200)
    assert log.of("k") == list(range(200)) and not log.overlaps


class Growing(deque[Any]):
    """A queue to which somebody adds just when it is looked through."""

    def __iter__(self) -> Iterator[Any]:
        found = super().__iter__()
        if len(self) < 3:
            self.append(Pending([]))
        return found


def test_a_dispatch_bears_that_others_come_while_it_gathers_them(pool: KeyedPool):
    pool.declare_job("do").dispatch("k")
    outbox = pool._bridge._sender
    outbox._queue = Growing([Pending([])])
    assert len(outbox._first(10)) == 3
