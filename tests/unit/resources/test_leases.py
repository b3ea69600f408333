"""Leases and lost grants: renewed while held, known to be lost before anybody else can have them, and said aloud."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import threading
import time
import warnings

import pytest
from faces import Faces, early_timers, eventually, is_renewed, raw, url_of

from millpond._clock import elapsed
from millpond.errors import LeaseLost
from millpond.resources import AsyncResourcePool, ResourcePool
from millpond.resources._rules import commands as do
from waiting import HANG, auntil, until, warnings_of_all_threads

asynchronous = pytest.mark.asyncio


def cut_off(pool) -> None:
    """Withhold all renewals of this pool's grants from the engine."""
    engine = pool._own.engine
    apply = engine.apply

    def deaf(name, command, done, *, block):
        if isinstance(command, do.Renew):
            return None
        return apply(name, command, done, block=block)

    pool._own.engine = _Wrapped(engine, deaf)


class _Wrapped:
    def __init__(self, engine, apply) -> None:
        self._engine = engine
        self.apply = apply

    def __getattr__(self, name):
        return getattr(self._engine, name)


async def one(lab: Faces, **options):
    pool = lab.open("lab", **options)
    await pool.add("a", exist_ok=True)
    return pool


@asynchronous
async def test_a_lease_is_renewed_while_it_is_held(lab):
    pool = await one(lab)
    async with pool.acquire(lease=60) as grant:
        assert 0 < grant.deadline <= 60
        await is_renewed(grant)
        await is_renewed(grant)
        grant.check()
        assert 0 < grant.deadline <= 60
        [holder] = await pool.holders()
        assert 0 < holder.expires_in <= 60
    assert not await pool.holders()


@asynchronous
async def test_a_lease_that_waited_longer_than_it_lasts_is_whole_when_it_comes(lab):
    pool = await one(lab)
    held = await pool.acquire()
    waiting = asyncio.ensure_future(pool.acquire(lease=60))
    await eventually(pool.waiters)
    waited = elapsed()
    await asyncio.sleep(0.05)  # it must be seen from when the lease counts
    await held.release()
    grant = await waiting
    grant.check()
    assert raw(grant)._request.sent > waited
    await is_renewed(grant)
    await grant.release()


@asynchronous
async def test_a_lease_can_be_renewed_by_hand(lab):
    pool = await one(lab)
    async with pool.acquire(lease=60) as grant:
        before = raw(grant)._request.sent
        await grant.renew()
        assert raw(grant)._request.sent > before
    with pytest.raises(LeaseLost):
        await grant.renew()
    async with pool.acquire() as lock:
        await lock.renew()
        assert lock.deadline is None


@asynchronous
async def test_a_holder_that_is_cut_off_knows_before_the_engine_can_lend_it_again(lab):
    pool, other = await one(lab, on_lost="ignore"), lab.open("lab")
    grant = await pool.acquire(lease=0.3)
    knows = raw(grant)._request.deadline
    cut_off(getattr(pool, "inner", pool))
    async with other.acquire(timeout=HANG):
        assert knows is not None and knows < elapsed()
        with pytest.raises(LeaseLost):
            grant.check()
    await eventually(lambda: raw(grant)._request.state != "held")
    with pytest.raises(LeaseLost, match="could not be renewed in time; stop using it|expired"):
        grant.check()


@asynchronous
async def test_a_lease_ends_on_time_when_its_holder_is_cut_off(lab):
    pool, other = await one(lab, on_lost="ignore"), lab.open("lab")
    start = time.monotonic()
    grant = await pool.acquire(lease=0.3)
    cut_off(getattr(pool, "inner", pool))
    async with other.acquire(timeout=HANG):
        assert time.monotonic() - start >= 0.29
    assert grant.resource == "a"  # it was kept all the time
    assert "expired" in [event.name for event in await other.admin.history()]


@asynchronous
async def test_an_engine_that_does_not_answer_in_time_loses_the_lease(lab):
    if lab.engine == "memory":
        pytest.skip("a memory engine always answers")
    pool = await one(lab, on_lost="ignore")
    grant = await pool.acquire(lease=0.3)
    gate = pool._own.engine._gate
    entered, leave = threading.Event(), threading.Event()

    def block() -> None:
        with gate:
            entered.set()
            leave.wait(HANG)

    thread = threading.Thread(target=block)
    thread.start()
    try:
        assert await asyncio.to_thread(entered.wait, HANG)
        await eventually(lambda: not grant.is_held)
        with pytest.raises(LeaseLost, match="its lease of 0.3 s could not be renewed in time|expired"):
            await eventually(lambda: grant.check())
    finally:
        leave.set()
        await asyncio.to_thread(thread.join)


@asynchronous
async def test_leaving_the_block_of_a_lost_grant_raises(lab):
    pool = await one(lab, on_lost="raise")
    with pytest.raises(LeaseLost, match="revoked by .*: broom; stop using it and acquire it again"):
        async with pool.acquire() as grant:
            await pool.admin.release("a", token=grant.token, reason="broom")


@asynchronous
async def test_an_exception_of_the_block_of_a_lost_grant_gets_a_note(lab):
    pool = await one(lab, on_lost="raise")
    with pytest.raises(ZeroDivisionError) as caught:
        async with pool.acquire() as grant:
            await pool.admin.release("a", token=grant.token, reason="broom")
            await eventually(lambda: not grant.is_held)
            raise ZeroDivisionError
    [note] = caught.value.__notes__
    assert "was lost: revoked by" in note


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """An exception that takes no notes."""


@asynchronous
async def test_an_exception_of_the_block_that_takes_no_notes_leaves_as_it_is(lab, caplog):
    pool = await one(lab, on_lost="raise")
    with pytest.raises(Frozen):
        async with pool.acquire() as grant:
            await pool.admin.release("a", token=grant.token, reason="broom")
            await eventually(lambda: not grant.is_held)
            raise Frozen
    assert "was lost: revoked by" in caplog.text


@asynchronous
async def test_on_lost_ignore_says_nothing_at_the_end(lab):
    pool = await one(lab, on_lost="ignore")
    async with pool.acquire() as grant:
        await pool.admin.release("a", token=grant.token, reason="broom")
        await eventually(lambda: not grant.is_held)
        with pytest.raises(LeaseLost):
            grant.check()


@asynchronous
async def test_on_lost_calls_a_function_with_the_grant(lab):
    called: list[object] = []
    pool = await one(lab, on_lost=called.append)
    with pytest.raises(LeaseLost):
        async with pool.acquire() as grant:
            await pool.admin.release("a", token=grant.token, reason="broom")
            await eventually(lambda: called)
    assert called == [raw(grant)]


@asynchronous
async def test_a_function_that_takes_its_time_holds_up_no_other_lease(lab):
    called, go_on = threading.Event(), threading.Event()

    def slow(grant: object) -> None:
        called.set()
        go_on.wait(HANG)

    pool = await one(lab, on_lost=slow)
    await pool.add("b")
    try:
        other = await pool.acquire(name="b", lease=60)
        with pytest.raises(LeaseLost):
            async with pool.acquire(name="a") as grant:
                await pool.admin.release("a", token=grant.token, reason="broom")
                assert await asyncio.to_thread(called.wait, HANG)
                await is_renewed(other)
                other.check()
    finally:
        go_on.set()
    await other.release()


@asynchronous
async def test_a_function_that_raises_is_logged(lab, caplog):
    called = threading.Event()

    def broken(grant: object) -> None:
        called.set()
        raise ZeroDivisionError

    pool = await one(lab, on_lost=broken)
    with pytest.raises(LeaseLost):
        async with pool.acquire() as grant:
            await pool.admin.release("a", token=grant.token, reason="broom")
            assert await asyncio.to_thread(called.wait, HANG)
    await eventually(lambda: [record for record in caplog.records if record.message == "on_lost raised"])


@asynchronous
async def test_a_released_grant_is_not_lost(lab):
    called: list[object] = []
    pool = await one(lab, on_lost=called.append)
    for _ in range(20):
        async with pool.acquire(lease=60) as grant:
            timers = list(raw(grant)._request._timers)
        assert timers and not any(one.call for one in timers)
    assert not called


# -- cancelled by a loss ----------------------------------------------------------------------------------------------


@asynchronous
async def test_a_loss_cancels_the_block_and_raises_lease_lost(url):
    async with AsyncResourcePool("lab", url) as pool:
        await pool.add("a")
        with pytest.raises(LeaseLost):
            async with pool.acquire() as grant:
                await pool.admin.release("a", token=grant.token, reason="broom")
                await asyncio.sleep(3600)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await asyncio.sleep(0)


@asynchronous
async def test_a_lease_that_cannot_be_renewed_cancels_the_block(url):
    async with AsyncResourcePool("lab", url) as pool:
        await pool.add("a")
        with pytest.raises(LeaseLost, match="could not be renewed|expired"):
            async with pool.acquire(lease=0.2):
                cut_off(pool)
                await asyncio.sleep(3600)


@asynchronous
async def test_a_time_out_around_the_block_stays_a_time_out(url):
    async with AsyncResourcePool("lab", url) as pool:
        await pool.add("a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                async with pool.acquire():
                    await asyncio.sleep(3600)
        assert not await pool.holders()


@asynchronous
async def test_a_cancellation_by_an_outsider_wins_over_a_loss_at_the_same_moment(url):
    async with AsyncResourcePool("lab", url) as pool:
        await pool.add("a")
        inside = asyncio.Event()

        async def body() -> None:
            async with pool.acquire() as grant:
                inside.set()
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    await pool.admin.release("a", token=grant.token, reason="broom")
                    await eventually(lambda: not grant.is_held)
                    raise

        task = asyncio.create_task(body())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert task.cancelled()
        del caught


@asynchronous
async def test_a_loss_inside_a_task_group_fails_the_group_with_lease_lost(url):
    async with AsyncResourcePool("lab", url) as pool:
        await pool.add("a")

        async def body() -> None:
            async with pool.acquire() as grant:
                await pool.admin.release("a", token=grant.token, reason="broom")
                await asyncio.sleep(3600)

        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(body())
                group.create_task(asyncio.sleep(3600))
        assert caught.group_contains(LeaseLost)


@asynchronous
async def test_a_body_that_swallows_the_cancellation_still_hears_of_the_loss(url):
    async with AsyncResourcePool("lab", url) as pool:
        await pool.add("a")
        with pytest.raises(LeaseLost):
            async with pool.acquire() as grant:
                await pool.admin.release("a", token=grant.token, reason="broom")
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0


@asynchronous
async def test_a_steal_within_a_time_out_is_a_loss_and_the_time_out_goes_on(url):
    async with AsyncResourcePool("lab", url) as pool:
        await pool.add("a")
        async with asyncio.timeout(HANG) as limit:
            with pytest.raises(LeaseLost, match="stolen by"):
                async with pool.acquire() as grant:
                    thief = await pool.admin.steal("a", token=grant.token, reason="mine")
                    await asyncio.sleep(3600)
            await asyncio.sleep(0)
        assert not limit.expired()
        await thief.release()


def test_a_thread_cannot_be_cancelled_and_the_pool_says_so_at_once(url):
    with pytest.raises(ValueError, match="on_lost='cancel' is for asyncio: a thread cannot be cancelled"):
        ResourcePool("lab", url, on_lost="cancel")


# -- suspects ---------------------------------------------------------------------------------------------------------


async def _is_free(pool):
    """Collect until what was dropped is gone: without the GIL it is not while a thread that knew it has yet to go on."""
    gc.collect()
    return not await pool.holders()


@asynchronous
async def test_a_grant_that_is_dropped_is_given_back_with_a_warning(lab, caplog):
    pool = await one(lab)
    with warnings_of_all_threads() as caught, caplog.at_level(logging.WARNING, "millpond"):
        grant = await pool.acquire(reason="lost")
        token = grant.token
        del grant
        await auntil(lambda: _is_free(pool))
        async with pool.acquire(timeout=HANG):
            pass
    text = "a of pool 'lab': the grant was dropped without release(), so it is free again: keep it while you use it"
    assert [str(one.message) for one in caught if one.category is ResourceWarning] == [f"{text} (token {token})"]
    assert f"{text} (token {token})" in [record.message for record in caplog.records]
    assert not await pool.holders()


async def _suspect(pool):
    return next((one for one in await pool.holders() if one.suspect), None)


@asynchronous
async def test_a_lease_that_is_dropped_is_not_renewed_any_more(lab):
    pool = await one(lab)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grant = await pool.acquire(lease=3600)
        del grant
        await auntil(lambda: _is_free(pool))
        async with pool.acquire(timeout=HANG):
            pass


def test_a_renewal_that_was_under_way_does_not_revive_a_lease_that_was_dropped():
    with ResourcePool("lab", "memory:forgotten") as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool.add("a")
        grant = pool.acquire(lease=0.3)
        request, token = grant._request, grant.token
        del grant
        gc.collect()
        pool._own.renewed(request, do.Reply("held", request.id, token), elapsed())
        with pool.acquire(timeout=HANG):
            pass


@asynchronous
@pytest.mark.parametrize("lease", [None, 60])
async def test_a_grant_that_is_held_too_long_is_suspect(lab, lease):
    pool = await one(lab, suspect_after=0.1)
    with warnings_of_all_threads() as caught:
        grant = await pool.acquire(lease=lease)
        holder = await eventually(lambda: _suspect(pool))
        await asyncio.sleep(0.1)  # it is said once
    assert holder.suspect == "held for more than 0.1 s"
    assert [str(one.message) for one in caught] == [f"a of pool 'lab': held for more than 0.1 s (token {grant.token})"]
    grant.check()
    await grant.release()


@asynchronous
async def test_a_grant_that_is_given_back_in_time_is_not_suspect(lab):
    pool = await one(lab, suspect_after=60)
    async with pool.acquire():
        pass
    with early_timers(61):
        await asyncio.sleep(0.05)
    assert "suspected" not in [event.name for event in await pool.admin.history()]


@asynchronous
async def test_warnings_that_are_errors_are_logged_instead(lab, caplog):
    pool = await one(lab, suspect_after=0.05)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "millpond"):
        warnings.simplefilter("error")
        async with pool.acquire():
            await eventually(lambda: _suspect(pool))
    assert any("held for more than 0.05 s" in record.message for record in caplog.records)


def test_the_collector_may_find_a_dropped_grant_in_the_middle_of_a_step(tmp_path):
    """A finalizer runs wherever the collector strikes, also inside the engine, with its lock held."""
    with ResourcePool("lab", url_of("memory", tmp_path)) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(50):
            pool.add(f"r{number}")
        threshold = gc.get_threshold()
        gc.set_threshold(3)
        try:
            for number in range(50):
                grant = pool.acquire(name=f"r{number}")
                cycle: list[object] = [grant]
                cycle.append(cycle)
                del grant, cycle
            until(lambda: gc.collect() or not pool.statistics().held)
        finally:
            gc.set_threshold(*threshold)
        assert pool.statistics().grants_total == 50
