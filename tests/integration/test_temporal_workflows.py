"""Workflows that hold resources: what Temporal's own sample gets wrong, by the numbers of our list of its defects."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.common import RetryPolicy

from millpond.resources import AsyncResourcePool
from millpond.testing._temporal import TUNED, temporal_server
from millpond.testing._temporal_host import hosted_pools
from waiting import HANG

sys.path.insert(0, str(Path(__file__).parent))
import temporal_flows as flows
from temporal_play import (
    assert_no_overlap,
    failure,
    has_holders,
    has_pending_activity,
    has_said,
    holds,
    is_free,
    let_go,
    start,
    until,
    waits,
    waits_for,
)

pytest_plugins = ["temporal_fixtures"]
pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.filterwarnings("ignore:Cannot find activity to cancel"),  # as an error it would end the SDK's worker
]


# --- the defects, by number --------------------------------------------------------------------------------------


async def test_1_release_racing_the_grant_leaks_nothing(client, pool):
    everyone = [await start(client, flows.Cycles, pool.name, 8) for _ in range(4)]
    tokens = [token for one in everyone for token in await one.result()]
    assert len(set(tokens)) == 32
    assert await is_free(pool)


async def test_4_a_requester_over_its_signal_limit_harms_nobody_but_itself():
    limited = {**TUNED, "history.maximumSignalsPerExecution": 8}
    with temporal_server(dynamic_config=limited) as server, hosted_pools(server.url()), flows.serving(server.address):
        client = await Client.connect(server.address)
        async with AsyncResourcePool("limited", server.url()) as pool:
            await pool.add("a")
            first = await start(client, flows.Hold, pool.name, {})
            await holds(first)
            deaf = await start(client, flows.Hold, pool.name, {})
            await waits(pool)
            for _ in range(8):
                await deaf.signal("nothing")
            behind = await start(client, flows.Hold, pool.name, {})
            await waits(pool, 2)
            await let_go(first)
            await holds(behind)
            assert [one.id for one in await pool.holders()] == [behind.id]
            refusals = await client.get_workflow_handle("millpond:limited").query("get_refusals")
            assert deaf.id in refusals[-1]["why"]
            await let_go(behind)
            await deaf.terminate()
            await until(lambda: is_free(pool))


@pytest.mark.parametrize("cancels", [False, True], ids=["timed out", "cancelled"])
async def test_5_a_waiter_that_gives_up_and_lives_on_gets_nothing(client, pool, cancels):
    async with pool.acquire():
        flow = await start(client, flows.LivesOn, pool.name, 0.3, cancels)

        async def gave_up() -> bool:
            return bool((await flow.query("standing"))["said"])

        await until(gave_up)
        assert await pool.waiters() == []
    assert await is_free(pool)
    said = (await flow.query("standing"))["said"]
    assert said == ["cancelled"] if cancels else said[0].startswith("AcquireTimeout: no '*' of pool")
    assert "over: nothing yet" in (await let_go(flow))[0]


async def test_6_a_waiter_terminated_and_restarted_under_its_id_gets_one(client, pool):
    await pool.add("b")
    async with pool.acquire_all(["@a", "@b"]):
        old = await start(client, flows.Hold, pool.name, {})
        await waits(pool)
        await old.terminate()
        new = await start(client, flows.Hold, pool.name, {}, id=old.id)
        await until(lambda: waits_for(pool, new))
    await holds(new)
    await until(lambda: has_holders(pool, 1))
    await let_go(new)
    assert await is_free(pool)


async def test_6_a_grant_on_its_way_to_a_terminated_waiter_goes_to_the_new_one(client, pool):
    first = await start(client, flows.Hold, pool.name, {})
    await holds(first)
    old = await start(client, flows.Hold, pool.name, {})
    await waits(pool)
    await old.terminate()
    new = await start(client, flows.Hold, pool.name, {}, id=old.id)
    await let_go(first)  # the pool may not know yet who died
    await holds(new)
    await let_go(new)
    assert await is_free(pool)


@pytest.mark.parametrize("where", ["waiting", "holding"])
async def test_6_a_retried_run_holds_once(client, pool, where):
    retry = RetryPolicy(initial_interval=timedelta(milliseconds=300), maximum_attempts=2)
    first = await start(client, flows.Hold, pool.name, {}) if where == "waiting" else None
    if first is not None:
        await holds(first)
    flow = await start(client, flows.FailsOnce, pool.name, where, retry_policy=retry)
    if first is not None:
        await waits(pool)
        await flow.signal("go_on")
        await until(lambda: has_said(flow, "again"))
        await let_go(first)
    assert (await holds(flow))["on"] == "a"
    assert len(await pool.holders()) == 1 and await pool.waiters() == []
    await let_go(flow)
    assert await is_free(pool)


async def test_6_continue_as_new_while_waiting_holds_once(client, pool):
    async with pool.acquire():
        flow = await start(client, flows.MovesWaiting, pool.name)
        await waits(pool)
        await flow.signal("go_on")

        async def moved() -> bool:
            found = await pool.waiters()
            return bool(found) and found[0].host != flow.first_execution_run_id

        await until(moved)
        await waits(pool)
    flow = client.get_workflow_handle(flow.id)
    await holds(flow)
    assert len(await pool.holders()) == 1 and await pool.waiters() == []
    await let_go(flow)
    assert await is_free(pool)


@pytest.mark.parametrize("count", [2, 10])
async def test_7_concurrent_acquires_in_one_workflow(client, pool, count):
    flow = await start(client, flows.Many, pool.name, count, 0.01)
    tokens = await flow.result()
    assert len(set(tokens)) == count
    assert_no_overlap([one for one in flows.uses if one.who.startswith(flow.id)], count)
    assert await is_free(pool)


async def test_12_a_repeated_request_is_the_same_request(client, pool):
    async with pool.acquire():
        flow = await start(client, flows.Hold, pool.name, {})
        await waits(pool)
        [waiter] = await pool.waiters()
        await flow.signal("millpond", "nonsense")
        await flow.signal("millpond")
        await flow.signal(
            "millpond", {"pool": pool.name, "chain": "x", "kind": "granted", "request": waiter.request_id}
        )
        assert not (await flow.query("standing"))["held"]  # when it has heard all three
        assert [one.request_id for one in await pool.waiters()] == [waiter.request_id]
    await holds(flow)
    await let_go(flow)
    assert await is_free(pool)


async def test_13_operators_see_waiters_and_holders(client, pool):
    first = await start(client, flows.Hold, pool.name, {"reason": "first"})
    await holds(first)
    second = await start(client, flows.Hold, pool.name, {"reason": "second"})
    await waits(pool)
    handle = client.get_workflow_handle(f"millpond:{pool.name}")
    held = await handle.query("get_current_holders")
    assert held["a"]["workflow_id"] == first.id and held["a"]["reason"] == "first"
    [waiter] = await handle.query("get_waiters")
    assert waiter["reason"] == "second" and second.id in waiter["holder"]
    await let_go(first)
    await holds(second)
    await let_go(second)


async def test_14_the_pool_is_started_on_first_use(client, worker):
    name = f"fresh-{uuid.uuid4().hex}"
    flow = await start(client, flows.Hold, name, {"wait_for_capacity": True})
    async with AsyncResourcePool(name, worker.url()) as pool:
        await waits(pool)
        await pool.add("a")
        assert (await holds(flow))["on"] == "a"
        await let_go(flow)


async def test_15_programs_activities_and_workflows_queue_in_one_line(client, pool, worker):
    first = await start(client, flows.Hold, pool.name, {})
    await holds(first)
    program = asyncio.ensure_future(_hold(pool))
    await waits(pool, 1)
    second = await start(client, flows.Hold, pool.name, {})
    await waits(pool, 2)
    third = await start(client, flows.Borrows, pool.name, worker.url())
    await waits(pool, 3)
    assert [one.kind for one in await pool.waiters()] == ["process", "workflow", "process"]
    await let_go(first)
    await asyncio.wait_for(program, HANG)
    await holds(second)
    await let_go(second)
    assert await third.result() == "a"
    assert await is_free(pool)


async def _hold(pool: AsyncResourcePool) -> None:
    async with pool.acquire() as grant:
        assert [one.token for one in await pool.holders()] == [grant.token]


async def test_16_cancelled_while_holding_it_waits_for_its_activity(client, pool):
    flow = await start(client, flows.Cancelled, pool.name, 3600.0)
    await holds(flow)
    await until(lambda: has_pending_activity(flow))
    next_one = await start(client, flows.Using, pool.name, 0.01)
    await waits(pool)
    await flow.cancel()
    await next_one.result()
    mine = [one for one in flows.uses if one.who in (flow.id, next_one.id)]
    assert [one.who for one in mine] == [flow.id, next_one.id]
    assert_no_overlap(mine, 2)
    assert await is_free(pool)


# --- a first user's questions -------------------------------------------------------------------------------------


async def test_fifty_workflows_over_three_resources(client, pool):
    await pool.add("b")
    await pool.add("c")
    everyone = [await start(client, flows.Using, pool.name, 0.01) for _ in range(50)]
    tokens = [await one.result() for one in everyone]
    mine = {one.id for one in everyone}
    found = [one for one in flows.uses if one.who in mine]
    assert_no_overlap(found, 50)
    assert {one.resource for one in found} == {"a", "b", "c"}
    assert len(set(tokens)) == 50
    assert await is_free(pool)


async def test_first_come_first_served(client, pool):
    async with pool.acquire():
        everyone = []
        for number in range(6):
            everyone.append(await start(client, flows.Using, pool.name, 0.0))
            await waits(pool, number + 1)
    tokens = [await one.result() for one in everyone]
    assert tokens == sorted(tokens)


async def test_priority_goes_first(client, pool):
    async with pool.acquire():
        low = await start(client, flows.Hold, pool.name, {"priority": 0})
        await waits(pool, 1)
        high = await start(client, flows.Hold, pool.name, {"priority": 5})
        await waits(pool, 2)
    await holds(high)
    assert not (await low.query("standing"))["held"]
    await let_go(high)
    await holds(low)
    await let_go(low)


async def test_several_pools_in_one_workflow(client, pool, worker):
    async with AsyncResourcePool(f"other-{uuid.uuid4().hex}", worker.url()) as other:
        await other.add("x")
        flow = await start(client, flows.HoldTwo, pool.name, other.name)
        assert await flow.result() == ["a", "x"]
        assert await is_free(pool) and await is_free(other)


async def test_all_or_nothing(client, pool):
    await pool.add("b")
    async with pool.acquire(name="b"):
        flow = await start(client, flows.HoldAll, pool.name, ["@a", "@b"], {})
        await waits(pool)
        async with pool.acquire(name="a", timeout=HANG):
            pass
    await holds(flow)
    [found] = await let_go(flow)
    assert found["resources"] == ["a", "b"]
    assert await is_free(pool)


async def test_units_and_capacity(client, pool):
    await pool.add("big", capacity=4)
    three = await start(client, flows.Hold, pool.name, {"name": "big", "units": 3})
    await holds(three)
    two = await start(client, flows.Hold, pool.name, {"name": "big", "units": 2})
    await waits(pool)
    whole = await start(client, flows.Hold, pool.name, {"name": "big", "units": "all"})
    await waits(pool, 2)
    assert (await let_go(three))[0]["units"] == {"big": 3}
    await holds(two)
    assert not (await whole.query("standing"))["held"]
    await let_go(two)
    await holds(whole)
    assert (await let_go(whole))[0]["units"] == {"big": 4}
    assert await is_free(pool)


async def test_a_label_selects(client, pool):
    await pool.add("gpu", labels={"model": "a100"})
    flow = await start(client, flows.Hold, pool.name, {"name": "gpu"})
    assert (await holds(flow))["on"] == "gpu"
    await let_go(flow)


# --- refusals -----------------------------------------------------------------------------------------------------


async def test_no_time_to_wait_fails_the_workflow_at_once(client, pool):
    async with pool.acquire():
        flow = await start(client, flows.Hold, pool.name, {"timeout": 0})
        error = await failure(flow)
        assert error.type == "AcquireTimeout"
    flow = await start(client, flows.Hold, pool.name, {"timeout": 0})
    await holds(flow)
    await let_go(flow)
    assert await is_free(pool)


async def test_a_wait_that_takes_too_long_fails_the_workflow(client, pool):
    async with pool.acquire():
        began = time.monotonic()
        error = await failure(await start(client, flows.Hold, pool.name, {"timeout": 0.4}))
        assert error.type == "AcquireTimeout" and "within 0.4 s" in str(error)
        assert time.monotonic() - began >= 0.4
        assert await pool.waiters() == []


async def test_what_nothing_can_satisfy_is_told(client, pool):
    error = await failure(await start(client, flows.Hold, pool.name, {"name": "nowhere"}))
    assert error.type == "Unsatisfiable" and "wait_for_capacity" in str(error)
    waiting = await start(client, flows.Hold, pool.name, {"name": "later", "wait_for_capacity": True})
    await waits(pool)
    await pool.add("later")
    await holds(waiting)
    await let_go(waiting)


async def test_a_waiter_whose_resource_goes_is_told(client, pool):
    async with pool.acquire():
        flow = await start(client, flows.Hold, pool.name, {"name": "a"})
        await waits(pool)
        await pool.admin.remove("a", reason="broken")
        assert (await failure(flow)).type == "Unsatisfiable"


async def test_a_waiter_that_an_operator_takes_out_is_told(client, pool):
    async with pool.acquire():
        flow = await start(client, flows.Hold, pool.name, {})
        await waits(pool)
        [waiter] = await pool.waiters()
        await pool.admin.withdraw(waiter.request_id, reason="not today")
        error = await failure(flow)
        assert error.type == "StaleToken" and "not today" in str(error)
    assert await is_free(pool)


async def test_a_placement_that_the_pool_does_not_know_fails_the_workflow(client, pool):
    error = await failure(await start(client, flows.Hold, pool.name, {"placement": "nonsense"}))
    assert error.type == "EngineError" and "nonsense" in str(error)
