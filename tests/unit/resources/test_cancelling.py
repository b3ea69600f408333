"""Cancelling at every moment of an acquire: afterwards nothing is held and nothing asked for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading

import pytest
from faces import eventually

from millpond._clock import elapsed
from millpond.errors import AcquireTimeout, EngineError, EngineUnavailable, StaleToken
from millpond.resources import AsyncResourcePool, ResourcePool
from millpond.resources._questions import Standing
from millpond.resources._rules import commands as do
from waiting import HANG, auntil

pytestmark = pytest.mark.asyncio


async def clean(pool: AsyncResourcePool) -> bool:
    return not await pool.holders() and not await pool.waiters() and not pool._own._requests


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["free", "held", "picky", "lease", "bundle"])
async def test_an_acquire_cancelled_at_any_await_leaves_nothing(url, kind):
    chooser = list if kind == "picky" else "first"
    async with AsyncResourcePool("p", url, placement=chooser) as pool, AsyncResourcePool("p", url) as plain:
        await pool.add("a")
        await pool.add("b")
        survived = 0
        for k in itertools.count():
            held = await plain.acquire(count=2) if kind in ("held", "picky") else None
            options = {"lease": 60.0} if kind == "lease" else {"count": 2} if kind == "bundle" else {}
            task = asyncio.ensure_future(pool.acquire(**options))
            await turns(k)
            if held is not None and k % 2:
                await held.release()
            done = task.done()
            task.cancel()
            try:
                grant = await task
            except asyncio.CancelledError:
                pass
            else:
                survived += 1
                await grant.release()
            if held is not None:
                await held.release()
            assert await clean(pool), f"cancelled after {k} turns of the loop"
            if (done and k > 3) or k > 25:
                break
        async with pool.acquire(count=2, timeout=HANG):
            pass


async def test_an_acquire_that_is_cancelled_while_it_withdraws_withdraws_all_the_same(url):
    async with AsyncResourcePool("p", url) as pool:
        await pool.add("a")
        held = await pool.acquire()
        task = asyncio.ensure_future(pool.acquire())
        await eventually(pool.waiters)
        task.cancel("first")
        await turns(1)
        task.cancel("second")  # while it withdraws
        with pytest.raises(asyncio.CancelledError):
            await task
        await held.release()
        assert await clean(pool)


async def test_cancelling_races_granting_and_units_are_conserved(url):
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    async with AsyncResourcePool("p", url) as pool:
        await pool.add("a", capacity=3)
        inside = most = 0

        async def one() -> None:
            nonlocal inside, most
            async with pool.acquire():
                inside += 1
                most = max(most, inside)
                try:
                    await turns(rng.randrange(3))
                finally:
                    inside -= 1

        tasks: list[asyncio.Task[None]] = []
        for _ in range(300):
            tasks.append(asyncio.create_task(one()))
            await turns(rng.randrange(3))
            if rng.random() < 0.7:
                rng.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most <= 3
        assert await clean(pool)
        async with pool.acquire(units=3, timeout=HANG):
            pass


async def test_a_time_out_around_acquire_withdraws(url):
    async with AsyncResourcePool("p", url) as pool:
        await pool.add("a")
        async with pool.acquire():
            for _ in range(20):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.002):
                        await pool.acquire()
            assert not await pool.waiters()
        assert await clean(pool)


async def test_wait_for_gives_the_grant_or_nothing(url):
    async with AsyncResourcePool("p", url) as pool:
        await pool.add("a")
        grant = await asyncio.wait_for(pool.acquire(), HANG)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.acquire(), 0.02)
        await grant.release()
        assert await clean(pool)


async def test_a_cancelled_release_still_releases(url):
    async with AsyncResourcePool("p", url) as pool:
        await pool.add("a")
        for k in range(6):
            grant = await pool.acquire(timeout=HANG)
            task = asyncio.ensure_future(grant.release())
            await turns(k + 1)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert await clean(pool), f"cancelled after {k} turns"


async def test_a_release_cancelled_before_it_began_can_be_repeated(url):
    async with AsyncResourcePool("p", url) as pool:
        await pool.add("a")
        grant = await pool.acquire()
        task = asyncio.ensure_future(grant.release())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        grant.check()
        await grant.release()
        assert await clean(pool)


async def test_a_cancelled_adoption_leaves_nobody_holding_unknowingly(url):
    async with AsyncResourcePool("p", url) as pool:
        await pool.add("a")
        for k in range(6):
            grant = await pool.acquire(timeout=HANG)
            token = await grant.transfer()
            task = asyncio.ensure_future(pool.adopt(token))
            await turns(k + 1)
            task.cancel()
            try:
                await (await task).release()
            except asyncio.CancelledError:
                with contextlib.suppress(Exception):
                    await grant.release()
            await eventually(lambda: clean(pool))


async def test_a_cancelled_drain_stops_listening(url):
    async with AsyncResourcePool("p", url) as pool:
        await pool.add("a")
        async with pool.acquire():
            task = asyncio.ensure_future(pool.admin.drain("a"))
            await eventually(lambda: _drains(pool))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await pool.resources())[0].state == "cordoned"


async def _drains(pool: AsyncResourcePool) -> bool:
    return (await pool.resources())[0].state == "draining"


async def test_a_time_out_is_kept_to_although_the_engine_does_not_answer(tmp_path):
    async with AsyncResourcePool("p", f"sqlite:///{tmp_path}/p.db") as pool:
        await pool.add("a")
        gate = pool._engine._gate  # type: ignore[attr-defined]
        entered, leave = threading.Event(), threading.Event()

        def block() -> None:
            with gate:
                entered.set()
                leave.wait(HANG)

        thread = threading.Thread(target=block)
        thread.start()
        try:
            await asyncio.to_thread(entered.wait, HANG)
            with pytest.raises(AcquireTimeout):
                await pool.acquire(timeout=0.1)
        finally:
            leave.set()
            await asyncio.to_thread(thread.join)
        await eventually(lambda: clean(pool))


@pytest.mark.parametrize("verb", ["withdraw", "release"])
async def test_what_the_engine_could_not_take_is_sent_again(url, verb):
    async with AsyncResourcePool("p", url) as pool:
        await pool.add("a")
        held = await pool.acquire()
        engine = pool._own.engine
        apply, failures = engine.apply, [2]

        def broken(name, command, done, *, block):
            if isinstance(command, do.Withdraw | do.Release) and failures[0]:
                failures[0] -= 1
                return apply(
                    name, do.Tick(), lambda answer: done(EngineError("the disk is full: make room")), block=block
                )
            return apply(name, command, done, block=block)

        engine.apply = broken  # type: ignore[method-assign]
        try:
            if verb == "withdraw":
                task = asyncio.ensure_future(pool.acquire())
                await eventually(pool.waiters)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await eventually(lambda: failures[0] == 0)
                await held.release()
            else:
                with pytest.raises(EngineError, match="the disk is full"):
                    await held.release()
            await eventually(lambda: clean(pool))
        finally:
            del engine.apply  # type: ignore[method-assign]


@pytest.mark.parametrize("trouble", [EngineError("the file was replaced"), EngineUnavailable("the disk is full")])
async def test_an_engine_that_fails_at_the_end_of_a_block_hides_no_exception_of_the_block(url, trouble):
    async with AsyncResourcePool("p", url) as pool:
        await pool.add("a")
        engine = pool._own.engine
        apply, failures = engine.apply, [2]

        def broken(name, command, done, *, block):
            if isinstance(command, do.Release) and failures[0]:
                failures[0] -= 1
                return apply(name, do.Tick(), lambda answer: done(trouble), block=block)
            return apply(name, command, done, block=block)

        engine.apply = broken  # type: ignore[method-assign]
        try:
            with pytest.raises(KeyError, match="mine") as caught:
                async with pool.acquire():
                    raise KeyError("mine")
            assert caught.value.__notes__ == [str(trouble)]
            await eventually(lambda: clean(pool))
        finally:
            del engine.apply  # type: ignore[method-assign]


async def test_threads_that_give_up_and_those_that_are_granted_do_not_meet(url):
    """Tiny time-outs race the grants of sixteen threads."""
    with ResourcePool("p", url) as pool:
        pool.add("a", capacity=2)
        lock = threading.Lock()
        inside = [0, 0]

        def work(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(25):
                try:
                    with pool.acquire(timeout=rng.random() * 0.004):
                        with lock:
                            inside[0] += 1
                            inside[1] = max(inside)
                        with lock:
                            inside[0] -= 1
                except AcquireTimeout:
                    pass

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert inside[1] <= 2
        # what was not answered in time is taken back by the engine's own thread, a moment later
        await auntil(lambda: not pool.holders() and not pool.waiters() and not pool._own._requests)


@pytest.mark.parametrize(("late", "error"), [(True, AcquireTimeout), (False, StaleToken)])
async def test_a_request_that_ended_unheard_has_timed_out_if_its_time_is_over(url, late, error):
    async with AsyncResourcePool("p", url) as pool:
        await pool.add("a")
        async with pool.acquire():
            task = asyncio.ensure_future(pool.acquire(timeout=HANG))
            await eventually(pool.waiters)
            [waiter] = await pool.waiters()
            case = pool._own._requests[waiter.request_id]
            await eventually(lambda: case.state == "waiting")
            case.sent -= 2 * HANG if late else 0
            pool._own._compare([Standing(case.id, "gone")], elapsed())
            with pytest.raises(error):
                await task
