"""What a pool does by itself: jobs at times, and residents as a function wants them."""

from __future__ import annotations

import datetime
import itertools
import threading
import time
from typing import Any

import pytest

from millpond.errors import PoolFull
from millpond.keyed import AsyncKeyedPool, Job, KeyedPool, Resident, _schedule, _times
from waiting import HANG, auntil, until


class Clock:
    """A wall clock that people set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
        self.now = now
        monkeypatch.setattr("millpond.keyed._schedule.time.time", lambda: self.now)
        monkeypatch.setattr(_schedule, "STEP", 0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch, time.time())


def test_a_job_is_dispatched_once_for_each_time_and_key_however_many_workers_there_are(pool: KeyedPool):
    ran: list[tuple[str, float]] = []

    @pool.every(0.25, keys=["a", "b"])
    def tick(job: Job, due: datetime.datetime) -> None:
        ran.append((job.key, due.timestamp()))

    with pool.worker(), pool.worker(), pool.worker():
        until(lambda: len(ran) >= 8)
    assert len(set(ran)) == len(ran)
    for key in "ab":
        times = [due for each, due in ran if each == key]
        steps = [round(after - before, 3) for before, after in itertools.pairwise(times)]
        assert all(step >= 0.25 and step % 0.25 == 0 for step in steps), "in order, at its own times only"


def test_the_next_worker_goes_on_and_repeats_nothing(pool: KeyedPool, clock: Clock):
    ran: list[float] = []

    @pool.every(60.0, missed="all")
    def tick(job: Job, due: datetime.datetime) -> None:
        ran.append(due.timestamp())

    begin = clock.now
    with pool.worker():
        until(lambda: [one.state for one in pool.residents()] == ["running"])
        for _ in range(3):
            clock.now += 60
            count = len(ran)
            until(lambda count=count: len(ran) > count)  # type: ignore[misc]
    first = list(ran)
    clock.now += 200
    with pool.worker():
        until(lambda: len(ran) >= 6)
        until(lambda: pool.statistics().jobs == 0)
    assert ran[:3] == first and ran == sorted(set(ran)), "what was missed is made up for, what was not is left alone"
    assert all(begin < due <= clock.now for due in ran)


@pytest.mark.parametrize(("missed", "made_up"), [("once", 1), ("skip", 0), ("all", 5)])
def test_times_at_which_no_worker_was_there(pool: KeyedPool, clock: Clock, missed: Any, made_up: int):
    ran: list[float] = []
    pool.cron("0 * * * *", missed=missed, name="hourly")(lambda job, due: ran.append(due.timestamp()))
    with pool.worker():
        until(lambda: [one.state for one in pool.residents()] == ["running"])
    before = len(ran)
    clock.now = next(_times.Cron("0 * * * *").back(clock.now)) + 5 * 3600 + 120  # two minutes past
    with pool.worker():
        until(lambda: [one.state for one in pool.residents()] == ["running"])
        until(lambda: len(ran) >= before + made_up)
        time.sleep(0.05)
        assert len(ran) == before + made_up
        clock.now += 3600 - 100  # some seconds past
        until(lambda: len(ran) == before + made_up + 1, "it goes on")


def test_a_clock_that_is_put_back_repeats_nothing(pool: KeyedPool, clock: Clock):
    ran: list[float] = []
    pool.every(60.0, name="tick")(lambda job, due: ran.append(due.timestamp()))
    with pool.worker():
        until(lambda: [one.state for one in pool.residents()] == ["running"])
        clock.now += 60
        until(lambda: len(ran) == 1)
        clock.now -= 50
        time.sleep(0.05)
        clock.now += 50
        time.sleep(0.05)
        clock.now += 60
        until(lambda: len(ran) == 2)
    assert len(set(ran)) == 2


def test_keys_may_be_asked_for_each_time(pool: KeyedPool):
    ran: list[str] = []
    tenants = ["a"]
    pool.every(0.1, keys=lambda: tenants, name="tick")(lambda job: ran.append(job.key))
    with pool.worker():
        until(lambda: "a" in ran)
        tenants.append("b")
        until(lambda: "b" in ran)


def test_a_full_pool_is_tried_again(url: str):
    ran: list[str] = []
    gate = threading.Event()
    with KeyedPool("full", url, max_jobs=1) as pool:
        blocker = pool.job(name="blocker")(lambda job: gate.wait(HANG))
        pool.every(0.1, name="tick")(lambda job: ran.append(job.key))
        with pool.worker():
            until(lambda: ran, "it runs")
            while True:
                try:
                    blocker.dispatch("x")
                    break
                except PoolFull:  # by the schedule's own job
                    time.sleep(0.01)
            until(lambda: any(one.failures for one in pool.residents()), "it is refused")
            gate.set()
            count = len(ran)
            until(lambda: len(ran) > count, "it goes on")


def test_another_version_of_the_program_brings_its_own_times(url: str):
    old, new = [], []
    with KeyedPool("p", url) as first, KeyedPool("p", url) as second:
        first.every(3600.0, name="tick")(lambda job: old.append(1))
        second.every(0.1, name="tick")(lambda job: new.append(1))
        with second.worker():
            until(lambda: new)
            with first.worker():  # of the old version: it puts its own times in place
                pass
            count = len(new)
            until(lambda: len(new) > count, "the version that works decides")
    assert not old


def test_a_job_of_a_schedule_can_be_dispatched_too(pool: KeyedPool):
    tick = pool.cron("0 3 1 1 *", keep_result=60.0, name="tick")(lambda job: job.key)
    with pool.worker():
        assert tick.dispatch("now").result(HANG) == "now"


def test_handlers_and_options_that_do_not_do_are_refused(pool: KeyedPool):
    with pytest.raises(TypeError, match="the time for which"):
        pool.every(60, name="x")(lambda job, one, two: None)
    with pytest.raises(ValueError, match="missed is one of"):
        pool.every(60, missed="never")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a text"):
        pool.every(60, keys="abc", name="x")(lambda job: None)
    with pytest.raises(TypeError, match="a key is a string"):
        pool.every(60, keys=[1], name="x")(lambda job: None)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="no option"):
        pool.every(60, often=True)
    pool.every(60, name="x")(lambda job: None)  # and nothing of them is left behind
    with pytest.raises(ValueError, match="has a job 'x' already"):
        pool.every(60, name="x")(lambda job: None)


def stay(resident: Resident, n: int = 0) -> None:
    resident.lost.wait(HANG)


def test_a_controller_keeps_residents_as_its_function_wants_them(pool: KeyedPool):
    watch = pool.resident(name="watch")(stay)
    wanted: dict[str, dict[str, Any]] = {"a": {"n": 1}, "b": {}}

    @pool.controller(watch, every=0.05)
    def tenants(me: Resident) -> dict[str, dict[str, Any]]:
        return wanted

    def there() -> dict[str, dict[str, Any]]:
        return {one.key: one.arguments for one in pool.residents() if one.name == "watch" and one.state == "running"}

    with pool.worker(), pool.worker():
        until(lambda: there() == {"a": {"n": 1}, "b": {}})
        wanted["a"] = {"n": 2}
        del wanted["b"]
        until(lambda: there() == {"a": {"n": 2}})
        watch.stop("a")
        until(lambda: there() == {"a": {"n": 2}}, "it is back")
        pool.admin.drop(force=True)  # the store has lost everything
        until(lambda: there() == {"a": {"n": 2}}, "they come back by themselves")
    assert tenants is not None and tenants.__name__ == "tenants"


def test_a_controller_that_fails_changes_nothing_and_is_asked_again(pool: KeyedPool):
    watch = pool.resident(name="watch")(stay)
    trouble = threading.Event()
    asked: list[int] = []

    def wanted(me: Resident) -> Any:
        asked.append(1)
        if trouble.is_set():
            raise OSError("the database is away")
        return {"a": {}}

    pool.controller(watch, every=0.05)(wanted)
    with pool.worker():
        until(lambda: [one.key for one in pool.residents() if one.name == "watch"] == ["a"])
        trouble.set()
        until(lambda: any(one.failures for one in pool.residents()))
        assert [one.key for one in pool.residents() if one.name == "watch"] == ["a"]
        trouble.clear()
        count = len(asked)
        until(lambda: len(asked) > count)


def test_a_controller_takes_itself_only(pool: KeyedPool):
    watch = pool.resident(name="watch")(stay)
    with pytest.raises(TypeError, match="nothing else"):
        pool.controller(watch)(lambda: {})  # type: ignore[misc,arg-type]
    with pytest.raises(ValueError, match="seconds"):
        pool.controller(watch, every=0)(lambda me: {})


@pytest.mark.asyncio
async def test_all_of_it_in_an_event_loop(url: str):
    ran: list[str] = []
    async with AsyncKeyedPool("p", url) as pool:
        watch = pool.resident(name="watch")(stay)

        async def keys() -> list[str]:
            return ["x"]

        @pool.every(0.1, keys=keys)
        async def tick(job: Job) -> None:
            ran.append(job.key)

        @pool.controller(watch, every=0.05)
        async def wanted(me: Resident) -> dict[str, dict[str, Any]]:
            return {"w": {}}

        async with pool.worker():
            await auntil(lambda: ran)

            async def is_there() -> bool:
                return any(one.key == "w" and one.state == "running" for one in await pool.residents())

            while not await is_there():
                pass
    assert set(ran) == {"x"}
