"""Pools, their workers and their server are ended in every way: nothing is lost, nothing has two owners."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import RawValue

from millpond.resources._rules import commands as do
from millpond.resources.engines.temporal import _messages as say
from millpond.resources.engines.temporal import _recovery, _sender, _workflow
from millpond.resources.engines.temporal._workflow import PoolWorkflow
from millpond.testing._temporal import TUNED, temporal_server
from millpond.testing._temporal_host import hosted_pools

sys.path.insert(0, str(Path(__file__).parent))
from temporal_pools import Desk, ask, load, run, until


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


# --- the pool is ended -----------------------------------------------------------------------------------------------


def test_8_a_terminated_pool_goes_on_where_it_was(pools):
    async def main(client: Client) -> None:
        desk = Desk(client, fresh("terminated"))
        await desk.start("a", "b")
        first, second, third = await desk.send(ask("1"), ask("2"), ask("3"))
        assert (first.kind, second.kind, third.kind) == ("held", "held", "waiting")
        last = say.Batch(desk.lane, desk.number + 1, [ask("4")])
        answer = await desk.exchange(last)
        await desk.handle.terminate("an accident")
        assert (await desk.exchange(last)).replies == answer.replies  # the same batch again has no second effect
        desk.number += 1
        waiters = await desk.query("get_waiters")
        assert [one["request"] for one in waiters] == ["3", "4"]
        stale, released = await desk.send(do.Release("p:test", 5), do.Release("p:test", first.token))
        assert (stale.kind, released.kind) == ("stale", "released")
        holders = await desk.query("get_current_holders")
        assert [one["token"] for one in holders.values()] == sorted(one["token"] for one in holders.values())[::-1]
        assert max(one["token"] for one in holders.values()) > second.token

    run(pools.address, main)


def test_8_a_pool_is_terminated_again_and_again_under_load(pools):
    name = fresh("storm")

    async def terminate(client: Client) -> None:
        await client.get_workflow_handle(f"millpond:{name}").terminate("an accident")

    with load(pools.url(), name, threads=9, resources=4, processes=3) as ledger:
        for _ in range(3):
            ledger.progress(20)  # more than there are threads, so the pool has lent since the last time
            run(pools.address, terminate)
        ledger.progress(20)


def test_8_signals_that_a_terminated_pool_never_saw_take_effect_once(temporal):
    address = f"{temporal.url()}?task_queue=signals-that-wait"

    async def begin(client: Client) -> Desk:
        desk = Desk(client, name, queue="signals-that-wait")
        await desk.start("a", "b", "c")
        await desk.send(ask("1"))
        return desk

    async def meanwhile(client: Client) -> None:
        handle = client.get_workflow_handle(f"millpond:{name}")
        await handle.signal("acquire_resource", {"workflow_id": "somebody"})
        await handle.signal("add_resources", ["d"])
        await handle.terminate("while it has no worker")

    async def after(client: Client) -> None:
        desk = Desk(client, name, queue="signals-that-wait")
        await desk.send()
        holders = await desk.query("get_current_holders")
        assert sorted(holders) == ["a", "b", "c", "d"]
        found = [one["holder"] for one in holders.values() if one]
        assert found in (["p:test", "somebody"], ["p:test"])  # unless it was found to be gone already

    name = fresh("unseen")
    with hosted_pools(address):
        run(temporal.address, begin)
    run(temporal.address, meanwhile)
    with hosted_pools(address):
        run(temporal.address, after)


@pytest.mark.parametrize("trouble", ["question", "replay"])
def test_8_what_cannot_be_read_stands_quarantined(temporal, trouble):
    name, queue = fresh("unreadable"), fresh("unreadable")
    url = f"{temporal.url()}?task_queue={queue}"

    async def begin(client: Client) -> int:
        desk = Desk(client, name, queue)
        await desk.start("a", "b")
        first, _, _ = await desk.send(ask("1"), ask("2"), ask("3"))
        await desk.send(do.Release("p:test", first.token))
        token: int = (await desk.query("get_current_holders"))["a"]["token"]
        await desk.handle.terminate("an accident")
        return token

    async def go_on(client: Client) -> None:
        desk = Desk(client, name, queue)
        [waiting] = await desk.send(ask("4"))
        assert waiting.kind == "waiting"
        assert await desk.held() == {"a": "p:test", "b": "p:test"}
        # whoever is known to hold can give it back, and still it is lent to nobody before somebody says so
        [released] = await desk.send(do.Release("p:test", token))
        assert released.kind == "released"
        assert await desk.held() == {"a": None, "b": "p:test"}
        await desk.send(do.Mark("a", "active", "ann"))
        found = (await desk.query("get_current_holders"))["a"]
        assert found["token"] > token

    with hosted_pools(url):
        token = run(temporal.address, begin)
    with pytest.MonkeyPatch.context() as patch:
        if trouble == "question":
            patch.setattr(PoolWorkflow, "_estate", _broken)
        else:
            patch.setattr(PoolWorkflow, "_live", _other_decisions(PoolWorkflow._live))
        with hosted_pools(url):
            run(temporal.address, go_on)


def _broken(self: Any) -> say.CarriedState:
    raise ValueError("it is all gone")


def _other_decisions(live: Any) -> Any:
    async def live_otherwise(self: Any) -> str:
        await workflow.sleep(0.001)
        found: str = await live(self)
        return found

    return live_otherwise


def test_8_what_an_unreadable_pool_had_inherited_is_not_lost(pools, monkeypatch):
    async def main(client: Client) -> None:
        desk = Desk(client, fresh("twice"))
        await desk.start("a", "b")
        await desk.send(ask("1"))
        await desk.handle.terminate()
        await desk.send(ask("2"))  # in a run that inherited
        monkeypatch.setattr(PoolWorkflow, "_estate", _broken)
        await desk.handle.terminate()
        await desk.place.start()
        assert await desk.held() == {"a": "p:test", "b": "p:test"}
        monkeypatch.undo()
        await desk.handle.terminate()
        [reply] = await desk.send(ask("3", patient=True))
        assert reply.kind == "waiting"  # it is still not sure

    run(pools.address, main)


def test_8_a_run_that_never_began_is_passed_over(pools):
    async def main(client: Client) -> None:
        desk = Desk(client, fresh("never"))
        await desk.start("a")
        [first] = await desk.send(ask("1"))
        await desk.handle.terminate()
        await client.start_workflow(say.WORKFLOW, 5, id=desk.id, task_queue="millpond")  # an input without sense
        with contextlib.suppress(Exception):
            await desk.handle.result()
        nowhere = await client.start_workflow(
            say.WORKFLOW, {"previous": (await desk.handle.describe()).run_id}, id=desk.id, task_queue="nowhere"
        )
        await nowhere.signal("add_resources", ["b"])
        await nowhere.terminate()
        second, third = await desk.send(ask("2"), ask("3"))
        assert second.kind == "held"
        assert second.shares == (("b", 1),)
        assert third.kind == "waiting"
        assert second.token > first.token

    run(pools.address, main)


def test_8_a_run_that_was_ended_before_its_first_task_leaves_what_it_was_given(pools):
    async def main(client: Client) -> None:
        desk = Desk(client, fresh("stillborn"))
        await desk.start("a", "b")
        await desk.send(ask("1"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_workflow, "UPDATES", 1)
            await desk.send()
            await until(desk.runs, lambda runs: runs >= 2)
        data = (await anext(aiter(desk.handle.fetch_history_events()))).workflow_execution_started_event_attributes
        await desk.handle.terminate()
        given = RawValue(data.input.payloads[0])
        await client.start_workflow(say.WORKFLOW, given, id=desk.id, task_queue="nowhere")
        await desk.handle.signal("add_resources", ["c"])
        await desk.handle.terminate()
        replies = await desk.send(ask("2"), ask("3"), ask("4"))
        assert [one.shares for one in replies] == [(("b", 1),), (("c", 1),), ()]

    run(pools.address, main)


def test_8_a_pool_that_is_started_by_hand_inherits_too(pools, monkeypatch):
    monkeypatch.setattr(_recovery, "LAG", 0.01)  # here visibility is waited for

    async def main(client: Client) -> None:
        desk = Desk(client, fresh("by-hand"))

        async def known() -> set[str]:
            """Return the runs that visibility knows of."""
            return {one.run_id async for one in client.list_workflows(f"WorkflowId = '{desk.id}'")}

        async def start_by_hand() -> None:
            run_id = (await desk.handle.describe()).run_id
            await until(known, lambda found: run_id in found)
            await client.start_workflow(say.WORKFLOW, id=desk.id, task_queue="millpond")

        await desk.start("a")
        await desk.send(ask("1"))
        with pytest.MonkeyPatch.context() as patch:  # let the last run be one that continued another
            patch.setattr(_workflow, "UPDATES", 1)
            await desk.send()
            await until(desk.runs, lambda runs: runs >= 2)
        await desk.handle.terminate()
        await start_by_hand()
        assert await desk.held() == {"a": "p:test"}
        await desk.handle.execute_update("drop")
        await desk.handle.result()
        await start_by_hand()
        assert await desk.held() == {}  # it was dropped

    run(pools.address, main)


# --- its worker or its server is ended -------------------------------------------------------------------------------


HOST = """
import asyncio, datetime, sys
from millpond.resources.engines.temporal._url import parse
from millpond.resources.temporal import pool_worker

async def main():
    address = parse(sys.argv[1])
    soon = datetime.timedelta(seconds=1)  # after which the server gives the tasks of a dead worker to others
    async with pool_worker(
        await address.connect(), task_queue=address.task_queue, sticky_queue_schedule_to_start_timeout=soon
    ):
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def host(url: str) -> Iterator[subprocess.Popen[str]]:
    """Host pools in a process of its own, which can be killed."""
    command = [sys.executable, "-c", HOST, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow an outage as long as a busy machine needs to end it."""
    monkeypatch.setattr(_sender, "PATIENCE", 3600.0)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("patient")
def test_a_worker_that_is_killed_loses_nothing(temporal):
    queue, name = fresh("killed"), fresh("killed")
    url = f"{temporal.url()}?task_queue={queue}"

    async def begin(client: Client) -> None:
        soon = timedelta(seconds=2)  # after which a task that was with the dead worker is given to others
        opening = {"previous": ""}
        await client.start_workflow(say.WORKFLOW, opening, id=f"millpond:{name}", task_queue=queue, task_timeout=soon)

    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(host(url))
        run(temporal.address, begin)
        with load(url, name) as ledger:
            for _ in range(2):
                ledger.progress(20)  # more than there are threads
                worker.kill()
                worker = stack.enter_context(host(url))
            ledger.progress(20)


@pytest.mark.usefixtures("patient")
def test_a_server_that_is_killed_loses_nothing(temporal, tmp_path):
    database, name = tmp_path / "temporal.db", "durable"
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(temporal_server(dynamic_config=TUNED, database=database))
        stack.enter_context(host(first.url()))
        with load(first.url(), name) as ledger:
            ledger.progress(20)
            first.process.kill()
            first.process.wait()
            stack.enter_context(temporal_server(dynamic_config=TUNED, database=database, port=first.port))
            ledger.progress(20)


def test_without_a_cache_every_task_replays_everything_and_comes_to_the_same(temporal):
    queue = fresh("no-cache")
    url = f"{temporal.url()}?task_queue={queue}"
    with hosted_pools(url, max_cached_workflows=0), load(url, fresh("no-cache")) as ledger:
        ledger.progress(12)
