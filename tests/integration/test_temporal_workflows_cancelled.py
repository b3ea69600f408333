"""Workflows that are cancelled, at every point: nothing stays held."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import uuid
from pathlib import Path

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError
from temporalio.service import RPCError, RPCStatusCode

from millpond.resources import temporal
from millpond.resources.engines.temporal import _activities, _in_workflow

sys.path.insert(0, str(Path(__file__).parent))
import temporal_flows as flows
from temporal_play import failure, holds, is_free, let_go, start, until, waits

pytest_plugins = ["temporal_fixtures"]
pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.filterwarnings("ignore:Cannot find activity to cancel"),  # as an error it would end the SDK's worker
]


async def assert_cancelled(flow):
    with pytest.raises(WorkflowFailureError) as caught:
        await flow.result()
    assert isinstance(caught.value.cause, CancelledError)


@pytest.mark.parametrize("is_busy", [False, True], ids=["free", "busy"])
async def test_cancelled_at_every_turn(client, pool, is_busy):
    if is_busy:
        async with pool.acquire():
            turns = [await start(client, flows.CancelledAnywhere, pool.name, turn, True) for turn in range(8)]
            assert [await one.result() for one in turns] == ["cancelled"] * 8
            assert await pool.waiters() == []
    else:
        turns = [await start(client, flows.CancelledAnywhere, pool.name, turn, turn % 2 == 0) for turn in range(16)]
        assert {await one.result() for one in turns} <= {"cancelled", "done"}
    assert await is_free(pool)


async def test_cancelled_while_waiting(client, pool):
    async with pool.acquire():
        flow = await start(client, flows.Hold, pool.name, {})
        await waits(pool)
        await flow.cancel()
        await assert_cancelled(flow)
        assert await pool.waiters() == []
    assert await is_free(pool)


async def test_cancelled_as_soon_as_it_began(client, pool):
    everyone = []
    for number in range(12):
        flow = await start(client, flows.Hold, pool.name, {})
        await asyncio.sleep(0.004 * number)
        await flow.cancel()
        everyone.append(flow)
    for flow in everyone:
        await assert_cancelled(flow)
    assert await is_free(pool)


async def test_cancelled_in_the_moment_of_the_grant(client, pool):
    for number in range(5):
        first = await start(client, flows.Hold, pool.name, {})
        await holds(first)
        second = await start(client, flows.Hold, pool.name, {})
        await waits(pool)
        third = await start(client, flows.Hold, pool.name, {})
        await waits(pool, 2)
        if number % 2:
            await asyncio.gather(first.signal("go_on"), second.cancel())
        else:
            await first.signal("go_on")
            await asyncio.sleep(0.003 * number)
            await second.cancel()
        await assert_cancelled(second)
        await holds(third)
        await let_go(third)
        assert await is_free(pool)


async def test_cancelled_while_releasing(client, pool):
    for number in range(5):
        flow = await start(client, flows.Hold, pool.name, {})
        await holds(flow)
        await flow.signal("go_on")
        await asyncio.sleep(0.002 * number)
        await flow.cancel()
        with contextlib.suppress(WorkflowFailureError):
            await flow.result()
        assert await is_free(pool)


async def test_cancelled_while_holding(client, pool):
    flow = await start(client, flows.Hold, pool.name, {})
    await holds(flow)
    await flow.cancel()
    await assert_cancelled(flow)
    assert await is_free(pool)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_a_pool_that_nobody_hosts_keeps_no_one(client, worker, monkeypatch, how):
    monkeypatch.setattr(_in_workflow, "PATIENCE", 0.3)
    monkeypatch.setattr(_activities, "ATTEMPT", 0.5)
    queue, nobody = uuid.uuid4().hex, uuid.uuid4().hex
    with flows.serving(worker.address, queue, plugins=[temporal.Plugin(task_queue=nobody)]):
        options = {"timeout": 0.3} if how == "timed out" else {}
        flow = await start(client, flows.Hold, nobody, options, task_queue=queue)
        if how == "cancelled":
            await until(lambda: is_there(client.get_workflow_handle(f"millpond:{nobody}")))  # so it has asked
            await flow.cancel()
            await assert_cancelled(flow)
        else:
            assert (await failure(flow)).type == "AcquireTimeout"


async def is_there(flow):
    try:
        return await flow.describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return None
