"""Histories of pools that ran once are replayed: today's code must come to the same decisions.

The SDK compares commands only. What a batch was answered is compared here, so that a rule that changed without a number
of its own is noticed, too.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from millpond.resources._rules import commands as do
from millpond.resources._rules.state import State
from millpond.resources._rules.step import Outcome, step
from millpond.resources.engines.temporal import _hosted_pool
from millpond.resources.engines.temporal import _messages as say
from millpond.resources.engines.temporal._hosted_pool import HostedPool
from millpond.resources.engines.temporal._worker import Plugin
from millpond.resources.engines.temporal._workflow import PoolWorkflow

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def replay(path: Path) -> tuple[list[say.Answer], list[say.Answer]]:
    """Replay a history; return what batches were answered then, and what they are answered now."""
    history = WorkflowHistory.from_json(f"millpond:{path.stem.rpartition('-')[0]}", path.read_text())
    then: list[say.Answer] = []
    for event in history.events:
        if event.HasField("workflow_execution_update_completed_event_attributes"):
            outcome = event.workflow_execution_update_completed_event_attributes.outcome
            then += [say.read(one.data, say.Answer) for one in outcome.success.payloads]
    now: list[say.Answer] = []
    take = HostedPool.take

    def remember(self: HostedPool, batch: say.Batch, at: int, beyond: frozenset[int]) -> say.Answer:
        answer = take(self, batch, at, beyond)
        now.append(say.read(say.write(answer), say.Answer))
        return answer

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as executor:  # whose threads end with the block
        patch.setattr(HostedPool, "take", remember)
        replayer = Replayer(
            workflows=[PoolWorkflow], workflow_task_executor=executor, debug_mode=True, plugins=[Plugin()]
        )  # no limit of 2 s
        asyncio.run(replayer.replay_workflow(history))
    return then, now


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_recorded_history_is_replayed_to_the_same_answers(path):
    then, now = replay(path)
    assert now == then


def test_histories_are_few_and_small_and_tell_all_that_pools_do():
    assert {path.stem.rpartition("-")[0] for path in HISTORIES} >= {
        "contended",
        "workflows",
        "continued",
        "signals",
        "inherited",
    }
    assert all(path.stat().st_size < 100_000 for path in HISTORIES)
    text = "".join(path.read_text() for path in HISTORIES)
    for event in (
        "TIMER_FIRED",
        "WORKFLOW_EXECUTION_SIGNALED",
        "EXTERNAL_WORKFLOW_EXECUTION_SIGNALED",
        "WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
        "WORKFLOW_EXECUTION_TERMINATED",
        "ACTIVITY_TASK_COMPLETED",
        "WORKFLOW_PROPERTIES_MODIFIED",
    ):
        assert f'"EVENT_TYPE_{event}"' in text


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_changed_decision_is_noticed(path, monkeypatch):
    settle = PoolWorkflow._settle

    def settle_otherwise(self: Any) -> None:
        settle(self)
        workflow.upsert_memo({"something": "else"})

    monkeypatch.setattr(PoolWorkflow, "_settle", settle_otherwise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a replay that is given up leaves coroutines that nobody awaits
        with pytest.raises(NondeterminismError):
            replay(path)
        gc.collect()


def rules_of_tomorrow(state: State, command: do.Command, now: int) -> Outcome:
    """Refuse every second request."""
    if isinstance(command, do.Acquire) and state.seq % 2:
        return Outcome(do.Reply("busy", command.id), [])
    return step(state, command, now)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_18_a_run_goes_on_with_the_rules_that_it_began_with(path, monkeypatch):
    monkeypatch.setitem(_hosted_pool.RULES, 2, rules_of_tomorrow)
    then, now = replay(path)
    assert now == then


def test_18_rules_that_were_changed_in_place_are_noticed(monkeypatch):
    monkeypatch.setitem(_hosted_pool.RULES, 1, rules_of_tomorrow)
    [path] = [path for path in HISTORIES if path.stem == "inherited-1"]
    then, now = replay(path)
    assert now != then
