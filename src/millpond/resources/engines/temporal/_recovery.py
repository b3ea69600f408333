"""What a closed run of a pool left, for the one that comes after it.

The closed run is asked. If it cannot answer, its history is read: what every batch led to stands there. Nobody knows
what else happened, so then nothing is lent before an operator says that it may be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from millpond.resources._rules import changes
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.state import State
from millpond.resources.engines.temporal import _messages
from millpond.resources.engines.temporal._hosted_pool import LIMIT, HostedPool
from millpond.resources.engines.temporal._pool_client import payload_limit

LAG: Final = 1.0
"""Seconds after which Temporal's visibility usually knows of a run."""


async def recover_state(client: Client, workflow_id: str, heir: str, previous: str | None) -> bytes:
    """Return what the run `previous` left to the run `heir`, frozen; None looks for the last one that was closed."""
    limit = await payload_limit(client)
    found = await _Search(client, workflow_id, heir).recover(previous)
    found.limit = limit
    if found.carried is not None:
        found.carried.limit = limit
        _messages.freeze_to_fit(
            found.carried, min(limit or LIMIT, LIMIT) * 95 // 100
        )  # leaves out what can be left out
    return _messages.freeze(found)


class _Search:
    """The way back through the runs of a pool, to one that knows something."""

    def __init__(self, client: Client, workflow_id: str, heir: str) -> None:
        self._client = client
        self._workflow_id = workflow_id
        self._heir = heir
        self._seen = {heir}

    async def recover(self, run_id: str | None) -> _messages.Recovered:
        """Return what a run left; None looks for the last one."""
        if run_id is None:
            run_id = await self._last()
        if not run_id or run_id in self._seen:
            return _messages.Recovered()
        self._seen.add(run_id)
        handle = self._client.get_workflow_handle(self._workflow_id, run_id=run_id)
        try:
            found = await handle.query(_messages.CARRIED_STATE, result_type=RawValue)
            carried = _messages.thaw(found.payload.data, _messages.CarriedState)
        except (WorkflowQueryFailedError, ValueError) as error:
            return await self._salvage(run_id, str(error))
        except RPCError as error:
            if error.status != RPCStatusCode.FAILED_PRECONDITION and activity.info().attempt < 5:
                raise
            return await self._salvage(run_id, str(error))
        return _messages.Recovered(carried, await self._signals(await self._history(run_id)))

    async def _last(self) -> str:
        """Return the last run, for a pool that was started by hand; "" if there is none, or it was dropped."""
        name = self._workflow_id.replace("'", "''")
        for _ in range(2):
            await asyncio.sleep(LAG)
            runs = [one async for one in self._client.list_workflows(f"WorkflowId = '{name}'")]
            runs = [one for one in runs if one.run_id not in self._seen]
            if runs:
                break
        else:
            return ""
        last = max(runs, key=lambda one: one.start_time)
        handle = self._client.get_workflow_handle(self._workflow_id, run_id=last.run_id)
        while (status := (await handle.describe()).status) == WorkflowExecutionStatus.CONTINUED_AS_NEW:
            *_, end = await self._history(handle.run_id or "")  # visibility does not know of the next run yet
            following = end.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
            handle = self._client.get_workflow_handle(self._workflow_id, run_id=following)
        return "" if status == WorkflowExecutionStatus.COMPLETED else handle.run_id or ""

    async def _history(self, run_id: str) -> Sequence[HistoryEvent]:
        handle = self._client.get_workflow_handle(self._workflow_id, run_id=run_id)
        return [event async for event in handle.fetch_history_events()]

    async def _signals(self, events: Sequence[HistoryEvent], *, all_of_them: bool = False) -> list[_messages.Leftover]:
        """Return the signals that a run had received, but never looked at."""
        found: list[_messages.Leftover] = []
        for event in events:
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED and not all_of_them:
                found = []
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                signal = event.workflow_execution_signaled_event_attributes
                values = await self._decode(signal.input.payloads)
                found.append(_messages.Leftover(signal.signal_name, values[0].data if values else b"", len(values)))
        return found

    async def _decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        values = await self._client.data_converter.decode(payloads, [RawValue] * len(payloads))
        return [one.payload for one in values]

    async def _salvage(self, run_id: str, why: str) -> _messages.Recovered:
        """Rebuild what can be rebuilt from a history."""
        events = await self._history(run_id)
        try:
            beginning = await self._beginning(events)
        except ValueError as error:
            beginning = None
            why = f"{why}; {error}"
        if isinstance(beginning, str) or beginning is None:  # it never began, so it has nothing of its own
            left = await self.recover(beginning)
            left.leftovers += await self._signals(events, all_of_them=True)
            return left
        if all(event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in events):
            beginning.leftovers = await self._signals(events)
            return beginning  # it did nothing
        replica = Replica()
        if beginning.carried is not None:
            replica = Replica(State.load(beginning.carried.image), beginning.carried.version)
        now = await self._follow(replica, events)
        hosted = HostedPool(self._workflow_id, self._heir)  # a new incarnation: copies of the old one may know more
        hosted.replica, hosted.now = replica, now
        told = f"its pool was ended and its state could not be read ({why[:200]}): uncordon it when it is surely free"
        return _messages.Recovered(hosted.carried_state(), quarantine=told)

    async def _follow(self, replica: Replica, events: Sequence[HistoryEvent]) -> int:
        """Follow answers for as long as none is missing, and find the resources behind that; return when it ended."""
        lost: dict[str, changes.Added] = {}
        now, is_whole = 0, True
        for event in events:
            try:
                answer = await self._answer(event)
            except ValueError:
                is_whole = False
                continue
            if answer is None:
                continue
            now = max(now, answer.now)
            is_whole = is_whole and answer.base <= replica.version
            if is_whole:
                for entry in answer.entries[replica.version - answer.base :]:
                    replica.follow(entry)
            else:
                found_changes = [change for entry in answer.entries for change in entry.changes]
                lost |= {one.resource.name: one for one in found_changes if isinstance(one, changes.Added)}
        for name, change in lost.items():
            if name not in replica.state.resources:
                slot = len(replica.state.index.slots)
                replica.state.evolve(changes.Added(msgspec.structs.replace(change.resource, slot=slot)), now)
                replica.version += 1
        return now

    async def _beginning(self, events: Sequence[HistoryEvent]) -> _messages.Recovered | str | None:
        """Return what a run began with; if it never did, the run that it was to inherit from."""
        start = await self._decode(events[0].workflow_execution_started_event_attributes.input.payloads)
        data = start[0].data if start else b""
        if start and start[0].metadata.get("encoding") == b"binary/plain":
            return _messages.Recovered(_messages.thaw(data, _messages.CarriedState))
        previous = _messages.read(data, _messages.Opening).previous if data not in (b"", b"null") else None
        if previous == "":
            return _messages.Recovered()
        for event in events:
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                [result] = await self._decode(event.activity_task_completed_event_attributes.result.payloads)
                return _messages.thaw(result.data, _messages.Recovered)  # that is the first thing such a run does
        return previous

    async def _answer(self, event: HistoryEvent) -> _messages.Answer | None:
        """Return what a batch led to, if an event tells that."""
        if event.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
            return None
        outcome = event.workflow_execution_update_completed_event_attributes.outcome
        payloads = await self._decode(outcome.success.payloads)
        if not payloads or payloads[0].metadata.get("encoding") == b"binary/null":  # refused, or not a batch
            return None
        return _messages.read(payloads[0].data, _messages.Answer)
