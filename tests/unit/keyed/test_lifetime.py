"""Opening, closing, forking, threads and loops: how a pool object lives and ends."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import keyed_play as play
import pytest

from millpond.errors import EngineError, PoolClosed
from millpond.keyed import AsyncKeyedPool, Job, KeyedPool, Resident
from waiting import HANG, auntil, becomes, until


def ours(before: set[threading.Thread]) -> list[str]:
    return [each.name for each in threading.enumerate() if each not in before and each.name.startswith("millpond")]


def test_a_pool_costs_nothing_before_it_is_used():
    before = set(threading.enumerate())
    pool = KeyedPool("p", "memory:unused")

    @pool.job
    async def do(job: Job) -> None: ...

    assert not ours(before)
    pool.close()
    pool.close()


def test_all_threads_end(url: str):
    before = set(threading.enumerate())
    pool = KeyedPool("p", url, lease=play.LONG)

    @pool.job
    def do(job: Job) -> None: ...

    @pool.resident
    def stay(resident: Resident) -> None:
        resident.lost.wait(HANG)

    with pool:
        for _ in range(3):
            with pool.worker():
                stay.start("r")
                do.dispatch("k").result(HANG)
                until(lambda: [one.state for one in pool.residents()] == ["running"])
    becomes(lambda: ours(before), [])


def test_a_pool_that_is_closed_says_so_to_everybody(pool: KeyedPool):
    @pool.job
    async def do(job: Job) -> None: ...

    @pool.resident
    async def stay(resident: Resident) -> None: ...

    receipt = do.dispatch("k")
    pool.close()
    pool.close()
    calls: list[Callable[[], Any]] = [
        lambda: do.dispatch("k"),
        lambda: do.dispatch_many([("k",)]),
        lambda: receipt.result(HANG),
        receipt.status,
        receipt.cancel,
        lambda: stay.start("k"),
        lambda: stay.stop("k"),
        lambda: stay.notify("k", 1),
        pool.workers,
        pool.slots,
        pool.keys,
        pool.residents,
        pool.statistics,
        pool.admin.pause,
        pool.admin.dead_letters,
        pool.run,
        lambda: pool.worker().__enter__(),
    ]
    for call in calls:
        with pytest.raises(PoolClosed, match="closed"):
            call()


def test_whoever_waits_for_a_result_hears_that_the_pool_was_closed(pool: KeyedPool):
    @pool.job
    async def do(job: Job) -> None: ...

    receipt = do.dispatch("k")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            receipt.result(HANG)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    pool.close()
    thread.join(HANG)
    assert [type(one) for one in errors] == [PoolClosed]


@pytest.mark.asyncio
async def test_a_task_that_waits_for_a_result_hears_that_the_pool_was_closed(apool: AsyncKeyedPool):
    @apool.job
    async def do(job: Job) -> None: ...

    receipt = await do.dispatch("k")
    task = asyncio.create_task(receipt.result(HANG))
    await asyncio.sleep(0.05)
    await apool.close()
    with pytest.raises(PoolClosed):
        await task


def test_a_pool_that_is_closed_under_its_worker_lets_it_end(url: str):
    before = set(threading.enumerate())
    pool, other = KeyedPool("p", url, lease=play.LONG), KeyedPool("p", url)
    pool.statistics()
    with other:
        worker = pool.worker(grace=0.1)
        worker.__enter__()
        pool.close()
        worker.close()
        until(lambda: not other.workers())
    becomes(lambda: ours(before), [])


def test_a_worker_is_used_again(pool: KeyedPool):
    @pool.job
    async def do(job: Job) -> str:
        return job.key

    worker = pool.worker()
    assert worker.id == "" and not worker.is_member
    ids = set()
    for _ in range(3):
        with worker:
            ids.add(worker.id)
            assert do.dispatch("k").result(HANG) == "k"
    assert len(ids) == 3


def test_a_block_that_fails_still_leaves(pool: KeyedPool):
    with pytest.raises(KeyboardInterrupt), pool.worker():
        raise KeyboardInterrupt
    assert pool.workers() == []


def test_pools_of_one_name_are_one_and_gone_with_their_last_user():
    url = play.fresh()
    one, two = KeyedPool("p", url), KeyedPool("p", url)
    one.declare_job("x").dispatch("k")
    assert two.statistics().jobs == 1
    one.close()
    assert two.statistics().jobs == 1
    two.close()
    three = KeyedPool("p", url, slots=8)
    assert three.statistics().jobs == 0
    three.close()
    other, world = KeyedPool("q", url), KeyedPool("p", f"{url}-other")
    assert other.statistics().jobs == world.statistics().jobs == 0
    other.close(), world.close()


def test_one_pool_object_serves_many_threads(pool: KeyedPool):
    @pool.job
    async def do(job: Job, number: int) -> int:
        return number

    errors: list[BaseException] = []

    def use(thread: int) -> None:
        try:
            for number in range(30):
                assert do.dispatch(f"k{thread}", number).result(HANG) == number
                pool.statistics(), pool.keys()
        except BaseException as error:
            errors.append(error)

    with pool.worker():
        threads = [threading.Thread(target=use, args=(each,)) for each in range(12)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert not errors


def test_many_threads_open_a_pool_at_once(make: Callable[..., KeyedPool]):
    for _ in range(10):
        pool = make(name=f"p{time.monotonic_ns()}")
        do = pool.declare_job("do")
        barrier = threading.Barrier(8)

        def dispatch(do: Any = do, barrier: Any = barrier) -> None:
            barrier.wait()
            do.dispatch("k")

        threads = [threading.Thread(target=dispatch) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert pool.statistics().jobs == 8
        pool.close()


def test_an_interrupt_while_dispatching_harms_nobody_else(pool: KeyedPool):
    """Others may have handed their jobs to the thread that is interrupted."""
    do = pool.declare_job("do")
    store = play.tamper(pool)
    entered, go = threading.Event(), threading.Event()
    first = [True]

    def slow_then_interrupted(*args: Any) -> None:
        if first[0]:
            first[0] = False
            entered.set()
            go.wait(HANG)
            store.before["dispatch"] = interrupted

    def interrupted(*args: Any) -> None:
        store.before.clear()
        raise KeyboardInterrupt

    store.before["dispatch"] = slow_then_interrupted
    ends: list[str] = []

    def send(key: str) -> None:
        try:
            do.dispatch(key)
            ends.append("in")
        except KeyboardInterrupt:
            ends.append("interrupted")
        except BaseException as error:
            ends.append(type(error).__name__)

    threads = [threading.Thread(target=send, args=(f"k{number}",), daemon=True) for number in range(5)]
    threads[0].start()
    assert entered.wait(HANG)
    for each in threads[1:]:
        each.start()
    until(lambda: len(pool._bridge._sender._queue) == 5)
    go.set()  # the next call has the jobs of four threads, and is interrupted
    for each in threads:
        each.join(HANG)
    assert not any(each.is_alive() for each in threads), ends
    assert ends.count("interrupted") == 1 and ends.count("in") == 4
    assert do.dispatch("after").id


@pytest.mark.asyncio
async def test_a_dispatch_that_is_cancelled_harms_nobody_else(apool: AsyncKeyedPool):
    @apool.job
    async def do(job: Job, number: int) -> int:
        return number

    store = play.tamper(apool)
    release = threading.Event()
    store.before["dispatch"] = lambda *args: release.wait(HANG)
    tasks = [asyncio.create_task(do.dispatch("k", number)) for number in range(6)]
    await asyncio.sleep(0.05)
    for each in tasks[::2]:
        each.cancel()
    await asyncio.sleep(0.01)
    release.set()
    async with apool.worker():
        for number in (1, 3, 5):
            assert await (await tasks[number]).result(HANG) == number
        for each in tasks[::2]:
            with pytest.raises(asyncio.CancelledError):
                await each


def test_an_async_pool_serves_two_loops(url: str):
    pool = AsyncKeyedPool("p", url, lease=play.LONG)

    @pool.job
    async def do(job: Job, number: int) -> int:
        return number

    found: list[int] = []

    async def use(offset: int) -> None:
        for number in range(20):
            receipt = await do.dispatch(f"k{offset}", number)
            found.append(await receipt.result(HANG))

    async def work(stop: threading.Event) -> None:
        async with pool.worker():
            while not stop.is_set():
                await asyncio.sleep(0.01)

    stop = threading.Event()
    worker = threading.Thread(target=lambda: asyncio.run(work(stop)))
    worker.start()
    users = [threading.Thread(target=lambda each=each: asyncio.run(use(each))) for each in range(3)]  # type: ignore[misc]
    for each in users:
        each.start()
    for each in users:
        each.join()
    asyncio.run(use(9))  # a loop that comes later
    stop.set()
    worker.join(HANG)
    asyncio.run(pool.close())
    assert sorted(found) == sorted(list(range(20)) * 4)


@pytest.mark.asyncio
async def test_an_async_pool_can_be_closed_twice_and_used_as_a_block(url: str):
    async with AsyncKeyedPool("p", url) as pool:
        await pool.statistics()
    await pool.close()
    with pytest.raises(PoolClosed):
        await pool.statistics()
    with pytest.raises(PoolClosed):
        async with pool.worker():
            pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told_that_memory_is_not_shared(make: Callable[..., KeyedPool]):
    pool = make(at=play.fresh())
    do = pool.declare_job("do")
    do.dispatch("k")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        words = b"nothing"
        try:
            do.dispatch("k")
        except EngineError as error:
            words = str(error).encode()
        except BaseException as error:
            words = repr(error).encode()
        finally:
            os.write(writer, words)
            pool.close()
            os._exit(0)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    assert b"forked" in os.read(reader, 1000)
    os.close(reader)
    assert pool.statistics().jobs == 1


def test_a_pool_that_is_forgotten_leaves_no_thread(url: str):
    before = set(threading.enumerate())
    pool = KeyedPool("p", url)
    receipt = pool.declare_job("x").dispatch("k")
    with pytest.raises(TimeoutError):
        receipt.result(0.01)
    pool.close()
    del pool, receipt
    gc.collect()
    becomes(lambda: ours(before), [])


def test_a_worker_whose_loop_ended_under_it_gives_its_keys_up(url: str):
    """A program that forgets to leave: its loop is closed, the process lives on."""
    before = set(threading.enumerate())
    first, second = AsyncKeyedPool("p", url, lease=0.5), KeyedPool("p", url)

    async def do(job: Job) -> str:
        return job.key

    first.job(do)

    async def forget() -> Any:
        worker = first.worker()
        await worker.__aenter__()
        await auntil(lambda: worker.is_member)
        return worker

    kept = asyncio.run(forget())
    with second:
        job = second.job(do)
        with second.worker():
            receipts = job.dispatch_many([(f"k{number}",) for number in range(20)])
            for one in receipts:
                assert one.result(HANG) == one.key
            until(lambda: len(second.workers()) == 1)
    assert kept is not None
    asyncio.run(first.close())
    becomes(lambda: ours(before), [])


def test_a_loop_that_stands_still_for_many_leases_keeps_its_keys(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch
):
    pool, other = make(lease=0.3), make()
    clock = play.Clock(monkeypatch, pool)
    log, end = play.Log(), threading.Event()

    async def do(job: Job, block: bool = False) -> int:
        with log.run(job.key):
            if block:
                end.wait(HANG)  # the loop stands still meanwhile
            return job.attempt

    job, _ = pool.job(do), other.job(do)
    with pool.worker() as worker:
        before = worker.id
        until(lambda: play.slot_share(pool) == {before: play.SLOTS})
        receipts = [job.dispatch("a", block=True), job.dispatch("a")]
        until(lambda: log.running("a"))
        with other.worker() as there:
            clock.let_pass(4, worker, there)
            assert log.running("a")
            end.set()
            assert [one.result(HANG) for one in receipts] == [1, 1]
            assert worker.id == before
    assert not log.overlaps


def test_a_function_may_wait_for_jobs_of_other_keys(pool: KeyedPool):
    @pool.job
    def leaf(job: Job, number: int) -> int:
        return number

    @pool.job
    def sum_of(job: Job, many: int) -> int:
        return sum(one.result(HANG) for one in [leaf.dispatch(f"leaf{number}", number) for number in range(many)])

    with pool.worker():
        assert sum_of.dispatch("root", 10).result(HANG) == 45


def test_a_job_that_is_declared_after_its_worker_joined_is_run(pool: KeyedPool):
    with pool.worker():

        @pool.job
        async def late(job: Job) -> str:
            return job.key

        assert late.dispatch("k").result(HANG) == "k"


def test_closing_while_others_dispatch_refuses_or_accepts(url: str):
    for _ in range(5):
        pool, other = KeyedPool("p", url), KeyedPool("p", url)
        other.statistics()
        do = pool.declare_job("do")
        accepted, errors = [0], []
        started = threading.Event()

        def produce(
            do: Any = do, accepted: list[int] = accepted, errors: list[Any] = errors, started: Any = started
        ) -> None:
            try:
                while True:
                    do.dispatch("k")
                    accepted[0] += 1
                    started.set()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=produce)
        thread.start()
        assert started.wait(HANG)
        pool.close()
        thread.join(HANG)
        assert not thread.is_alive()
        assert [type(one) for one in errors] == [PoolClosed]
        assert other.statistics().jobs == accepted[0]
        other.admin.drop(force=True)
        other.close()


@pytest.mark.asyncio
async def test_a_worker_that_is_cancelled_while_it_joins_is_no_member_for_long(url: str):
    pool = AsyncKeyedPool("p", url, lease=0.4)
    store = play.tamper(pool)
    joining, go = threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        joining.set()
        go.wait(HANG)

    store.before["join"] = slow

    async def work() -> None:
        async with pool.worker():
            await asyncio.sleep(3600)

    task = asyncio.create_task(work())
    await auntil(joining.is_set)
    task.cancel()
    await asyncio.sleep(0.02)
    store.before.clear()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with pool.worker() as worker:
        await auntil(lambda: alone(pool, worker.id))  # type: ignore[arg-type,return-value]
    await pool.close()


async def alone(pool: AsyncKeyedPool, worker: str) -> bool:
    return [one.id for one in await pool.workers()] == [worker]


def test_a_pool_that_was_closed_is_opened_again(url: str):
    pool = KeyedPool("p", url)
    echo = pool.job(name="echo")(lambda job, value: value)
    for value in range(3):  # as each test of a web application does with the pool of its module
        with pool, pool.worker():
            assert echo.dispatch("a", value).result(HANG) == value
        with pytest.raises(PoolClosed, match="open it again"):
            echo.dispatch("a", value)


@pytest.mark.asyncio
async def test_a_pool_that_was_closed_is_opened_again_in_another_loop(url: str):
    pool = AsyncKeyedPool("p", url)

    @pool.job
    async def echo(job: Job, value: int) -> int:
        return value

    for value in range(3):
        async with pool, pool.worker():
            assert await (await echo.dispatch("a", value)).result(HANG) == value


@pytest.mark.asyncio
async def test_a_worker_whose_start_is_cancelled_is_no_member(url: str):
    """Whenever that is: it leaves what it has joined."""
    async with AsyncKeyedPool("p", url, lease=play.LONG) as pool:
        for turns in range(12):

            async def block() -> None:
                async with pool.worker():
                    await asyncio.sleep(HANG)

            task = asyncio.create_task(block())
            for _ in range(turns):
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await pool.workers() == []
