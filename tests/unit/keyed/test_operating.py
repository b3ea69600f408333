"""What operators do and see: pause, resume, purge; workers, slots, keys, statistics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import keyed_play as play
import pytest

from millpond.errors import PoolFull
from millpond.keyed import AsyncKeyedPool, Job, KeyedPool, Resident
from waiting import HANG, auntil, until


def test_a_paused_key_waits_and_others_do_not(pool: KeyedPool):
    ran: list[tuple[str, int]] = []

    @pool.job
    async def do(job: Job, number: int) -> int:
        ran.append((job.key, number))
        return number

    with pool.worker():
        pool.admin.pause("a")
        pool.admin.pause("a")
        held = do.dispatch_many([("a", 0), ("a", 1)])
        assert do.dispatch("b", 0).result(HANG) == 0
        until(lambda: [one.state for one in pool.keys()] == ["paused"])  # noqa: SIM118
        assert ran == [("b", 0)] and held[0].status() == "waiting"
        assert held[0].cancel()
        pool.admin.resume("a")
        assert held[1].result(HANG) == 1
        pool.admin.resume("a")
        assert do.dispatch("a", 2).result(HANG) == 2
    assert ran == [("b", 0), ("a", 1), ("a", 2)]


def test_a_paused_pool_begins_nothing(pool: KeyedPool):
    ran: list[str] = []

    @pool.job
    async def do(job: Job) -> str:
        ran.append(job.key)
        return job.key

    @pool.resident
    async def stay(resident: Resident) -> None:
        ran.append(resident.key)
        await asyncio.sleep(3600)

    with pool.worker():
        pool.admin.pause()
        receipt = do.dispatch("a")
        stay.start("r")
        time.sleep(0.1)
        assert not ran and pool.statistics().is_paused
        pool.admin.resume()
        assert receipt.result(HANG) == "a"
        until(lambda: "r" in ran)
        assert not pool.statistics().is_paused


def test_a_key_that_is_paused_while_it_runs_begins_nothing_more(pool: KeyedPool):
    """Also not of what the worker has taken with the job that runs."""
    gate = play.Gate()
    ran: list[int] = []

    @pool.job
    async def do(job: Job, number: int) -> int:
        ran.append(number)
        if number == 0:
            await gate.pass_()
        return number

    receipts = do.dispatch_many([("k", number) for number in range(6)])
    with pool.worker():
        until(lambda: ran == [0])
        pool.admin.pause("k")
        gate.open()
        assert receipts[0].result(HANG) == 0
        assert do.dispatch("other", 9).result(HANG) == 9
        assert ran == [0, 9]
        pool.admin.resume("k")
        assert receipts[5].result(HANG) == 5
    assert ran == [0, 9, *range(1, 6)]


def test_purge_drops_what_has_not_begun(pool: KeyedPool):
    gate = play.Gate()
    ran: list[int] = []

    @pool.job
    async def do(job: Job, number: int) -> int:
        ran.append(number)
        if number == 0:
            await gate.pass_()
        return number

    receipts = do.dispatch_many([("k", number) for number in range(6)])
    other = do.dispatch("other", 100)
    late = do.options(delay=50).dispatch("k", 7)
    with pool.worker():
        until(lambda: 0 in ran)
        assert pool.admin.purge("k") == 6
        gate.open()
        assert receipts[0].result(HANG) == 0
        assert other.result(HANG) == 100
        assert [one.status() for one in (*receipts[1:], late)] == ["purged"] * 6
        assert do.dispatch("k", 8).result(HANG) == 8
        assert pool.admin.purge("nobody") == 0
    assert ran.count(8) == 1 and not set(ran) & {1, 2, 3, 4, 5, 7}


def test_purge_of_a_deep_mailbox_goes_in_parts(pool: KeyedPool):
    do = pool.declare_job("do")
    for _ in range(5):
        do.dispatch_many([("k", number) for number in range(500)])
    store = play.tamper(pool)
    assert pool.admin.purge("k") == 2500
    assert store.calls.count("apply") == 1 + 3, "with the line in the history: three calls of a thousand jobs at most"
    assert pool.admin.purge("k") == 0


def test_replace_finds_what_waits_behind_the_one_that_runs(pool: KeyedPool):
    gate = play.Gate()
    ran: list[int] = []

    @pool.job
    async def do(job: Job, number: int) -> int:
        ran.append(number)
        if number == 0:
            await gate.pass_()
        return number

    receipts = do.dispatch_many([("k", number) for number in range(3)])  # taken together
    with pool.worker():
        until(lambda: ran == [0])
        last = do.options(on_busy="replace").dispatch("k", 9)
        gate.open()
        assert last.result(HANG) == 9
        assert [one.status() for one in receipts] == ["done", "replaced", "replaced"]
    assert ran == [0, 9]


def test_keys_and_statistics_tell_how_it_stands(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG)
    gate = play.Gate()

    @pool.job(max_attempts=2, backoff=50)
    async def do(job: Job, bad: bool = False) -> None:
        if bad:
            raise ValueError
        await gate.pass_()

    assert pool.keys() == [] and pool.statistics().oldest_age == 0.0
    do.dispatch("a"), do.dispatch("a")
    time.sleep(0.05)
    do.dispatch("b", bad=True)
    do.options(delay=50).dispatch("c")
    first, second = pool.keys()
    assert (first.key, first.depth, first.state, first.worker) == ("a", 2, "ready", "")
    assert second.key == "b" and first.oldest_age > second.oldest_age
    counts = pool.statistics()
    assert (counts.jobs, counts.keys_ready, counts.keys_running, counts.delayed, counts.workers) == (3, 2, 0, 1, 0)
    assert 0.05 <= counts.oldest_age < HANG
    with pool.worker() as worker:
        until(lambda: {one.state for one in pool.keys()} == {"running", "retry"})  # noqa: SIM118
        table = {one.key: one for one in pool.keys()}  # noqa: SIM118
        assert table["a"].worker == worker.id and table["a"].why == "free" and table["a"].depth == 2
        assert table["b"].failures == 1
        assert abs(table["a"].owner_since - time.time()) < HANG
        slot = pool.owner("a")
        assert slot.number == table["a"].slot and slot.owner == worker.id and slot.epoch > 0
        assert pool.statistics().oldest_age == 0.0  # nothing waits that could run
        gate.open()
        until(lambda: pool.statistics().done_total == 2)
    counts = pool.statistics()
    assert (counts.dispatched_total, counts.retried_total, counts.dead_total) == (4, 1, 0)
    assert len(pool.slots()) == play.SLOTS


def test_the_age_of_the_oldest_grows_while_nobody_works(pool: KeyedPool):
    @pool.job
    async def do(job: Job) -> None: ...

    do.dispatch("a")
    first = pool.statistics().oldest_age
    time.sleep(0.03)
    assert pool.statistics().oldest_age >= first + 0.03


def test_looking_in_opens_the_pool_and_costs_no_worker(make: Callable[..., KeyedPool]):
    pool = make()
    assert (pool.workers(), pool.keys(), pool.residents(), pool.admin.dead_letters()) == ([], [], [], [])
    assert len(pool.slots()) == 4096 and pool.owner("k").owner == ""
    assert repr(pool) == f"<KeyedPool 'p' at {pool.url!r}>"
    assert pool.statistics().workers == 0


@pytest.mark.asyncio
async def test_the_other_colour_sees_the_same(apool: AsyncKeyedPool):
    @apool.job
    async def do(job: Job) -> None: ...

    await apool.admin.pause()
    await do.dispatch("a")
    async with apool.worker() as worker:
        await auntil(lambda: owns(apool, worker.id))  # type: ignore[arg-type,return-value]
        assert [one.key for one in await apool.keys()] == ["a"]
        assert (await apool.statistics()).is_paused
        assert await apool.admin.purge("a") == 1
        await apool.admin.pause("a")
        await apool.admin.resume("a")
        await apool.admin.resume()
        assert len(await apool.slots()) == play.SLOTS
        assert (await apool.workers())[0].jobs == ("do",)
    await apool.admin.drop()


async def owns(pool: AsyncKeyedPool, worker: str) -> bool:
    return (await pool.owner("a")).owner == worker


def test_settings_of_a_pool_that_exists_can_be_changed(
    make: Callable[..., KeyedPool], caplog: pytest.LogCaptureFixture
):
    pool = make(lease=play.LONG, max_jobs=1)
    do = pool.job(name="do")(lambda job: None)
    do.dispatch("a")
    with pytest.raises(PoolFull):
        do.dispatch("b")
    pool.admin.configure(max_jobs=2)
    do.dispatch("b")
    with pytest.raises(PoolFull, match="has 2 jobs"):
        do.dispatch("c")
    later = make(max_jobs=7)  # a program that was not told: it goes on with what holds
    with pytest.raises(PoolFull):
        later.declare_job("do").dispatch("c")
    assert "has max_jobs=2, not 7: that holds, change it by admin.configure(max_jobs=7)" in caplog.text
    later.admin.configure(max_jobs=0)
    later.declare_job("do").dispatch("c")
    for wrong in ({"slots": 32}, {"lease": 5.0}):
        with pytest.raises(ValueError, match="leave it out to use the pool as it is"):
            make(**wrong).statistics()


def test_lease_and_drain_are_changed_while_no_worker_is_there(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG)
    with pool.worker():
        with pytest.raises(ValueError, match="end them first"):
            pool.admin.configure(lease=300.0)
        pool.admin.configure(max_per_key=3)
    pool.admin.configure(lease=300.0, drain=3.0)
    with pool.worker():
        (view,) = pool.workers()
        assert 0 < view.lease_left <= 300.0
    make(lease=300.0, drain=3.0).statistics()


@pytest.mark.parametrize(
    "wrong",
    [{"lease": 0}, {"lease": True}, {"lease": float("nan")}, {"max_jobs": -1}, {"max_jobs": 1.5}, {"max_losses": 0}],
)
def test_settings_that_do_not_do_are_refused(pool: KeyedPool, wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        pool.admin.configure(**wrong)


def test_no_reading_asks_for_a_pool_as_a_whole(make: Callable[..., KeyedPool]):
    """One that takes long would hold up the heartbeats of its process, or all who use the server."""
    pool = make(lease=play.LONG, drain=play.LONG)
    asked: list[Any] = []

    @pool.job
    def bad(job: Job) -> None:
        raise ValueError

    @pool.resident
    async def stay(resident: Resident) -> None:
        await asyncio.sleep(3600)

    store = play.tamper(pool)
    for name in ("Keys", "DelayedJobs", "DeadLetters", "Pauses"):
        store.before[name] = asked.append
    with pool.worker():
        bad.dispatch_many([(f"k{number}",) for number in range(20)])
        stay.start("k")
        until(lambda: pool.statistics().dead == 20)
    receipts = bad.dispatch_many([(f"k{number}",) for number in range(20)])
    bad.options(delay=1000).dispatch("later")
    assert len(pool.keys()) == 20 and len(pool.residents()) == 1
    assert len(pool.jobs(state="waiting")) == 20 and pool.jobs(id=receipts[3].id) and pool.jobs(key="k3")
    assert len(pool.admin.dead_letters()) == 20 and pool.admin.discard(key="k3") == 1 and pool.admin.replay() == 19
    assert pool.admin.paused(limit=9) == [] and stay.stop("k") and pool.reconcile(stay, {}) == 0
    assert {type(one).__name__ for one in asked} == {"Keys", "DelayedJobs", "DeadLetters", "Pauses"}
    assert all(one.limit is not None and one.limit <= 1000 for one in asked), asked
