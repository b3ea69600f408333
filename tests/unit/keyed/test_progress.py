"""What a job tells of its progress, and who sees it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from millpond.errors import JobFailed
from millpond.keyed import AsyncKeyedPool, Job, KeyedPool
from waiting import HANG, auntil, until


def test_progress_is_seen_while_the_job_runs_and_is_no_outcome(pool: KeyedPool):
    go_on = threading.Event()

    @pool.job
    def slow(job: Job) -> str:
        job.progress({"done": 1, "of": 2})
        go_on.wait(HANG)
        return "all"

    with pool.worker():
        receipt = slow.dispatch("a")
        assert receipt.progress() is None or receipt.progress() == {"done": 1, "of": 2}
        until(lambda: receipt.progress() == {"done": 1, "of": 2})
        assert receipt.status() == "running"
        with pytest.raises(TimeoutError, match="running"):
            receipt.result(0.05)
        go_on.set()
        assert receipt.result(HANG) == "all"
        assert receipt.progress() is None and receipt.status() == "done"


def test_those_who_wait_are_called(pool: KeyedPool):
    seen: list[Any] = []

    @pool.job
    def slow(job: Job) -> int:
        for step in range(3):
            job.progress(step)
            until(lambda step=step: step in seen)  # type: ignore[misc]
        return 3

    def watch(value: Any) -> None:
        seen.append(value)
        raise ValueError("a mistake of the caller harms nobody")

    with pool.worker():
        assert slow.dispatch("a").result(HANG, on_progress=watch) == 3
    assert seen == [0, 1, 2]


def test_much_is_told_seldom_and_the_last_word_is_the_result(pool: KeyedPool):
    seen: list[int] = []

    @pool.job
    def chatty(job: Job) -> int:
        for step in range(20_000):
            job.progress(step)
        return -1

    with pool.worker():
        assert chatty.dispatch("a").result(HANG, on_progress=seen.append) == -1
    assert len(seen) < 2000 and seen == sorted(seen)


def test_a_job_that_fails_after_it_told_has_failed(pool: KeyedPool):
    @pool.job
    async def bad(job: Job) -> None:
        job.progress("half")
        raise ValueError("no")

    with pool.worker(), pytest.raises(JobFailed, match="no"):
        bad.dispatch("a").result(HANG)


def test_what_cannot_travel_is_refused_where_it_is_told(pool: KeyedPool):
    @pool.job
    def odd(job: Job) -> str:
        with pytest.raises(TypeError, match="told a progress of what cannot travel"):
            job.progress(object())
        with pytest.raises(ValueError, match="payload_limit"):
            job.progress("x" * (1 << 21))
        return "ok"

    with pool.worker():
        assert odd.dispatch("a").result(HANG) == "ok"


def test_a_job_that_keeps_no_result_tells_nobody(pool: KeyedPool):
    told = threading.Event()

    @pool.job(keep_result=0)
    def quiet(job: Job) -> None:
        job.progress(1)
        told.set()

    with pool.worker():
        receipt = quiet.dispatch("a")
        assert told.wait(HANG) and receipt.progress() is None


def test_a_job_made_by_hand_tells_nobody_either():
    from millpond.keyed.jobs import Lost

    Job("k", "id", "n", 1, 1, 0.0, "p", Lost()).progress(1)


@pytest.mark.asyncio
async def test_a_task_is_called_in_its_own_loop(url: str):
    seen: list[tuple[Any, bool]] = []
    here = threading.get_ident()
    async with AsyncKeyedPool("p", url) as pool:

        @pool.job
        async def slow(job: Job) -> int:
            job.progress("half")
            await auntil(lambda: seen)
            return 1

        async with pool.worker():
            receipt = await slow.dispatch("a")
            watch = lambda value: seen.append((value, threading.get_ident() == here))  # noqa: E731
            assert await receipt.result(HANG, on_progress=watch) == 1
    assert seen == [("half", True)]


def test_who_gave_up_is_told_no_more_and_who_comes_late_hears_where_it_stands(pool: KeyedPool):
    second: list[Any] = []
    third: list[Any] = []
    go_on = threading.Event()

    @pool.job
    def slow(job: Job) -> None:
        job.progress("half")
        go_on.wait(HANG)
        job.progress("most")
        until(lambda: "most" in second)

    with pool.worker():
        receipt = slow.dispatch("a")
        waiting = threading.Thread(target=lambda: receipt.result(HANG, on_progress=second.append))
        waiting.start()
        until(lambda: second)

        def give_up() -> list[Any]:
            heard: list[Any] = []
            with pytest.raises(TimeoutError):
                receipt.result(0.05, on_progress=heard.append)
            return heard

        first = until(give_up, "where it stands, though nothing new was told")
        with pytest.raises(TimeoutError):
            receipt.result(0.0, on_progress=third.append)
        go_on.set()
        waiting.join()
    assert first == ["half"] and second[-1] == "most" and "most" not in third


def test_what_cannot_be_called_so_is_refused(pool: KeyedPool):
    async def watch(value: Any) -> None: ...

    caught: list[BaseException] = []

    @pool.job
    def slow(job: Job) -> str:
        job.progress(1)
        until(lambda: caught)
        return "done"

    with pool.worker():
        receipt = slow.dispatch("a")
        with pytest.raises(TypeError, match="a plain function"):
            receipt.result(HANG, on_progress=watch)

        def wait_within(value: Any) -> None:
            try:
                receipt.result(HANG)
            except RuntimeError as error:
                caught.append(error)

        assert receipt.result(HANG, on_progress=wait_within) == "done"
    assert "must not wait" in str(caught[0])
