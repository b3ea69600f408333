"""The workflow that is a pool, on a real server: operators, bad input, restarts, and the samples' own protocol.

A number in a test's name is that of the defect of Temporal's sample which it shows to be gone.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from millpond.resources._rules import commands as do
from millpond.resources._rules.records import Holder
from millpond.resources.engines.temporal import _messages as say
from millpond.resources.engines.temporal import _recovery
from waiting import HANG

sys.path.insert(0, str(Path(__file__).parent))
from temporal_pools import Desk, ask, cli, run, start_by_hand, until

HERE = Holder("workflow", "train-7", "01a1dfaf-8c8c-73e5-9121-36fbba0636c5")


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


# --- operators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["docs", "pool sample", "locking sample", "without run", "with resource", "number"])
def test_2_a_release_by_the_stock_tool_works_exactly_as_it_is_printed(pools, shape):
    name = fresh("manual")

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        await desk.start("gpu-0")
        [first, _] = await desk.send(ask("1", holder=HERE), ask("2"))
        found = json.loads(
            cli(pools, "workflow", "query", "-w", desk.id, "--type", "get_current_holders", "-o", "json")
        )["queryResult"][0]["gpu-0"]
        assert found["release_key"] == str(first.token)
        key, run_id, workflow_id = found["release_key"], found["run_id"], found["workflow_id"]
        text = {
            "docs": f'{{"release_key": "{key}"}}',
            "pool sample": f'{{ "release_key": "{key}" }}',
            "locking sample": f'{{ "resource": "gpu-0", "workflow_id": "{workflow_id}", "run_id": "{run_id}" }}',
            "without run": f'{{"resource": "gpu-0", "workflow_id": "{workflow_id}"}}',
            "with resource": f'{{"release_key": "{key}", "resource": "gpu-0"}}',
            "number": f'{{"release_key": {key}}}',
        }[shape]
        cli(pools, "workflow", "signal", "-w", desk.id, "--name", "release_resource", "--input", text)
        await until(desk.held, lambda held: held == {"gpu-0": "p:test"})
        cli(pools, "workflow", "signal", "-w", desk.id, "--name", "release_resource", "--input", text)
        refusals = await until(lambda: desk.query("get_refusals"), bool)
        assert refusals[0]["signal"] == "release_resource"
        assert await desk.held() == {"gpu-0": "p:test"}

    run(pools.address, main)


def test_13_queries_show_waiters_ages_and_grants_whose_letter_is_under_way(pools):
    name = fresh("seen")

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        await desk.start("gpu-0")
        began = time.time()
        held, _, _ = await desk.send(ask("1", reason="train"), ask("2", reason="next"), ask("3"))
        [first, _] = await desk.query("get_waiters")
        found = json.loads(cli(pools, "workflow", "query", "-w", desk.id, "--type", "get_waiters", "-o", "json"))
        waiters = found["queryResult"][0]
        assert [one["request"] for one in waiters] == ["2", "3"]
        assert [one["position"] for one in waiters] == [1, 2]
        assert re.fullmatch(r"gpu-0 is held by p:test.* since \d+ s \(train\)", waiters[0]["why"])
        ages = [first["waiting_for"], waiters[0]["waiting_for"]]
        ages.append((await desk.query("get_current_holders"))["gpu-0"]["held_for"])
        ages.append(time.time() - began + 0.1)
        assert ages == sorted(set(ages))  # they grow, although nothing happened in the pool since
        assert len(await desk.query("get_waiters", 1)) == 1
        # a workflow that nobody serves: the notice about its grant cannot be taken by anybody, and still it is shown
        quiet = await client.start_workflow("Nobody", id=fresh("quiet"), task_queue=fresh("nobody"))
        session = f"w:{quiet.id}/{quiet.first_execution_run_id}"
        await desk.send(do.Withdraw("p:test", "2"), do.Withdraw("p:test", "3"))
        await desk.send(ask("4", session, holder=Holder("workflow", quiet.id, "")), do.Release("p:test", held.token))
        assert await desk.held() == {"gpu-0": quiet.id}
        await quiet.terminate()
        await until(desk.held, lambda held: held == {"gpu-0": None})

    run(pools.address, main)


def test_pools_are_found_by_type_and_memo(pools):
    name = fresh("found")

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        await desk.start("a")
        query = f"WorkflowType = 'MillpondResourcePool' AND WorkflowId = '{desk.id}' AND ExecutionStatus = 'Running'"

        async def look() -> list[Any]:
            return [one async for one in client.list_workflows(query)]

        [found] = await until(look, bool)
        assert "resource pool" in str(await found.memo_value("millpond"))
        listed = cli(pools, "workflow", "list", "--query", query)
        assert desk.id in listed

    run(pools.address, main)


@pytest.mark.parametrize("is_in_use", [True, False])
def test_a_cancelled_pool_ends_only_when_nobody_uses_it(pools, is_in_use):
    name = fresh("cancelled")

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        await desk.start("a")
        if is_in_use:
            await desk.send(ask("1"))
        handle = desk.handle
        cli(pools, "workflow", "cancel", "-w", desk.id)
        if is_in_use:
            [refusal] = await until(lambda: desk.query("get_refusals"), bool)
            assert (refusal["signal"], "in use" in refusal["why"]) == ("(cancel)", True)
            [reply] = await desk.send(ask("2"))
            assert reply.kind == "waiting"
        else:
            with pytest.raises(WorkflowFailureError):
                await asyncio.wait_for(handle.result(), HANG)
            assert (await handle.describe()).status == WorkflowExecutionStatus.CANCELED
            [reply] = await desk.send(ask("2"))  # the next run has its resources
            assert (reply.kind, reply.shares) == ("held", (("a", 1),))

    run(pools.address, main)


@pytest.mark.parametrize(
    ("text", "resources"),
    [
        (None, []),
        ("null", []),
        ('{"resources": {"a": null, "b": null}, "waiters": []}', ["a", "b"]),
        ('{"resources": ["a", "b"]}', ["a", "b"]),
    ],
)
def test_a_pool_can_be_started_by_hand(pools, monkeypatch, text, resources):
    monkeypatch.setattr(_recovery, "LAG", 0.01)  # there was no other run, so visibility has nothing to tell
    name = fresh("by-hand")
    given = ["--input", text] if text is not None else []
    start_by_hand(pools, name, *given)

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        assert sorted(await desk.held()) == resources
        [reply] = await desk.send(ask("1", patient=True))
        assert reply.kind == ("held" if resources else "waiting")

    run(pools.address, main)


def test_a_pool_that_takes_over_from_the_sample_lends_nothing_that_is_held_there(pools, monkeypatch):
    monkeypatch.setattr(_recovery, "LAG", 0.01)  # there was no other run, so visibility has nothing to tell
    name = fresh("taken-over")
    held = {"workflow_id": "somebody", "release_signal": "x"}
    text = json.dumps({"resources": {"a": held, "b": None, "c": None}, "waiters": [{"workflow_id": "nobody"}, 5]})
    start_by_hand(pools, name, "--input", text)

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        refusals = await until(lambda: desk.query("get_refusals"), lambda found: len(found) > 0)
        assert refusals[0]["signal"] == "the pool's input"
        await until(desk.held, lambda held: held["b"] is None)  # nobody is gone
        replies = await desk.send(ask("1"), ask("2"), ask("3"))
        assert [one.kind for one in replies] == ["held", "held", "waiting"]
        await desk.send(do.Mark("a", "active", "ann"))
        assert await desk.held() == dict.fromkeys("abc", "p:test")

    run(pools.address, main)


@pytest.mark.parametrize("text", ["5", '"x"', '{"resources": 5}', "[]"])
def test_a_pool_with_an_input_that_makes_no_sense_says_so_and_ends(pools, text):
    name = fresh("nonsense")
    start_by_hand(pools, name, "--input", text)

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        with pytest.raises(WorkflowFailureError) as caught:
            await asyncio.wait_for(desk.handle.result(), HANG)
        assert "the pool's input is not understood" in str(caught.value.cause)

    run(pools.address, main)


# --- bad input -------------------------------------------------------------------------------------------------------


def payload(data: bytes, encoding: bytes = b"json/plain") -> RawValue:
    return RawValue(Payload(metadata={"encoding": encoding}, data=data))


DEEP = b'{"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
SIGNALS: list[tuple[str, list[Any]]] = [
    ("release_resource", []),
    ("release_resource", [{"release_key": "1"}, "more"]),
    ("release_resource", [5]),
    ("release_resource", [{}]),
    ("release_resource", [None]),
    ("release_resource", [{"release_key": "not a number"}]),
    ("release_resource", [{"release_key": "9" * 5000}]),
    ("release_resource", [{"release_key": 10**40}]),
    ("release_resource", [{"resource": "a", "workflow_id": "stranger"}]),
    ("release_resource", [payload(b"\x00\xff\x80", b"binary/encrypted")]),
    ("release_resource", [payload(b"not json")]),
    ("release_resource", [payload(DEEP)]),
    ("release_resource", [payload(b"", b"")]),
    ("acquire_resource", [{"id": "no workflow"}]),
    ("acquire_resource", ["x"]),
    ("acquire_resource", [{"workflow_id": ""}]),
    ("acquire_resource", [{"workflow_id": "w" * 5000}]),
    ("acquire_resource", [{"workflow_id": "w", "run_id": None}]),
    ("handoff_resource", [{"resource": "a", "workflow_id": "x", "old_run_id": "y", "new_run_id": ""}]),
    ("add_resources", [[""]]),
    ("handoff_resource", [{"resource": "a", "workflow_id": "x", "old_run_id": "y", "new_run_id": "z"}]),
    ("add_resources", [5]),
    ("add_resources", [[5]]),
    ("no such signal", [1, 2, 3]),
    ("millpond", [{}]),
    ("x" * 900, [{}]),
]
UPDATES: list[tuple[str, list[Any]]] = [
    ("apply", []),
    ("apply", [5]),
    ("apply", [{"lane": "x"}]),
    ("apply", [{"lane": "x", "number": 1, "commands": [{"type": "Explode"}]}]),
    ("apply", [{"lane": "x", "number": 2**64}]),
    ("apply", [payload(b"x is not compressed")]),
    ("apply", [payload(b"\x00\xff", b"binary/encrypted")]),
    ("apply", [payload(DEEP)]),
    ("apply", [{}, {}]),
    ("no such update", [{}]),
]


def has_refused(count: int, signal: str, refusals: list[dict[str, Any]]) -> bool:
    return len(refusals) >= count and refusals[-1]["signal"] == signal


def test_4_signals_of_any_shape_are_refused_and_harm_nobody(pools):
    name = fresh("signals")

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        await desk.start("a")
        [first, _] = await desk.send(ask("1"), ask("2"))
        for number, (signal, args) in enumerate(SIGNALS):
            await desk.handle.signal(signal, args=args)
            seen = min(20, number + 1), signal
            refusals = await until(partial(desk.query, "get_refusals"), partial(has_refused, *seen))
            assert refusals[-1]["why"]
        memo = await (await desk.handle.describe()).memo_value("millpond_refused")
        assert "no such signal" in str(memo)
        await desk.handle.signal("release_resource", {"release_key": str(first.token)})
        await until(lambda: desk.query("get_waiters"), lambda waiters: not waiters)
        events = await desk.events()
        assert await desk.broken_tasks() == []
        assert events["WORKFLOW_PROPERTIES_MODIFIED"] >= len(SIGNALS)

    run(pools.address, main)


def test_4_updates_of_any_shape_are_refused_and_harm_nobody(pools):
    name = fresh("updates")

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        await desk.start("a")
        for update, args in UPDATES:
            with pytest.raises(WorkflowUpdateFailedError):
                await desk.handle.execute_update(update, args=args)
        [reply] = await desk.send(ask("1", lease=2**70))
        assert reply.kind == "refused"
        [reply] = await desk.send(ask("1"))
        assert reply.kind == "held"
        assert await desk.broken_tasks() == []

    run(pools.address, main)


def test_4_one_whose_workflow_is_closed_is_passed_over(pools):
    name = fresh("closed")

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        await desk.start("a")
        [first] = await desk.send(ask("1"))
        gone = await client.start_workflow("Nobody", id=fresh("gone"), task_queue=fresh("nobody"))
        chain = gone.first_execution_run_id
        await desk.send(ask("2", f"w:{gone.id}/{chain}"), ask("3", "s:never there/"), ask("4"))
        await gone.terminate()
        await desk.send(do.Release("p:test", first.token))
        await until(desk.held, lambda held: held == {"a": "p:test"})
        assert await desk.query("get_waiters") == []

    run(pools.address, main)


def test_11_grants_of_one_task_go_out_side_by_side(pools):
    name = fresh("side-by-side")
    count = 50

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        await desk.start()
        queue = fresh("nobody")
        starts = [client.start_workflow("Nobody", id=f"{name}-{n}", task_queue=queue) for n in range(count)]
        quiet = await asyncio.gather(*starts)
        await desk.send(*(ask(one.id, f"w:{one.id}/{one.first_execution_run_id}", patient=True) for one in quiet))
        await desk.send(*(do.Add(f"gpu-{number}", {}) for number in range(count)))
        events = await until(desk.events, lambda found: found["EXTERNAL_WORKFLOW_EXECUTION_SIGNALED"] == count)
        assert events["SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"] == count
        initiated: set[int] = set()
        async for event in desk.handle.fetch_history_events():
            if event.HasField("signal_external_workflow_execution_initiated_event_attributes"):
                found = event.signal_external_workflow_execution_initiated_event_attributes
                initiated.add(found.workflow_task_completed_event_id)
        assert len(initiated) == 1  # all with one task
        await asyncio.gather(*(one.terminate() for one in quiet))
        await until(desk.held, lambda held: set(held.values()) == {None})

    run(pools.address, main)


# --- once, and only once ---------------------------------------------------------------------------------------------


def test_the_same_batch_has_one_effect_in_a_run_and_over_continue_as_new(pools, monkeypatch):
    from millpond.resources.engines.temporal import _workflow

    name = fresh("once")

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        await desk.start("a", "b", "c", "d")
        batch = say.Batch("sender", 1, [ask("1"), do.Add("e", {})])
        first = await desk.exchange(batch, "sender-1")
        assert await desk.exchange(batch, "sender-1") == first  # the server's own memory
        monkeypatch.setattr(_workflow, "UPDATES", 1)
        await desk.send()
        await until(desk.runs, lambda runs: runs >= 2)
        monkeypatch.setattr(_workflow, "UPDATES", 1500)
        again = await desk.exchange(batch, "sender-1")
        assert again.replies == first.replies
        assert again.replies[0].token == first.replies[0].token
        assert list(await desk.held()) == list("abcde")
        assert [one for one in (await desk.held()).values() if one] == ["p:test"]

    run(pools.address, main)


def test_no_batch_is_answered_in_the_task_that_continues_as_new(pools, monkeypatch):
    from millpond.resources.engines.temporal import _workflow

    name = fresh("apart")
    monkeypatch.setattr(_workflow, "UPDATES", 20)

    async def main(client: Client) -> None:
        desks = [Desk(client, name) for _ in range(8)]
        await desks[0].start("a", "b")

        async def busy(desk: Desk) -> None:
            for number in range(40):
                await desk.send(ask(f"{desk.lane}-{number}"), do.Withdraw("p:test", f"{desk.lane}-{number}"))

        await asyncio.gather(*(busy(desk) for desk in desks))
        moved = 0
        async for run_id in desks[0].run_ids():
            handle = client.get_workflow_handle(desks[0].id, run_id=run_id)
            events = [event async for event in handle.fetch_history_events()]
            end = events[-1]
            if not end.HasField("workflow_execution_continued_as_new_event_attributes"):
                continue
            moved += 1
            task = end.workflow_execution_continued_as_new_event_attributes.workflow_task_completed_event_id
            answers = [
                event.event_id
                for event in events
                if event.HasField("workflow_execution_update_completed_event_attributes")
            ]
            assert max(answers) < task
        assert moved > 5

    run(pools.address, main)


# --- the samples' protocol -------------------------------------------------------------------------------------------


@workflow.defn
class PoolUser:
    """As a workflow of the sample resource_pool speaks."""

    def __init__(self) -> None:
        self.assigned: list[dict[str, str]] = []
        self.may_go = False

    @workflow.signal
    def go(self) -> None:
        self.may_go = True

    @workflow.query
    def has(self) -> list[str]:
        return [one["resource"] for one in self.assigned]

    @workflow.run
    async def run(self, pool: str) -> str:
        workflow.set_signal_handler(f"assign_resource_{pool}", self.assigned.append)
        handle = workflow.get_external_workflow_handle(pool)
        await handle.signal("acquire_resource", {"workflow_id": workflow.info().workflow_id})
        await workflow.wait_condition(lambda: bool(self.assigned))
        await workflow.wait_condition(lambda: self.may_go)
        await handle.signal("release_resource", self.assigned[0])
        return self.assigned[0]["resource"]


@workflow.defn
class LockUser:
    """As a workflow of the sample resource_locking spoke: it hands its lock on to its next run."""

    def __init__(self) -> None:
        self.assigned: list[str] = []
        self.may_go = False

    @workflow.signal
    def go(self) -> None:
        self.may_go = True

    @workflow.signal
    def assign_resource(self, response: dict[str, str]) -> None:
        self.assigned.append(response["resource"])

    @workflow.run
    async def run(self, pool: str, resource: str = "", old_run: str = "") -> str:
        info = workflow.info()
        handle = workflow.get_external_workflow_handle(pool)
        if not resource:
            await handle.signal("acquire_resource", {"workflow_id": info.workflow_id, "run_id": info.run_id})
            await workflow.wait_condition(lambda: bool(self.assigned))
            await workflow.wait_condition(lambda: self.may_go)
            workflow.continue_as_new(args=[pool, self.assigned[0], info.run_id])
        mine = {"resource": resource, "workflow_id": info.workflow_id}
        await handle.signal("handoff_resource", {**mine, "old_run_id": old_run, "new_run_id": info.run_id})
        await workflow.wait_condition(lambda: self.may_go)
        await handle.signal("release_resource", {**mine, "run_id": info.run_id})
        return resource


@pytest.mark.parametrize("kind", [PoolUser, LockUser])
def test_workflows_that_speak_as_the_samples_do_are_served(pools, kind):
    name, queue = fresh("samples"), fresh("users")

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        await desk.start("a", "b")
        runner = UnsandboxedWorkflowRunner()
        async with Worker(client, task_queue=queue, workflows=[PoolUser, LockUser], workflow_runner=runner):
            users = [
                await client.start_workflow(kind.run, desk.id, id=f"{name}-{n}", task_queue=queue) for n in range(5)
            ]
            served: set[str] = set()
            while len(served) < 5:
                held = await until(desk.held, lambda held: bool({one for one in held.values() if one} - served))
                for one in {one for one in held.values() if one} - served:
                    served.add(one)
                    await client.get_workflow_handle(one).signal("go")
                    if kind is LockUser:
                        handle = client.get_workflow_handle(one)
                        first = users[int(one.rpartition("-")[2])].first_execution_run_id
                        while (await handle.describe()).run_id == first:
                            await asyncio.sleep(0.02)
                        await handle.signal("go")
            assert {await one.result() for one in users} <= {"a", "b"}
        await until(desk.held, lambda held: held == {"a": None, "b": None})
        assert await desk.query("get_refusals") == []

    run(pools.address, main)


def test_a_user_of_the_sample_that_is_terminated_leaves_nothing(pools):
    name, queue = fresh("sample-death"), fresh("users")

    async def main(client: Client) -> None:
        desk = Desk(client, name)
        await desk.start("a")
        async with Worker(client, task_queue=queue, workflows=[PoolUser], workflow_runner=UnsandboxedWorkflowRunner()):
            first = await client.start_workflow(PoolUser.run, desk.id, id=f"{name}-1", task_queue=queue)
            await until(desk.held, lambda held: held == {"a": first.id})
            second = await client.start_workflow(PoolUser.run, desk.id, id=f"{name}-2", task_queue=queue)
            await until(lambda: desk.query("get_waiters"), lambda found: len(found) == 1)
            await first.terminate()
            await until(desk.held, lambda held: held == {"a": second.id})
            await second.signal("go")
            await second.result()

    run(pools.address, main)
