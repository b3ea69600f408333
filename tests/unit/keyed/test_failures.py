"""Jobs that fail: what their callers hear, how often they are tried, where they end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keyed_play as play
import pytest

from hostile_errors import HOSTILE, SUICIDES, Base, RaisesItself, Weird
from millpond.errors import JobFailed, NotFound, TaskTimeout
from millpond.keyed import AsyncKeyedPool, Job, KeyedPool, Resident, Retry
from millpond.keyed.rules import questions as about
from waiting import HANG, until


def test_the_caller_hears_what_was_raised(pool: KeyedPool):
    @pool.job
    def plain(job: Job) -> None:
        raise KeyError("missing")

    @pool.job
    async def coroutine(job: Job) -> None:
        raise JobFailed("mine")

    with pool.worker():
        receipt = plain.dispatch("k")
        with pytest.raises(JobFailed) as caught:
            receipt.result(HANG)
        error = caught.value
        assert (error.key, error.job_id, error.status, error.error) == ("k", receipt.id, "failed", "KeyError")
        assert "missing" in str(error) and "def plain" not in str(error)
        assert "test_failures.py" in error.traceback and 'raise KeyError("missing")' in error.traceback
        assert "millpond/keyed" not in error.traceback, "how we came there says nothing"
        again = pickle.loads(pickle.dumps(error))
        assert (again.key, again.error, again.traceback) == (error.key, error.error, error.traceback)
        with pytest.raises(JobFailed) as caught:
            coroutine.dispatch("k").result(HANG)
        assert caught.value.error == "millpond.errors.JobFailed"
        assert receipt.status() == "failed"


RAISED: list[Callable[[], BaseException]] = [
    lambda: Weird(),
    lambda: ValueError("x" * 100_000),
    lambda: FileNotFoundError(os.fsdecode(b"caf\xe9")),
    lambda: SystemExit(3),
    lambda: StopIteration(1),
    lambda: GeneratorExit(),
    lambda: asyncio.CancelledError(),
    lambda: concurrent.futures.CancelledError(),
    lambda: TimeoutError(),
    lambda: ExceptionGroup("many", [ValueError(1), KeyError(2)]),
    lambda: Retry(float("nan")),
    lambda: Retry("soon"),  # type: ignore[arg-type]
    lambda: Retry(float("inf")),
]
NAMES = ["unprintable", "long", "surrogate", "exit", "stop", "generator", "cancelled", "fcancelled", "timeout"]
NAMES += ["group", "nan", "text", "inf"]


@pytest.mark.parametrize("make_error", RAISED, ids=NAMES)
@pytest.mark.parametrize("colour", ["plain", "coroutine"])
def test_whatever_is_raised_fails_the_job_and_the_key_goes_on(
    pool: KeyedPool, make_error: Callable[[], BaseException], colour: str
):
    runs = []

    def plain(job: Job) -> None:
        runs.append(job.attempt)
        raise make_error()

    async def coroutine(job: Job) -> None:
        runs.append(job.attempt)
        raise make_error()

    bad = pool.job(name="bad")(plain if colour == "plain" else coroutine)

    @pool.job
    async def good(job: Job) -> str:
        return "good"

    with pool.worker() as worker:
        receipt = bad.dispatch("k")
        after = good.dispatch("k")
        with pytest.raises(JobFailed):
            receipt.result(HANG)
        assert after.result(HANG) == "good"
        assert worker.is_member
        assert runs == [1]
        assert len(pool.admin.dead_letters("k")) == 1


def test_a_job_is_tried_as_often_as_it_may_be_then_it_is_dead(pool: KeyedPool):
    attempts: list[int] = []
    tokens: list[int] = []

    @pool.job(max_attempts=3, backoff=0.02)
    async def bad(job: Job) -> None:
        attempts.append(job.attempt)
        tokens.append(job.token)
        raise ValueError(job.attempt)

    with pool.worker():
        receipt = bad.dispatch("k")
        with pytest.raises(JobFailed, match="3 attempts") as caught:
            receipt.result(HANG)
        assert attempts == [1, 2, 3]
        assert tokens == sorted(set(tokens))
        assert "ValueError: 3" in str(caught.value)
        (letter,) = pool.admin.dead_letters()
        assert (letter.key, letter.id, letter.name) == ("k", receipt.id, "bad")
        assert letter.reason.startswith("ValueError: 3") and abs(letter.died_at - time.time()) < HANG
    assert pool.statistics().retried_total == 2 and pool.statistics().dead == 1


def test_only_what_is_to_be_retried_is(pool: KeyedPool):
    attempts: list[int] = []

    @pool.job(max_attempts=5, backoff=0.01, retry_on=(ConnectionError,))
    def bad(job: Job) -> None:
        attempts.append(job.attempt)
        raise ConnectionResetError if job.attempt < 3 else ValueError("final")

    with pool.worker(), pytest.raises(JobFailed, match="final"):
        bad.dispatch("k").result(HANG)
    assert attempts == [1, 2, 3]


def test_a_retry_holds_up_its_key_and_nothing_else(pool: KeyedPool):
    log = play.Log()

    @pool.job(max_attempts=2, backoff=100)
    async def do(job: Job, number: int, bad: bool = False) -> None:
        with log.run(job.key, (number, job.attempt)):
            if bad and job.attempt == 1:
                raise ValueError

    with pool.worker(concurrency=1):
        do.dispatch("a", 1, bad=True)
        last = do.dispatch("a", 2)
        others = [do.dispatch(f"b{number}", number) for number in range(30)]
        for one in others:
            one.result(HANG)
        assert pool.keys()[0].state == "retry" and pool.keys()[0].failures == 1
        play.skip(pool, 100)
        do.dispatch("b", 0).result(HANG)
        last.result(HANG)
    assert log.of("a") == [(1, 1), (1, 2), (2, 1)]


def test_retry_asks_for_another_time_however_often(pool: KeyedPool):
    seen: list[int] = []

    @pool.job
    async def wait(job: Job) -> int:
        seen.append(job.attempt)
        if job.attempt < 6:
            raise Retry(0.01)
        return job.attempt

    @pool.job
    def plain(job: Job) -> int:
        if job.attempt < 3:
            raise Retry(delay=0)
        return job.attempt

    with pool.worker():
        assert wait.dispatch("k").result(HANG) == 6
        assert seen == [1, 2, 3, 4, 5, 6]
        assert plain.dispatch("k").result(HANG) == 3
    assert pool.statistics().dead == 0


def test_retry_waits_as_long_as_it_says(pool: KeyedPool):
    times: list[float] = []

    @pool.job(backoff=100)
    async def wait(job: Job) -> None:
        times.append(time.monotonic())
        if job.attempt == 1:
            raise Retry(0.3)

    with pool.worker():
        wait.dispatch("k").result(HANG)
    assert times[1] - times[0] >= 0.29


def test_backoff_grows_and_has_a_limit():
    from millpond.keyed.shared.definition import Policy

    policy = Policy(max_attempts=10, backoff=1.0, backoff_limit=5.0)
    pauses = [max(policy.pause(failures) for _ in range(200)) for failures in (1, 2, 3, 4, 5, 1000)]
    for pause, longest in zip(pauses, [1, 2, 4, 5, 5, 5], strict=True):
        assert 0.9 * longest < pause <= longest


def test_a_coroutine_that_takes_too_long_is_stopped(pool: KeyedPool):
    ended: list[str] = []

    @pool.job(timeout=0.05)
    async def slow(job: Job) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(job.key)

    @pool.job(timeout=0.05, max_attempts=2, backoff=0.01)
    async def once(job: Job) -> int:
        if job.attempt == 1:
            await asyncio.sleep(3600)
        return job.attempt

    @pool.job(timeout=5)
    async def own(job: Job) -> None:
        raise TimeoutError("of a socket")

    with pool.worker():
        with pytest.raises(JobFailed) as caught:
            slow.dispatch("k").result(HANG)
        assert caught.value.error.endswith(TaskTimeout.__name__) and "0.05" in str(caught.value)
        assert ended == ["k"]
        assert once.dispatch("k").result(HANG) == 2
        with pytest.raises(JobFailed) as caught:
            own.dispatch("k").result(HANG)
        assert caught.value.error == "TimeoutError"


def test_dead_letters_can_be_seen_replayed_and_discarded(pool: KeyedPool):
    good = False
    ran: list[tuple[str, int]] = []

    @pool.job
    def do(job: Job, number: int) -> int:
        ran.append((job.key, number))
        if not good:
            raise ValueError(number)
        return number

    with pool.worker():
        receipts = do.dispatch_many([("a", 1), ("a", 2), ("b", 3), ("c", 4)])
        for one in receipts:
            with pytest.raises(JobFailed):
                one.result(HANG)
        letters = pool.admin.dead_letters()
        assert sorted(one.key for one in letters) == ["a", "a", "b", "c"]
        assert [one.arguments for one in pool.admin.dead_letters("a")] == [{"number": 1}, {"number": 2}]
        assert pool.admin.dead_letters("nobody") == []
        assert pool.admin.replay(key="nobody") == 0
        with pytest.raises(ValueError, match="not both"):
            pool.admin.replay(letters, key="a")
        assert pool.admin.discard(key="c") == 1
        good = True
        ran.clear()
        assert pool.admin.replay(key="a") == 2
        until(lambda: len(ran) == 2)
        assert ran == [("a", 1), ("a", 2)]
        assert receipts[0].result(HANG) == 1  # not its failure of before
        assert pool.admin.replay(pool.admin.dead_letters()) == 1
        assert pool.admin.replay() == 0 and pool.admin.dead_letters() == []
        until(lambda: ran[-1] == ("b", 3))
        assert pool.admin.replay([10_000]) == 0
    assert pool.statistics().dead == 0


def test_the_dead_letters_of_a_key_are_picked_by_the_store(pool: KeyedPool):
    """However many of other keys there are, none of them is read."""

    @pool.job(max_attempts=1)
    async def do(job: Job) -> None:
        raise ValueError

    store = play.tamper(pool)
    asked: list[about.DeadLetters] = []
    store.before["DeadLetters"] = asked.append
    with pool.worker():
        do.dispatch("a"), do.dispatch("b"), do.dispatch("b")
        until(lambda: pool.statistics().dead == 3)
    assert pool.admin.discard(key="a") == 1
    assert pool.admin.replay(key="b") == 2
    assert pool.admin.dead_letters("a", limit=1) == []
    assert [one.key for one in asked] == ["a", "b", "a"] and asked[-1].limit == 1


def test_a_replayed_job_is_waited_for_anew(pool: KeyedPool):
    gate = play.Gate()

    @pool.job
    async def do(job: Job) -> str:
        if not gate._event.is_set():
            raise ValueError("first")
        return "second"

    with pool.worker():
        receipt = do.dispatch("k")
        with pytest.raises(JobFailed):
            receipt.result(HANG)
        pool.admin.pause("k")
        pool.admin.replay()
        assert receipt.status() == "waiting"
        with pytest.raises(TimeoutError):
            receipt.result(0.1)
        gate.open()
        pool.admin.resume("k")
        assert receipt.result(HANG) == "second"


def test_a_full_dead_letter_queue_keeps_the_job_in_retry_and_no_outcome_is_reported(make: Callable[..., KeyedPool]):
    pool = make(lease=play.LONG, max_dead=1)

    @pool.job
    def bad(job: Job) -> None:
        raise ValueError(job.key)

    with pool.worker():
        with pytest.raises(JobFailed):
            bad.dispatch("a").result(HANG)
        receipt = bad.dispatch("b")
        until(lambda: [one.state for one in pool.keys()] == ["retry"])  # noqa: SIM118
        assert pool.statistics().dead == 1
        assert receipt.status() == "waiting"
        with pytest.raises(TimeoutError):
            receipt.result(0.1)
        pool.admin.discard()
        assert receipt.cancel()
        assert receipt.status() == "cancelled"


@pytest.mark.asyncio
async def test_the_other_colour_hears_the_same(apool: AsyncKeyedPool):
    @apool.job(max_attempts=2, backoff=0.01)
    def bad(job: Job) -> None:
        raise ValueError("no")

    async with apool.worker():
        receipt = await bad.dispatch("k")
        with pytest.raises(JobFailed, match="2 attempts") as caught:
            await receipt.result(HANG)
        assert caught.value.error == "ValueError"
        assert await receipt.status() == "failed"
        assert len(await apool.admin.dead_letters("k")) == 1
        assert await apool.admin.discard() == 1


def test_an_exception_is_logged_nowhere_but_reported(pool: KeyedPool, capfd: pytest.CaptureFixture[str]):
    @pool.job
    async def bad(job: Job) -> Any:
        raise ValueError("quiet")

    with pool.worker(), pytest.raises(JobFailed):
        bad.dispatch("k").result(HANG)
    sys.stderr.flush()
    assert "Traceback" not in capfd.readouterr().err


def test_dead_letters_are_chosen_by_the_ids_of_their_jobs(pool: KeyedPool):
    ran: list[str] = []

    @pool.job
    def bad(job: Job) -> None:
        ran.append(job.id)
        if ran.count(job.id) == 1:
            raise ValueError("no")

    with pool.worker():
        receipts = [bad.dispatch(f"k{number}") for number in range(3)]
        until(lambda: len(pool.admin.dead_letters()) == 3)
        letters = {one.id: one for one in pool.admin.dead_letters()}
        letter, others = letters[receipts[0].id], [letters[one.id].number for one in receipts[1:]]
        assert letter.dispatched_at <= letter.died_at
        with pytest.raises(NotFound, match="'nobody'"):
            pool.admin.replay([receipts[0].id, "nobody"])
        with pytest.raises(TypeError, match="not the text"):
            pool.admin.discard(receipts[0].id)
        for wrong in (None, True, receipts[0], 1.0):
            with pytest.raises(TypeError, match="a dead letter is given"):
                pool.admin.replay([wrong])  # type: ignore[list-item]
        assert pool.admin.replay([receipts[0].id]) == 1
        assert pool.admin.discard([receipts[1].id, *others]) == 2
        until(lambda: ran.count(receipts[0].id) == 2)
        assert pool.admin.dead_letters() == []


def test_what_an_operator_should_know_is_logged(pool: KeyedPool, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "millpond")

    @pool.job(max_attempts=2, backoff=0.01)
    def bad(job: Job) -> None:
        raise ValueError("no luck")

    @pool.job(timeout=0.01)
    async def slow(job: Job) -> None:
        await asyncio.sleep(3600)

    with pool.worker():
        with pytest.raises(JobFailed):
            bad.dispatch("tenant-7").result(HANG)
        with pytest.raises(JobFailed):
            slow.dispatch("tenant-8").result(HANG)
        pool.declare_job("unheard of").dispatch("k")
        until(lambda: "no handler for job 'unheard of' of key 'k'" in caplog.text)
        pool.declare_job("bad").dispatch("k2", 1, 2)
        until(lambda: "of key 'k2' failed for good" in caplog.text)
    for line in (
        "has joined pool 'p'",
        "job 'bad' of key 'tenant-7' failed, and is tried again in 0.0 s: ValueError('no luck')",
        "job 'bad' of key 'tenant-7' failed for good and is among the dead letters: ValueError('no luck')",
        "job 'slow' of key 'tenant-8' failed for good and is among the dead letters: TaskTimeout(",
        "has left pool 'p'",
    ):
        assert line in caplog.text
    (failed,) = [one for one in caplog.records if "tenant-7' failed for good" in one.getMessage()]
    assert failed.levelname == "ERROR" and failed.exc_info and "no luck" in str(failed.exc_info[1])


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


def test_an_exception_that_cannot_be_changed_is_heard_of(pool: KeyedPool):
    @pool.job
    def fail(job: Job) -> None:
        raise Frozen(7)

    with pool.worker(), pytest.raises(JobFailed, match="Frozen"):
        fail.dispatch("k").result(HANG)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
@pytest.mark.parametrize("colour", ["plain", "coroutine"])
@pytest.mark.parametrize("is_watched", [False, True])
def test_what_cannot_be_printed_is_tried_again_as_the_policy_says_and_has_a_reason_when_dead(
    make: Callable[..., KeyedPool], number: int, colour: str, is_watched: bool
):
    events: list[str] = []
    pool = (
        make(lease=play.LONG, on_event=lambda event: events.append(event.name)) if is_watched else make(lease=play.LONG)
    )
    runs: list[int] = []

    def plain(job: Job) -> None:
        runs.append(job.attempt)
        raise HOSTILE[number]()

    async def coroutine(job: Job) -> None:
        plain(job)

    handler: Any = plain if colour == "plain" else coroutine
    bad = pool.job(name="bad", max_attempts=2, backoff=0.0, retry_on=(BaseException,))(handler)
    good = pool.job(name="good")(lambda job: "good")
    with pool.worker():
        receipt, after = bad.dispatch("k"), good.dispatch("k")
        with pytest.raises(JobFailed) as caught:
            receipt.result(HANG)
        assert after.result(HANG) == "good"
    assert runs == [1, 2] and caught.value.error and "plain" in caught.value.traceback
    (letter,) = pool.admin.dead_letters("k")
    assert letter.attempts == 2 and letter.reason.startswith(caught.value.error)
    if is_watched:
        assert events.count("job_retried") == events.count("job_failed") == 1


@pytest.mark.parametrize("number", range(len(HOSTILE)))
@pytest.mark.parametrize("colour", ["plain", "coroutine"])
def test_a_resident_that_raises_what_cannot_be_printed_starts_again_with_backoff(
    pool: KeyedPool, number: int, colour: str
):
    attempts: list[int] = []

    def plain(resident: Resident) -> None:
        attempts.append(resident.attempt)
        if len(attempts) < 3:
            raise HOSTILE[number]()

    async def coroutine(resident: Resident) -> None:
        plain(resident)

    handler: Any = plain if colour == "plain" else coroutine
    stay = pool.resident(name="stay", backoff=0.001)(handler)
    with pool.worker():
        stay.start("k")
        until(lambda: len(attempts) == 3)
        until(lambda: not pool.residents())
    assert attempts == [1, 2, 3]


@pytest.mark.parametrize("how", SUICIDES)
@pytest.mark.parametrize("timeout", [None, HANG])
def test_a_job_that_cancels_its_own_task_fails_as_any_other(pool: KeyedPool, how: Any, timeout: float | None):
    runs: list[int] = []

    async def suicidal(job: Job) -> None:
        runs.append(job.attempt)
        await how(job)

    bad = pool.job(max_attempts=2, backoff=0.0, timeout=timeout)(suicidal)
    good = pool.job(name="good")(lambda job: "good")
    with pool.worker() as worker:
        receipt, after = bad.dispatch("k"), good.dispatch("k")
        with pytest.raises(JobFailed, match="cancelled itself"):
            receipt.result(HANG)
        assert after.result(HANG) == "good"
        assert worker.is_member
    assert runs == [1, 2]


def test_a_job_that_cancels_its_own_task_and_returns_hurts_no_other(pool: KeyedPool):
    runs: list[tuple[str, int]] = []

    @pool.job
    async def leaves_it(job: Job) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "left"

    @pool.job
    async def innocent(job: Job) -> str:
        runs.append((job.key, job.attempt))
        await asyncio.sleep(0)
        return "well"

    receipts = []
    for number in range(5):
        receipts += [leaves_it.dispatch("k"), innocent.dispatch("k"), leaves_it.dispatch(f"l{number}")]
        receipts += [innocent.dispatch(f"l{number}")]
    with pool.worker():
        assert [one.result(HANG) for one in receipts] == ["left", "well", "left", "well"] * 5
    assert len(runs) == 10


@pytest.mark.parametrize("make_error", [SystemExit, Base, RaisesItself, asyncio.CancelledError, GeneratorExit])
def test_whatever_an_observer_raises_changes_nothing(
    make: Callable[..., KeyedPool], make_error: Callable[[], BaseException]
):
    def watch(event: Any) -> None:
        raise make_error()

    pool = make(on_event=watch)

    @pool.job
    def do(job: Job) -> str:
        return job.key

    @pool.job
    def fail(job: Job) -> None:
        raise ValueError("no")

    with pool.worker():
        receipts = [do.dispatch("k"), fail.dispatch("k"), do.dispatch("k")]
        assert receipts[0].result(HANG) == receipts[2].result(HANG) == "k"
        with pytest.raises(JobFailed, match="ValueError: no"):
            receipts[1].result(HANG)
    assert [letter.id for letter in pool.admin.dead_letters()] == [receipts[1].id]
