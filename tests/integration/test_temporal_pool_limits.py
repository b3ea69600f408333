"""Pools at the limits of a server, which are scaled down here: nothing is lost, nothing is granted twice."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from millpond.errors import PoolFull
from millpond.resources import ResourcePool
from millpond.resources._rules import commands as do
from millpond.resources.engines.temporal import _hosted_pool, _workflow
from millpond.resources.engines.temporal import _messages as say
from millpond.resources.engines.temporal._orders import raw
from millpond.testing._temporal import TUNED, TemporalServer, temporal_server
from millpond.testing._temporal_host import hosted_pools

sys.path.insert(0, str(Path(__file__).parent))
from temporal_pools import Desk, ask, load, run, until


@pytest.fixture(scope="module")
def small(temporal: TemporalServer) -> Iterator[TemporalServer]:
    """A server with a tenth of the usual limits."""
    limits = {
        "limit.historyCount.suggestContinueAsNew": 410,
        "limit.historyCount.error": 5120,
        "history.maximumSignalsPerExecution": 1000,
        "history.maxTotalUpdates": 200,
    }
    with temporal_server(dynamic_config={**TUNED, **limits}) as server, hosted_pools(server.url()):
        yield server


def test_3_a_pool_continues_as_new_under_steady_load(small):
    name = "steady"

    async def third_run(client: Client) -> None:
        await until(Desk(client, name).runs, lambda runs: runs >= 3)

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        assert await desk.broken_tasks() == []
        async for run_id in desk.run_ids():
            assert (await desk.events(run_id)).total() < 1000

    with load(small.url(), name, threads=16, resources=6, processes=4) as ledger:
        ledger.progress(20)
        run(small.address, third_run)
        ledger.progress(20)
    run(small.address, main)


def test_3_signals_do_not_hold_continue_as_new_off(small):
    async def main(client: Client) -> None:
        desk = Desk(client, "signalled")
        await desk.start("a")
        token = (await desk.send(ask("1")))[0].token
        while await desk.runs() < 3:
            for _ in range(4):
                await asyncio.gather(*(desk.handle.signal("release_resource", {"release_key": "1"}) for _ in range(50)))
            assert await desk.held() == {
                "a": "p:test"
            }  # when it has heard them all, which it must before there are 1000
        await desk.handle.signal("release_resource", {"release_key": str(token)})
        await until(desk.held, lambda held: held == {"a": None})

    run(small.address, main)


@workflow.defn
class Tired:
    """A workflow that has had all the signals that it may have."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.signal(dynamic=True)
    def hear(self, name: str, args: Sequence[RawValue]) -> None:
        pass


def test_4_a_requester_that_cannot_be_signalled_any_more_does_not_end_the_pool(small):
    async def main(client: Client) -> None:
        desk = Desk(client, "tired")
        await desk.start("a")
        runner = UnsandboxedWorkflowRunner()
        async with Worker(client, task_queue="tired", workflows=[Tired], workflow_runner=runner):
            tired = await client.start_workflow(Tired.run, id="tired", task_queue="tired")
            for _ in range(20):
                await asyncio.gather(*(tired.signal("x") for _ in range(50)))
            [first] = await desk.send(ask("1"))
            await desk.send(ask("2", f"w:tired/{tired.first_execution_run_id}"), ask("3", "s:tired/"), ask("4"))
            await desk.send(do.Release("p:test", first.token))
            await until(lambda: desk.query("get_waiters"), lambda found: not found)
            await until(desk.held, lambda held: held == {"a": "p:test"})
            refusals = await desk.query("get_refusals")
            assert [one["signal"] for one in refusals] == ["(grant)", "(grant)"]
            assert "could not be told" in refusals[0]["why"]
            await tired.terminate()

    run(small.address, main)


@workflow.defn
class Counts:
    """A workflow that counts what it is told."""

    def __init__(self) -> None:
        self.heard = 0

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.signal(dynamic=True)
    def hear(self, name: str, args: Sequence[RawValue]) -> None:
        self.heard += 1

    @workflow.query
    def count(self) -> int:
        return self.heard


def test_letters_survive_continue_as_new_exactly_once_for_users_of_the_sample(small, monkeypatch):
    monkeypatch.setattr(_workflow, "UPDATES", 3)

    async def main(client: Client) -> None:
        desk = Desk(client, "lettered")
        await desk.start()
        runner = UnsandboxedWorkflowRunner()
        async with Worker(client, task_queue="counts", workflows=[Counts], workflow_runner=runner):
            users = [await client.start_workflow(Counts.run, id=f"counts-{n}", task_queue="counts") for n in range(15)]
            for one in users:
                await desk.handle.signal("acquire_resource", {"workflow_id": one.id})
            for number in range(15):
                await desk.send(do.Add(f"gpu-{number}", {}))
            for one in users:
                await until(partial(one.query, Counts.count), bool)
            assert [await one.query(Counts.count) for one in users] == [1] * 15
            assert await desk.runs() > 3
            await asyncio.gather(*(one.terminate() for one in users))

    run(small.address, main)


def crowd(count: int) -> list[list[do.Command]]:
    """Return batches of requests as workflows have them."""
    names = [(f"train-{uuid.uuid4()}", str(uuid.uuid4())) for _ in range(count)]
    wanted: list[do.Command] = [
        ask(f"#{uuid.uuid4().hex}", f"p:{name}/{run}", reason=f"run {index}") for index, (name, run) in enumerate(names)
    ]
    return [wanted[start : start + 1000] for start in range(0, count, 1000)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_9_twenty_thousand_waiters_continue_as_new(temporal, monkeypatch):
    name = f"crowd-{uuid.uuid4().hex[:8]}"

    async def main(client: Client) -> None:
        desk = Desk(client, name, queue=name)
        await desk.start("a")
        [first] = await desk.send(ask("first"))
        for commands in crowd(20_000):
            replies = await desk.send(*commands)
            assert {one.kind for one in replies} == {"waiting"}
        monkeypatch.setattr(_workflow, "UPDATES", 1)
        await desk.send()
        await until(desk.runs, lambda runs: runs >= 2)
        monkeypatch.setattr(_workflow, "UPDATES", 1500)
        await desk.send(do.Release("p:test", first.token))
        held = await desk.held()
        assert held["a"] not in (None, "p:test")
        assert len(await desk.query("get_waiters")) == 500
        assert await desk.broken_tasks() == []
        # and the whole of it is inherited, too
        await desk.handle.terminate()
        await desk.place.start()
        assert await desk.held() == held
        found = await desk.handle.query(say.NEWS, raw(b"{}"), result_type=RawValue)
        news = say.read(found.payload.data, say.News)
        assert news.image is not None
        assert len(news.image.requests) == 20_000

    # the SDK gives up on a task after 2 s, of which a busy machine may need more; not in debug mode
    with hosted_pools(f"{temporal.url()}?task_queue={name}", debug_mode=True):
        run(temporal.address, main)


def test_9_a_pool_on_a_server_with_smaller_payloads_is_full_earlier(temporal):
    limits = {**TUNED, "limit.blobSize.error": 65_536, "limit.blobSize.warn": 65_536}
    with temporal_server(dynamic_config=limits) as server, hosted_pools(server.url()):

        async def main(client: Client) -> None:
            desk = Desk(client, "narrow")
            await desk.start("a")
            kinds: list[str] = []
            for _ in range(20):
                kinds += [one.kind for one in await desk.send(*(ask(f"#{uuid.uuid4().hex}") for _ in range(100)))]
            assert kinds[0] == "held"
            assert kinds[-1] == "full"
            assert kinds.count("waiting") > 500
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(_workflow, "UPDATES", 1)
                await desk.send()
                await until(desk.runs, lambda runs: runs >= 2)
            [full] = await desk.send(ask("one more", reason="x" * 200))
            assert full.kind == "full"
            assert await desk.held() == {"a": "p:test"}
            assert await desk.broken_tasks() == []
            await desk.handle.terminate()
            [full] = await desk.send(ask("one more", reason="x" * 200))
            assert full.kind == "full"

        run(server.address, main)
        with ResourcePool("narrow", server.url()) as pool, pytest.raises(PoolFull, match="all that Temporal can carry"):
            pool.acquire(reason="x" * 200)


def test_9_a_pool_that_is_too_large_to_continue_as_new_goes_on(temporal, monkeypatch):
    limits = {**TUNED, "limit.blobSize.error": 65_536, "limit.blobSize.warn": 65_536}
    monkeypatch.setattr(_hosted_pool, "_weight", lambda request: 1)  # as if it had been taken for lighter than it is
    monkeypatch.setattr(_workflow, "UPDATES", 50)
    with temporal_server(dynamic_config=limits) as server, hosted_pools(server.url()):

        async def main(client: Client) -> None:
            desk = Desk(client, "bursting")
            await desk.start("a")
            for _ in range(55):
                await desk.send(*(ask(f"#{uuid.uuid4().hex}") for _ in range(80)))
            assert await desk.runs() == 1
            held = (await desk.query("get_current_holders"))["a"]
            await desk.send(do.Release("p:test", held["token"]))
            assert (await desk.query("get_current_holders"))["a"]["token"] > held["token"]
            assert await desk.broken_tasks() == []

        run(server.address, main)
