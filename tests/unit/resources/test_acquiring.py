"""Asking for resources and giving them back: every keyword, on both faces and both engines."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest
from faces import Faces, eventually, is_renewed, raw

from millpond.errors import AcquireTimeout, AlreadyExists, LeaseLost, PoolClosed, StaleToken, Unsatisfiable
from millpond.resources import want
from waiting import HANG

pytestmark = pytest.mark.asyncio


async def gpus(lab: Faces, **options):
    pool = lab.open("gpus", **options)
    await pool.add("gpu-0", labels={"model": "a100", "slots": 8})
    await pool.add("gpu-1", labels={"model": "h100", "nvlink": True})
    return pool


async def test_a_selector_is_served_by_a_resource_that_matches(lab):
    pool = await gpus(lab)
    async with pool.acquire({"model": "h100"}) as grant:
        assert grant.resource == "gpu-1"
        assert grant.resources == ("gpu-1",)
        assert grant.units == {"gpu-1": 1}
        assert await grant.labels() == {"model": "h100", "nvlink": ""}
        assert grant.is_held
        assert grant.deadline is None
        assert "held: gpu-1 of 'gpus'" in repr(raw(grant))
    assert not grant.is_held
    assert not await pool.holders()


@pytest.mark.parametrize(
    ("selector", "served"),
    [
        (None, "gpu-0"),
        ({}, "gpu-0"),
        ({"model": ["h100", "b200"]}, "gpu-1"),
        ({"nvlink": True}, "gpu-1"),
        ({"nvlink": False}, "gpu-0"),
        ({"slots": 8}, "gpu-0"),
        ([{"model": "h100"}, {"model": "a100"}], "gpu-1"),
        ([{"model": "b200"}, {"model": "a100"}], "gpu-0"),
        ("model=h100", "gpu-1"),
    ],
)
async def test_every_kind_of_selector_is_understood(lab, selector, served):
    pool = await gpus(lab)
    async with pool.acquire(selector) as grant:
        assert grant.resource == served


async def test_a_name_that_is_given_as_a_label_is_refused_with_the_way_to_ask_for_it(lab):
    pool = await gpus(lab)
    with pytest.raises(
        Unsatisfiable, match="could ever satisfy 'gpu-0': name='gpu-0' asks for the resource of that name"
    ):
        await pool.acquire("gpu-0")


async def test_a_name_asks_for_that_one(lab):
    pool = await gpus(lab)
    async with pool.acquire(name="gpu-1") as grant:
        assert grant.resource == "gpu-1"
        assert await pool.try_acquire(name="gpu-1") is None


async def test_count_asks_for_different_ones(lab):
    pool = await gpus(lab)
    async with pool.acquire(count=2) as grant:
        assert set(grant.resources) == {"gpu-0", "gpu-1"}
        assert await pool.try_acquire() is None


async def test_units_share_a_resource_and_all_takes_the_whole(lab):
    pool = lab.open()
    await pool.add("licence", capacity=3)
    one = await pool.acquire(units=2)
    two = await pool.acquire()
    assert await pool.try_acquire() is None
    await one.release()
    assert await pool.try_acquire(units="all") is None
    await two.release()
    async with pool.acquire(units="all") as grant:
        assert grant.units == {"licence": 3}


async def test_a_bundle_comes_whole_and_in_the_order_of_the_parts(lab):
    pool = await gpus(lab)
    await pool.add("licence", capacity=4, labels={"kind": "licence"})
    parts = [{"model": "h100"}, want({"kind": "licence"}, units=3), want(name="gpu-0")]
    async with pool.acquire_all(parts) as grant:
        assert grant.resources == ("gpu-1", "licence", "gpu-0")
        assert grant.units == {"gpu-1": 1, "licence": 3, "gpu-0": 1}
    assert not await pool.holders()


async def test_a_bundle_that_waits_holds_nothing(lab):
    pool = await gpus(lab)
    held = await pool.acquire(name="gpu-0")
    with pytest.raises(AcquireTimeout):
        await pool.acquire_all([{"model": "h100"}, {"model": "a100"}], timeout=0.05)
    async with pool.acquire(name="gpu-1", timeout=0):
        await held.release()


async def test_a_timeout_is_kept_to_and_says_where_to_look(lab):
    pool = await gpus(lab)
    async with pool.acquire(name="gpu-0"):
        start = time.monotonic()
        with pytest.raises(AcquireTimeout, match=r"no '@gpu-0' of pool 'gpus' was free within 0.2 s: gpu-0 is held by"):
            await pool.acquire(name="gpu-0", timeout=0.2)
        assert time.monotonic() - start >= 0.19
        assert not await pool.waiters()


async def test_an_acquire_timeout_is_a_timeout_error(lab):
    pool = await gpus(lab)
    async with pool.acquire(count=2):
        with pytest.raises(TimeoutError):
            await pool.acquire(timeout=0.01)


async def test_timeout_zero_takes_what_is_free_and_waits_for_nothing(lab):
    pool = await gpus(lab)
    for _ in range(20):
        async with pool.acquire(name="gpu-0", timeout=0):
            with pytest.raises(AcquireTimeout, match="was free: waiters"):
                await pool.acquire(name="gpu-0", timeout=0)
    assert not await pool.waiters()


async def test_try_acquire_returns_none_only_for_want_of_a_free_one(lab):
    pool = await gpus(lab)
    grant = await pool.try_acquire({"model": "a100"}, reason="try", group="g", priority=3)
    assert grant is not None and grant.resource == "gpu-0"
    assert await pool.try_acquire({"model": "a100"}) is None
    with pytest.raises(Unsatisfiable):
        await pool.try_acquire({"model": "none"})
    await grant.release()


async def test_what_nobody_could_ever_have_is_refused_at_once(lab):
    pool = await gpus(lab)
    for options in ({"name": "gpu-9"}, {"count": 3}, {"units": 2}):
        with pytest.raises(Unsatisfiable, match="no resource of pool 'gpus' could ever satisfy .*: add one"):
            await pool.acquire(**options)
    assert not await pool.waiters()


async def test_one_who_waits_for_capacity_gets_it_when_it_is_added(lab):
    pool = await gpus(lab)
    waiting = asyncio.ensure_future(pool.acquire({"model": "b200"}, wait_for_capacity=True, timeout=HANG))
    [waiter] = await eventually(pool.waiters)
    assert waiter.why == "no resource matches it: it waits for one to be added"
    await pool.add("gpu-2", labels={"model": "b200"})
    grant = await waiting
    assert grant.resource == "gpu-2"
    await grant.release()


async def test_one_who_waits_in_vain_since_a_removal_is_told(lab):
    pool = await gpus(lab)
    held = await pool.acquire(name="gpu-0")
    waiting = asyncio.ensure_future(pool.acquire(name="gpu-0", timeout=HANG))
    await eventually(pool.waiters)
    await pool.admin.remove("gpu-0")
    with pytest.raises(Unsatisfiable):
        await waiting
    await held.release()


async def test_equal_waiters_are_served_in_the_order_of_asking(lab):
    pool = lab.open()
    await pool.add("a")
    held = await pool.acquire()
    order: list[int] = []

    async def one(number: int) -> None:
        async with pool.acquire():
            order.append(number)

    tasks = []
    for number in range(8):
        tasks.append(asyncio.ensure_future(one(number)))
        await eventually(partial(_count, pool, number + 1))
    await held.release()
    await asyncio.gather(*tasks)
    assert order == list(range(8))


async def _count(pool, wanted: int) -> bool:
    return len(await pool.waiters()) == wanted


async def test_a_higher_priority_goes_first(lab):
    pool = lab.open()
    await pool.add("a")
    held = await pool.acquire()
    order: list[int] = []

    async def one(priority: int) -> None:
        async with pool.acquire(priority=priority):
            order.append(priority)

    tasks = []
    for place, priority in enumerate((0, -5, 7, 7)):
        tasks.append(asyncio.ensure_future(one(priority)))
        await eventually(partial(_count, pool, place + 1))
    assert [one.priority for one in await pool.waiters()] == [7, 7, 0, -5]
    await held.release()
    await asyncio.gather(*tasks)
    assert order == [7, 7, 0, -5]


async def test_tokens_grow_with_every_grant(lab):
    pool = await gpus(lab)
    tokens = []
    for _ in range(10):
        async with pool.acquire() as grant:
            tokens.append(grant.token)
    assert tokens == sorted(set(tokens))


async def test_a_release_may_be_repeated(lab):
    pool = await gpus(lab)
    grant = await pool.acquire()
    await grant.release()
    await grant.release()
    with pytest.raises(LeaseLost, match="is not held: released; acquire it again"):
        grant.check()
    with pytest.raises(LeaseLost):
        async with grant:
            pass
    assert not await pool.holders()


async def test_an_exception_in_the_block_gets_out_as_it_is_and_the_resource_is_free(lab):
    pool = await gpus(lab)
    problem = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with pool.acquire():
            raise problem
    assert caught.value is problem
    assert not getattr(problem, "__notes__", [])
    assert not await pool.holders()


async def test_nested_blocks_of_one_grant_release_it_once(lab):
    pool = await gpus(lab)
    grant = await pool.acquire()
    async with grant:
        pass
    assert not await pool.holders()


# -- request ids ------------------------------------------------------------------------------------------------------


async def test_a_request_id_shows_and_takes_effect_once(lab):
    pool = await gpus(lab)
    async with pool.acquire(request_id="job-7") as grant:
        assert grant.request_id == "job-7"
        [holder] = await pool.holders()
        assert holder.request_id == "job-7"
    with pytest.raises(AlreadyExists, match=r"request 'job-7' is over \(released\), an id counts once: choose"):
        await pool.acquire(request_id="job-7")


async def test_a_request_id_is_of_one_user_at_a_time_in_a_process(lab):
    pool, other = await gpus(lab), lab.open("gpus")
    async with pool.acquire(request_id="job-7"):
        for one in (pool, other):
            with pytest.raises(AlreadyExists, match="request 'job-7' is in use in this process already"):
                await one.acquire(request_id="job-7")
        assert len(await pool.holders()) == 1
    assert not await pool.holders()


async def test_a_request_id_that_timed_out_had_no_effect_and_may_ask_again(lab):
    pool = lab.open()
    await pool.add("a")
    async with pool.acquire():
        with pytest.raises(AcquireTimeout):
            await pool.acquire(request_id="job", timeout=0.01)
    async with pool.acquire(request_id="job", timeout=HANG):
        pass
    with pytest.raises(AlreadyExists, match=r"request 'job' is over \(released\)"):
        await pool.acquire(request_id="job", timeout=HANG)


async def test_a_refused_request_id_may_be_used_again(lab):
    pool = await gpus(lab)
    with pytest.raises(Unsatisfiable):
        await pool.acquire({"model": "none"}, request_id="again")
    async with pool.acquire(count=2):
        assert await pool.try_acquire(request_id="again") is None
    async with pool.acquire(request_id="again"):
        pass


async def test_the_same_id_in_another_pool_is_another_request(lab):
    one, two = lab.open("one"), lab.open("two")
    await one.add("a")
    await two.add("a")
    async with one.acquire(request_id="x"), two.acquire(request_id="x"):
        pass


# -- passing on -------------------------------------------------------------------------------------------------------


async def test_a_grant_is_passed_on_under_a_new_token(lab):
    pool, other = await gpus(lab), lab.open("gpus", holder="second")
    async with pool.acquire(name="gpu-0", reason="first") as grant:
        token = await grant.transfer()
    assert token == grant.token
    [held] = await pool.holders()
    assert held.token == token
    adopted = await other.adopt(token, reason="second")
    assert adopted.token > token
    assert adopted.resources == ("gpu-0",)
    with pytest.raises(LeaseLost, match="was lost: transferred by"):
        grant.check()
    [held] = await pool.holders()
    assert (held.token, held.id, held.reason) == (adopted.token, "second", "second")
    with pytest.raises(StaleToken, match=f"token {token} holds nothing to take over: transferred"):
        await pool.adopt(token)
    await adopted.release()
    assert not await pool.holders()


async def test_a_grant_can_be_adopted_by_the_object_that_had_it(lab):
    pool = await gpus(lab)
    grant = await pool.acquire()
    async with await pool.adopt(await grant.transfer()) as again:
        assert again.is_held
        assert not grant.is_held
    assert not await pool.holders()


async def test_an_adopted_grant_can_be_a_lease(lab):
    pool = await gpus(lab)
    grant = await pool.acquire()
    adopted = await pool.adopt(await grant.transfer(), lease=60)
    assert 0 < adopted.deadline <= 60
    await is_renewed(adopted)
    adopted.check()
    await adopted.release()


async def test_what_was_passed_on_and_not_adopted_can_still_be_released(lab):
    pool = await gpus(lab)
    async with pool.acquire() as grant:
        await grant.transfer()
    assert await pool.holders()
    await grant.release()
    assert not await pool.holders()


async def test_a_grant_that_was_not_passed_on_cannot_be_adopted(lab):
    pool, other = await gpus(lab), lab.open("gpus", holder="second")
    async with pool.acquire(name="gpu-0") as grant:
        [held] = await other.holders()
        with pytest.raises(StaleToken, match=r"it was not passed on: its holder must call transfer\(\)"):
            await other.adopt(held.token)
        grant.check()
    assert not await pool.holders()


async def test_what_was_adopted_must_be_passed_on_anew(lab):
    pool, other = await gpus(lab), lab.open("gpus", holder="second")
    grant = await pool.acquire()
    async with await other.adopt(await grant.transfer()) as adopted:
        with pytest.raises(StaleToken, match="it was not passed on"):
            await pool.adopt(adopted.token)
        async with await pool.adopt(await adopted.transfer()) as again:
            again.check()
    assert not await pool.holders()


async def test_what_was_handed_over_can_be_passed_on_at_once(lab):
    pool, other = lab.open("lab"), lab.open("lab", holder="second")
    await pool.add("a")
    first = await pool.acquire()
    waiter = asyncio.ensure_future(_obtain(other))
    await eventually(other.waiters)
    await first.release()
    second = await waiter
    async with await pool.adopt(await second.transfer()) as third:
        assert third.token > second.token
    names = [event.name for event in await pool.admin.history("a")]
    assert names[-3:] == ["passed on", "transferred", "released"]


async def _obtain(pool):
    return await pool.acquire(timeout=HANG)


async def test_a_lost_grant_cannot_be_passed_on(lab):
    pool = await gpus(lab)
    grant = await pool.acquire(name="gpu-0")
    await pool.admin.release("gpu-0", token=grant.token, reason="mine now")
    await eventually(lambda: not grant.is_held)
    with pytest.raises(LeaseLost):
        await grant.transfer()


# -- placement --------------------------------------------------------------------------------------------------------


async def test_a_placement_function_ranks_what_is_free(lab):
    seen: list[list[str]] = []

    def last_first(candidates):
        seen.append([one.name for one in candidates])
        return list(reversed(candidates))

    pool = await gpus(lab, placement=last_first)
    async with pool.acquire() as grant:
        assert grant.resource == "gpu-1"
    assert seen == [["gpu-0", "gpu-1"]]


async def test_a_placement_function_may_return_names_and_leave_out_what_it_will_not_take(lab):
    pool = await gpus(lab, placement=lambda candidates: ["gpu-1"])
    async with pool.acquire() as grant:
        assert grant.resource == "gpu-1"
        with pytest.raises(AcquireTimeout):
            await pool.acquire(timeout=0.05)


async def test_a_placement_function_may_decline_an_offer_and_keeps_its_place(lab):
    plain = await gpus(lab)
    picky = lab.open("gpus", placement=lambda candidates: [one for one in candidates if one.name == "gpu-1"])
    zero, one = await plain.acquire(name="gpu-0"), await plain.acquire(name="gpu-1")
    waiting = asyncio.ensure_future(picky.acquire(timeout=HANG))
    await eventually(plain.waiters)
    await zero.release()  # offered, declined, and lent to the next
    await eventually(lambda: _declined(plain))
    async with plain.acquire(name="gpu-0", timeout=HANG):
        assert not waiting.done()
        await one.release()
        grant = await waiting
    assert grant.resource == "gpu-1"
    await grant.release()


async def _declined(pool) -> bool:
    return any(event.name == "declined" for event in await pool.admin.history())


async def test_an_offer_that_is_withdrawn_while_a_placement_function_looks_at_it_ends_the_wait(lab):
    plain = await gpus(lab)
    loop = asyncio.get_running_loop()
    looking, done = asyncio.Event(), asyncio.Event()
    calls = []

    def slow(candidates):
        calls.append(candidates)
        if len(calls) == 2:
            loop.call_soon_threadsafe(looking.set)
            if lab.colour == "sync":
                asyncio.run_coroutine_threadsafe(done.wait(), loop).result(HANG)
        return candidates

    picky = lab.open("gpus", placement=slow)
    held = await plain.acquire(count=2)
    waiting = asyncio.ensure_future(picky.acquire(request_id="picky"))
    await eventually(plain.waiters)
    await held.release()
    if lab.colour == "sync":
        await asyncio.wait_for(looking.wait(), HANG)
        await plain.admin.withdraw("picky", reason="enough")
        done.set()
        with pytest.raises(StaleToken, match="request 'picky' for .* of pool .* ended without a grant: revoked"):
            await asyncio.wait_for(waiting, HANG)
    else:
        grant = await waiting
        await grant.release()
    assert not await plain.holders()


async def test_a_placement_function_that_raises_leaves_nothing_behind(lab):
    plain = await gpus(lab)
    answers = iter([False, True])

    def broken(candidates):
        if next(answers):
            raise ZeroDivisionError
        return candidates

    pool = lab.open("gpus", placement=broken)
    held = await plain.acquire(count=2)
    waiting = asyncio.ensure_future(pool.acquire())
    await eventually(plain.waiters)
    await held.release()
    with pytest.raises(ZeroDivisionError):
        await waiting
    assert not await plain.holders() and not await plain.waiters()


@pytest.mark.parametrize("policy", ["first", "lru", "mru", "random", "pack", "spread"])
async def test_every_placement_policy_serves(lab, policy):
    pool = await gpus(lab, placement=policy)
    async with pool.acquire() as one, pool.acquire() as two:
        assert {one.resource, two.resource} == {"gpu-0", "gpu-1"}


async def test_lru_goes_round_and_mru_stays(lab):
    round_robin = await gpus(lab, placement="lru", holder="me")
    seen = []
    for _ in range(4):
        async with round_robin.acquire() as grant:
            seen.append(grant.resource)
    assert len(set(seen[:2])) == 2 and seen[:2] == seen[2:]
    sticky = lab.open("gpus", placement="mru", holder="me")
    async with sticky.acquire() as grant:
        assert grant.resource == seen[-1]


# -- closing ----------------------------------------------------------------------------------------------------------


async def test_close_gives_back_and_withdraws_what_is_its_own_only(lab):
    pool, other = await gpus(lab), lab.open("gpus")
    mine = await pool.acquire(name="gpu-0")
    theirs = await other.acquire(name="gpu-1")
    waiting = asyncio.ensure_future(pool.acquire(name="gpu-1"))
    await eventually(pool.waiters)
    await pool.close()
    with pytest.raises(PoolClosed, match="pool 'gpus' was closed while request .* waited"):
        await waiting
    with pytest.raises(LeaseLost, match="is not held: the pool was closed"):
        mine.check()
    await mine.release()
    assert [one.resources for one in await other.holders()] == [("gpu-1",)]
    assert not await other.waiters()
    theirs.check()
    await theirs.release()


async def test_a_closed_pool_says_so_whatever_is_asked_of_it(lab):
    pool = await gpus(lab)
    admin = pool.admin
    await pool.close()
    await pool.close()
    assert "closed" in repr(pool)
    for call in (
        lambda: pool.acquire(),
        lambda: pool.acquire_all([None]),
        lambda: pool.try_acquire(),
        lambda: pool.adopt(1),
        lambda: pool.add("x"),
        lambda: pool.resources(),
        lambda: pool.holders(),
        lambda: pool.waiters(),
        lambda: pool.statistics(),
        lambda: admin.cordon("gpu-0"),
        lambda: admin.drain("gpu-0"),
        lambda: admin.release("gpu-0", token=1, reason="r"),
        lambda: admin.withdraw("x", reason="r"),
        lambda: admin.steal("gpu-0", token=1, reason="r"),
        lambda: admin.keep("gpu-0", token=1, holder="me", reason="r"),
        lambda: admin.reserve("gpu-0", holder="me", reason="r"),
        lambda: admin.pause(reason="r"),
        lambda: admin.resume(),
        lambda: admin.configure(patience=1),
        lambda: admin.group("g"),
        lambda: admin.history(),
        lambda: admin.explain("gpu-0"),
        lambda: admin.delete_pool(),
    ):
        with pytest.raises(PoolClosed, match="is closed"):
            await call()
    with pytest.raises(PoolClosed):
        pool.admin  # noqa: B018


async def test_leaving_the_block_of_a_pool_closes_it(lab):
    pool = lab.open()
    async with pool:
        await pool.add("a")
    with pytest.raises(PoolClosed):
        await pool.resources()


async def test_two_objects_of_one_name_and_url_are_one_pool(lab):
    one, two = await gpus(lab), lab.open("gpus")
    async with one.acquire(count=2):
        assert await two.try_acquire() is None
        assert len(await two.holders()) == 1
