"""Residents: one per key, on one worker, until stopped."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import keyed_play as play
import pytest

from millpond.errors import LeaseLost, NotFound, PoolFull
from millpond.keyed import AsyncKeyedPool, Job, KeyedPool, Resident
from millpond.keyed.rules.envelope import Envelope, encode, stamped
from millpond.keyed.rules.records import Report, Take
from millpond.keyed.worker.membership import Membership
from millpond.keyed.worker.runner import Runner
from waiting import HANG, auntil, becomes, until


def running(pool: KeyedPool) -> list[str]:
    return [one.key for one in pool.residents() if one.state == "running"]


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
def test_a_resident_runs_until_it_is_stopped(pool: KeyedPool, colour: str):
    log = play.Log()
    why: list[str] = []

    def plain(resident: Resident, url: str) -> None:
        with log.run(resident.key, url):
            resident.lost.wait(HANG)
            why.append(resident.lost.reason)

    async def coroutine(resident: Resident, url: str) -> None:
        with log.run(resident.key, url):
            try:
                await asyncio.sleep(3600)
            finally:
                why.append(resident.lost.reason)

    watch = pool.resident(name="watch")(plain if colour == "plain" else coroutine)
    with pool.worker():
        assert watch.start("a", url="x")
        until(lambda: log.running("a") == ["x"])
        assert not watch.start("a", url="x") and not watch.start("a", "x")
        (view,) = pool.residents()
        assert (view.name, view.key, view.arguments, view.failures) == ("watch", "a", {"url": "x"}, 0)
        assert view.state == "running" and abs(view.started_at - time.time()) < HANG
        assert pool.statistics().residents == 1 and pool.statistics().jobs == 0
        assert watch.stop("a", timeout=HANG)
        assert log.running("a") == [] and pool.residents() == []
        assert not watch.stop("a") and not watch.stop("a", timeout=HANG)
        assert why == ["stopped"]
    assert not log.overlaps and log.started("a") == ["x"]


def test_other_arguments_replace_it_and_never_two_at_once(pool: KeyedPool):
    log = play.Log()

    @pool.resident
    def watch(resident: Resident, number: int) -> None:
        with log.run(resident.key, number):
            resident.lost.wait(HANG)
            time.sleep(0.02)

    with pool.worker():
        for number in range(4):
            assert watch.start("a", number)
            until(lambda number=number: log.running("a") == [number])  # type: ignore[misc]
        for number in range(10, 20):
            assert watch.start("a", number)
        until(lambda: log.running("a") == [19])
        assert watch.stop("a", timeout=HANG)
    assert not log.overlaps


def test_stop_and_start_in_a_row_ends_with_the_last_word(pool: KeyedPool):
    log = play.Log()

    @pool.resident
    async def watch(resident: Resident) -> None:
        with log.run(resident.key):
            await asyncio.sleep(3600)

    with pool.worker():
        for _ in range(30):
            watch.start("a")
            watch.stop("a")
        until(lambda: not pool.residents())
        for _ in range(30):
            watch.start("a")
            watch.stop("a")
            watch.start("a")
        until(lambda: running(pool) == ["a"] and len(log.running("a")) == 1)
        assert watch.stop("a", timeout=HANG)
    assert not log.overlaps


def test_a_resident_that_returns_has_ended(pool: KeyedPool):
    ran: list[str] = []

    @pool.resident
    async def brief(resident: Resident) -> None:
        ran.append(resident.key)

    with pool.worker():
        assert brief.start("a")
        until(lambda: not pool.residents() and ran)
        time.sleep(0.05)
        assert ran == ["a"]
        assert brief.start("a")
        until(lambda: len(ran) == 2)


RAISED: list[Callable[[], BaseException]] = [
    lambda: ValueError("no"),
    lambda: StopIteration(),
    lambda: SystemExit(1),
    lambda: asyncio.CancelledError(),
    lambda: GeneratorExit(),
    lambda: LeaseLost("of another"),
]


@pytest.mark.parametrize("make_error", RAISED, ids=["value", "stop", "exit", "cancelled", "generator", "lease"])
@pytest.mark.parametrize("colour", ["plain", "coroutine"])
def test_a_resident_that_raises_is_started_again_after_a_while(
    pool: KeyedPool, colour: str, make_error: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.CRITICAL)
    log = play.Log()
    attempts: list[int] = []

    def plain(resident: Resident) -> None:
        with log.run(resident.key):
            attempts.append(resident.attempt)
            if len(attempts) < 3:
                raise make_error()
            resident.lost.wait(HANG)

    async def coroutine(resident: Resident) -> None:
        with log.run(resident.key):
            attempts.append(resident.attempt)
            if len(attempts) < 3:
                raise make_error()
            await asyncio.sleep(3600)

    watch = pool.resident(name="watch", backoff=0.05)(plain if colour == "plain" else coroutine)

    @pool.job
    async def alive(job: Job) -> str:
        return "yes"

    with pool.worker():
        began = time.monotonic()
        watch.start("a")
        until(lambda: len(attempts) == 3 and log.running("a"))
        assert time.monotonic() - began > 0.09
        assert attempts == [1, 2, 3]
        assert alive.dispatch("a").result(HANG) == "yes"
        assert watch.stop("a", timeout=HANG)
    assert not log.overlaps


def test_a_resident_that_waits_to_be_tried_again_can_be_stopped_and_replaced(pool: KeyedPool):
    ran: list[int] = []

    @pool.resident(backoff=1000)
    async def watch(resident: Resident, number: int) -> None:
        ran.append(number)
        if number < 2:
            raise ValueError
        await asyncio.sleep(3600)

    with pool.worker():
        watch.start("a", 0)
        becomes(lambda: [one.state for one in pool.residents()], ["retry"])
        assert pool.residents()[0].failures == 1
        assert watch.stop("a", timeout=HANG) and not pool.residents()
        watch.start("a", 1)
        becomes(lambda: [one.state for one in pool.residents()], ["retry"])
        assert not watch.start("a", 1)
        assert watch.start("a", 2)
        until(lambda: ran[-1] == 2)
        assert watch.stop("a", timeout=HANG)
    assert ran == [0, 1, 2]


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["plain", "coroutine", "receive"])
def test_messages_arrive_in_order(pool: KeyedPool, colour: str):
    got: list[Any] = []

    def plain(resident: Resident) -> None:
        for message in resident:
            got.append(message)  # noqa: PERF402

    def receive(resident: Resident) -> None:
        while True:
            try:
                got.append(resident.receive(0.01))
            except TimeoutError:
                continue

    async def coroutine(resident: Resident) -> None:
        async for message in resident:
            got.append(message)  # noqa: PERF401

    handler: Any = {"plain": plain, "coroutine": coroutine, "receive": receive}[colour]
    watch = pool.resident(name="watch")(handler)
    watch.start("a")
    for number in range(5):
        watch.notify("a", number)  # before it runs
    with pool.worker():
        for number in range(5, 50):
            watch.notify("a", number)
        until(lambda: len(got) == 50)
        time.sleep(0.1)
        watch.notify("a", {"x": [1, None]})
        until(lambda: len(got) == 51)
        assert watch.stop("a", timeout=HANG)
        with pytest.raises(NotFound, match="start it first"):
            watch.notify("a", 1)
    assert got == [*range(50), {"x": [1, None]}]


def test_messages_survive_a_failure_and_the_one_in_hand_is_given_again(pool: KeyedPool):
    got: list[int] = []

    @pool.resident(backoff=0.02)
    async def watch(resident: Resident) -> None:
        async for message in resident:
            got.append(message)
            if message == 3 and got.count(3) == 1:
                raise ValueError

    with pool.worker():
        watch.start("a")
        for number in range(6):
            watch.notify("a", number)
        until(lambda: got[-1:] == [5])
        watch.stop("a", timeout=HANG)
    assert got == [0, 1, 2, 3, 3, 4, 5]


def test_messages_that_nobody_handles_are_limited_as_jobs_of_a_key_are(make: Callable[..., KeyedPool]):
    pool = make(max_per_key=2)

    @pool.resident
    async def watch(resident: Resident) -> None:
        async for _ in resident:
            pass

    watch.start("a")
    watch.notify("a", 1)
    watch.notify("a", 2)
    with pytest.raises(PoolFull, match=r"'watch' of key 'a' has 2 messages .*max_per_key"):
        watch.notify("a", 3)


def test_messages_of_a_resident_that_moves_are_neither_lost_nor_out_of_order(make: Callable[..., KeyedPool]):
    one, two = make(lease=play.LONG, drain=play.LONG), make()
    log = play.Log()
    got: dict[str, list[int]] = {f"k{number}": [] for number in range(8)}

    async def watch(resident: Resident) -> None:
        with log.run(resident.key):
            async for message in resident:
                got[resident.key].append(message)
                await asyncio.sleep(0.0005)

    first, _ = one.resident(watch), two.resident(watch)
    with one.worker():
        for key in got:
            first.start(key)
        stop = threading.Event()
        sent = itertools.count()

        def send() -> None:
            while not stop.is_set():
                number = next(sent)
                for key in got:
                    first.notify(key, number)
                time.sleep(0.001)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for _ in range(3):
                with two.worker():
                    until(lambda: play.settled(one, 2, play.SLOTS))
                    before = {key: len(numbers) for key, numbers in got.items()}
                    until(lambda: all(len(got[key]) > before[key] for key in got))  # noqa: B023
        finally:
            stop.set()
            sender.join()
        last = next(sent) - 1
        until(lambda: all(list_ and list_[-1] == last for list_ in got.values()))
    assert not log.overlaps
    for key, numbers in got.items():
        once = [number for number, _ in itertools.groupby(numbers)]  # the one in hand may be given again
        assert once == list(range(last + 1)), key


# --- a busy loop -----------------------------------------------------------------------------------------------------


def blocked(pool: KeyedPool) -> tuple[Any, threading.Event, threading.Event]:
    """Return a job that blocks the loop of its worker, an event that says that it does, and one that ends it."""
    begun, end = threading.Event(), threading.Event()

    @pool.job
    async def block(job: Job) -> None:
        begun.set()
        end.wait(HANG)

    return block, begun, end


def test_a_stop_reaches_a_resident_that_a_busy_loop_has_not_begun(pool: KeyedPool):
    log = play.Log()
    block, begun, end = blocked(pool)

    @pool.resident
    async def watch(resident: Resident) -> None:
        with log.run(resident.key):
            await asyncio.sleep(3600)

    with pool.worker():
        block.dispatch("busy")
        assert begun.wait(HANG)
        watch.start("a")
        until(lambda: running(pool) == ["a"])  # taken, not begun
        watch.stop("a")
        time.sleep(0.1)
        end.set()
        until(lambda: not pool.residents())
        assert not log.running("a")


def test_messages_reach_a_resident_that_a_busy_loop_has_not_begun(pool: KeyedPool):
    got: list[int] = []
    block, begun, end = blocked(pool)

    @pool.resident
    async def watch(resident: Resident) -> None:
        async for message in resident:
            got.append(message)  # noqa: PERF401

    with pool.worker():
        block.dispatch("busy")
        assert begun.wait(HANG)
        watch.start("a")
        until(lambda: running(pool) == ["a"])
        for number in range(3):
            watch.notify("a", number)
        time.sleep(0.1)
        end.set()
        time.sleep(0.1)
        watch.notify("a", 3)
        until(lambda: got == [0, 1, 2, 3])


def test_a_worker_leaves_although_a_busy_loop_has_not_begun_what_it_took(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG, drain=play.LONG)
    ran: list[str] = []
    block, begun, end = blocked(pool)

    @pool.resident
    async def watch(resident: Resident) -> None:
        ran.append(resident.key)
        await asyncio.sleep(3600)

    @pool.job
    async def do(job: Job) -> None:
        ran.append(job.key)

    worker = pool.worker()
    worker.__enter__()
    block.dispatch("busy")
    assert begun.wait(HANG)
    watch.start("a")
    receipt = do.dispatch("b")
    until(lambda: running(pool) == ["a"] and receipt.status() == "running")
    closing = threading.Thread(target=worker.close)
    closing.start()
    until(lambda: worker._worker is None)  # it has begun to close
    end.set()
    closing.join(HANG)
    assert not closing.is_alive()
    assert [one.state for one in pool.residents()] == ["ready"]
    assert receipt.status() in ("waiting", "done")  # the loop may have come to it before it heard of the end
    with pool.worker():
        receipt.result(HANG)
        until(lambda: "a" in ran)


def test_a_resident_that_is_moved_before_it_began_runs_elsewhere_at_once(make: Callable[..., KeyedPool]):
    one, two = make(lease=play.LONG, drain=play.LONG), make()
    log = play.Log()
    block, begun, end = blocked(one)

    async def watch(resident: Resident) -> None:
        with log.run(resident.key):
            await asyncio.sleep(3600)

    first, _ = one.resident(watch), two.resident(watch)
    with one.worker() as here:
        block.dispatch("busy")
        assert begun.wait(HANG)
        keys = [f"a{number}" for number in range(20)]
        for key in keys:
            first.start(key)
        until(lambda: len(running(one)) == 20)
        with two.worker() as there:
            until(lambda: play.settled(one, 2, play.SLOTS))
            moved = [key for key in keys if one.owner(key).owner == there.id]
            assert moved
            time.sleep(0.1)
            end.set()
            until(lambda: all(log.running(key) for key in keys))
            assert {view.worker for view in one.residents()} == {here.id, there.id}
    assert not log.overlaps


# --- many ------------------------------------------------------------------------------------------------------------


def test_reconcile_makes_the_set_right(pool: KeyedPool):
    log = play.Log()

    @pool.resident
    async def watch(resident: Resident, url: str, every: int = 5) -> None:
        with log.run(resident.key, url):
            await asyncio.sleep(3600)

    @pool.resident
    async def other(resident: Resident) -> None:
        await asyncio.sleep(3600)

    with pool.worker():
        other.start("stays")
        assert pool.reconcile(watch, {"a": {"url": "1"}, "b": {"url": "2"}, "c": {"url": "3", "every": 5}}) == 3
        until(lambda: sorted(running(pool)) == ["a", "b", "c", "stays"])
        assert pool.reconcile(watch, {"a": {"url": "1", "every": 5}, "b": {"url": "2"}, "c": {"url": "3"}}) == 0
        assert pool.reconcile(watch, {"a": {"url": "1"}, "b": {"url": "x"}, "d": {"url": "4"}}) == 3
        until(lambda: [log.running(key) for key in "abcd"] == [["1"], ["x"], [], ["4"]])
        assert pool.reconcile(watch, {}) == 3
        until(lambda: sorted(running(pool)) == ["stays"])
        assert pool.reconcile(watch, {}) == 0
    assert not log.overlaps and log.started("a") == ["1"]


def test_reconcile_and_stop_cost_what_they_change(pool: KeyedPool):
    """Neither tells the store of residents that stay as they are; who waits for an end looks at that resident only."""

    @pool.resident
    async def watch(resident: Resident, number: int) -> None:
        await asyncio.sleep(3600)

    wanted = {f"key {number}": {"number": number} for number in range(20)}
    assert pool.reconcile(watch, wanted) == 20
    store = play.tamper(pool)
    assert pool.reconcile(watch, wanted) == 0
    assert store.calls == ["Keys"]
    del wanted["key 3"]
    wanted["key 4"], wanted["new"] = {"number": 44}, {"number": 1}
    assert pool.reconcile(watch, wanted) == 3
    assert store.calls[1:].count("apply") == 3
    with pool.worker():
        until(lambda: len(running(pool)) == 20)
        start = len(store.calls)
        assert watch.stop("new", timeout=HANG)
        assert "Key" in store.calls[start:] and "Keys" not in store.calls[start:]


def test_reconcile_with_a_wrong_wish_changes_nothing(pool: KeyedPool):
    @pool.resident
    async def watch(resident: Resident, url: str) -> None:
        await asyncio.sleep(3600)

    with pool.worker():
        for key in "abc":
            watch.start(key, "x")
        until(lambda: len(running(pool)) == 3)
        for wrong in ({"d": {"url": "y"}, "a": {"uri": "x"}}, {"d": {"url": "y"}, "": {"url": "x"}}):
            with pytest.raises((TypeError, ValueError)):
                pool.reconcile(watch, wrong)
            time.sleep(0.02)
            assert [one.key for one in pool.residents()] == ["a", "b", "c"]


def test_a_declared_resident_is_the_same_whatever_the_order_of_its_arguments(pool: KeyedPool):
    declared = pool.declare_resident("watch")
    assert declared.start("a", x=1, y=2)
    assert not declared.start("a", y=2, x=1)


def test_a_declared_resident_is_started_by_name_and_by_position(pool: KeyedPool):
    seen: list[tuple[str, int]] = []

    @pool.resident
    def watch(resident: Resident, url: str, every: int = 5) -> None:
        seen.append((url, every))

    declared = pool.declare_resident("watch")
    with pool.worker():
        for key, args, kwargs in [("a", ("x",), {}), ("b", (), {"url": "y", "every": 1})]:
            assert declared.start(key, *args, **kwargs)
        until(lambda: sorted(seen) == [("x", 5), ("y", 1)])


def test_a_resident_whose_arguments_do_not_fit_is_a_dead_letter(pool: KeyedPool):
    @pool.resident
    def watch(resident: Resident, number: int) -> None: ...

    with pool.worker():
        pool.declare_resident("watch").start("a", number="x")
        until(lambda: pool.statistics().dead == 1)
        (letter,) = pool.admin.dead_letters("a")
        assert letter.name == "watch" and "do not fit" in letter.reason and letter.key == "a"
        assert pool.residents() == []


def test_residents_do_not_count_as_concurrency_nor_hold_up_jobs_of_their_key(pool: KeyedPool):
    log = play.Log()

    @pool.resident
    def plain(resident: Resident) -> None:
        with log.run(resident.key):
            resident.lost.wait(HANG)

    @pool.resident
    async def coroutine(resident: Resident) -> None:
        with log.run(resident.key):
            await resident.lost

    @pool.job
    def do(job: Job) -> str:
        return job.key

    with pool.worker(concurrency=1):
        for number in range(30):
            plain.start(f"p{number}")
            coroutine.start(f"c{number}")
        until(lambda: len(running(pool)) == 60)
        for number in range(30):
            assert do.dispatch(f"p{number}").result(HANG)
    assert [one.state for one in pool.residents()] == ["ready"] * 60


def test_a_resident_that_nobody_here_knows_waits_for_one_who_does(make: Callable[..., KeyedPool]):
    one, two = make(lease=play.LONG), make()
    ran = threading.Event()

    @one.job
    def other(job: Job) -> None: ...

    @two.resident
    def watch(resident: Resident) -> None:
        ran.set()
        resident.lost.wait(HANG)

    with one.worker():
        one.declare_resident("watch").start("a")
        until(lambda: [view.state for view in one.residents()] == ["parked"])
        with two.worker():
            assert ran.wait(HANG)
            assert one.declare_resident("watch").stop("a", timeout=HANG)


def test_stop_says_when_it_takes_too_long(pool: KeyedPool):
    gate, begun = play.Gate(), threading.Event()

    @pool.resident
    def stubborn(resident: Resident) -> None:
        begun.set()
        gate.wait()

    with pool.worker():
        stubborn.start("a")
        assert begun.wait(HANG)  # one that was taken and has not begun ends at once
        with pytest.raises(TimeoutError, match="0.1"):
            stubborn.stop("a", timeout=0.1)
        with pytest.raises(NotFound):
            stubborn.notify("a", 1)
        gate.open()
        assert stubborn.stop("a", timeout=HANG) in (True, False)
        assert not pool.residents()


def test_waiting_for_messages_and_for_the_end_leaves_nothing_behind(pool: KeyedPool):
    sizes: list[int] = []

    @pool.resident
    def watch(resident: Resident) -> None:
        for _ in range(300):
            resident.lost.wait(0.0001)
            with pytest.raises(TimeoutError):
                resident.receive(0.0001)
        sizes.append(len(resident.lost._watchers or ()))

    with pool.worker():
        watch.start("a")
        until(lambda: sizes)
    assert sizes[0] < 20


@pytest.mark.asyncio
async def test_the_other_colour(apool: AsyncKeyedPool):
    got: list[int] = []

    @apool.resident
    async def watch(resident: Resident, offset: int) -> None:
        async for message in resident:
            got.append(message + offset)  # noqa: PERF401

    async with apool.worker():
        assert await watch.start("a", 10)
        assert not await watch.start("a", offset=10)
        await watch.notify("a", 1)
        await auntil(lambda: got == [11])
        assert await apool.reconcile(watch, {"b": {"offset": 1}}) == 2
        await auntil(lambda: apool_keys(apool, ["b"]))  # type: ignore[arg-type,return-value]
        assert await watch.stop("b", timeout=HANG)
        with pytest.raises(NotFound):
            await watch.notify("b", 1)


async def apool_keys(pool: AsyncKeyedPool, keys: list[str]) -> bool:
    return [one.key for one in await pool.residents()] == keys


def test_equal_arguments_are_the_same_in_whatever_order(pool: KeyedPool):
    watch = pool.resident(name="watch")(lambda resident, options: resident.lost.wait(HANG))
    with pool.worker():
        assert watch.start("k", {"a": 1, "b": {"x", "y"}})
        assert not watch.start("k", {"b": {"y", "x"}, "a": 1})


@pytest.mark.asyncio
async def test_a_resident_that_never_began_is_not_said_to_have_ended():
    """Nobody here knows it, so it is parked."""
    reports: list[Report] = []
    events: list[str] = []
    runner = Runner("p", {}, 10, reports.append, lambda event: events.append(event.name))
    body = stamped(1, encode(Envelope("job", "watch", "", 0, b"")))
    runner.start(Membership("a", play.LONG, 1e12), [Take(1, "r:watch:k", 7, (body,))])
    await auntil(lambda: runner.is_idle and bool(reports))
    assert [(one.how, one.done) for one in reports] == [("park", 0)]
    assert events == []
