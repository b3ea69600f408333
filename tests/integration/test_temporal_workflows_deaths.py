"""Workflows that end, and workflows that only seem to: whose locks come back, and when."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import uuid
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner

from millpond.resources import AsyncResourcePool
from millpond.resources._rules.records import Holder
from millpond.resources.engines.temporal._watch import Watch
from waiting import HANG, auntil

sys.path.insert(0, str(Path(__file__).parent))
import temporal_flows as flows
from temporal_play import (
    failure,
    has_pending_activity,
    has_said,
    holds,
    is_free,
    let_go,
    stands,
    start,
    until,
    waits,
)
from temporal_pools import Desk, ask

pytest_plugins = ["temporal_fixtures"]
pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.filterwarnings("ignore:Cannot find activity to cancel"),  # as an error it would end the SDK's worker
]


class Looks:
    """Which workflows the watches of pools look after, look by look."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def at(self, workflow_id: str) -> int:
        """Return how many looks at a workflow were begun."""
        return sum(any(f":{workflow_id}/" in one for one in sessions) for sessions in self.seen)

    async def go_on(self, workflow_id: str, count: int = 2) -> None:
        """Wait until one more look at a workflow than `count` is begun: so many were done from now on."""
        before = self.at(workflow_id)
        await auntil(lambda: self.at(workflow_id) > before + count)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    found, look = Looks(), Watch.look

    async def remember(self: Watch, sessions: list[str]) -> Any:
        found.seen.append(sessions)
        return await look(self, sessions)

    monkeypatch.setattr(Watch, "look", remember)
    return found


async def freed(pool: AsyncResourcePool, flow: WorkflowHandle[Any, Any], looks: Looks) -> None:
    """Wait until a workflow that is closed holds nothing any more: a look or two are enough for that."""

    async def holds_nothing() -> bool:
        return all(one.id != flow.id for one in await pool.holders())

    await until(lambda: is_closed(flow))
    before = looks.at(flow.id)
    await until(holds_nothing)
    assert looks.at(flow.id) - before <= 2


async def is_closed(flow: WorkflowHandle[Any, Any]) -> bool:
    return (await flow.describe()).close_time is not None


@pytest.mark.parametrize("how", ["terminated", "run timeout", "execution timeout", "failed"])
async def test_10_a_holder_that_is_closed_is_freed_soon(client, pool, looks, how):
    if how == "failed":
        flow = await start(client, flows.FailsOnce, pool.name, "holding")
        await holds(flow)
        await flow.signal("go_on")
        assert "first run fails" in str(await failure(flow))
    elif how == "terminated":
        flow = await start(client, flows.Hold, pool.name, {})
        await holds(flow)
        await flow.terminate()
    else:  # one that nobody serves is given the resource, whether or not its time is over by then
        limits = {how.replace(" ", "_"): timedelta(seconds=0.3)}
        flow = await start(client, flows.Hold, pool.name, {}, task_queue=uuid.uuid4().hex, **limits)
        holder = Holder("workflow", flow.id, str(flow.first_execution_run_id))
        [reply] = await Desk(client, pool.name).send(
            ask("1", f"w:{flow.id}/{flow.first_execution_run_id}", holder=holder)
        )
        assert reply.kind == "held"
    await freed(pool, flow, looks)
    async with pool.acquire(timeout=HANG):
        pass


async def test_10_among_many_workflows_too(client, pool, looks):
    flow = await start(client, flows.Hold, pool.name, {}, id=f'it\'s "odd" / 50% \\ {uuid.uuid4().hex}')
    await holds(flow)
    everyone = await asyncio.gather(*(start(client, flows.Hold, pool.name, {}) for _ in range(40)))
    await waits(pool, 40)
    await asyncio.gather(*(one.terminate() for one in everyone[:20]))
    await flow.terminate()
    await freed(pool, flow, looks)
    await asyncio.gather(*(one.terminate() for one in everyone[20:]))
    await until(lambda: is_free(pool))


async def test_10_also_beside_ids_that_no_workflow_can_have(client, pool, looks):
    flow = await start(client, flows.Hold, pool.name, {})
    await holds(flow)
    for odd in ("", "x" * 3000, "nobody"):
        await client.get_workflow_handle(f"millpond:{pool.name}").signal("acquire_resource", {"workflow_id": odd})
    await auntil(lambda: looks.at("nobody"))
    await waits(pool, 0)  # they were found to be gone
    await flow.terminate()
    await freed(pool, flow, looks)
    await until(lambda: is_free(pool))


async def test_work_that_goes_on_has_its_time(client, pool):
    flow = await start(client, flows.UsingFor, pool.name, 3600.0, 1.5)
    await until(lambda: has_pending_activity(flow))
    behind = await start(client, flows.Using, pool.name, 0.0)
    await waits(pool)
    await flow.terminate()
    closed = await close_time(flow)
    await behind.result()
    assert began(behind) - closed >= 1.5


@pytest.mark.slow
async def test_work_has_its_time_also_when_the_id_is_used_again(client, pool):
    flow = await start(client, flows.UsingFor, pool.name, 3600.0, 1.5)
    await until(lambda: has_pending_activity(flow))
    await flow.terminate()
    closed = await close_time(flow)
    again = await start(client, flows.Using, pool.name, 0.0, id=flow.id)
    await again.result()
    assert began(again) - closed >= 1.5


async def close_time(flow: WorkflowHandle[Any, Any]) -> float:
    closed = (await flow.describe()).close_time
    assert closed is not None
    return closed.timestamp()


def began(flow: WorkflowHandle[Any, Any]) -> float:
    """Return when a workflow, or the last one of its id, began to use what it holds."""
    return max(one.began for one in flows.uses if one.who == flow.id)


# --- what is no death ---------------------------------------------------------------------------------------------


async def test_continue_as_new_keeps_the_grant_and_its_token(client, pool):
    flow = await start(client, flows.Moves, pool.name, 3)
    await until(lambda: is_held(client, flow))
    waiter = await start(client, flows.Hold, pool.name, {})
    await waits(pool)
    latest = client.get_workflow_handle(flow.id)
    standing = await holds(latest)
    assert len(await pool.holders()) == 1
    [tokens] = await let_go(latest)
    assert tokens == [standing["token"]] * 4
    assert (await holds(waiter))["token"] > standing["token"]
    await let_go(waiter)
    assert await is_free(pool)


async def is_held(client: Client, flow: WorkflowHandle[Any, Any]) -> bool:
    return bool((await client.get_workflow_handle(flow.id).query("standing"))["held"])


async def test_what_an_operator_released_is_not_taken_up(client, pool):
    flow = await start(client, flows.DetachesThen, pool.name)
    flow = client.get_workflow_handle(flow.id)
    await until(lambda: has_said(flow, "next"))
    [holder] = await pool.holders()
    await pool.admin.release("a", token=holder.token, reason="needed elsewhere")
    [found] = await let_go(flow)
    assert "needed elsewhere" in found["lost"]
    assert await is_free(pool)


@pytest.mark.slow
async def test_detached_is_held_until_it_is_taken_up(client, pool, looks):
    flow = await start(client, flows.DetachesThen, pool.name)
    flow = client.get_workflow_handle(flow.id)
    await until(lambda: has_said(flow, "next"))
    [holder] = await pool.holders()
    await looks.go_on(flow.id)
    assert [one.token for one in await pool.holders()] == [holder.token]
    [found] = await let_go(flow)
    assert found["token"] == holder.token
    assert await is_free(pool)


async def test_detached_and_never_taken_up_comes_back_with_the_end(client, pool, looks):
    flow = await start(client, flows.Forgets, pool.name)
    flow = client.get_workflow_handle(flow.id)
    await until(lambda: has_said(flow, "next"))
    assert len(await pool.holders()) == 1
    await let_go(flow)
    await freed(pool, flow, looks)


async def test_only_its_own_workflow_takes_up_what_was_detached(client, pool):
    flow = await start(client, flows.DetachesThen, pool.name)
    flow = client.get_workflow_handle(flow.id)
    await until(lambda: has_said(flow, "next"))
    [holder] = await pool.holders()
    session = f"w:{flow.id}/{holder.host}"
    stolen = {"pool": pool.name, "request_id": holder.request_id, "token": holder.token, "session": session}
    thief = await start(client, flows.Reattaches, pool.name, stolen)
    await thief.signal("go_on")
    assert (await failure(thief)).type == "LeaseLost"
    assert [one.token for one in await pool.holders()] == [holder.token]
    await let_go(flow)


async def test_held_through_the_backoff_of_a_retry(client, pool, looks):
    retry = RetryPolicy(initial_interval=timedelta(hours=1), maximum_attempts=2)
    flow = await start(client, flows.FailsOnce, pool.name, "holding", retry_policy=retry)
    first = flow.first_execution_run_id
    flow = client.get_workflow_handle(flow.id)
    await until(lambda: is_in_its_second_run(flow, str(first)))
    [holder] = await pool.holders()
    await looks.go_on(flow.id)
    assert [one.token for one in await pool.holders()] == [holder.token]
    await flow.terminate()
    await freed(pool, flow, looks)


async def is_in_its_second_run(flow: WorkflowHandle[Any, Any], first: str) -> bool:
    return (await flow.describe()).run_id != first


@pytest.mark.slow
async def test_a_run_that_timed_out_and_is_retried_holds_once(client, pool):
    retry = RetryPolicy(initial_interval=timedelta(seconds=0.1), maximum_interval=timedelta(seconds=0.1))
    flow = await start(client, flows.Hold, pool.name, {}, retry_policy=retry, run_timeout=timedelta(seconds=1))
    await has_lent_again(pool)
    await client.get_workflow_handle(flow.id).terminate()
    await until(lambda: is_free(pool))


async def has_lent_again(pool: AsyncResourcePool) -> None:
    """Wait until somebody holds under one token, and then somebody under a later one."""
    tokens: list[int] = []

    async def look() -> bool:
        found = [one.token for one in await pool.holders()]
        assert len(found) <= 1
        tokens.extend(found)
        return len(set(tokens)) >= 2

    await until(look)
    assert tokens == sorted(tokens)


@pytest.mark.slow
async def test_the_next_run_of_a_cron_gets_what_the_last_one_left(client, pool):
    flow = await start(client, flows.Leaves, pool.name, cron_schedule="@every 1s")
    await has_lent_again(pool)
    await client.get_workflow_handle(flow.id).terminate()
    await until(lambda: is_free(pool))


async def reset(client: Client, flow: WorkflowHandle[Any, Any], first: bool) -> WorkflowHandle[Any, Any]:
    """Reset a workflow to its first or last workflow task."""
    done = [
        event.event_id
        async for event in flow.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    run_id = (await flow.describe()).run_id
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace="default",
            workflow_execution=WorkflowExecution(workflow_id=flow.id, run_id=run_id),
            reason="a test",
            workflow_task_finish_event_id=done[0 if first else -1],
            request_id=uuid.uuid4().hex,
        )
    )
    return client.get_workflow_handle(flow.id)


async def test_a_reset_after_the_grant_goes_on_holding_it(client, pool, looks):
    flow = await start(client, flows.Moves, pool.name, 0)
    before = await holds(flow)
    await flow.signal("nothing")
    await holds(flow)  # which it says when it has heard that
    waiter = await start(client, flows.Hold, pool.name, {})
    await waits(pool)
    again = await reset(client, flow, first=False)
    assert (await holds(again))["token"] == before["token"]
    await looks.go_on(flow.id)
    assert [one.token for one in await pool.holders()] == [before["token"]]
    await let_go(again)
    await holds(waiter)
    await let_go(waiter)
    assert await is_free(pool)


async def test_a_reset_before_the_grant_asks_again_and_holds_once(client, pool):
    flow = await start(client, flows.Hold, pool.name, {})
    before = await holds(flow)
    again = await reset(client, flow, first=True)
    after = await holds(again)
    assert after["token"] > before["token"]
    assert len(await pool.holders()) == 1
    await let_go(again)
    assert await is_free(pool)


# --- the worker of the workflows ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"max_cached_workflows": 0}, 1),
        ({"max_cached_workflows": 1}, 3),  # the worker evicts one for the other while they ask
        ({"workflow_runner": UnsandboxedWorkflowRunner()}, 3),
    ],
    ids=["no cache", "evicted again and again", "no sandbox"],
)
async def test_workers_of_all_kinds(client, pool, worker, options, count):
    queue = uuid.uuid4().hex
    quick = timedelta(seconds=2)  # a task that is evicted while it asks is begun again after this
    with flows.serving(worker.address, queue, **options):
        everyone = [
            await start(client, flows.Moves, pool.name, 1, task_queue=queue, task_timeout=quick) for _ in range(count)
        ]
        first_runs = {one.id: str(one.first_execution_run_id) for one in everyone}
        done: list[Any] = []
        while len(done) < count:
            await until(lambda: is_lent(pool))
            [holder] = await pool.holders()
            latest = client.get_workflow_handle(holder.id)
            await until(partial(waits_in_its_second_run, latest, first_runs[holder.id]))
            done += await let_go(latest)
    assert [len(tokens) for tokens in done] == [2] * count
    assert len({token for tokens in done for token in tokens}) == count
    assert await is_free(pool)


async def waits_in_its_second_run(flow: WorkflowHandle[Any, Any], first: str) -> bool:
    """Return whether the next run has taken up its grant, and the server knows that."""
    if not await is_in_its_second_run(flow, first):
        return False
    done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return any([event.event_type == done async for event in flow.fetch_history_events()])


async def is_lent(pool: AsyncResourcePool) -> bool:
    return bool(await pool.holders())


@pytest.mark.slow
async def test_a_worker_that_is_killed_and_started_again_goes_on_with_the_same_grant(client, pool, worker, looks):
    queue = uuid.uuid4().hex
    program = f"""
import temporal_flows, threading, datetime
soon = datetime.timedelta(seconds=1)
with temporal_flows.serving({worker.address!r}, {queue!r}, sticky_queue_schedule_to_start_timeout=soon):
    print("ready", flush=True)
    threading.Event().wait()
"""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

    def begin() -> subprocess.Popen[str]:
        one = subprocess.Popen(
            [sys.executable, "-c", program], text=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        )
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
        return one

    process = begin()
    try:
        flow = await start(client, flows.Hold, pool.name, {}, task_queue=queue, task_timeout=timedelta(seconds=2))
        waiter = await start(client, flows.Hold, pool.name, {}, task_queue=queue)
        await waits(pool)
        [holder] = await pool.holders()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        await looks.go_on(holder.id)
        assert [one.token for one in await pool.holders()] == [holder.token]
        process = begin()
        first, second = (flow, waiter) if holder.id == flow.id else (waiter, flow)
        [found] = await let_go(first)
        assert found["token"] == holder.token
        await holds(second)
        await let_go(second)
        assert await is_free(pool)
    finally:
        process.kill()
        process.communicate()


async def test_a_worker_without_the_plugin_says_what_is_missing(client, pool, worker):
    queue = uuid.uuid4().hex
    with flows.serving(worker.address, queue, plugins=[]):
        error = await failure(await start(client, flows.Hold, pool.name, {}, task_queue=queue))
    assert error.type == "PluginMissing" and "Plugin()" in str(error)


# --- what is told to a holder -------------------------------------------------------------------------------------


async def test_the_end_of_a_lease_is_told(client, pool):
    flow = await start(client, flows.Listens, pool.name, {"lease": 0.4})
    how, check, release = await flow.result()
    assert "expired" in how and "expired" in check and "expired" in release
    assert await is_free(pool)


async def test_an_operators_release_is_told(client, pool):
    flow = await start(client, flows.Listens, pool.name, {})
    standing = await holds(flow)
    await pool.admin.release("a", token=standing["token"], reason="needed elsewhere")
    assert all("needed elsewhere" in one for one in await flow.result())


async def test_an_operators_release_cancels_the_activity_that_uses_it(client, pool):
    flow = await start(client, flows.Cancelled, pool.name, 3600.0)
    standing = await holds(flow)
    await until(lambda: has_pending_activity(flow))
    await pool.admin.release("a", token=standing["token"], reason="needed elsewhere")
    error = await failure(flow)  # would take an hour
    assert error.type == "LeaseLost" and "needed elsewhere" in str(error)
    assert [one.who for one in flows.uses if one.who == flow.id] == [flow.id]
    assert await is_free(pool)


async def test_a_worker_that_stops_leaves_no_noise(client, pool, worker, caplog):
    """Workflows that wait, that hold and that use it are thrown away with their worker: nobody hears of that."""
    queue = uuid.uuid4().hex
    unheard: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda args: unheard.append(args.exc_value)
    try:
        with flows.serving(worker.address, queue):
            user = await start(client, flows.Cancelled, pool.name, 3600.0, task_queue=queue)
            await holds(user)
            await until(lambda: has_pending_activity(user))
            await start(client, flows.Hold, pool.name, {}, task_queue=queue)
            await waits(pool)
        gc.collect()
    finally:
        sys.unraisablehook = before
    assert not unheard
    await user.terminate()


async def test_a_theft_is_told(client, pool):
    flow = await start(client, flows.Listens, pool.name, {})
    standing = await holds(flow)
    stolen = await pool.admin.steal("a", token=standing["token"], reason="mine now")
    assert len(await flow.result()) == 3
    assert [one.token for one in await pool.holders()] == [stolen.token]
    await stolen.release()


async def test_a_loss_does_not_hide_an_error(client, pool):
    flow = await start(client, flows.Hold, pool.name, {"lease": 0.3})
    await stands(flow, lambda found: found["taken"] and not found["held"])  # it was given it, and lost it
    await flow.signal("go_on")
    error = await failure(flow)
    assert error.type == "LeaseLost" and "expired" in str(error)


async def test_a_lease_that_is_renewed_lasts(client, pool):
    flow = await start(client, flows.Renews, pool.name, 3600.0)
    await holds(flow)
    [before] = await pool.holders()

    async def lasts_longer() -> bool:
        await flow.signal("go_on")
        [after] = await pool.holders()
        assert after.token == before.token
        assert after.expires_in is not None
        return bool(after.held_for + after.expires_in > 3600.001)

    await until(lasts_longer)
    await flow.cancel()
    await until(lambda: is_free(pool))
