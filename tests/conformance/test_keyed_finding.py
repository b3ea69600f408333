"""Finding jobs, pages, pauses with reasons, cancelling by id: the same on every store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.errors import JobFailed, NotFound
from millpond.keyed import AsyncKeyedPool, Job, JobView, KeyedPool, Page, Resident
from millpond.keyed.rules.commands import Dispatch
from millpond.keyed.rules.envelope import encode, opened
from millpond.keyed.rules.records import Batch
from waiting import HANG, until

_numbers = itertools.count(1)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory:finding-{next(_numbers)}"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/pools.db"
    return f"{request.getfixturevalue('redis_url')}?prefix=finding-{next(_numbers)}"


@pytest.fixture
def pool(url: str) -> Iterator[KeyedPool]:
    with KeyedPool("p", url) as made:
        yield made


def all_pages(read: Callable[..., Page[Any]], limit: int, **wanted: Any) -> list[Any]:
    """Return all that there is, page by page."""
    found: list[Any] = []
    after = ""
    while True:
        page = read(after=after, limit=limit, **wanted)
        assert len(page) <= limit
        found += page
        after = page.next
        if not after:
            return found


def by_id(jobs: list[JobView]) -> dict[str, JobView]:
    assert len(jobs) == len({job.id for job in jobs})
    return {job.id: job for job in jobs}


def test_jobs_are_seen_with_where_they_are_and_why(pool: KeyedPool):
    begun, release = threading.Event(), threading.Event()

    @pool.job
    def run(job: Job) -> None:
        begun.set()
        release.wait(HANG)

    @pool.job(max_attempts=3, backoff=1000)
    def fail(job: Job) -> None:
        raise ValueError("no such tenant")

    @pool.job
    def die(job: Job, number: int) -> None:
        raise KeyError(number)

    with pool.worker() as worker, contextlib.ExitStack() as after:
        after.callback(release.set)
        ids = {"running": run.dispatch("busy").id}
        assert begun.wait(HANG)
        ids["waiting"] = run.dispatch("busy").id
        ids["retry"] = fail.dispatch("retry").id
        ids["dead"] = die.dispatch("dead", 7).id
        ids["parked"] = pool.declare_job("stranger").dispatch("parked", number=8).id
        ids["delayed"] = run.options(delay=1000).dispatch("later").id
        pool.admin.pause("paused", reason="it floods us", by="ann")
        ids["paused"] = run.dispatch("paused").id
        until(lambda: {job.state for job in pool.jobs()} == set(ids))
        found = by_id(pool.jobs())
        assert {job.state: job.id for job in found.values()} == ids
        for state, job in ids.items():
            assert [each.id for each in pool.jobs(state=state)] == [job]  # type: ignore[arg-type]
            assert [each.state for each in pool.jobs(id=job)] == [state]
            assert [each.state for each in pool.jobs(id=job, key=found[job].key, name=found[job].name)] == [state]
            assert not pool.jobs(id=job, key="another") and not pool.jobs(id=job, name="another")
        running, retry, dead = (found[ids[state]] for state in ("running", "retry", "dead"))
        assert (running.worker, running.attempts, running.key, running.name) == (worker.id, 1, "busy", "run")
        assert running.running_since is not None and running.dispatched_at is not None
        assert running.running_since >= running.dispatched_at and found[ids["waiting"]].running_since is None
        assert (retry.attempts, retry.error) == (1, "ValueError: no such tenant")
        assert retry.due_at is not None and retry.dispatched_at is not None and retry.due_at > retry.dispatched_at + 60
        assert dead.attempts == 1 and dead.error.startswith("KeyError: 7") and dead.died_at is not None
        assert (dead.number, dead.arguments) == (pool.admin.dead_letters()[0].number, {"number": 7})
        assert found[ids["parked"]].arguments == {"number": 8} and running.arguments == {}
        delayed = found[ids["delayed"]]
        assert delayed.dispatched_at is None and delayed.due_at is not None
        (pause,) = pool.admin.paused()
        assert (pause.key, pause.by, pause.reason) == ("paused", "ann", "it floods us")


def test_pages_hold_everything_once(pool: KeyedPool):
    do = pool.declare_job("do")
    wanted = {do.dispatch(f"key {number % 23}").id for number in range(120)}
    later = {do.options(delay=1000).dispatch(f"key {number % 5}").id for number in range(40)}
    for limit in (1, 7, 50, 1000):
        assert set(by_id(all_pages(pool.jobs, limit))) == wanted | later
        assert len(all_pages(pool.jobs, limit, state="waiting")) == 120
        assert len(all_pages(pool.jobs, limit, key="key 3")) == 6 + 8
        assert {one.key for one in all_pages(pool.keys, limit)} == {f"key {number}" for number in range(23)}
    assert set(by_id(pool.jobs(limit=None))) == wanted | later
    ids = [job.id for job in all_pages(pool.jobs, 2, key="key 0", state="waiting")]
    assert ids == [job.id for job in pool.jobs(key="key 0", state="waiting")], "the jobs of a key are in their order"
    assert [one.depth for one in pool.keys(limit=None)] == [6] * 5 + [5] * 18  # the oldest first


def test_many_keys_that_stand_elsewhere_are_paged_too(pool: KeyedPool):
    do = pool.declare_job("stranger")
    resident = pool.declare_resident("stays")
    with pool.worker(concurrency=1000):
        do.dispatch_many([(f"key {number}",) for number in range(300)])
        for number in range(20):
            resident.start(f"key {number}", number=number)
        until(lambda: len(pool.jobs(state="parked", limit=None)) == 300)
        until(lambda: [one.state for one in pool.residents()] == ["parked"] * 20)
    for limit in (9, 300):
        assert len({one.key for one in all_pages(pool.keys, limit)}) == 300
        assert {one.arguments["number"] for one in all_pages(pool.residents, limit)} == set(range(20))
    counts = pool.statistics()
    assert (counts.jobs, counts.keys_ready, counts.keys_running, counts.residents) == (300, 0, 0, 20)


@pytest.mark.parametrize("limit", [1, 10, 250, 999])
def test_hundreds_that_wait_are_all_seen_whatever_the_page(pool: KeyedPool, limit: int):
    """On Redis such hashes have another shape: what a cursor of theirs means depends on how much one asks for."""
    do = pool.declare_job("do")
    many = 60 if limit == 1 else 300
    delayed = [do.options(delay=1000 + number % 3).dispatch(f"key {number}") for number in range(many)]
    for number in range(many):
        pool.admin.pause(f"paused {number}")
    stranger = pool.declare_job("stranger")
    with pool.worker(concurrency=1000):
        do.dispatch_many([(f"paused {number}",) for number in range(many)])
        stranger.dispatch_many([(f"parked {number}",) for number in range(many)])
        until(lambda: len(pool.jobs(state="paused", limit=None)) == len(pool.jobs(state="parked", limit=None)) == many)
    for state in ("delayed", "paused", "parked"):
        assert len(by_id(all_pages(pool.jobs, limit, state=state))) == many, state
    assert len({one.key for one in all_pages(pool.keys, limit)}) == 2 * many
    ids = [job.id for job in pool.jobs(state="paused", limit=None)] + [one.id for one in delayed]
    assert pool.admin.cancel(ids) == 2 * many
    assert {job.state for job in pool.jobs(limit=None)} == {"parked"}


def test_keys_that_a_language_calls_equal_are_told_apart(pool: KeyedPool):
    do = pool.declare_job("do")
    keys = {chr(0xAC00 + number) for number in range(40)} | {"a:b", "a", "a:", ":", "=", "A", "é", "\U0001f9a0"}
    for key in keys:
        do.dispatch(key)
    for limit in (1, 7):
        assert {one.key for one in all_pages(pool.keys, limit)} == keys
        assert len(all_pages(pool.jobs, limit)) == len(keys)


def test_ids_that_are_there_twice_are_all_cancelled(pool: KeyedPool):
    do = pool.declare_job("do")
    do.options(id="x").dispatch("k1")
    pool.admin.purge("k1")
    twice = pool.declare_job("other")
    for key in ("k1", "k2"):
        orders = [pool._connection.order(twice._definition, key, (), {}, None)]
        body = encode(opened(b"0" * 16 + orders[0][1].body).__class__("same", "other", "", 0, b"\x80"))
        pool._connection.store.do(Dispatch(Batch(f"p-{key}", 1), [orders[0][1]._replace(body=body)]))
    delayed = do.options(id="y", delay=1000).dispatch("k3")
    assert pool.admin.cancel(["y"], key="k1") == 0 and delayed.status() == "delayed"
    assert pool.admin.cancel(["same", "y", "none"]) == 3
    assert not pool.jobs()


def test_dead_letters_are_paged(pool: KeyedPool):
    @pool.job
    def die(job: Job) -> None:
        raise ValueError

    with pool.worker():
        die.dispatch_many([(f"key {number % 3}",) for number in range(30)])
        until(lambda: pool.statistics().dead == 30)
    everything = [one.number for one in pool.admin.dead_letters()]
    assert everything == sorted(everything) and len(everything) == 30
    assert [one.number for one in all_pages(pool.admin.dead_letters, 7)] == everything
    mine = [one.number for one in pool.admin.dead_letters("key 1")]
    assert len(mine) == 10
    page = pool.admin.dead_letters("key 1", limit=4)
    rest = pool.admin.dead_letters("key 1", after=page.next)
    assert [one.number for one in [*page, *rest]] == mine and not rest.next
    assert pool.admin.replay([page[0]]) == 1 and len(pool.jobs(state="dead", limit=None)) == 29


def test_jobs_are_cancelled_by_id(pool: KeyedPool):
    do = pool.declare_job("do")
    a, b, c, d = (do.dispatch(key) for key in ("a", "b", "b", "c"))
    e = do.options(delay=1000).dispatch("e")
    assert pool.admin.cancel([a.id, c.id, e.id, "nobody"]) == 3
    assert pool.admin.cancel([b.id], key="a") == 0 and pool.admin.cancel([b.id], key="b") == 1
    assert pool.admin.cancel(pool.jobs(key="c")) == 1
    assert [one.status() for one in (a, b, c, d, e)] == ["cancelled"] * 5
    assert not pool.jobs() and pool.admin.cancel([a.id]) == 0


def test_a_paused_key_holds_its_residents_back(pool: KeyedPool):
    log: list[tuple[str, str]] = []

    @pool.resident
    async def stay(resident: Resident) -> None:
        log.append(("begun", resident.key))
        try:
            await asyncio.sleep(3600)
        finally:
            log.append((resident.lost.reason, resident.key))

    with pool.worker():
        stay.start("a")
        stay.start("b")
        until(lambda: len(log) == 2)
        pool.admin.pause("a", reason="maintenance")
        until(lambda: {one.key: one.state for one in pool.residents()} == {"a": "paused", "b": "running"})
        assert log[2:] == [("paused", "a")]
        assert stay.start("a") is False
        assert stay.start("c") and until(lambda: ("begun", "c") in log)
        pool.admin.resume("a")
        until(lambda: log.count(("begun", "a")) == 2)
        assert not pool.admin.paused()


def test_a_resident_of_a_paused_key_does_not_begin_and_survives_its_worker(pool: KeyedPool, url: str):
    begun: list[str] = []

    def stay(resident: Resident) -> None:
        begun.append(resident.key)
        resident.lost.wait(HANG)

    handle = pool.resident(stay)
    pool.admin.pause("a", reason="not yet")
    handle.start("a")
    with pool.worker():
        until(lambda: [one.state for one in pool.residents()] == ["paused"])
    with KeyedPool("p", url) as other, other.worker():
        other.admin.resume("a")  # nobody here knows the resident
    with pool.worker():
        until(lambda: begun == ["a"])


def test_the_whole_pool_is_paused_with_a_reason(pool: KeyedPool):
    pool.admin.pause(reason="migration")
    pool.admin.pause("k")
    first, second = pool.admin.paused()
    assert (first.key, first.reason, second.key, second.reason) == (None, "migration", "k", "")
    assert "@" in first.by and [one.key for one in all_pages(pool.admin.paused, 1)] == [None, "k"]
    pool.admin.resume()
    assert [one.key for one in pool.admin.paused()] == ["k"] and not pool.statistics().is_paused


def test_reconcile_asks_for_what_differs_only(pool: KeyedPool):
    @pool.resident
    async def stay(resident: Resident, number: int) -> None:
        await asyncio.sleep(3600)

    wanted = {f"key {number}": {"number": number} for number in range(30)}
    assert pool.reconcile(stay, wanted) == 30
    assert pool.reconcile(stay, wanted) == 0
    del wanted["key 3"]
    wanted["key 4"] = {"number": 44}
    wanted["new"] = {"number": 1}
    assert pool.reconcile(stay, wanted) == 3
    assert {one.key: one.arguments for one in pool.residents()} == wanted
    with pool.worker():
        until(lambda: {one.state for one in pool.residents()} == {"running"})
        stay.stop("new")  # it was told to end: it is wanted again
        assert pool.reconcile(stay, wanted) >= 1
        until(lambda: {one.key: one.state for one in pool.residents()} == dict.fromkeys(wanted, "running"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"limit": -1},
        {"limit": True},
        {"limit": "5"},
        {"limit": 1.5},
        {"after": "x"},
        {"after": "ä"},
        {"after": 5},
    ],
)
def test_pages_refuse_what_is_none(pool: KeyedPool, wrong: dict[str, Any]):
    for read in (pool.jobs, pool.keys, pool.residents, pool.admin.dead_letters, pool.admin.paused):
        with pytest.raises((ValueError, TypeError), match="limit=|after="):
            read(**wrong)


def test_a_page_of_one_kind_does_not_begin_where_another_ended(pool: KeyedPool):
    pool.declare_job("do").dispatch_many([(f"{number}",) for number in range(3)])
    page = pool.keys(limit=1)
    with pytest.raises(ValueError, match="page of jobs"):
        pool.jobs(after=page.next)
    with pytest.raises(ValueError, match="state is one of waiting"):
        pool.jobs(state="held")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="id= is text"):
        pool.jobs(id=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list of jobs or ids"):
        pool.admin.cancel("abc")
    with pytest.raises(TypeError, match="by its id"):
        pool.admin.cancel([5])  # type: ignore[list-item]


@pytest.mark.asyncio
async def test_tasks_find_jobs_too(url: str):
    async with AsyncKeyedPool("p", url) as pool:
        do = pool.declare_job("do")
        receipts = [await do.dispatch(f"key {number}") for number in range(5)]
        page = await pool.jobs(limit=3)
        rest = await pool.jobs(after=page.next)
        assert {job.id for job in [*page, *rest]} == {receipt.id for receipt in receipts}
        await pool.admin.pause("key 1", reason="why")
        assert [one.reason for one in await pool.admin.paused()] == ["why"]
        assert await pool.admin.cancel([receipts[0].id, *page]) >= 3


def test_what_people_do_is_kept_with_who_and_why(pool: KeyedPool):
    """Each act of an operator leaves a line: who, what, about what, when and why."""
    began = time.time()
    job = pool.declare_job("job")
    ids = [job.dispatch("k").id for _ in range(5)]
    admin = pool.admin
    assert admin.history() == []
    admin.pause("k", reason="it floods us", by="ann")
    admin.pause(reason="the store moves")
    admin.resume()
    admin.resume("k", by="ann")
    admin.cancel(ids[:4], reason="a mistake")
    admin.purge("k", by="bob")
    admin.configure(max_jobs=100, lease=7.5, reason="it is slow")
    admin.replay()  # there is nothing, so nothing was done
    assert not admin.retry("k", reason="impatience")
    admin.shutdown(reason="the end")
    lines = admin.history()
    assert [(one.what, one.reason) for one in lines] == [
        ("pause", "it floods us"),
        ("pause", "the store moves"),
        ("resume", ""),
        ("resume", ""),
        ("cancel", "a mistake"),
        ("purge", ""),
        ("configure", "it is slow"),
        ("retry", "impatience"),
        ("shutdown", "the end"),
    ]
    assert [one.about for one in lines[:4]] == ["k", "", "", "k"] and lines[4].about.endswith(" and 1 more")
    assert lines[6].about in ("max_jobs=100, lease=7.5", "lease=7.5, max_jobs=100")
    assert [lines[at].by for at in (0, 3, 5)] == ["ann", "ann", "bob"] and "@" in lines[1].by
    assert all(began - 60 < one.time < time.time() + 60 for one in lines)
    assert [one.what for one in admin.history(2)] == ["retry", "shutdown"]
    with pytest.raises(ValueError, match="limit="):
        admin.history(0)
    with pytest.raises(TypeError, match="a reason"):
        admin.pause("k", reason=5)  # type: ignore[arg-type]
    assert len(admin.history()) == len(lines) and not admin.paused()


def test_a_job_that_waits_for_its_next_try_is_tried_at_once(pool: KeyedPool):
    """`admin.retry` makes the first job of a key ready that failed and waits, and nothing else."""
    tries: list[int] = []

    @pool.job(max_attempts=3, backoff=3600, backoff_limit=3600)
    def moody(job: Job) -> int:
        tries.append(job.attempt)
        if len(tries) < 3:
            raise OSError("not yet")
        return len(tries)

    with pool.worker():
        receipt = moody.dispatch("k")
        for _ in range(2):
            until(lambda: [one.state for one in pool.jobs()] == ["retry"])
            assert pool.admin.retry("k")
        assert receipt.result(HANG) == 3 and tries == [1, 2, 3]
        assert not pool.admin.retry("k") and not pool.admin.retry("another")


# --- receipts by id ---------------------------------------------------------------------------------------------------


def test_a_receipt_is_found_by_key_and_id_in_another_program(pool: KeyedPool, url: str):
    """Before it runs, while it runs and when it has ended: the result is the same, and nothing is dispatched."""
    begun, release = threading.Event(), threading.Event()

    @pool.job(keep_result=3600)
    def double(job: Job, number: int) -> int:
        begun.set()
        release.wait(HANG)
        return 2 * number

    id_ = double.options(id="order-1").dispatch("ann", 21).id
    with KeyedPool("p", url) as other:
        job = other.declare_job("double")
        assert job.receipt("ann", id_).status() == "waiting"
        with pool.worker():
            assert begun.wait(HANG)
            running = job.receipt("ann", "order-1")
            assert (running.key, running.id, running.status()) == ("ann", "order-1", "running")
            with pytest.raises(TimeoutError, match="running"):
                running.result(0.01)
            release.set()
            assert running.result(HANG) == 42
        assert job.receipt("ann", "order-1").result(HANG) == 42 == double.receipt("ann", id_).result(HANG)
        assert other.statistics().dispatched_total == 1


def test_a_receipt_of_what_failed_or_waits_for_its_time_is_found(pool: KeyedPool):
    @pool.job(keep_result=3600)
    def fail(job: Job) -> None:
        raise ValueError("no such tenant")

    later = fail.options(delay=3600).dispatch("k").id
    with pool.worker():
        id_ = fail.dispatch("k").id
        with pytest.raises(JobFailed, match="no such tenant"):
            fail.receipt("k", id_).result(HANG)
    assert fail.receipt("k", later).status() == "delayed" and fail.receipt("k", later).cancel()


def test_no_receipt_is_found_of_what_the_store_does_not_know(pool: KeyedPool):
    @pool.job(keep_result=0)
    def forget(job: Job) -> None:
        pass

    words = "knows no job 'x' of key 'k': it was never dispatched, or it has ended and its outcome is kept no longer"
    with pytest.raises(NotFound, match=words):
        forget.receipt("k", "x")
    with pool.worker():
        id_ = forget.dispatch("k").id
        until(lambda: pool.statistics().done_total == 1)
        with pytest.raises(NotFound, match="kept no longer"):
            forget.receipt("k", id_)
    assert pool.statistics().dispatched_total == 1
    for key, odd, error in (("k", "", ValueError), ("", "x", ValueError), ("k", 5, TypeError)):
        with pytest.raises(error):
            forget.receipt(key, odd)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_task_finds_a_receipt_by_key_and_id(url: str):
    async with AsyncKeyedPool("p", url) as pool, AsyncKeyedPool("p", url) as other:

        @pool.job
        async def double(job: Job, number: int) -> int:
            return 2 * number

        receipt = await double.dispatch("ann", 21)
        found = await other.declare_job("double").receipt("ann", receipt.id)
        assert await found.status() == "waiting"
        async with pool.worker():
            assert await found.result(HANG) == 42
        with pytest.raises(NotFound):
            await double.receipt("ann", "unknown")


def test_nothing_has_waited_while_the_pool_is_paused_or_shut_down(pool: KeyedPool):
    """An autoscaler that sees an age starts workers, which have nothing to do during an incident."""
    pool.declare_job("do").dispatch("k")
    for stop in (pool.admin.pause, pool.admin.shutdown):
        until(lambda: pool.statistics().oldest_age > 0)
        stop()
        assert pool.statistics().oldest_age == 0.0
        pool.admin.resume()
    assert pool.statistics().oldest_age > 0
