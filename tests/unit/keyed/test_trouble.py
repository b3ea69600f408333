"""Bad days: the store does not answer, loses answers, loses the pool; leases are lost."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import keyed_play as play
import pytest

from millpond import Event
from millpond.errors import EngineError, EngineUnavailable, JobFailed, NotFound
from millpond.keyed import Job, KeyedPool, Resident
from millpond.keyed.rules.records import SECOND
from millpond.keyed.worker import heartbeat
from millpond.keyed.worker.rebalancer import Rebalancer
from millpond_conformance._verbs import Verbs
from waiting import HANG, becomes, never, until


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "millpond")


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
def test_handlers_are_asked_to_stop_before_the_lease_ends(
    make: Callable[..., KeyedPool], colour: str, monkeypatch: pytest.MonkeyPatch
):
    pool, lookout = make(lease=0.3), make()
    clock = play.Clock(monkeypatch, pool)
    stopped: list[str] = []
    log = play.Log()

    def plain(job: Job) -> int:
        with log.run(job.key):
            if len(log.begun) == 1:
                job.lost.wait(HANG)
                stopped.append(job.lost.reason)
            return job.attempt

    async def coroutine(job: Job) -> int:
        with log.run(job.key):
            if len(log.begun) == 1:
                try:
                    await asyncio.sleep(3600)
                finally:
                    stopped.append(job.lost.reason)
            return job.attempt

    do = pool.job(name="do")(plain if colour == "plain" else coroutine)
    store = play.tamper(pool)
    with pool.worker() as worker:
        before = worker.id
        receipt = do.dispatch("k")
        until(lambda: log.running("k"))
        store.always_before = play.cut
        clock.advance(0.79)
        never(lambda: stopped)
        clock.advance(0.02)
        until(lambda: stopped)
        assert stopped == ["lease"] and not worker.is_member
        assert lookout.workers()[0].lease_left > 0
        store.always_before = None
        assert receipt.result(HANG) == 1  # it stopped in time, so nobody takes it for a killer
        assert worker.id != before and worker.is_member
        until(lambda: [one.id for one in lookout.workers()] == [worker.id])
    assert not log.overlaps
    assert lookout.statistics().dead == 0


def test_only_renewals_fail(make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch):
    pool, lookout = make(lease=0.3), make()
    clock = play.Clock(monkeypatch, pool)
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
        until(lambda: log.ended)
        clock.advance(0.9)
        until(lambda: worker.id != before)
        del store.before["renew"]
        for one in receipts:
            one.result(HANG)
    assert not log.overlaps
    for key in range(5):
        assert list(dict.fromkeys(log.started(f"k{key}"))) == list(range(60))
    assert lookout.statistics().dead == 0


def test_a_renewal_that_hangs_does_not_keep_handlers_running(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch
):
    pool = make(lease=0.3)
    clock = play.Clock(monkeypatch, pool)
    hangs, hang = threading.Event(), threading.Event()
    begun: list[int] = []
    stopped: list[str] = []

    @pool.job
    async def do(job: Job) -> int:
        begun.append(job.attempt)
        if len(begun) == 1:
            try:
                await asyncio.sleep(3600)
            finally:
                stopped.append(job.lost.reason)
        return job.attempt

    def renew(*args: Any, **kwargs: Any) -> None:
        hangs.set()
        hang.wait(HANG)

    store = play.tamper(pool)
    with pool.worker():
        receipt = do.dispatch("k")
        until(lambda: begun)
        store.before["renew"] = renew
        assert hangs.wait(HANG)
        clock.advance(0.9)
        until(lambda: stopped)
        hang.set()
        assert receipt.result(HANG)
    assert stopped == ["lease"]


def refuse(*args: Any, **kwargs: Any) -> None:
    raise EngineError("refused, by the test")


def stumble(*args: Any, **kwargs: Any) -> None:
    raise ZeroDivisionError("an error of our own, by the test")


def end_the_thread(*args: Any, **kwargs: Any) -> None:
    raise SystemExit


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of the thread that is ended
@pytest.mark.parametrize("trouble", [play.cut, refuse, stumble, end_the_thread])
def test_a_worker_that_renews_but_cannot_work_gives_up_its_keys(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch, trouble: Callable[..., None]
):
    monkeypatch.setattr(heartbeat, "STUCK", 0.0)  # two leases then
    lost: list[str] = []
    one = make(
        slots=16,
        lease=0.3,
        on_event=lambda event: lost.append(event.data["why"]) if event.name == "worker_lost" else None,
    )
    two = make()
    clock = play.Clock(monkeypatch, one)

    @two.job
    async def do(job: Job) -> str:
        return "two"

    one.declare_job("do")
    store = play.tamper(one)
    with one.worker() as stuck, two.worker() as sound:
        was = stuck.id
        until(lambda: play.settled(two, 2, 16))
        key = play.key_of(two, was)
        store.before["work"] = trouble
        receipt = do.dispatch(key)

        def has_lost_it() -> bool:  # it renews its lease meanwhile, as long as it has one
            clock.let_pass(0.25, sound)
            return until(lambda: lost or clock.is_renewed(stuck)) is lost

        until(has_lost_it)
        clock.let_pass(1.25, sound)
        assert receipt.result(HANG) == "two"
        assert lost == ["it could not work"]
        until(lambda: not stuck.is_member)
        never(lambda: stuck.is_member, seconds=0.5)  # it would be given keys
        if trouble is not end_the_thread:
            del store.before["work"]
            until(lambda: stuck.is_member and stuck.id != was and play.slot_share(two).get(stuck.id))


def test_a_turn_that_takes_long_costs_no_lease(make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch):
    pool = make(slots=16, lease=0.3)
    clock = play.Clock(monkeypatch, pool)
    hangs, hang = threading.Event(), threading.Event()

    @pool.job
    async def do(job: Job) -> int:
        return job.attempt

    def work(*args: Any, **kwargs: Any) -> None:
        hangs.set()
        hang.wait(HANG)

    store = play.tamper(pool)
    with pool.worker() as worker:
        was = worker.id
        store.before["work"] = work
        assert hangs.wait(HANG)
        clock.let_pass(2 + heartbeat.STUCK / 0.3, worker)
        hang.set()
        assert do.dispatch("k").result(HANG) == 1
        assert worker.id == was


def test_another_worker_takes_over_from_one_that_is_cut_off_and_never_both(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch
):
    one, two = make(lease=0.3), make()
    clock = play.Clock(monkeypatch, one)
    log, gate = play.Log(), play.Gate()

    async def do(job: Job, number: int) -> None:
        with log.run(job.key, number):
            if number == 10:
                await gate.pass_()

    async def stay(resident: Resident) -> None:
        with log.run(f"r-{resident.key}"):
            await asyncio.sleep(3600)

    first, _ = one.job(do), two.job(do)
    watch, _ = one.resident(stay), two.resident(stay)
    producer = make()
    declared, declared_watch = producer.declare_job("do"), producer.declare_resident("stay")
    store = play.tamper(one)
    keys = [f"k{key}" for key in range(8)]
    with one.worker() as lost, two.worker() as other:
        until(lambda: play.settled(producer, 2, play.SLOTS))
        for key in keys:
            declared_watch.start(key)
        receipts = declared.dispatch_many([(keys[number % 8], number // 8) for number in range(400)])
        until(lambda: all(log.running(key) == [10] and log.running(f"r-{key}") for key in keys))
        store.always_before = play.cut
        clock.let_pass(0.75, other)
        clock.cut_off(lost, 0.1)
        gate.open()
        clock.let_pass(1, other)
        for receipt in receipts:
            receipt.result(HANG)
        until(lambda: all(log.running(f"r-{key}") for key in keys))
        becomes(lambda: [each.id for each in producer.workers()], [other.id])
        store.always_before = None
        until(lambda: play.settled(producer, 2, play.SLOTS))
    assert not log.overlaps
    for key in keys:
        assert list(dict.fromkeys(log.started(key))) == list(range(50))
    assert first.name == "do" and watch.name == "stay" and producer.statistics().dead == 0


@pytest.mark.parametrize("verb", ["work", "claim", "give", "Owners", "Members", "renew", "join"])
def test_one_lost_answer_of_any_verb_leaves_no_key_stuck(
    make: Callable[..., KeyedPool], verb: str, monkeypatch: pytest.MonkeyPatch
):
    pool, other = make(lease=0.3), make()
    clock = play.Clock(monkeypatch, pool)
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
    with pool.worker() as here:
        if verb == "join":
            store.after[verb] = lose
            store.before["renew"] = play.cut
            clock.advance(0.9)
            until(lambda: not left[0])
            del store.before["renew"]
            until(lambda: here.is_member)
        receipts = first.dispatch_many([(f"k{number % 20}", number // 20) for number in range(100)])
        if verb == "give":
            store.after[verb] = lose
        with other.worker() as there:
            if verb == "join":
                clock.let_pass(2, here, there)  # nobody has heard that one of them joined: it dies
            for one in receipts:
                one.result(HANG)
            until(lambda: sum(play.slot_share(pool).values()) == play.SLOTS)
            if verb in ("give", "claim"):
                until(lambda: play.settled(other, 2, play.SLOTS))
        for one in first.dispatch_many([(f"k{number}", 9) for number in range(20)]):
            one.result(HANG)
        until(lambda: not left[0])
    assert not log.overlaps
    for key in range(20):
        assert list(dict.fromkeys(log.started(f"k{key}"))) == [0, 1, 2, 3, 4, 9]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_answers_that_are_lost_at_random_lose_nothing(make: Callable[..., KeyedPool], seed: int):
    """A call takes effect, or not, and fails: nothing is lost or twice at once, and no key is stuck afterwards."""
    print(f"{seed=}")
    dice = random.Random(seed)
    one, two, calm = make(lease=play.LONG, drain=play.LONG), make(), make()
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
            await asyncio.sleep(3600)

    for pool in (one, two):
        pool.job(do), pool.job(plain), pool.resident(stay)

    def moody(verb: str) -> None:
        if verb in ("Where", "Counts", "Outcomes"):
            return
        if dice.random() < (0.15 if verb == "work" else 0.05):
            raise EngineUnavailable(f"{verb} was cut, by the test")

    stores = [play.tamper(pool) for pool in (one, two)]
    calls = [calm.declare_job("do"), calm.declare_job("plain")]
    watch = calm.declare_resident("stay")
    expected: dict[str, list[int]] = {}
    with one.worker(concurrency=4) as first, two.worker(concurrency=4) as second:
        play.beat_often(first), play.beat_often(second)
        for store in stores:
            store.always_before = store.always_after = moody
        receipts = []
        for number in range(30):
            for key in range(12):
                expected.setdefault(f"k{key}", []).append(number)
                receipts.append(calls[key % 2].dispatch(f"k{key}", number))
            watch.start(f"k{number % 5}")
            calls_so_far = [len(store.calls) for store in stores]
            until(lambda: all(len(store.calls) > count for store, count in zip(stores, calls_so_far, strict=True)))  # noqa: B023
        for store in stores:
            store.always_before = store.always_after = None
        for receipt in receipts:
            receipt.result(HANG)
        until(lambda: all(log.running(f"r-k{key}") for key in range(5)))
    assert not log.overlaps
    for name, numbers in expected.items():
        assert list(dict.fromkeys(log.started(name))) == numbers
    assert calm.statistics().jobs == 0 and calm.statistics().dead == 0


def test_dispatches_whose_answers_are_lost_are_in_once_and_in_order(make: Callable[..., KeyedPool]):
    pool, calm = make(lease=play.LONG), make()
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
            receipt.result(HANG)
    for key in range(3):
        assert log.started(f"k{key}") == list(range(20))
    assert calm.statistics().dispatched_total == 60


def test_a_dispatch_that_is_never_answered_says_that_nothing_is_known(pool: KeyedPool, monkeypatch: pytest.MonkeyPatch):
    from millpond.keyed.client import sender

    monkeypatch.setattr(sender, "PATIENCE", 0.2)

    @pool.job
    async def do(job: Job) -> int:
        return 1

    store = play.tamper(pool)
    store.before["dispatch"] = play.cut
    with pytest.raises(EngineUnavailable, match="id="):
        do.dispatch("k")
    del store.before["dispatch"]
    with pool.worker():
        assert do.dispatch("k").result(HANG) == 1


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
        thread = threading.Thread(target=lambda: found.append(receipt.result(HANG)))
        thread.start()
        asked: list[bool] = []

        def outage(*args: Any) -> None:
            asked.append(pool.statistics().done_total == 1)
            play.cut()

        store.before["Outcomes"] = outage
        gate.open()
        until(lambda: True in asked)
        assert not found
        store.before.clear()
        thread.join(HANG)
        assert found == [1]


def test_a_pool_that_is_dropped_is_made_anew(make: Callable[..., KeyedPool]):
    pool, producer = make(lease=play.LONG), make()
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
        play.beat_often(worker)
        before = worker.id
        lost = declared.dispatch("k", 0)
        until(lambda: log.running("k"))
        with pytest.raises(ValueError, match="force=True"):
            producer.admin.drop()
        producer.admin.drop(force=True)
        until(lambda: stopped)
        assert stopped == ["lease"]
        with pytest.raises(NotFound):
            lost.result(HANG)
        until(lambda: worker.is_member and worker.id != before)
        assert declared.dispatch("k", 1).result(HANG) == 1
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
        assert do.dispatch("k").result(HANG) == 1


def test_a_job_that_is_cut_off_again_and_again_is_no_killer(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch
):
    """It was stopped by an outage of the store each time, and did not kill anybody."""
    pool = make(lease=0.3, max_losses=2)
    clock = play.Clock(monkeypatch, pool)
    runs: list[int] = []

    @pool.job
    async def do(job: Job) -> int:
        runs.append(job.attempt)
        if len(runs) <= 4:
            await asyncio.sleep(3600)
        return len(runs)

    store = play.tamper(pool)
    with pool.worker() as worker:
        receipt = do.dispatch("k")
        for number in range(1, 5):
            until(lambda number=number: len(runs) == number)  # type: ignore[misc]
            store.always_before = play.cut
            clock.cut_off(worker)
            clock.advance(0.2)
            store.always_before = None
        assert receipt.result(HANG) == 5
    assert pool.statistics().dead == 0


def test_the_room_of_handlers_that_were_cut_off_is_free_again(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch
):
    pool = make(lease=0.3)
    clock = play.Clock(monkeypatch, pool)
    block, begun = threading.Event(), threading.Event()

    @pool.job
    async def do(job: Job) -> str:
        return job.key

    @pool.job
    async def busy(job: Job) -> None:
        begun.set()
        block.wait(HANG)  # the loop stands still meanwhile

    store = play.tamper(pool)
    with pool.worker(concurrency=3) as worker:
        before = worker.id
        busy.dispatch("busy")
        assert begun.wait(HANG)
        receipts = do.dispatch_many([("a",), ("b",)])
        until(lambda: all(one.status() == "running" for one in receipts))
        store.always_before = play.cut
        assert worker._worker is not None and worker._worker._membership is not None
        membership = worker._worker._membership
        clock.advance(0.9)
        until(lambda: membership.is_over)
        store.always_before = None
        block.set()
        until(lambda: worker.is_member and worker.id != before)
        for one in (*receipts, *do.dispatch_many([(f"c{number}",) for number in range(10)])):
            assert one.result(HANG) == one.key


def test_a_job_that_its_worker_died_of_too_often_is_dead(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch
):
    pool, lookout = make(lease=0.3, max_losses=2), make()
    clock = play.Clock(monkeypatch, pool)

    @pool.job
    def do(job: Job) -> None: ...

    from millpond.keyed.rules.commands import Gone
    from millpond.keyed.rules.records import Joiner

    receipt = do.dispatch("k")
    verbs = Verbs(lookout._connection.store)
    behind = do.dispatch("k")
    for number in range(2):  # a worker that takes it and is never seen again
        ghost = f"ghost{number}"
        verbs.join(Joiner(ghost, "ghost", names=("do",)))
        verbs.claim(ghost, list(range(play.SLOTS)), {})
        until(lambda ghost=ghost: verbs.work(ghost, 1, [], 10, 1).takes or receipt.status() != "waiting")  # type: ignore[misc]
        verbs.apply(Gone(ghost))
        clock.advance(1.1)
        pool.admin.pause()
        with pool.worker() as worker:
            until(lambda worker=worker: play.slot_share(lookout) == {worker.id: play.SLOTS})  # type: ignore[misc]
            assert lookout.owner("k").why == "died"
            if number:
                pool.admin.resume()
                with pytest.raises(JobFailed, match="killed its worker") as caught:
                    receipt.result(HANG)
                assert caught.value.status == "lost"
                behind.result(HANG)
        pool.admin.resume()
    assert "died 2 times" in lookout.admin.dead_letters("k")[0].reason


def test_the_clock_of_the_store_jumps(make: Callable[..., KeyedPool]):
    pool, other = make(lease=play.LONG), make()
    log = play.Log()

    async def do(job: Job, number: int) -> int:
        with log.run(job.key, number):
            await asyncio.sleep(0.002)
            return number

    first, _ = pool.job(keep_result=1e6)(do), other.job(do)
    store: Any = pool._connection.store
    with pool.worker() as one_worker, other.worker() as other_worker:
        play.beat_often(one_worker), play.beat_often(other_worker)
        until(lambda: play.settled(pool, 2, play.SLOTS))
        receipts = []
        for skew in (3600, -3600, 0, 7200, -10):
            receipts += first.dispatch_many([(f"k{number % 6}", len(receipts) + number) for number in range(60)])
            many = len(log.ended)
            until(lambda many=many: len(log.ended) > many)  # type: ignore[misc]
            store.skew = skew * 1_000_000
            until(lambda: all(play.LONG - 60 < each.lease_left <= play.LONG for each in pool.workers()))
        for one in receipts:
            one.result(HANG)
    assert not log.overlaps
    for key in range(6):
        assert list(dict.fromkeys(log.started(f"k{key}"))) == sorted(set(log.started(f"k{key}")))
    assert pool.statistics().dead == 0


def test_trouble_is_told(make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch):
    events: list[Event] = []
    pool = make(lease=0.3, on_event=events.append)
    clock = play.Clock(monkeypatch, pool)
    store = play.tamper(pool)
    with pool.worker():
        store.always_before = play.cut
        clock.advance(0.9)
        until(lambda: {"store_unavailable", "worker_lost"} <= {one.name for one in events})
        store.always_before = None
        until(lambda: [one.name for one in events].count("worker_joined") == 2)


def test_trouble_is_logged_for_those_who_only_read_logs(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """That the store is away and back, that a worker is cut off and back, that others took over what it ran."""
    caplog.set_level("INFO", "millpond")
    one, two = make(lease=0.3), make()
    clock = play.Clock(monkeypatch, one)
    gate = play.Gate()

    async def do(job: Job) -> None:
        await gate.pass_()

    first, _ = one.job(do), two.job(do)
    store = play.tamper(one)
    with one.worker() as lost, two.worker() as other:
        until(lambda: play.settled(two, 2, play.SLOTS))
        first.dispatch_many([(f"k{number}",) for number in range(20)])
        until(lambda: two.statistics().keys_running == 20)
        was = lost.id
        store.always_before = play.cut
        clock.let_pass(0.75, other)
        clock.cut_off(lost, 0.1)
        clock.let_pass(1, other)
        becomes(lambda: [each.id for each in two.workers()], [other.id])
        store.always_before = None
        until(lambda: play.settled(two, 2, play.SLOTS))
        for line in (
            "pool 'p' cannot be reached: cut off, by the test",
            f"worker {was} of pool 'p' is cut off (lease): its handlers stop",
            f"worker {was} of pool 'p' is dead: others take over its keys",
            f"worker {other.id} of pool 'p' runs again what nobody runs any more, keys: ",
            "pool 'p' can be reached again, after ",
            f"worker {lost.id} of pool 'p' is back: it was cut off as {was}",
        ):
            until(lambda line=line: line in caplog.text, line)  # type: ignore[misc]
        gate.open()


def test_a_worker_that_cannot_reach_its_store_still_leaves(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch
):
    pool = make(lease=0.3)
    play.Clock(monkeypatch, pool)
    gate = play.Gate()

    @pool.job
    async def do(job: Job) -> None:
        await gate.pass_()

    store = play.tamper(pool)
    with pool.worker(grace=play.LONG):
        do.dispatch_many([(f"k{number}",) for number in range(5)])
        until(lambda: pool.statistics().keys_running == 5)
        store.always_before = play.cut
        gate.open()
    store.always_before = None


def test_a_worker_that_cannot_join_says_so(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG)
    store = play.tamper(pool)
    store.before["join"] = play.cut
    before = threading.active_count()
    with pytest.raises(EngineUnavailable), pool.worker():
        pass
    until(lambda: threading.active_count() <= before)
    store.before.clear()
    with pool.worker() as worker:
        assert worker.is_member


def test_a_worker_that_cannot_listen_leaves_no_member_behind(pool: KeyedPool, monkeypatch: pytest.MonkeyPatch):
    """Nobody would renew such a member, and others would give it slots."""

    @pool.job
    def do(job: Job) -> str:
        return job.key

    store = play.tamper(pool)
    listen, tries = store.inner.listen, []

    def fail_twice(name: str, heard: Callable[[], None], handed: Any = None) -> Any:
        tries.append(name)
        if len(tries) <= 2:
            raise EngineUnavailable("the store cannot be reached")
        return listen(name, heard, handed)

    monkeypatch.setattr(store.inner, "listen", fail_twice)
    for _ in range(2):
        with pytest.raises(EngineUnavailable), pool.worker():
            pass
        assert pool.workers() == []
    with pool.worker() as worker:
        assert [each.id for each in pool.workers()] == [worker.id]
        assert do.dispatch("k").result(HANG) == "k"


def test_a_worker_lives_by_the_settings_of_the_pool_that_was_made_anew(make: Callable[..., KeyedPool]):
    """Its lease is a fraction of what it was: a worker that beat by the old one would lose it each time."""
    maker, pool = make(lease=play.LONG), make()
    maker._connection.open()

    @pool.job
    def do(job: Job) -> str:
        return job.key

    with pool.worker() as working:
        worker, before = working._worker, working.id
        assert worker is not None and worker._feed.rebalancer._settings.lease == play.LONG * SECOND
        pool.admin.drop(force=True)  # it is made anew by the worker, which asks for the defaults
        worker._heartbeat.wake()
        until(lambda: working.is_member and working.id != before)
        becomes(lambda: worker._feed.rebalancer._settings.lease, 5 * SECOND)  # all soon after it has its new id
        becomes(lambda: worker._feed.rebalancer._sightings.lease, 5.0)
        becomes(worker._heartbeat._period, 5.0 / 3)
        assert do.dispatch("k").result(HANG) == "k"


def test_a_worker_that_takes_up_its_slots_while_the_pool_is_made_anew_serves_the_new_one(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch
):
    """Both pools count their members from the beginning: what was seen of the old one must not pass for the new."""
    pool = make(lease=play.LONG)
    claim, claims, may_go_on = Rebalancer._claim, threading.Event(), threading.Event()

    def slow_claim(self: Rebalancer, *args: Any) -> list[int]:
        claims.set()
        may_go_on.wait(HANG)
        return claim(self, *args)

    monkeypatch.setattr(Rebalancer, "_claim", slow_claim)

    @pool.job
    def do(job: Job) -> str:
        return job.key

    with pool.worker() as working:
        worker, before = working._worker, working.id
        assert worker is not None and claims.wait(HANG)
        pool.admin.drop(force=True)
        worker._heartbeat.wake()
        until(lambda: working.is_member and working.id != before)
        may_go_on.set()
        assert do.dispatch("k").result(HANG) == "k"
