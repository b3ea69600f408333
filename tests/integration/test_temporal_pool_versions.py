"""Pools live for years: workers with other rules, other placements and other limits of their own take them over."""

from __future__ import annotations

import asyncio
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, Worker
from temporalio.workflow import NondeterminismError

from millpond.resources._rules import commands as do
from millpond.resources._rules.placement import POLICIES
from millpond.resources._rules.state import State
from millpond.resources._rules.step import Outcome, step
from millpond.resources.engines.temporal import _hosted_pool, _workflow
from millpond.resources.engines.temporal._activities import PoolActivities
from millpond.resources.engines.temporal._worker import Plugin
from millpond.resources.engines.temporal._workflow import PoolWorkflow
from millpond.testing._temporal_host import hosted_pools, running

sys.path.insert(0, str(Path(__file__).parent))
from temporal_pools import Desk, ask, run, until


async def replay(history: WorkflowHistory) -> None:
    with ThreadPoolExecutor(1) as executor:  # whose threads end with the block
        replayer = Replayer(
            workflows=[PoolWorkflow], workflow_task_executor=executor, debug_mode=True, plugins=[Plugin()]
        )  # without a limit of 2 s
        await replayer.replay_workflow(history)


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def rules_of_tomorrow(state: State, command: do.Command, now: int) -> Outcome:
    if isinstance(command, do.Add):
        command = do.Add(command.name.upper(), command.labels, command.capacity)
    return step(state, command, now)


def test_18_new_rules_begin_with_a_new_run_and_stay_with_it(temporal):
    name, queue = fresh("rules"), fresh("rules")
    url = f"{temporal.url()}?task_queue={queue}"

    async def begin(client: Client) -> None:
        await Desk(client, name, queue).start("a")

    async def go_on(client: Client) -> None:
        desk = Desk(client, name, queue)
        await desk.send(do.Add("b", {}))
        assert sorted(await desk.held()) == ["a", "b"]
        with pytest.MonkeyPatch.context() as once:
            once.setattr(_workflow, "UPDATES", 1)
            await desk.send()
            await until(desk.runs, lambda runs: runs >= 2)
        await desk.send(do.Add("c", {}))
        assert sorted(await desk.held()) == ["C", "a", "b"]

    async def go_back(client: Client) -> None:
        history = await Desk(client, name, queue).handle.fetch_history()
        with pytest.raises((NondeterminismError, KeyError)):
            await replay(history)

    with hosted_pools(url):
        run(temporal.address, begin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_hosted_pool.RULES, 2, rules_of_tomorrow)
        with hosted_pools(url):
            run(temporal.address, go_on)
    run(temporal.address, go_back)


def test_18_a_placement_that_is_registered_later_does_not_change_what_was_decided(temporal, monkeypatch):
    name, queue = fresh("placed"), fresh("placed")
    url = f"{temporal.url()}?task_queue={queue}"

    async def begin(client: Client) -> None:
        desk = Desk(client, name, queue)
        await desk.start("a", "b", "c")
        replies = await desk.send(ask("1", placement="last"), ask("2"))
        assert [one.kind for one in replies] == ["refused", "held"]

    async def go_on(client: Client) -> None:
        desk = Desk(client, name, queue)
        [reply] = await desk.send(ask("3", placement="last"))
        assert reply.shares == (("c", 1),)
        assert await desk.held() == {"a": "p:test", "b": None, "c": "p:test"}
        await desk.send(ask("4"), ask("5", placement="last"))

    async def look(client: Client) -> None:
        desk = Desk(client, name, queue)
        assert await desk.held() == {"a": "p:test", "b": "p:test", "c": "p:test"}
        assert [one["request"] for one in await desk.query("get_waiters")] == ["5"]
        history = await desk.handle.fetch_history()
        await replay(history)
        monkeypatch.delitem(POLICIES, "last")
        with pytest.raises(NondeterminismError):  # a worker that does not know it leaves the pool to others
            await replay(history)

    with hosted_pools(url):
        run(temporal.address, begin)
    monkeypatch.setitem(POLICIES, "last", lambda resource, request: (-resource.slot,))
    for stage in (go_on, look):
        with hosted_pools(url):
            run(temporal.address, stage)


def test_18_a_query_that_reaches_a_new_worker_before_the_task_that_is_due_does_no_harm(temporal):
    name, queue = fresh("cold"), fresh("cold")
    url = f"{temporal.url()}?task_queue={queue}"

    async def begin(client: Client) -> None:
        desk = Desk(client, name, queue)
        await desk.start("a", "b")
        await desk.send(ask("1", lease=3_000_000))

    async def take_over(client: Client) -> None:
        """Let queries wait for a worker, then a timer and a signal, then a batch."""
        desk = Desk(client, name, queue)
        queries = [asyncio.create_task(desk.query("get_current_holders")) for _ in range(5)]
        await until(desk.events, lambda found: found["TIMER_FIRED"] > 0)
        await desk.handle.signal("add_resources", ["c"])
        batch = asyncio.create_task(desk.send(ask("2")))
        await asyncio.sleep(0.5)  # they are on their way; if they are not, the test is too kind
        with hosted_pools(url):
            assert [one.kind for one in await batch] == ["held"]
            await asyncio.gather(*queries, return_exceptions=True)  # a busy machine may take too long for some

    async def look(client: Client) -> None:
        desk = Desk(client, name, queue)
        with hosted_pools(url):
            assert await until(desk.held, lambda held: "c" in held) == {"a": "p:test", "b": None, "c": None}
            assert not [why for why in await desk.broken_tasks() if "Nondeterminism" in why]
        await replay(await desk.handle.fetch_history())

    with hosted_pools(url):
        run(temporal.address, begin)
    run(temporal.address, take_over)
    run(temporal.address, look)


def test_18_a_worker_without_the_order_of_pools_leaves_them_to_others(temporal):
    name, queue = fresh("plain"), fresh("plain")
    url = f"{temporal.url()}?task_queue={queue}"

    async def make(**options: Any) -> Worker:
        client = await Client.connect(temporal.address)
        return Worker(
            client, task_queue=queue, workflows=[PoolWorkflow], activities=PoolActivities(queue).activities, **options
        )

    async def begin(client: Client) -> None:
        desk = Desk(client, name, queue)
        await desk.place.start()
        await until(desk.broken_tasks, lambda why: bool(why) and "Worker(..., plugins=" in why[0])

    async def go_on(client: Client) -> None:
        await Desk(client, name, queue).start("a")

    with running(make):
        run(temporal.address, begin)
    with running(partial(make, plugins=[Plugin()])):
        run(temporal.address, go_on)
    with hosted_pools(url):
        run(temporal.address, go_on)
