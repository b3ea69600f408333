"""Operators' verbs, and what people see of a pool: views, history, explanations."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
import warnings
from functools import partial

import pytest
from faces import Faces, eventually

from millpond.errors import AcquireTimeout, AlreadyExists, LeaseLost, NotFound, PoolError, StaleToken, Unsatisfiable
from waiting import HANG

pytestmark = pytest.mark.asyncio


async def two(lab: Faces, **options):
    pool = lab.open("lab", **options)
    await pool.add("a", labels={"kind": "x"})
    await pool.add("b", labels={"kind": "y"}, capacity=2)
    return pool


async def names(pool) -> list[str]:
    return [event.name for event in await pool.admin.history()]


# -- resources --------------------------------------------------------------------------------------------------------


async def test_a_resource_is_added_once_unless_that_is_fine(lab):
    pool = await two(lab)
    with pytest.raises(AlreadyExists, match="pool 'lab' has a resource 'a' already: use exist_ok=True, admin.relabel"):
        await pool.add("a")
    await pool.add("a", labels={"kind": "z"}, capacity=9, exist_ok=True)
    [a, b] = await pool.resources()
    assert (a.name, a.labels, a.capacity, a.used, a.free, a.state, a.holders) == (
        "a",
        {"kind": "x"},
        1,
        0,
        1,
        "active",
        (),
    )
    assert (b.name, b.capacity) == ("b", 2)


async def test_verbs_on_a_resource_that_is_not_there_say_so(lab):
    admin = (await two(lab)).admin
    for call in (
        lambda: admin.remove("c"),
        lambda: admin.relabel("c", {}),
        lambda: admin.resize("c", 2),
        lambda: admin.cordon("c"),
        lambda: admin.uncordon("c"),
        lambda: admin.quarantine("c", reason="r"),
        lambda: admin.drain("c"),
        lambda: admin.reserve("c", holder="me", reason="r"),
    ):
        with pytest.raises(NotFound, match=r"there is no resource 'c' in pool 'lab': see resources\(\)"):
            await call()


async def test_a_free_resource_is_removed_at_once_and_a_held_one_when_it_is_given_back(lab):
    pool = await two(lab)
    await pool.admin.remove("b", reason="old")
    assert [one.name for one in await pool.resources()] == ["a"]
    async with pool.acquire(name="a"):
        await pool.admin.remove("a", reason="sold")
        [a] = await pool.resources()
        assert (a.state, a.note) == ("removing", "sold")
    assert not await pool.resources()
    with pytest.raises(Unsatisfiable):
        await pool.acquire()


async def test_uncordon_calls_a_removal_back(lab):
    pool = await two(lab)
    async with pool.acquire(name="a"):
        await pool.admin.remove("a")
        await pool.admin.uncordon("a")
    assert {one.name for one in await pool.resources()} == {"a", "b"}


async def test_new_labels_serve_those_who_wait_for_them(lab):
    pool = await two(lab)
    waiting = asyncio.ensure_future(pool.acquire({"kind": "z"}, wait_for_capacity=True))
    await eventually(pool.waiters)
    await pool.admin.relabel("a", {"kind": "z"}, reason="retooled")
    grant = await waiting
    assert grant.resource == "a"
    await grant.release()


async def test_a_resource_grows_at_once_and_shrinks_as_it_is_given_back(lab):
    pool = await two(lab)
    one, other = await pool.acquire(name="b"), await pool.acquire(name="b")
    waiting = asyncio.ensure_future(pool.acquire(name="b"))
    await eventually(pool.waiters)
    await pool.admin.resize("b", 3)
    third = await waiting
    await pool.admin.resize("b", 1)
    assert (await pool.resources())[1].used == 3
    await one.release()
    await other.release()
    assert await pool.try_acquire(name="b") is None
    await third.release()
    async with pool.acquire(name="b"):
        pass


async def test_a_cordoned_resource_is_lent_to_nobody_and_kept_by_who_has_it(lab):
    pool = await two(lab)
    grant = await pool.acquire(name="a")
    await pool.admin.cordon("a", reason="firmware")
    grant.check()
    await grant.release()
    with pytest.raises(AcquireTimeout):
        await pool.acquire(name="a", timeout=0.05)
    waiting = asyncio.ensure_future(pool.acquire(name="a", reason="tests"))
    [waiter] = await eventually(pool.waiters)
    assert waiter.why == "a is cordoned (firmware)"
    await pool.admin.uncordon("a")
    await (await waiting).release()


async def test_a_quarantined_resource_stays_away_until_somebody_says_so(lab):
    pool = await two(lab)
    await pool.admin.quarantine("a", reason="smoke")
    assert await pool.try_acquire(name="a") is None
    assert (await pool.resources())[0].state == "quarantined"
    await pool.admin.uncordon("a")
    async with pool.acquire(name="a"):
        pass


async def test_a_drain_waits_for_the_last_holder(lab):
    pool = await two(lab)
    one, other = await pool.acquire(name="b"), await pool.acquire(name="b")
    draining = asyncio.ensure_future(pool.admin.drain("b", reason="move"))
    await eventually(lambda: _state(pool, "b", "draining"))
    await one.release()
    assert not draining.done()
    await other.release()
    await asyncio.wait_for(draining, HANG)
    assert (await pool.resources())[1].state == "cordoned"


async def _state(pool, name: str, state: str) -> bool:
    return any(one.name == name and one.state == state for one in await pool.resources())


async def test_a_drain_of_a_free_resource_is_over_at_once(lab):
    pool = await two(lab)
    await asyncio.wait_for(pool.admin.drain("a"), HANG)
    assert (await pool.resources())[0].state == "cordoned"


async def test_a_drain_of_a_quarantined_resource_waits_for_its_holder_and_leaves_it_quarantined(lab):
    pool = await two(lab)
    async with pool.acquire(name="a"):
        await pool.admin.quarantine("a", reason="smoke")
        with pytest.raises(AcquireTimeout, match="'a' is still held after 0.1 s"):
            await pool.admin.drain("a", timeout=0.1)
    await asyncio.wait_for(pool.admin.drain("a", reason="firmware"), HANG)
    assert (await pool.resources())[0].state == "quarantined"
    assert await pool.admin.explain("a") == "a is quarantined (smoke)"


async def test_a_drain_that_takes_too_long_raises_and_goes_on(lab):
    pool = await two(lab)
    async with pool.acquire(name="a"):
        start = time.monotonic()
        with pytest.raises(AcquireTimeout, match="'a' is still held after 0.1 s: it goes on draining; see holders"):
            await pool.admin.drain("a", timeout=0.1)
        assert time.monotonic() - start > 0.09
        assert (await pool.resources())[0].state == "draining"
    assert (await pool.resources())[0].state == "cordoned"


# -- other people's grants --------------------------------------------------------------------------------------------


async def test_an_operator_takes_a_grant_away_by_its_token(lab):
    pool, ops = await two(lab), lab.open("lab")
    grant = await pool.acquire(name="a")
    with pytest.raises(StaleToken, match="token 1 does not hold 'a': it was never granted.*; nothing was changed"):
        await ops.admin.release("a", token=1, reason="r")
    with pytest.raises(StaleToken, match="token .* does not hold 'b': it is not a grant of 'b'; nothing"):
        await ops.admin.release("b", token=grant.token, reason="r")
    grant.check()
    await ops.admin.release("a", token=grant.token, reason="overdue")
    await eventually(lambda: not grant.is_held)
    with pytest.raises(
        LeaseLost, match=f"grant {grant.token} of a in pool 'lab' was lost: revoked by .*: overdue; stop"
    ):
        grant.check()
    with pytest.raises(LeaseLost):
        await grant.release()
    with pytest.raises(StaleToken, match="does not hold 'a': revoked by .*: overdue; nothing"):
        await ops.admin.release("a", token=grant.token, reason="again")


async def test_an_operator_takes_a_request_out_of_the_line(lab):
    pool, ops = await two(lab), lab.open("lab")
    async with pool.acquire(name="a"):
        waiting = asyncio.ensure_future(pool.acquire(name="a", request_id="r-1"))
        await eventually(pool.waiters)
        await ops.admin.withdraw("r-1", reason="not today")
        with pytest.raises(StaleToken, match="request 'r-1' for '@a' of pool .* ended without a grant: withdrawn"):
            await waiting
        with pytest.raises(NotFound, match=r"there is no request 'r-1' in pool 'lab': see waiters\(\)"):
            await ops.admin.withdraw("r-1", reason="again")


async def test_a_thief_has_the_grant_under_a_new_token(lab):
    pool, thief = await two(lab), lab.open("lab", holder="thief")
    grant = await pool.acquire(name="a")
    with pytest.raises(StaleToken):
        await thief.admin.steal("a", token=grant.token - 1, reason="r")
    stolen = await thief.admin.steal("a", token=grant.token, reason="mine")
    assert stolen.token > grant.token and stolen.resource == "a"
    await eventually(lambda: not grant.is_held)
    with pytest.raises(LeaseLost, match="was lost: stolen by .*: mine"):
        grant.check()
    [holder] = await pool.holders()
    assert (holder.id, holder.token, holder.reason) == ("thief", stolen.token, "mine")
    await stolen.release()
    assert not await pool.holders()


async def test_what_is_kept_for_a_person_outlives_its_holder(lab):
    pool, ops = await two(lab), lab.open("lab")
    grant = await pool.acquire(name="a")
    token = await ops.admin.keep("a", token=grant.token, holder="ada", reason="post-mortem")
    assert token > grant.token
    await eventually(lambda: not grant.is_held)
    with pytest.raises(LeaseLost, match="was lost: kept by"):
        grant.check()
    await pool.close()
    [holder] = await ops.holders()
    assert (holder.kind, holder.id, holder.reason, holder.token) == ("person", "ada", "post-mortem", token)
    await ops.admin.release("a", token=token, reason="done")
    assert not await ops.holders()


async def test_what_is_kept_with_a_lease_ends_by_itself(lab):
    pool = await two(lab)
    grant = await pool.acquire(name="a")
    await pool.admin.keep("a", token=grant.token, holder="ada", reason="r", lease=0.1)
    async with pool.acquire(name="a", timeout=HANG):
        pass


async def test_a_free_resource_is_reserved_at_once_and_a_held_one_next(lab):
    pool = await two(lab)
    reservation = await pool.admin.reserve("a", holder="ada", reason="demo")
    assert await pool.try_acquire(name="a") is None
    await pool.admin.withdraw(reservation, reason="done")
    grant = await pool.acquire(name="a")
    waiting = asyncio.ensure_future(pool.acquire(name="a", priority=99))
    await eventually(pool.waiters)
    reservation = await pool.admin.reserve("a", holder="ada", reason="demo 2")
    first, _ = await pool.waiters()
    assert (first.id, first.request_id) == ("ada", reservation)
    await grant.release()
    [holder] = await eventually(pool.holders)
    assert (holder.id, holder.kind) == ("ada", "person")
    await pool.admin.release("a", token=holder.token, reason="done")
    await (await waiting).release()


# -- the pool ---------------------------------------------------------------------------------------------------------


async def test_a_paused_pool_grants_nothing_and_takes_back_everything(lab):
    pool = await two(lab)
    held = await pool.acquire(name="a")
    await pool.admin.pause(reason="night")
    await held.release()
    assert (await pool.statistics()).paused == "night"
    assert await pool.try_acquire() is None
    waiting = asyncio.ensure_future(pool.acquire())
    [waiter] = await eventually(pool.waiters)
    assert waiter.why == "the pool is paused: night"
    await pool.admin.resume()
    await (await waiting).release()
    assert (await pool.statistics()).paused == ""


async def test_pausing_keeps_the_other_settings(lab):
    pool = await two(lab)
    await pool.admin.configure(lock_delay=0.3, reason="r")
    await pool.admin.pause(reason="p")
    await pool.admin.resume()
    grant = await pool.acquire(name="a")
    start = time.monotonic()
    await pool.admin.release("a", token=grant.token, reason="r")
    async with pool.acquire(name="a", timeout=HANG):
        assert time.monotonic() - start > 0.29


async def test_every_setting_can_be_changed(lab):
    pool = await two(lab)
    await pool.admin.configure(patience=1, ageing=2, claim_within=3, lock_delay=4, retention=5)
    await pool.admin.configure(lock_delay=0, ageing=0)
    async with pool.acquire():
        pass
    for options in ({"patience": -1}, {"claim_within": 0}, {"retention": float("nan")}):
        with pytest.raises(ValueError, match="must be at least"):
            await pool.admin.configure(**options)


async def test_a_group_holds_no_more_than_its_quota(lab):
    pool = await two(lab)
    await pool.admin.group("tenant", quota=1)
    async with pool.acquire(group="tenant"):
        waiting = asyncio.ensure_future(pool.acquire(group="tenant"))
        [waiter] = await eventually(pool.waiters)
        assert waiter.why == "group 'tenant' holds 1 of its 1 units"
        assert waiter.group == "tenant"
        assert (await pool.statistics()).groups == {"tenant": 1}
        async with pool.acquire(group="other", timeout=HANG):
            pass
    await (await waiting).release()
    with pytest.raises(TypeError, match="a group's name must be a non-empty string"):
        await pool.admin.group("")


async def test_a_pool_in_use_is_deleted_by_force_only(lab):
    pool = await two(lab)
    grant = await pool.acquire()
    with pytest.raises(
        PoolError, match=r"pool 'lab' is in use by 1 holders and waiters: see holders\(\), or say force=True"
    ):
        await pool.admin.delete_pool()
    await pool.admin.delete_pool(force=True)
    assert not await pool.resources()
    with pytest.raises(LeaseLost):
        await grant.release()
    await pool.add("a")
    async with pool.acquire() as again:
        assert again.token > grant.token


async def test_waiters_of_a_deleted_pool_are_told(lab):
    pool = await two(lab)
    held = await pool.acquire(name="a")
    waiting = asyncio.ensure_future(pool.acquire(name="a"))
    await eventually(pool.waiters)
    await pool.admin.delete_pool(force=True)
    with pytest.raises((StaleToken, Unsatisfiable)):
        await asyncio.wait_for(waiting, HANG)
    with pytest.raises(LeaseLost):
        await held.release()


# -- what people see --------------------------------------------------------------------------------------------------


async def test_holders_tell_who_what_since_when_and_why(lab):
    pool = await two(lab, holder="ada's script")
    before = time.time()
    async with pool.acquire(name="b", reason="calibrate", group="optics", lease=3600) as grant:
        [one] = await pool.holders()
    assert (one.resources, one.units, one.token) == (("b",), {"b": 1}, grant.token)
    assert (one.kind, one.id, one.host, one.pid) == ("process", "ada's script", socket.gethostname(), os.getpid())
    assert (one.reason, one.group, one.state, one.suspect) == ("calibrate", "optics", "held", "")
    assert before - 1 < one.since < time.time() + 1
    assert 0 <= one.held_for < HANG and 0 < one.expires_in <= 3600
    assert str(one) == "ada's script"


async def test_the_longest_hold_comes_first(lab):
    pool = await two(lab)
    async with pool.acquire(name="b"), pool.acquire(name="a"):
        assert [one.resources for one in await pool.holders()] == [("b",), ("a",)]


async def test_waiters_tell_their_place_and_why(lab):
    pool = await two(lab, holder="me")
    async with pool.acquire(name="a", reason="first"):
        tasks = []
        for number in range(3):
            tasks.append(asyncio.ensure_future(pool.acquire(name="a", reason=f"r{number}", request_id=f"w{number}")))
            await eventually(partial(_waiting, pool, number + 1))
        views = await pool.waiters()
        assert [(one.request_id, one.position, one.reason) for one in views] == [
            ("w0", 1, "r0"),
            ("w1", 2, "r1"),
            ("w2", 3, "r2"),
        ]
        held = rf"a is held by me \(pid {os.getpid()} on .*\) since \d+ s \(first\)"
        assert re.fullmatch(held, views[0].why)
        assert re.fullmatch(f"2 ahead of it; {held}", views[2].why)
        assert views[0].selectors == ("@a",)
        assert views[0].state == "waiting" and 0 <= views[0].waiting_for < HANG
        assert str(views[0]) == "me"
        assert re.search(f"in place 3: 2 ahead of it; {held}$", await pool.admin.explain("w2"))
        statistics = await pool.statistics()
        assert (statistics.waiting, statistics.held) == (3, 1)
    for task in tasks:
        await (await task).release()


async def _waiting(pool, count: int) -> bool:
    return len(await pool.waiters()) == count


async def test_the_wish_of_a_waiter_is_spelled_out(lab):
    pool = await two(lab)
    async with pool.acquire(name="a"), pool.acquire(name="b", units=2):
        waiting = asyncio.ensure_future(pool.acquire_all([{"kind": ["x", "y"]}, {"kind": "y"}]))
        [one] = await eventually(pool.waiters)
        assert one.selectors == ("kind in (x y)", "kind=y")
        await pool.admin.withdraw(one.request_id, reason="seen")
        with pytest.raises(StaleToken):
            await waiting
        waiting = asyncio.ensure_future(pool.acquire(name="b", units="all"))
        [one] = await eventually(pool.waiters)
        assert one.selectors == ("@b (all units)",)
        assert "0 of 2 units free" in one.why
        await pool.admin.withdraw(one.request_id, reason="seen")
        with pytest.raises(StaleToken):
            await waiting


async def test_statistics_add_up(lab):
    pool = await two(lab)
    await pool.admin.cordon("a")
    async with pool.acquire(name="b"):
        one = await pool.statistics()
    assert (one.resources, one.units, one.free_units, one.schedulable_units) == (2, 3, 2, 1)
    assert (one.held, one.offered, one.waiting, one.away, one.suspects, one.grants_total) == (1, 0, 0, 0, 0, 1)
    assert one.oldest_wait == 0 and 0 < one.oldest_hold < HANG


async def test_explain_tells_of_requests_and_resources(lab):
    pool = await two(lab, holder="me")
    async with pool.acquire(name="a", request_id="r", reason="tests") as grant:
        assert (await pool.admin.explain("r")).startswith("request 'r' holds a since ")
        held = rf"request 'r' holds a since \d+ s under token {grant.token}: me \(pid {os.getpid()} on .*\) \(tests\)"
        assert re.fullmatch(held, await pool.admin.explain("r"))
        assert re.fullmatch(r"a is held by me \(pid \d+ on .*\) since \d+ s \(tests\)", await pool.admin.explain("a"))
    assert await pool.admin.explain("r") == "request 'r' is over: released"
    assert await pool.admin.explain("a") == "a is free"
    with pytest.raises(NotFound, match=r"there is no request or resource 'z': waiters\(\) and resources\(\) list"):
        await pool.admin.explain("z")


async def test_what_seems_forgotten_is_told_as_such_to_who_waits_for_it(lab):
    pool = await two(lab, holder="me", suspect_after=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        async with pool.acquire(name="a", request_id="r"):
            await eventually(lambda: _suspects(pool))
            doubt = "suspect: held for more than 0.01 s"
            assert (await pool.admin.explain("a")).endswith(doubt) and (await pool.admin.explain("r")).endswith(doubt)
            with pytest.raises(AcquireTimeout, match=doubt):
                await pool.acquire(name="a", timeout=0.05)


async def _suspects(pool) -> bool:
    return any(one.suspect for one in await pool.holders())


async def test_the_history_tells_who_did_what_and_why(lab):
    pool = await two(lab, holder="ada")
    async with pool.acquire(name="a", reason="calibrate", request_id="r") as grant:
        pass
    await pool.admin.cordon("a", reason="dust")
    history = await pool.admin.history()
    assert [event.name for event in history] == ["added", "added", "granted", "released", "cordoned"]
    granted, released, cordoned = history[2:]
    assert granted.pool == "lab" and abs(granted.time - time.time()) < 60
    assert granted.data == {
        "request": "r",
        "holder": "ada",
        "token": grant.token,
        "resources": ["a"],
        "reason": "calibrate",
    }
    assert released.data["holder"] == "ada" and released.data["resources"] == ["a"]
    assert cordoned.data["resource"] == "a" and cordoned.data["reason"] == "dust"
    assert cordoned.data["by"].endswith(f"@{socket.gethostname()}:{os.getpid()}")


async def test_the_history_can_be_of_one_resource_and_short(lab):
    pool = await two(lab)
    async with pool.acquire(name="b"):
        pass
    assert [event.name for event in await pool.admin.history("a")] == ["added"]
    assert [event.name for event in await pool.admin.history("b")] == ["added", "granted", "released"]
    assert [event.name for event in await pool.admin.history(limit=1)] == ["released"]
    assert await pool.admin.history(limit=0) == []
    with pytest.raises(ValueError, match="limit must be at least 0, not -1"):
        await pool.admin.history(limit=-1)


async def test_the_history_has_every_verb(lab):
    pool = await two(lab)
    grant = await pool.acquire(name="a")
    await pool.admin.release("a", token=grant.token, reason="r")
    await pool.admin.relabel("a", {"k": "v"})
    await pool.admin.resize("a", 2)
    await pool.admin.quarantine("a", reason="r")
    await pool.admin.uncordon("a")
    await pool.admin.group("g", quota=1)
    await pool.admin.pause(reason="r")
    await pool.admin.resume()
    await pool.admin.remove("a")
    assert (await names(pool))[2:] == [
        "granted", "revoked", "relabelled", "resized", "quarantined", "uncordoned", "group set", "configured", "configured", "removed",
    ]  # fmt: skip


async def test_who_waited_in_vain_is_told_who_is_in_the_way(lab):
    pool = await two(lab, holder="me")
    async with pool.acquire(name="a", reason="a long test"):
        ahead = asyncio.ensure_future(pool.acquire(name="a", request_id="ahead"))
        await eventually(partial(_waiting, pool, 1))
        with pytest.raises(AcquireTimeout) as error:
            async with pool.acquire(name="a", timeout=0.05):
                pass
        who = rf"a is held by me \(pid {os.getpid()} on .+\) since \d+ s \(a long test\)"
        assert re.fullmatch(
            rf"no '@a' of pool 'lab' was free within 0.05 s: 1 more waits for it; {who}", str(error.value)
        )
        await pool.admin.pause(reason="the lab moves")
        with pytest.raises(AcquireTimeout, match="the pool is paused: the lab moves"):
            async with pool.acquire(name="b", timeout=0.05):
                pass
        await pool.admin.resume()
    await (await ahead).release()


async def test_who_waited_in_vain_hears_of_a_quota_and_of_too_little(lab):
    pool = await two(lab)
    await pool.admin.group("team", quota=1)
    async with pool.acquire(name="a", group="team"):
        with pytest.raises(AcquireTimeout, match="group 'team' holds 1 of its 1 units"):
            await pool.acquire(name="b", group="team", timeout=0.05)
        with pytest.raises(AcquireTimeout, match="b is free, but 2 are wanted at once and 1 is free"):
            await pool.acquire(count=2, timeout=0.05)


async def test_who_waits_hears_for_whom_a_free_resource_is_kept(lab):
    pool = await two(lab, holder="me")
    await pool.admin.configure(patience=0.0)
    async with pool.acquire(name="a"):
        pair = asyncio.ensure_future(pool.acquire(count=2, request_id="pair"))
        await eventually(partial(_waiting, pool, 1))
        single = asyncio.ensure_future(pool.acquire(name="b", request_id="single"))
        await eventually(partial(_waiting, pool, 2))
        assert re.search(
            r"b is free, but kept for me \(pid \d+ on .+\), who waits longer", await pool.admin.explain("single")
        )
        assert "b is free, but 2 are wanted at once and 1 is free" in await pool.admin.explain("pair")
    await (await pair).release()
    await (await single).release()


async def test_a_reservation_tells_who_made_it(lab):
    pool = await two(lab)
    reservation = await pool.admin.reserve("a", holder="ada", reason="demo")
    assert re.search(rf"demo \(reserved by .+:{os.getpid()}\)", await pool.admin.explain("a"))
    await pool.admin.withdraw(reservation, reason="over")
