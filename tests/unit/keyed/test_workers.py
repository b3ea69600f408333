"""Workers join and leave: what moves, when, and what is never run twice at once."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import keyed_play as play
import pytest

from millpond import Event
from millpond._clock import elapsed
from millpond.errors import PoolClosed
from millpond.keyed import AsyncKeyedPool, Job, Jump, KeyedPool
from millpond.keyed.rules import commands
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.placement import Member
from millpond.keyed.worker import worker as worker_module
from millpond.keyed.worker.runner import Runner
from waiting import HANG, auntil, never, until


def test_a_first_worker_has_everything_at_once(pool: KeyedPool):
    with pool.worker() as worker:
        until(lambda: play.slot_share(pool) == {worker.id: play.SLOTS})
        assert worker.is_member
        (view,) = pool.workers()
        assert (view.id, view.slots, view.weight, view.concurrency, view.is_leaving) == (
            worker.id,
            play.SLOTS,
            1,
            100,
            False,
        )
        assert 0 < view.lease_left <= play.LONG and ":" in view.label
        assert pool.owner("k").why == "free"
    assert pool.workers() == [] and {one.owner for one in pool.slots()} == {""}
    assert pool.owner("k").why == "left"


def test_a_joiner_has_its_share_within_two_heartbeats(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG)  # so that no heartbeat comes just because a machine was slow
    store = play.tamper(pool)
    with pool.worker() as first:
        until(lambda: play.slot_share(pool) == {first.id: play.SLOTS})
        before = store.calls.count("renew")
        with pool.worker() as second:
            until(lambda: play.settled(pool, 2, play.SLOTS))
            assert store.calls.count("renew") - before <= 2
            share = play.slot_share(pool)
            assert 0.4 * play.SLOTS <= share[second.id] <= 0.6 * play.SLOTS
            moved = [one for one in pool.slots() if one.owner == second.id]
            assert {(one.why, one.before) for one in moved} == {("rebalanced", first.id)}
            with pool.worker() as third:
                old_slots = pool.slots()
                until(
                    lambda: play.slot_share(pool).get(third.id, 0) >= play.SLOTS - 2 * (play.SLOTS * 1.15 // 3 + 1)
                )  # nobody has more than 1.15 shares
                after = pool.slots()
                changed = [new for old, new in zip(old_slots, after, strict=True) if old.owner != new.owner]
                assert len(changed) <= play.SLOTS // 3 * 1.7
        assert until(lambda: play.slot_share(pool) == {first.id: play.SLOTS})


def test_weights_count(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG)
    with pool.worker(weight=3) as heavy, pool.worker() as light:
        until(lambda: play.settled(pool, 2, play.SLOTS))
        share = play.slot_share(pool)
        assert share[heavy.id] > 2 * share[light.id]


def test_jump_is_there_for_those_who_want_it(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG, placement="jump")
    with pool.worker() as first, pool.worker() as second:
        until(lambda: play.settled(pool, 2, play.SLOTS))
        before = pool.slots()
        with pool.worker() as third:
            until(lambda: play.settled(pool, 3, play.SLOTS))
            changed = [new for old, new in zip(before, pool.slots(), strict=True) if old.owner != new.owner]
            assert {one.owner for one in changed} == {third.id}
        assert {first.id, second.id} == set(play.slot_share(pool))
    assert make(placement=Jump()).workers() == []


def all_to_the_last(members: Sequence[Member], slots: int) -> list[str]:
    return [members[-1].id] * slots


def test_a_function_may_place_the_keys(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG, placement=all_to_the_last)

    @pool.job
    async def do(job: Job) -> str:
        return job.key

    with pool.worker() as first:
        until(lambda: play.slot_share(pool) == {first.id: play.SLOTS})
        with pool.worker() as second:
            until(lambda: play.slot_share(pool) == {first.id: 0, second.id: play.SLOTS})
            assert do.dispatch("k").result(HANG) == "k"
    assert make(placement=all_to_the_last).workers() == []
    for wrong in ("jump", "rendezvous", lambda members, slots: [""] * slots):
        with pytest.raises(ValueError, match="placement"):
            make(placement=wrong).workers()


def test_a_placement_is_known_by_the_name_that_one_gives(make: Callable[..., KeyedPool]):
    pool = make(placement=("to the last", all_to_the_last))
    assert pool.workers() == []
    assert make(placement=("to the last", lambda members, slots: [""] * slots)).workers() == []
    with pytest.raises(ValueError, match="placement=to the last, not to the first"):
        make(placement=("to the first", all_to_the_last)).workers()
    for wrong in (("jump", all_to_the_last), ("", all_to_the_last), ("x", 5), ("x",), (5, all_to_the_last)):
        with pytest.raises((ValueError, TypeError), match="placement"):
            make(placement=wrong)


def test_a_producer_need_not_know_how_keys_are_placed(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG, placement=all_to_the_last)

    @pool.job
    async def do(job: Job) -> str:
        return job.key

    producer = make()
    with pool.worker():
        assert producer.declare_job("do").dispatch("k").result(HANG) == "k"
        assert producer.statistics().workers == 1
    with pytest.raises(ValueError, match="placement"), producer.worker():
        pass


def test_a_placement_that_raises_stops_no_worker_for_good(make: Callable[..., KeyedPool]):
    calls: list[int] = []

    def moody(members: Sequence[Member], slots: int) -> list[str]:
        calls.append(len(members))
        if len(calls) == 1:
            raise ValueError("not today")
        return [members[0].id] * slots if members else [""] * slots

    pool = make(lease=play.LONG, placement=moody)

    @pool.job
    async def do(job: Job) -> str:
        return job.key

    with pool.worker() as worker:
        play.beat_often(worker)
        assert do.dispatch("k").result(HANG) == "k"


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 8},
        {"lease": 2.0},
        {"drain": 1.0},
        {"placement": "jump"},
    ],
    ids=repr,
)
def test_what_holds_for_the_pool_cannot_be_wished_away(make: Callable[..., KeyedPool], options: dict[str, Any]):
    make(lease=1.0, drain=5.0).statistics()
    make().statistics()
    make().statistics()
    other = make(**options)
    with pytest.raises(ValueError, match=next(iter(options))):
        other.statistics()
    with pytest.raises(ValueError, match="use the pool as it is"), other.worker():
        pass


@pytest.mark.parametrize("limit", ["payload_limit", "max_jobs", "max_per_key", "max_dead", "max_losses"])
def test_a_limit_that_the_pool_does_not_have_is_warned_of(
    make: Callable[..., KeyedPool], limit: str, caplog: pytest.LogCaptureFixture
):
    make().statistics()
    other = make(**{limit: 5})
    other.statistics()
    with other.worker():
        pass
    (record,) = [each for each in caplog.records if "that holds" in each.getMessage()]
    assert f"admin.configure({limit}=5)" in record.getMessage()


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"weight": 0},
        {"weight": 1001},
        {"grace": -1},
        {"grace": "x"},
        {"grace": float("nan")},
    ],
    ids=repr,
)
def test_options_of_a_worker_that_make_no_sense_are_refused(pool: KeyedPool, options: dict[str, Any]):
    with pytest.raises((ValueError, TypeError)), pool.worker(**options):
        pass
    assert pool.workers() == []


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 0},
        {"slots": 1 << 20},
        {"slots": 2.0},
        {"lease": 0.0},
        {"lease": float("nan")},
        {"lease": float("inf")},
        {"drain": -1},
        {"payload_limit": 0},
        {"max_jobs": 0},
        {"max_losses": 0},
        {"placement": "nearest"},
        {"placement": 5},
    ],
    ids=repr,
)
def test_options_of_a_pool_that_make_no_sense_are_refused(options: dict[str, Any]):
    with pytest.raises((ValueError, TypeError)):
        KeyedPool("p", "memory:x", **options)


@pytest.mark.parametrize("name", ["", "a{b", "a\nb", "x" * 201, None, 5])
def test_what_is_no_name_of_a_pool_is_refused(name: Any):
    with pytest.raises(ValueError, match="name"):
        KeyedPool(name)


@pytest.mark.parametrize("url", ["", "memory", "mysql://x", "http://x", None, 5])
def test_what_is_no_url_is_refused(url: Any):
    with pytest.raises((ValueError, TypeError)):
        KeyedPool("p", url)


# --- leaving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
def test_a_worker_that_leaves_hands_over_at_once_what_it_has_not_begun(make: Callable[..., KeyedPool], colour: str):
    one, two = make(lease=play.LONG, drain=play.LONG), make()
    log, gate = play.Log(), play.Gate()

    def plain(job: Job, number: int) -> None:
        with log.run(job.key, number):
            if job.key == "slow" and number == 0:
                gate.wait()

    async def coroutine(job: Job, number: int) -> None:
        with log.run(job.key, number):
            if job.key == "slow" and number == 0:
                await gate.pass_()

    handler: Any = plain if colour == "plain" else coroutine
    do, _ = one.job(name="do")(handler), two.job(name="do")(handler)
    leaver = one.worker(concurrency=2)
    leaver.__enter__()
    do.dispatch_many([("slow", number) for number in range(5)])
    until(lambda: log.running("slow") == [0])
    with two.worker():
        until(lambda: play.settled(one, 2, play.SLOTS))
        rest = do.dispatch_many([(f"k{number}", number) for number in range(50)])
        closing = threading.Thread(target=leaver.close)
        closing.start()
        for receipt in rest:
            receipt.result(HANG)
        after = do.dispatch_many([(f"l{number}", number) for number in range(50)])
        for receipt in after:
            receipt.result(HANG)
        assert log.running("slow") == [0] and closing.is_alive()
        gate.open()
        until(lambda: log.of("slow") == list(range(5)))
        closing.join(HANG)
        assert not closing.is_alive()
    assert not log.overlaps
    assert one.statistics().recovered_total == 0


def test_what_a_take_brings_to_a_worker_that_leaves_is_handed_over_unblamed(make: Callable[..., KeyedPool]):
    """A `work` is under way when the worker begins to leave; its answer comes late."""
    one, two = make(lease=play.LONG, drain=play.LONG), make()
    attempts: list[int] = []

    async def do(job: Job) -> None:
        attempts.append(job.attempt)

    first, _ = one.job(do), two.job(do)
    store = play.tamper(one)
    under_way = threading.Event()

    def slow(*args: Any, **kwargs: Any) -> None:
        if not under_way.is_set() and one.statistics().keys_running:
            under_way.set()
            until(lambda: play.slot_share(two)[before] == 0)

    leaver = one.worker()
    leaver.__enter__()
    before = leaver.id
    until(lambda: play.slot_share(one) == {before: play.SLOTS})
    store.after["work"] = slow
    receipts = first.dispatch_many([(f"k{number}",) for number in range(10)])
    assert under_way.wait(HANG)
    with two.worker():
        leaver.close()
        for receipt in receipts:
            receipt.result(HANG)
    assert attempts == [1] * 10
    assert one.statistics().recovered_total == 0


def test_a_coroutine_that_outlasts_the_grace_is_cancelled_and_run_again_elsewhere(make: Callable[..., KeyedPool]):
    one, two = make(lease=play.LONG, drain=play.LONG), make()
    log = play.Log()
    why: list[str] = []

    async def do(job: Job) -> int:
        with log.run(job.key, job.attempt):
            if len(log.begun) == 1:
                try:
                    await asyncio.sleep(3600)
                finally:
                    why.append(job.lost.reason)
            return job.attempt

    first, _ = one.job(do), two.job(do)
    leaver = one.worker(grace=0.1)
    leaver.__enter__()
    receipt = first.dispatch("k")
    until(lambda: log.running("k"))
    with two.worker():
        leaver.close()
        assert receipt.result(HANG) == 1
    assert why == ["closing"] and not log.overlaps
    assert one.statistics().recovered_total == 0


def test_a_function_that_outlasts_the_grace_keeps_its_key_while_it_runs(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker_module, "CANCELLED", 0.05)
    one, two = make(lease=0.3, drain=play.LONG), make()
    clock = play.Clock(monkeypatch, one)
    log, gate = play.Log(), play.Gate()

    def do(job: Job, number: int) -> int:
        with log.run(job.key, number):
            if number == 0:
                gate.wait()
            return job.attempt

    first, _ = one.job(do), two.job(do)
    leaver = one.worker(grace=0.05)
    leaver.__enter__()
    receipts = first.dispatch_many([("k", 0), ("k", 1)])
    until(lambda: log.running("k"))
    leaving = copy.copy(leaver)  # which forgets its worker when it is closed
    with two.worker() as other:
        leaver.close()  # returns after the grace, and what cancelled coroutines get
        try:
            clock.let_pass(3, leaving, other)
            assert log.running("k") == [0]
        finally:
            gate.open()
        assert [one.result(HANG) for one in receipts] == [1, 1]
    assert not log.overlaps


def test_close_may_be_called_with_a_grace_of_its_own_and_twice(pool: KeyedPool):
    @pool.job
    async def slow(job: Job) -> None:
        await asyncio.sleep(3600)

    worker = pool.worker(grace=play.LONG)
    with worker:
        receipt = slow.dispatch("k")
        until(lambda: receipt.status() == "running")
        worker.close(0)
        worker.close()
        assert not worker.is_member and pool.workers() == []
    assert receipt.status() == "waiting"


def test_a_key_that_drains_too_long_is_told_and_runs_elsewhere(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch
):
    one, two = make(lease=play.LONG, drain=0.3), make()
    play.Clock(monkeypatch, one)  # so that nothing begins there because it was told late here
    log = play.Log()
    why: list[str] = []

    async def do(job: Job) -> str:
        with log.run(job.key, job.attempt):
            if len(log.started(job.key)) == 1:
                try:
                    await asyncio.sleep(3600)
                finally:
                    why.append(job.lost.reason)
            return job.key

    first, _ = one.job(do), two.job(do)
    with one.worker() as here:
        receipts = first.dispatch_many([(f"k{number}",) for number in range(20)])
        until(lambda: len(log.begun) == 20)
        with two.worker() as there:
            until(lambda: play.settled(one, 2, play.SLOTS))
            moved = [receipt for receipt in receipts if one.owner(receipt.key).owner == there.id]
            assert moved
            for receipt in moved:
                assert receipt.result(HANG)
            assert set(why) == {"drain"} and len(why) == len(moved)
            here.close(0)
    assert not log.overlaps


def test_a_handler_is_told_before_its_drain_is_over(make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch):
    """From then on the key may run elsewhere, so it had better have stopped."""
    one, two = make(lease=play.LONG, drain=0.3), make()
    given: list[float] = []
    told: list[float] = []
    give_away = Runner.give_away

    def noting(runner: Runner, membership: Any, slots: Any, when: float) -> None:
        told.append(when)
        give_away(runner, membership, slots, when)

    monkeypatch.setattr(Runner, "give_away", noting)
    store = play.tamper(one)
    store.before["give"] = lambda *args: given.append(elapsed())
    store.after["give"] = lambda *args: time.sleep(0.1)  # a slow answer does not make it later
    with one.worker():
        until(lambda: len(play.slot_share(two)) == 1 and sum(play.slot_share(two).values()) == play.SLOTS)
        with two.worker():
            until(lambda: told)
    assert told[0] <= given[0] + 0.81 * 0.3


def test_a_slot_that_comes_back_is_not_drained_any_more(make: Callable[..., KeyedPool]):
    one, two = make(lease=play.LONG, drain=play.LONG), make()
    log, gate = play.Log(), play.Gate()

    async def do(job: Job) -> int:
        with log.run(job.key, job.attempt):
            await gate.pass_()
            return job.attempt

    first, _ = one.job(do), two.job(do)
    with one.worker() as worker:
        receipts = first.dispatch_many([(f"k{number}",) for number in range(20)])
        until(lambda: len(log.begun) == 20)
        assert worker._worker is not None
        runs = worker._worker._runner.takes.all()
        with two.worker():
            until(lambda: play.settled(one, 2, play.SLOTS))
            until(lambda: any(run.drained for run in runs))
        until(lambda: not any(run.is_moved for run in runs))
        assert all(run.drained.cancelled() for run in runs if run.drained)
        gate.open()
        assert [receipt.result(HANG) for receipt in receipts] == [1] * 20
    assert len(log.begun) == 20 and not log.overlaps


def test_workers_that_come_and_go_lose_nothing_and_run_nothing_twice_at_once(make: Callable[..., KeyedPool]):
    pools = [make(lease=play.LONG, drain=play.LONG), make(), make()]
    pools[0].statistics()
    log = play.Log()

    async def do(job: Job, number: int) -> None:
        with log.run(job.key, number):
            await asyncio.sleep(0.001)

    jobs = [one.job(do) for one in pools]
    stop = threading.Event()
    stays: list[str] = []

    def churn(one: KeyedPool) -> None:
        while not stop.is_set():
            with one.worker(concurrency=20):
                stop.wait(0.05)
            stays.append(one.name)

    threads = [threading.Thread(target=churn, args=(one,)) for one in pools]
    for each in threads:
        each.start()
    try:
        for number in range(60):
            jobs[0].dispatch_many([(f"k{key}", number) for key in range(20)])
            if number % 4 == 0:
                left = len(stays)
                until(lambda left=left: len(stays) > left)  # type: ignore[misc]
        with pools[0].worker():
            until(lambda: len(log.ended) == 1200)
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert not log.overlaps
    for key in range(20):
        assert log.of(f"k{key}") == list(range(60))
    assert pools[0].statistics().recovered_total == 0


def test_two_workers_of_one_pool_object_share_its_keys(pool: KeyedPool):
    log = play.Log()

    @pool.job
    async def do(job: Job, number: int) -> None:
        with log.run(job.key, number):
            await asyncio.sleep(0.0005)

    with pool.worker(), pool.worker():
        until(lambda: play.settled(pool, 2, play.SLOTS))
        receipts = do.dispatch_many([(f"k{number % 20}", number // 20) for number in range(400)])
        for one in receipts:
            one.result(HANG)
    assert not log.overlaps
    assert log.of("k3") == list(range(20))


def test_everything_is_told_to_whoever_asked(make: Callable[..., KeyedPool]):
    events: list[Event] = []

    def observer(event: Event) -> None:
        events.append(event)
        if event.name == "job_done":
            raise ValueError("an observer must not matter")

    pool = make(lease=play.LONG, on_event=observer)

    @pool.job
    async def do(job: Job, bad: bool = False) -> None:
        if bad:
            raise ValueError

    with pool.worker() as worker:
        do.dispatch("k").result(HANG)
        receipt = do.dispatch("k", bad=True)
        until(lambda: receipt.status() == "failed")
        assert worker.id
    names = [one.name for one in events]
    for name in ("worker_joined", "slots_claimed", "job_started", "job_done", "job_failed", "worker_left"):
        assert name in names, name
    assert {one.pool for one in events} == {"p"}


# --- the pool as a whole ---------------------------------------------------------------------------------------------


def test_shutdown_ends_all_workers_and_keeps_what_waits(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG, drain=play.LONG)
    gate, begun = play.Gate(), threading.Event()

    @pool.job
    async def do(job: Job, number: int) -> int:
        if number == 0:
            begun.set()
            await gate.pass_()
        return number

    threads = [threading.Thread(target=pool.run) for _ in range(2)]  # no main thread: no signals
    for each in threads:
        each.start()
    until(lambda: play.settled(pool, 2, play.SLOTS))
    receipts = do.dispatch_many([("k", number) for number in range(5)])
    assert begun.wait(HANG)  # what was only taken is given back
    pool.admin.shutdown()
    with pytest.raises(PoolClosed, match="resume"):
        do.dispatch("k", 9)
    with pytest.raises(PoolClosed):
        do.dispatch_many([("k", 9)])
    until(lambda: all(one.is_leaving for one in pool.workers()))
    gate.open()
    for each in threads:
        each.join(HANG)
        assert not each.is_alive()
    assert pool.workers() == [] and pool.statistics().is_shut
    assert receipts[0].result(HANG) == 0 and receipts[4].status() == "waiting"
    pool.admin.resume()
    with pool.worker():
        assert [one.result(HANG) for one in receipts] == [0, 1, 2, 3, 4]


def test_a_worker_that_joins_a_pool_that_is_shut_ends_at_once(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG, drain=play.LONG)
    pool.admin.shutdown()
    thread = threading.Thread(target=pool.run)
    thread.start()
    thread.join(HANG)
    assert not thread.is_alive()


@pytest.mark.asyncio
async def test_a_worker_lives_in_a_loop(apool: AsyncKeyedPool):
    log = play.Log()

    @apool.job
    async def do(job: Job) -> str:
        with log.run(job.key, asyncio.get_running_loop()):
            return job.key

    async with apool.worker() as worker:
        assert await (await do.dispatch("k")).result(HANG) == "k"
        assert log.of("k") == [asyncio.get_running_loop()]
        assert [one.id for one in await apool.workers()] == [worker.id]
        waiting = asyncio.create_task(worker.wait())
        await apool.admin.shutdown()
        await asyncio.wait_for(waiting, HANG)
    assert await apool.workers() == []


@pytest.mark.asyncio
async def test_a_worker_whose_task_is_cancelled_leaves_gracefully(apool: AsyncKeyedPool):
    log = play.Log()
    gate = play.Gate()

    @apool.job
    async def do(job: Job) -> str:
        with log.run(job.key):
            await gate.pass_()
            return job.key

    async def work() -> None:
        async with apool.worker():
            await asyncio.sleep(3600)

    task = asyncio.create_task(work())
    receipt = await do.dispatch("k")
    await auntil(lambda: log.running("k"))
    task.cancel()
    await auntil(lambda: leaving(apool))  # type: ignore[arg-type,return-value]
    assert log.running("k")
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await receipt.result(HANG) == "k"
    assert await apool.workers() == []


async def leaving(pool: AsyncKeyedPool) -> bool:
    return [one.is_leaving for one in await pool.workers()] == [True]


@pytest.mark.asyncio
async def test_run_is_a_worker_until_it_is_cancelled(apool: AsyncKeyedPool):
    @apool.job
    async def do(job: Job) -> str:
        return job.key

    task = asyncio.create_task(apool.run())
    assert await (await do.dispatch("k")).result(HANG) == "k"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await apool.workers() == []


def test_a_worker_that_leaves_claims_nothing_once_it_has_given_all_away(make: Callable[..., KeyedPool]):
    """Its own thread may be about to claim a slot when the worker begins to leave."""
    pool = make(lease=play.LONG, drain=play.LONG)
    gate, begun, about_to_claim, release = play.Gate(), threading.Event(), threading.Event(), threading.Event()

    @pool.job
    async def do(job: Job) -> None:
        begun.set()
        await gate.pass_()

    store = play.tamper(pool)
    worker = pool.worker()
    with worker:
        until(lambda: play.settled(pool, 1, play.SLOTS))
        do.dispatch("k")
        assert begun.wait(HANG)  # so that it stays a member while it leaves

        def block(*_: object) -> None:
            if not about_to_claim.is_set():
                about_to_claim.set()
                assert release.wait(HANG)

        store.before["claim"] = block
        store.inner.do(commands.Give(worker.id, [(0, ""), (1, "")], "to see them claimed"))
        assert about_to_claim.wait(HANG)
        given = store.calls.count("give")
        leaving = threading.Thread(target=worker.close)
        leaving.start()
        try:
            never(lambda: store.calls.count("give") > given, "something is given while something is claimed")
        finally:
            release.set()
        until(lambda: set(store.inner.ask(about.Owners())[1]) == {""})
        gate.open()
        leaving.join(HANG)
