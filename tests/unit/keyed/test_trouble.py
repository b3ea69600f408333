"""Bad days: the store does not answer, loses answers, loses the pool; leases are lost."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import keyed_play as play
import pytest

from millpond import Event
from millpond.errors import EngineUnavailable, JobFailed, NotFound
from millpond.keyed import Job, KeyedPool, Resident


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "millpond")


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
def test_handlers_are_asked_to_stop_before_the_lease_ends(make: Callable[..., KeyedPool], colour: str):
    pool, lookout = make(slots=16, lease=1.2), make()
    stopped: list[tuple[str, float]] = []
    log = play.Log()

    def plain(job: Job) -> int:
        with log.run(job.key):
            if len(log.begun) == 1:
                job.lost.wait(10)
                stopped.append((job.lost.reason, time.monotonic()))
            return job.attempt

    async def coroutine(job: Job) -> int:
        with log.run(job.key):
            if len(log.begun) == 1:
                try:
                    await asyncio.sleep(10)
                finally:
                    stopped.append((job.lost.reason, time.monotonic()))
            return job.attempt

    do = pool.job(name="do")(plain if colour == "plain" else coroutine)
    store = play.tamper(pool)
    with pool.worker() as worker:
        before = worker.id
        receipt = do.dispatch("k")
        play.until(lambda: log.running("k"))
        play.until(lambda: lookout.workers()[0].lease_left > 1.1)  # just renewed
        cut = time.monotonic()
        store.always_before = play.cut
        play.until(lambda: stopped, 2)
        reason, at = stopped[0]
        assert reason == "lease" and at - cut < 1.2
        assert not worker.is_member
        store.always_before = None
        assert receipt.result(5) == 1  # it stopped in time, so nobody takes it for a killer
        assert worker.id != before and worker.is_member
        play.until(lambda: [one.id for one in lookout.workers()] == [worker.id])
    assert not log.overlaps
    assert lookout.statistics().dead == 0


def test_only_renewals_fail(make: Callable[..., KeyedPool]):
    pool, lookout = make(slots=16, lease=0.6), make()
    log = play.Log()

    @pool.job
    async def do(job: Job, number: int) -> None:
        with log.run(job.key, number):
            await asyncio.sleep(0.005)

    store = play.tamper(pool)
    with pool.worker() as worker:
        before = worker.id
        store.before["renew"] = play.cut
        receipts = do.dispatch_many([(f"k{number % 5}", number // 5) for number in range(300)])
        play.until(lambda: worker.id != before, 3)
        del store.before["renew"]
        for one in receipts:
            one.result(10)
    assert not log.overlaps
    for key in range(5):
        assert list(dict.fromkeys(log.started(f"k{key}"))) == list(range(60))
    assert lookout.statistics().dead == 0


def test_a_renewal_that_hangs_does_not_keep_handlers_running(make: Callable[..., KeyedPool]):
    pool = make(slots=16, lease=0.5)
    hang = threading.Event()
    stopped: list[str] = []

    @pool.job
    async def do(job: Job) -> int:
        if job.attempt == 1 and not stopped:
            try:
                await asyncio.sleep(10)
            finally:
                stopped.append(job.lost.reason)
        return job.attempt

    store = play.tamper(pool)
    with pool.worker():
        receipt = do.dispatch("k")
        play.until(lambda: receipt.status() == "running")
        store.before["renew"] = lambda *args, **kwargs: hang.wait(10)
        began = time.monotonic()
        play.until(lambda: stopped)
        assert time.monotonic() - began < 0.6
        hang.set()
        assert receipt.result(5)
    assert stopped == ["lease"]


def test_another_worker_takes_over_from_one_that_is_cut_off_and_never_both(make: Callable[..., KeyedPool]):
    one, two = make(slots=16, lease=0.5), make()
    log = play.Log()

    async def do(job: Job, number: int) -> None:
        with log.run(job.key, number):
            await asyncio.sleep(0.003)

    async def stay(resident: Resident) -> None:
        with log.run(f"r-{resident.key}"):
            await asyncio.sleep(50)

    first, _ = one.job(do), two.job(do)
    watch, _ = one.resident(stay), two.resident(stay)
    producer = make()
    declared, declared_watch = producer.declare_job("do"), producer.declare_resident("stay")
    store = play.tamper(one)
    with one.worker(), two.worker():
        play.until(lambda: play.settled(producer, 2, 16))
        for key in range(8):
            declared_watch.start(f"k{key}")
        receipts = declared.dispatch_many([(f"k{number % 8}", number // 8) for number in range(400)])
        play.until(lambda: len(log.ended) > 40)
        store.always_before = play.cut
        for receipt in receipts:
            receipt.result(10)
        play.until(lambda: all(log.running(f"r-k{key}") for key in range(8)))
        assert len(producer.workers()) == 1
        store.always_before = None
        play.until(lambda: play.settled(producer, 2, 16))
    assert not log.overlaps
    for key in range(8):
        assert list(dict.fromkeys(log.started(f"k{key}"))) == list(range(50))
    assert first.name == "do" and watch.name == "stay" and producer.statistics().dead == 0


@pytest.mark.parametrize("verb", ["work", "claim", "give", "owners", "beat", "renew", "join"])
def test_one_lost_answer_of_any_verb_leaves_no_key_stuck(make: Callable[..., KeyedPool], verb: str):
    pool, other = make(slots=16, lease=0.6), make()
    log = play.Log()

    async def do(job: Job, number: int) -> None:
        with log.run(job.key, number):
            await asyncio.sleep(0)

    first, _ = pool.job(do), other.job(do)
    store = play.tamper(pool)
    left = [1]

    def lose(*args: Any, **kwargs: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise EngineUnavailable("its answer was lost, by the test")

    if verb not in ("join", "give"):
        store.after[verb] = lose
    with pool.worker():
        if verb == "join":
            store.after[verb] = lose
            store.before["renew"] = play.cut
            play.until(lambda: not left[0], 3)
            del store.before["renew"]
        receipts = first.dispatch_many([(f"k{number % 20}", number // 20) for number in range(100)])
        if verb == "give":
            store.after[verb] = lose
        with other.worker():
            for one in receipts:
                one.result(5)
            play.until(lambda: sum(play.slot_share(pool).values()) == 16)
            if verb in ("give", "claim"):
                play.until(lambda: play.settled(other, 2, 16), 5)
        for one in first.dispatch_many([(f"k{number}", 9) for number in range(20)]):
            one.result(5)
        play.until(lambda: not left[0])
    assert not log.overlaps
    for key in range(20):
        assert list(dict.fromkeys(log.started(f"k{key}"))) == [0, 1, 2, 3, 4, 9]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_answers_that_are_lost_at_random_lose_nothing(make: Callable[..., KeyedPool], seed: int):
    """A call takes effect, or not, and fails: nothing is lost or twice at once, and no key is stuck afterwards."""
    print(f"{seed=}")
    dice = random.Random(seed)
    one, two, calm = make(slots=16, lease=0.6, drain=3.0), make(), make()
    log = play.Log()
    done: list[tuple[str, int]] = []

    async def do(job: Job, number: int) -> int:
        with log.run(job.key, number):
            await asyncio.sleep(dice.random() * 0.002)
            done.append((job.key, number))
            return number

    def plain(job: Job, number: int) -> int:
        with log.run(job.key, number):
            done.append((job.key, number))
            return number

    async def stay(resident: Resident) -> None:
        with log.run(f"r-{resident.key}"):
            await asyncio.sleep(50)

    for pool in (one, two):
        pool.job(do), pool.job(plain), pool.resident(stay)

    def moody(verb: str) -> None:
        if verb in ("where", "counts", "outcomes"):
            return
        if dice.random() < (0.15 if verb == "work" else 0.05):
            raise EngineUnavailable(f"{verb} was cut, by the test")

    for pool in (one, two):
        store = play.tamper(pool)
        store.always_before = store.always_after = moody
    calls = [calm.declare_job("do"), calm.declare_job("plain")]
    watch = calm.declare_resident("stay")
    expected: dict[str, list[int]] = {}
    with one.worker(concurrency=4), two.worker(concurrency=4):
        receipts = []
        for number in range(30):
            for key in range(12):
                expected.setdefault(f"k{key}", []).append(number)
                receipts.append(calls[key % 2].dispatch(f"k{key}", number))
            watch.start(f"k{number % 5}")
            time.sleep(0.02)
        for pool in (one, two):
            pool._home._store.always_before = pool._home._store.always_after = None  # type: ignore[union-attr]
        for receipt in receipts:
            receipt.result(15)
        play.until(lambda: all(log.running(f"r-k{key}") for key in range(5)))
    assert not log.overlaps
    for name, numbers in expected.items():
        assert list(dict.fromkeys(log.started(name))) == numbers
    assert calm.statistics().jobs == 0 and calm.statistics().dead == 0


def test_dispatches_whose_answers_are_lost_are_in_once_and_in_order(make: Callable[..., KeyedPool]):
    pool, calm = make(slots=16, lease=1.0), make()
    dice = random.Random(7)
    log = play.Log()

    async def do(job: Job, number: int) -> int:
        with log.run(job.key, number):
            return number

    calm.job(do)
    declared = pool.declare_job("do")
    store = play.tamper(pool)

    def moody(*args: Any) -> None:
        if dice.random() < 0.3:
            raise EngineUnavailable("cut, by the test")

    store.before["dispatch"] = store.after["dispatch"] = moody
    with calm.worker():
        receipts = [declared.dispatch(f"k{number % 3}", number // 3) for number in range(21)]
        receipts += declared.dispatch_many([(f"k{number % 3}", number // 3) for number in range(21, 60)])
        for receipt in receipts:
            receipt.result(5)
    for key in range(3):
        assert log.started(f"k{key}") == list(range(20))
    assert calm.statistics().dispatched_total == 60


def test_a_dispatch_that_is_never_answered_says_that_nothing_is_known(pool: KeyedPool, monkeypatch: pytest.MonkeyPatch):
    from millpond.keyed import _outbox

    monkeypatch.setattr(_outbox, "PATIENCE", 0.2)

    @pool.job
    async def do(job: Job) -> int:
        return 1

    store = play.tamper(pool)
    store.before["dispatch"] = play.cut
    with pytest.raises(EngineUnavailable, match="id="):
        do.dispatch("k")
    del store.before["dispatch"]
    with pool.worker():
        assert do.dispatch("k").result(5) == 1


def test_a_result_is_waited_for_through_an_outage(pool: KeyedPool):
    gate = play.Gate()

    @pool.job
    async def do(job: Job) -> int:
        await gate.pass_()
        return 1

    store = play.tamper(pool)
    with pool.worker():
        receipt = do.dispatch("k")
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(receipt.result(10)))
        thread.start()
        store.before["outcomes"] = play.cut
        gate.open()
        time.sleep(0.3)
        assert not found
        store.before.clear()
        thread.join(5)
        assert found == [1]


def test_a_pool_that_is_dropped_is_made_anew(make: Callable[..., KeyedPool]):
    pool, producer = make(slots=16, lease=0.6), make()
    log = play.Log()
    stopped: list[str] = []
    gate = play.Gate()

    @pool.job
    async def do(job: Job, number: int) -> int:
        with log.run(job.key, number):
            if number == 0:
                try:
                    await gate.pass_()
                finally:
                    stopped.append(job.lost.reason)
            return number

    declared = producer.declare_job("do")
    with pool.worker() as worker:
        before = worker.id
        lost = declared.dispatch("k", 0)
        play.until(lambda: log.running("k"))
        with pytest.raises(ValueError, match="force=True"):
            producer.admin.drop()
        producer.admin.drop(force=True)
        play.until(lambda: stopped, 3)
        assert stopped == ["lease"]
        with pytest.raises((NotFound, TimeoutError)):
            lost.result(3)
        play.until(lambda: worker.is_member and worker.id != before)
        assert declared.dispatch("k", 1).result(5) == 1
        assert producer.statistics().dispatched_total == 1
    assert not log.overlaps


def test_a_pool_in_use_is_not_dropped_by_mistake(pool: KeyedPool):
    @pool.job
    async def do(job: Job) -> int:
        return 1

    receipt = do.options(delay=50).dispatch("k")
    with pytest.raises(ValueError, match="1 delayed"):
        pool.admin.drop()
    receipt.cancel()
    with pool.worker(), pytest.raises(ValueError, match="1 workers"):
        pool.admin.drop()
    pool.admin.drop()
    with pool.worker():
        assert do.dispatch("k").result(5) == 1


def test_a_job_that_is_cut_off_again_and_again_is_no_killer(make: Callable[..., KeyedPool]):
    """It was stopped by an outage of the store each time, and did not kill anybody."""
    pool = make(slots=16, lease=0.3, max_losses=2)
    runs: list[int] = []

    @pool.job
    async def do(job: Job) -> int:
        runs.append(job.attempt)
        if len(runs) <= 4:
            await asyncio.sleep(10)
        return len(runs)

    store = play.tamper(pool)
    with pool.worker():
        receipt = do.dispatch("k")
        for number in range(1, 5):
            play.until(lambda number=number: len(runs) == number, 4)  # type: ignore[misc]
            store.always_before = play.cut
            time.sleep(0.35)
            store.always_before = None
        assert receipt.result(5) == 5
    assert pool.statistics().dead == 0


def test_the_room_of_handlers_that_were_cut_off_is_free_again(make: Callable[..., KeyedPool]):
    pool = make(slots=16, lease=0.4)
    block, begun = threading.Event(), threading.Event()

    @pool.job
    async def do(job: Job) -> str:
        return job.key

    @pool.job
    async def busy(job: Job) -> None:
        begun.set()
        block.wait(5)  # the loop stands still meanwhile

    store = play.tamper(pool)
    with pool.worker(concurrency=3) as worker:
        before = worker.id
        busy.dispatch("busy")
        assert begun.wait(5)
        receipts = do.dispatch_many([("a",), ("b",)])
        play.until(lambda: all(one.status() == "running" for one in receipts))
        store.always_before = play.cut
        play.until(lambda: not worker.is_member)
        time.sleep(0.1)
        store.always_before = None
        block.set()
        play.until(lambda: worker.is_member and worker.id != before)
        for one in (*receipts, *do.dispatch_many([(f"c{number}",) for number in range(10)])):
            assert one.result(5) == one.key


def test_a_job_that_its_worker_died_of_too_often_is_dead(make: Callable[..., KeyedPool]):
    pool, lookout = make(slots=16, lease=0.3, max_losses=2), make()

    @pool.job
    def do(job: Job) -> None: ...

    from millpond.keyed._records import Joiner

    receipt = do.dispatch("k")
    store = lookout._home.store
    behind = do.dispatch("k")
    for number in range(2):  # a worker that takes it and is never seen again
        ghost = f"ghost{number}"
        store.join(Joiner(ghost, "ghost", names=("do",)))
        store.claim(ghost, list(range(16)), {})
        play.until(lambda ghost=ghost: store.work(ghost, 1, [], 10, 1).takes or receipt.status() != "waiting", 1)  # type: ignore[misc]
        time.sleep(0.31)
        with pool.worker() as worker:
            pool.admin.pause()
            play.until(lambda worker=worker: play.slot_share(lookout) == {worker.id: 16}, 3)  # type: ignore[misc]
            assert lookout.owner("k").why == "died"
            if number:
                pool.admin.resume()
                with pytest.raises(JobFailed, match="killed its worker") as caught:
                    receipt.result(5)
                assert caught.value.status == "lost"
                behind.result(5)
        pool.admin.resume()
    assert "died 2 times" in lookout.admin.dead_letters("k")[0].reason


def test_the_clock_of_the_store_jumps(make: Callable[..., KeyedPool]):
    pool, other = make(slots=16, lease=0.5), make()
    log = play.Log()

    async def do(job: Job, number: int) -> int:
        with log.run(job.key, number):
            await asyncio.sleep(0.002)
            return number

    first, _ = pool.job(keep_result=1e6)(do), other.job(do)
    store: Any = pool._home.store
    with pool.worker(), other.worker():
        play.until(lambda: play.settled(pool, 2, 16))
        receipts = []
        for skew in (3600, -3600, 0, 7200, -10):
            receipts += first.dispatch_many([(f"k{number % 6}", len(receipts) + number) for number in range(60)])
            time.sleep(0.05)
            store.skew = skew * 1_000_000
            time.sleep(0.3)
        for one in receipts:
            one.result(10)
    assert not log.overlaps
    for key in range(6):
        assert list(dict.fromkeys(log.started(f"k{key}"))) == sorted(set(log.started(f"k{key}")))
    assert pool.statistics().dead == 0


def test_trouble_is_told(make: Callable[..., KeyedPool]):
    events: list[Event] = []
    pool = make(slots=16, lease=0.4, on_event=events.append)
    store = play.tamper(pool)
    with pool.worker():
        store.always_before = play.cut
        play.until(lambda: {"store_unavailable", "worker_lost"} <= {one.name for one in events}, 3)
        store.always_before = None
        play.until(lambda: [one.name for one in events].count("worker_joined") == 2, 3)


def test_a_worker_that_cannot_reach_its_store_still_leaves(make: Callable[..., KeyedPool]):
    pool = make(slots=16, lease=0.5)

    @pool.job
    async def do(job: Job) -> None:
        await asyncio.sleep(0.05)

    store = play.tamper(pool)
    with pool.worker(grace=0.2):
        do.dispatch_many([(f"k{number}",) for number in range(5)])
        play.until(lambda: pool.statistics().keys_running == 5)
        store.always_before = play.cut
        began = time.monotonic()
    assert time.monotonic() - began < 9
    store.always_before = None


def test_a_worker_that_cannot_join_says_so(make: Callable[..., KeyedPool]):
    pool = make(slots=16, lease=0.5)
    store = play.tamper(pool)
    store.before["join"] = play.cut
    before = threading.active_count()
    with pytest.raises(EngineUnavailable), pool.worker():
        pass
    play.until(lambda: threading.active_count() <= before)
    store.before.clear()
    with pool.worker() as worker:
        assert worker.is_member
