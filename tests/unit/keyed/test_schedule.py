"""What a pool does by itself: jobs at times, and residents as a function wants them."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import itertools
import threading
import time
import zoneinfo
from collections.abc import Callable
from typing import Any

import keyed_play as play
import pytest

from hostile_errors import HOSTILE, SUICIDES
from millpond import Event
from millpond.keyed import AsyncKeyedPool, Job, KeyedPool, Resident
from millpond.keyed.client import schedule
from millpond.keyed.rules import times
from millpond.keyed.shared.definition import Policy, define
from waiting import HANG, auntil, until


class Clock:
    """A wall clock that people set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
        self.now = now
        monkeypatch.setattr("millpond.keyed.client.schedule.time.time", lambda: self.now)
        monkeypatch.setattr(schedule, "STEP", 0.01)


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
    clock.now = next(times.Cron("0 * * * *").back(clock.now)) + 5 * 3600 + 120  # two minutes past
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


def test_a_key_that_is_full_misses_its_time_and_no_other_key_does(url: str, caplog: pytest.LogCaptureFixture):
    ran: list[str] = []
    gate = threading.Event()
    with KeyedPool("full", url, lease=play.LONG, max_per_key=1) as pool:

        @pool.every(0.1, keys=lambda: ["slow", "", "fast", 7])  # type: ignore[list-item]
        def tick(job: Job) -> None:
            ran.append(job.key)
            if job.key == "slow":
                gate.wait(HANG)

        with pool.worker():
            until(lambda: ran.count("fast") >= 8)
            assert ran.count("slow") == 1
            gate.set()
            until(lambda: ran.count("slow") >= 3, "it goes on")
        assert not any(one.failures for one in pool.residents())
    assert "such as '': a key has 1 to 1024 characters" in caplog.text


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


@pytest.mark.parametrize("tz", ["Asia/Kathmandu", "America/New_York"])
def test_the_time_comes_in_the_zone_of_the_schedule(pool: KeyedPool, tz: str):
    seen: list[datetime.datetime] = []

    @pool.cron("* * * * * *", tz=tz)
    async def tick(job: Job, due: datetime.datetime) -> None:
        seen.append(due)

    with pool.worker():
        until(lambda: seen)
    assert seen[0].utcoffset() == datetime.datetime.now(zoneinfo.ZoneInfo(tz)).utcoffset()
    assert abs(seen[0].timestamp() - time.time()) < HANG


def test_it_goes_on_when_the_pool_was_closed_here_and_its_worker_works_on(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG)
    ran: list[str] = []
    watch = pool.resident(name="watch")(stay)
    wanted: dict[str, dict[str, Any]] = {}
    pool.every(0.05, name="tick")(lambda job: ran.append(job.key))
    pool.controller(watch, every=0.05, name="wanted")(lambda me: wanted)
    other = make()
    with pool.worker():
        until(lambda: ran)
        pool.close()
        count = len(ran)
        until(lambda: len(ran) > count + 3)
        wanted["a"] = {}
        until(lambda: any(one.key == "a" for one in other.residents()))
        with pool:
            assert pool.statistics().workers == 1, "the same store again"


def test_a_worker_joins_although_its_schedules_cannot_be_started(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    pool = make(payload_limit=8)
    ran: list[str] = []
    pool.every(0.05, name="a schedule with a name that is longer than that")(lambda job: ran.append(job.key))
    with pool.worker():
        until(lambda: ran, "what we start ourselves is not limited")
    monkeypatch.setattr(pool._connection, "envelope", lambda *args: 1 / 0)
    with pool.worker():
        assert len(pool.workers()) == 1
    assert "could not be started" in caplog.text and pool.workers() == []


def test_ids_are_remembered_as_long_as_they_are_needed(pool: KeyedPool):
    def memory(missed: Any, when: times.Times) -> float:
        job = define(lambda job: None, "j", Policy())
        return schedule.Schedule(pool._connection, job, when, None, missed)._memory(next(when.back(1.7e9)))

    assert memory("once", times.Every(1)) < 1000, "a thousand keys each second are not kept for a day"
    assert memory("all", times.Every(1)) > 86400
    assert memory("once", times.Cron("0 0 29 2 *")) > 3 * 366 * 86400


def test_a_function_that_is_asked_ends_before_anybody_else_asks_it(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG)
    inside: list[int] = []
    most: list[int] = []
    watch = pool.resident(name="watch")(stay)
    let_go = threading.Event()

    def wanted(me: Resident) -> Any:
        inside.append(1)
        most.append(len(inside))
        let_go.wait(HANG)
        inside.pop()
        return {}

    pool.controller(watch, every=0.05)(wanted)
    first = pool.worker()
    with pool:
        first.__enter__()
        until(lambda: inside)
        with pool.worker():
            leaving = threading.Thread(target=lambda: first.close(grace=0.05))
            leaving.start()
            time.sleep(0.3)  # it was cancelled twice by now
            let_go.set()
            leaving.join()
            until(lambda: len(most) > 2)
    assert max(most) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda job, due, more: None,
        lambda job, *, due: None,
    ],
)
def test_a_handler_that_could_never_run_is_refused(pool: KeyedPool, wrong: Any):
    with pytest.raises(TypeError, match="the time for which"):
        pool.every(60, name="x")(wrong)


def test_a_parameter_of_another_type_is_refused_and_one_with_a_default_is_left_alone(pool: KeyedPool):
    def other(job: Job, due: int) -> None: ...

    ran: list[bool] = []

    def verbose(job: Job, verbose: bool = True) -> None:
        ran.append(verbose)

    with pytest.raises(TypeError, match="the time for which"):
        pool.every(60)(other)
    pool.every(0.05)(verbose)
    with pool.worker():
        until(lambda: ran)
    assert ran[0] is True


@pytest.mark.parametrize("keys", [lambda: "eu", lambda: 5])
def test_keys_that_are_none_are_told(pool: KeyedPool, keys: Any, caplog: pytest.LogCaptureFixture):
    pool.every(0.05, keys=keys, name="tick")(lambda job: None)
    with pool.worker():
        until(lambda: any(one.failures for one in pool.residents()))
    assert "tick.schedule" in caplog.text


def test_an_object_or_a_lambda_may_give_the_keys_later(pool: KeyedPool):
    class Source:
        async def __call__(self) -> list[str]:
            return ["object"]

    ran: set[str] = set()
    pool.every(0.05, keys=Source(), name="one")(lambda job: ran.add(job.key))
    pool.every(0.05, keys=lambda: Source()(), name="two")(lambda job: ran.add("lambda"))
    with pool.worker():
        until(lambda: ran == {"object", "lambda"})


@pytest.mark.asyncio
async def test_what_a_function_returns_to_one_who_was_cancelled_is_closed():
    """A lambda may return a coroutine; when its schedule is ending, nobody awaits that."""
    begun, release = threading.Event(), threading.Event()
    made: list[Any] = []

    async def keys() -> list[str]:
        return []

    def give() -> Any:
        begun.set()
        assert release.wait(HANG)
        made.append(keys())
        return made[0]

    task = asyncio.create_task(schedule.answer(give))
    await auntil(begun.is_set)
    task.cancel()
    await asyncio.sleep(0)
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


def test_a_controller_needs_a_resident_of_its_pool_and_has_it_for_itself(
    pool: KeyedPool, make: Callable[..., KeyedPool]
):
    watch = pool.resident(name="watch")(stay)
    with pytest.raises(TypeError, match="a resident of this pool"):
        pool.controller(lambda me: {})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a resident of this pool"):
        pool.controller(make("other").resident(name="watch")(stay))
    pool.controller(watch, name="one")(lambda me: {})
    with pytest.raises(ValueError, match="has a controller already"):
        pool.controller(watch, name="two")(lambda me: {})


def test_a_schedule_whose_name_is_taken_leaves_nothing_behind(pool: KeyedPool):
    pool.job(name="tick.schedule")(lambda job: None)
    with pytest.raises(ValueError, match=r"'tick\.schedule' already"):
        pool.every(60, name="tick")(lambda job: None)
    pool.job(name="tick")(lambda job: None)


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

    with pool.worker() as one, pool.worker() as other:
        until(lambda: there() == {"a": {"n": 1}, "b": {}})
        wanted["a"] = {"n": 2}
        del wanted["b"]
        until(lambda: there() == {"a": {"n": 2}})
        watch.stop("a")
        until(lambda: there() == {"a": {"n": 2}}, "it is back")
        ids = {one.id, other.id}
        pool.admin.drop(force=True)  # the store has lost everything
        until(lambda: there() == {"a": {"n": 2}}, "they come back by themselves")
        until(lambda: one.is_member and other.is_member and not ids & {one.id, other.id})
        wanted["c"] = {}
        until(lambda: there() == {"a": {"n": 2}, "c": {}}, "and so does who starts them")
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


async def cancel_and_return(_: object = None) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancel_and_raise(_: object = None) -> None:
    await cancel_and_return()
    raise HOSTILE[0]()


def trouble_of(number: int) -> Callable[[object], Any]:
    def raise_it(_: object = None) -> None:
        raise HOSTILE[number]()

    return raise_it


async def in_a_coroutine(trouble: Callable[[object], Any]) -> None:
    if inspect.isawaitable(made := trouble(None)):
        await made


TROUBLES: dict[str, Callable[[object], Any]] = {str(number): trouble_of(number) for number in range(len(HOSTILE))}
CANCELS: dict[str, Callable[[object], Any]] = {
    each.__name__: each
    for each in (*SUICIDES, cancel_and_return, cancel_and_raise)  # type: ignore[attr-defined]
}
PLAIN = [(name, "plain") for name in TROUBLES]
RUN = [*PLAIN, *((name, "coroutine") for name in [*TROUBLES, *(each.__name__ for each in SUICIDES)])]  # type: ignore[attr-defined]
ASKED = [*PLAIN, *((name, "coroutine") for name in [*TROUBLES, *CANCELS])]


class Failures:
    """Counts what fails of what a pool does by itself, and notes for how long each waits then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(schedule, "KEEPER", Policy(backoff=0.01, backoff_limit=0.05))
        self.names: list[str] = []
        self.delays: list[float] = []

    def watch(self, event: Event) -> None:
        if event.name == "resident_failed":
            self.names.append(event.data["resident"])
            self.delays.append(event.data["delay"])

    def check(self, name: str) -> None:
        assert self.names == [name, name] and 0 < self.delays[0] <= 0.01 < self.delays[1] <= 0.02


@pytest.mark.parametrize("kind", ASKED, ids="-".join)
def test_whatever_a_controller_raises_it_comes_back_after_a_while_and_hurts_no_other(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch, kind: tuple[str, str]
):
    failures = Failures(monkeypatch)
    pool = make(lease=play.LONG, drain=play.LONG, on_event=failures.watch)
    watch = pool.resident(name="watch")(stay)
    do = pool.job(name="do")(lambda job: job.key)
    trouble = {**TROUBLES, **CANCELS}[kind[0]]
    attempts: list[int] = []

    def plain(me: Resident) -> Any:
        attempts.append(me.attempt)
        if len(attempts) < 3:
            trouble(None)
        return {"a": {}}

    async def coroutine(me: Resident) -> Any:
        attempts.append(me.attempt)
        if len(attempts) < 3:
            await in_a_coroutine(trouble)
        return {"a": {}}

    pool.controller(watch, every=0.05, name="wanted")(plain if kind[1] == "plain" else coroutine)
    with pool.worker() as worker:
        until(lambda: [one.key for one in pool.residents() if one.name == "watch"] == ["a"])
        until(lambda: len(attempts) > 3)
        assert do.dispatch("k").result(HANG) == "k"
        assert worker.is_member
    assert attempts[:4] == [1, 2, 3, 3]
    failures.check("wanted")


@pytest.mark.parametrize("kind", ASKED, ids="-".join)
def test_whatever_the_keys_of_a_schedule_raise_it_comes_back_after_a_while_and_hurts_no_other(
    make: Callable[..., KeyedPool], monkeypatch: pytest.MonkeyPatch, kind: tuple[str, str]
):
    failures = Failures(monkeypatch)
    pool = make(lease=play.LONG, drain=play.LONG, on_event=failures.watch)
    do = pool.job(name="do")(lambda job: job.key)
    trouble = {**TROUBLES, **CANCELS}[kind[0]]
    asked: list[int] = []
    ran: list[str] = []

    def plain() -> list[str]:
        asked.append(1)
        if len(asked) < 3:
            trouble(None)
        return ["a", "b"]

    async def coroutine() -> list[str]:
        asked.append(1)
        if len(asked) < 3:
            await in_a_coroutine(trouble)
        return ["a", "b"]

    pool.every(0.05, keys=plain if kind[1] == "plain" else coroutine, name="tick")(lambda job: ran.append(job.key))
    with pool.worker() as worker:
        until(lambda: len(asked) > 3 and {*ran} == {"a", "b"})
        assert do.dispatch("k").result(HANG) == "k"
        assert worker.is_member
    failures.check("tick.schedule")


@pytest.mark.parametrize("kind", RUN, ids="-".join)
def test_whatever_a_job_at_times_raises_its_schedule_goes_on(pool: KeyedPool, kind: tuple[str, str]):
    trouble = {**TROUBLES, **CANCELS}[kind[0]]
    ran: list[str] = []

    def plain(job: Job) -> None:
        ran.append(job.id)
        trouble(None)

    async def coroutine(job: Job) -> None:
        ran.append(job.id)
        await in_a_coroutine(trouble)

    pool.every(0.05, name="tick")(plain if kind[1] == "plain" else coroutine)
    with pool.worker() as worker:
        until(lambda: len(ran) > 2)
        assert worker.is_member
        until(lambda: len(pool.admin.dead_letters()) > 2)
    assert len({*ran}) == len(ran), "each is tried once"


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
