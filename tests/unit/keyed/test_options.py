"""Options of a dispatch, and the limits of a pool."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keyed_play as play
import pytest

from millpond.errors import AlreadyExists, PoolFull
from millpond.keyed import AsyncKeyedPool, Job, KeyedPool, Retry
from millpond.keyed.worker import feed
from waiting import HANG, until


def test_a_delayed_job_comes_when_it_is_due_and_holds_nobody_up(pool: KeyedPool):
    @pool.job
    async def do(job: Job, name: str) -> None: ...

    with pool.worker():
        late = do.options(delay=HANG + 40).dispatch("k", "late")
        do.dispatch("k", "now").result(HANG)
        play.skip(pool, 39)
        do.dispatch("k", "still too early").result(HANG)
        assert late.status() == "delayed" and pool.statistics().delayed == 1
        play.skip(pool, 1 + HANG)
        do.dispatch("k", "the worker looks now").result(HANG)
        late.result(HANG)


def test_a_delayed_job_does_not_come_too_early(pool: KeyedPool):
    @pool.job
    async def do(job: Job) -> float:
        return time.monotonic()

    with pool.worker():
        began = time.monotonic()
        assert do.options(delay=0.1).dispatch("k").result(HANG) - began > 0.09


def test_a_delayed_job_wakes_a_worker_that_sleeps(pool: KeyedPool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed, "LOOK", play.LONG)  # it does not look by itself meanwhile

    @pool.job
    async def do(job: Job) -> str:
        return job.key

    with pool.worker():
        for _ in range(3):
            do.dispatch("warm").result(HANG)
            assert do.options(delay=0.05).dispatch("k").result(HANG) == "k"


def test_at_is_a_time_of_day(pool: KeyedPool):
    @pool.job
    async def do(job: Job) -> None: ...

    with pool.worker():
        when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=HANG + 40)
        late = [do.options(at=one).dispatch("k") for one in (when, when.timestamp())]
        do.options(at=when - datetime.timedelta(days=1)).dispatch("k").result(HANG)
        play.skip(pool, 39)
        do.dispatch("k").result(HANG)
        assert [one.status() for one in late] == ["delayed", "delayed"]
        play.skip(pool, 1 + HANG)
        do.dispatch("k").result(HANG)
        for one in late:
            one.result(HANG)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_clock_that_was_set_since_the_pool_was_opened_shifts_no_job(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """These stores have a clock of their own, which nobody sets: `at` is the time of day when it is dispatched."""
    with KeyedPool("p", play.fresh() if store == "memory" else f"sqlite:///{tmp_path}/pools.db") as pool:

        @pool.job
        async def do(job: Job) -> None: ...

        with pool.worker():
            do.dispatch("k").result(HANG)
            wall, hour = time.time, 3600
            monkeypatch.setattr(time, "time", lambda: wall() + hour)
            monkeypatch.setattr(time, "time_ns", lambda: round((wall() + hour) * 1e9))
            late = do.options(at=time.time() + HANG + 40).dispatch("k")
            play.skip(pool, 39)
            do.dispatch("k").result(HANG)
            assert late.status() == "delayed"
            play.skip(pool, 1 + HANG)
            do.dispatch("k").result(HANG)
            late.result(HANG)


@pytest.mark.parametrize(
    "options",
    [
        {"on_busy": "wait"},
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 1, "at": 5.0},
        {"at": datetime.datetime(2030, 1, 1)},
        {"id": ""},
        {"id": 5},
        {"id": "x" * 201},
        {"key": "x"},
    ],
    ids=repr,
)
def test_options_that_make_no_sense_are_refused(pool: KeyedPool, options: dict[str, Any]):
    @pool.job
    async def do(job: Job) -> None: ...

    with pytest.raises((ValueError, TypeError)):
        do.options(**options)


def test_options_add_up(pool: KeyedPool):
    @pool.job
    async def do(job: Job) -> None: ...

    receipt = do.options(delay=50).options(id="x").dispatch("k")
    assert (receipt.id, receipt.status()) == ("x", "delayed")


def test_the_same_id_is_dispatched_once(pool: KeyedPool):
    ran: list[int] = []

    @pool.job
    async def do(job: Job, number: int) -> int:
        ran.append(number)
        return number

    receipts = [do.options(id="a").dispatch("k", number) for number in range(3)]
    late = [do.options(id="b", delay=0.1).dispatch("k", number) for number in (10, 11)]
    assert {one.id for one in receipts} == {"a"}
    with pool.worker():
        assert [one.result(HANG) for one in receipts] == [0, 0, 0]
        assert do.options(id="a").dispatch("k", 5).result(HANG) == 0
        assert [one.result(HANG) for one in late] == [10, 10]
        with pytest.raises(ValueError, match="ids="):
            do.options(id="a").dispatch_many([("k", 1)])
    assert ran == [0, 10]


def test_on_busy_reject(pool: KeyedPool):
    gate = play.Gate()

    @pool.job
    async def do(job: Job) -> None:
        await gate.pass_()

    once = do.options(on_busy="reject")
    first = once.dispatch("k")
    with pytest.raises(AlreadyExists, match="'k'"):
        once.dispatch("k")
    once.dispatch("other")
    with pool.worker():
        until(lambda: first.status() == "running")
        with pytest.raises(AlreadyExists):
            once.dispatch("k")
        gate.open()
        first.result(HANG)
        once.dispatch("k").result(HANG)


def test_on_busy_replace(pool: KeyedPool):
    gate = play.Gate()
    ran: list[tuple[str, int]] = []

    @pool.job
    async def do(job: Job, number: int) -> int:
        if number == 0:
            await gate.pass_()
        ran.append(("do", number))
        return number

    @pool.job
    async def other(job: Job, number: int) -> int:
        ran.append(("other", number))
        return number

    with pool.worker():
        first = do.dispatch("k", 0)
        until(lambda: first.status() == "running")
        old, kept = do.dispatch("k", 1), other.dispatch("k", 2)
        new = do.options(on_busy="replace").dispatch("k", 3)
        assert old.status() == "replaced"
        gate.open()
        assert (first.result(HANG), kept.result(HANG), new.result(HANG)) == (0, 2, 3)
    assert ran == [("do", 0), ("other", 2), ("do", 3)]


def test_on_busy_coalesce(pool: KeyedPool):
    gate = play.Gate()
    ran: list[int] = []

    @pool.job
    async def do(job: Job, number: int) -> int:
        if number == 0:
            await gate.pass_()
        ran.append(number)
        return number

    soon = do.options(on_busy="coalesce")
    with pool.worker():
        first = do.dispatch("k", 0)
        until(lambda: first.status() == "running")
        receipts = [soon.dispatch("k", number) for number in (1, 2, 3)]
        assert len({one.id for one in receipts}) == 1
        gate.open()
        assert [one.result(HANG) for one in receipts] == [1, 1, 1]
    assert ran == [0, 1]


def test_a_full_mailbox_refuses_and_the_others_do_not(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG, max_per_key=3)
    ran: list[int] = []

    @pool.job
    async def do(job: Job, number: int) -> int:
        ran.append(number)
        return number

    for number in range(3):
        do.dispatch("k", number)
    with pytest.raises(PoolFull, match="max_per_key"):
        do.dispatch("k", 3)
    do.dispatch("other", 9)
    with pool.worker():
        until(lambda: pool.statistics().jobs == 0)
        assert do.dispatch("k", 4).result(HANG) == 4
    assert [one for one in ran if one < 9] == [0, 1, 2, 4]


def test_a_full_pool_refuses(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG, max_jobs=3)

    @pool.job
    async def do(job: Job, number: int) -> int:
        return number

    do.options(delay=50).dispatch("x", 0)  # counts
    do.dispatch("a", 1), do.dispatch("b", 2)
    with pytest.raises(PoolFull, match="max_jobs"):
        do.dispatch("c", 3)
    with pool.worker():
        until(lambda: pool.statistics().jobs == 0)
        assert do.dispatch("c", 3).result(HANG) == 3


def test_dispatch_many_says_what_was_refused(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG, max_per_key=2)

    @pool.job
    async def do(job: Job, number: int) -> int:
        return number

    with pytest.raises(PoolFull) as caught:
        do.dispatch_many([("a", 0), ("a", 1), ("a", 2), ("b", 3), ("a", 4)])
    receipts: Any = caught.value.receipts
    assert [one is None for one in receipts] == [False, False, True, False, True]
    with pool.worker():
        assert [one.result(HANG) for one in receipts if one] == [0, 1, 3]
    with pytest.raises(PoolFull) as caught:
        do.dispatch_many([("a", number) for number in range(1200)])
    receipts = caught.value.receipts
    assert len(receipts) == 1200 and [bool(one) for one in receipts[:3]] == [True, True, False]


def test_dispatch_many_with_a_wrong_call_dispatches_nothing(pool: KeyedPool):
    @pool.job
    async def do(job: Job, number: int) -> int:
        return number

    with pytest.raises(TypeError):
        do.dispatch_many([*((f"k{number}", number) for number in range(700)), ("k",)])
    assert pool.statistics().dispatched_total == 0


def test_dispatch_many_of_what_is_to_be_rejected_says_what_was_not(pool: KeyedPool):
    @pool.job
    async def do(job: Job, number: int) -> int:
        return number

    do.dispatch("busy", 0)
    with pytest.raises(AlreadyExists) as caught:
        do.options(on_busy="reject").dispatch_many([("a", 1), ("busy", 2), ("b", 3)])
    receipts: Any = getattr(caught.value, "receipts", None)
    assert receipts is not None and [one is None for one in receipts] == [False, True, False]


def test_dispatch_many_of_nothing_and_of_very_many(pool: KeyedPool):
    total = 0

    @pool.job
    async def do(job: Job, number: int) -> int:
        return number

    assert do.dispatch_many([]) == []
    with pool.worker():
        receipts = do.dispatch_many((f"k{number % 100}", number) for number in range(3000))
        total = sum(one.result(HANG) for one in receipts)
    assert total == 3000 * 2999 // 2


@pytest.mark.asyncio
async def test_the_other_colour_has_the_same_options(apool: AsyncKeyedPool):
    @apool.job
    async def do(job: Job, number: int) -> int:
        await asyncio.sleep(0)
        return number

    one = await do.options(id="x").dispatch("k", 1)
    two = await do.options(id="x").dispatch("k", 2)
    with pytest.raises(AlreadyExists):
        await do.options(on_busy="reject").dispatch("k", 3)
    three = await do.options(on_busy="coalesce").dispatch("k", 4)
    assert three.id == "x"
    async with apool.worker():
        assert [await each.result(HANG) for each in (one, two, three)] == [1, 1, 1]
        assert await (await do.options(delay=0.05).dispatch("k", 5)).result(HANG) == 5


def test_many_with_an_id_each_are_in_once(pool: KeyedPool):
    ran: list[int] = []
    do = pool.job(name="do")(lambda job, value: ran.append(value))
    calls = [("k", number) for number in range(4)]
    with pool.worker():
        for _ in range(2):
            receipts = do.dispatch_many(calls, ids=[f"id-{number}" for number in range(4)])
            assert [each.id for each in receipts] == [f"id-{number}" for number in range(4)]
            for each in receipts:
                each.result(HANG)
    assert ran == [0, 1, 2, 3]


def test_as_many_ids_as_calls_are_needed_and_nothing_is_sent_otherwise(pool: KeyedPool):
    do = pool.job(name="do")(lambda job: None)
    for ids in ([], ["a"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="shorter|longer"):
            do.dispatch_many([("k",), ("k",)], ids=ids)
    odd: list[Any] = [[b"x"], [None], [1], "x"]
    for wrong in odd:
        with pytest.raises(TypeError, match="string|text"):
            do.dispatch_many([("k",)], ids=wrong)
    assert pool.statistics().dispatched_total == 0


HOUR = datetime.timedelta(hours=1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"delay": "5"}, "delay= must be a number of seconds, from 0 on, not '5'"),
        ({"delay": True}, "delay= must be a number of seconds, from 0 on, not True"),
        ({"delay": -1}, "delay= must be a number of seconds, from 0 on, not -1"),
        ({"delay": HOUR}, "delay= must be a number of seconds, .*; write .total_seconds()"),
        ({"at": "tomorrow"}, "at= must be a datetime with a time zone, .*, not 'tomorrow': for example datetime.now"),
        ({"at": datetime.date(2030, 1, 1)}, "at= must be a datetime with a time zone, .* for example datetime.now"),
        ({"at": HOUR}, "at= must be a datetime with a time zone, .* for example datetime.now"),
        ({"at": datetime.datetime(2030, 1, 1)}, "at= needs a time zone, .* has none: use datetime.now"),
    ],
)
def test_a_time_of_another_type_is_refused_with_what_to_write(given: dict[str, Any], said: str):
    do = KeyedPool("p").declare_job("do")
    with pytest.raises(ValueError, match=f"^{said}"):
        do.options(**given)


@pytest.mark.parametrize("name", ["backoff", "backoff_limit", "keep_result", "timeout"])
def test_seconds_of_another_type_are_refused_when_a_job_is_declared(name: str):
    given: Any = {name: HOUR}
    with pytest.raises(ValueError, match=f"^{name} must be a number of seconds, .*; write .total_seconds"):
        KeyedPool("p").job(**given)(print)


def test_a_retry_after_what_is_no_number_is_refused():
    with pytest.raises(ValueError, match=r"^the delay of Retry\(\) must be a number of seconds, from 0 on, not '5'"):
        Retry("5")  # type: ignore[arg-type]
