"""What a closed run of a pool left, for the one that comes after it."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import msgspec
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.common import RawValue
from temporalio.service import RPCError

from millpond.resources import _changes as to
from millpond.resources._replica import Replica
from millpond.resources._state import State
from millpond.resources.engines.temporal import _messages as say
from millpond.resources.engines.temporal._keeper import Keeper


async def last_closed(client: Client, workflow_id: str, run_id: str) -> str:
    """Return the last run before this one, for a pool that was started by hand."""
    name = workflow_id.replace("'", "''")
    for attempt in range(4):  # visibility lags
        found = [one async for one in client.list_workflows(f"WorkflowId = '{name}'") if one.run_id != run_id]
        closed = [one for one in found if one.status != WorkflowExecutionStatus.RUNNING and one.close_time is not None]
        if closed:
            last = max(closed, key=lambda one: one.close_time or one.start_time)
            return "" if last.status == WorkflowExecutionStatus.COMPLETED else last.run_id
        await asyncio.sleep(0.3 * (attempt + 1))
    return ""


async def inherit(client: Client, workflow_id: str, run_id: str) -> say.Inheritance:
    """Ask the closed run; when it cannot answer, read its history."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    leftovers: list[say.Leftover] = []
    try:
        found = await handle.query(say.ESTATE, result_type=RawValue)
        estate = say.thaw(found.payload.data)
    except (WorkflowQueryFailedError, ValueError, msgspec.DecodeError, zlib.error) as error:
        return await _salvage(client, workflow_id, run_id, str(error))
    except RPCError as error:
        if activity.info().attempt < 5:
            raise
        return await _salvage(client, workflow_id, run_id, str(error))
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            leftovers = []
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            signal = event.workflow_execution_signaled_event_attributes
            values = await client.data_converter.decode(signal.input.payloads, [RawValue] * len(signal.input.payloads))
            if len(values) == 1:
                leftovers.append(say.Leftover(signal.signal_name, values[0].payload.data))
    return say.Inheritance(estate, leftovers)


async def _salvage(client: Client, workflow_id: str, run_id: str, why: str) -> say.Inheritance:
    """Rebuild what can be rebuilt from the outcomes in a history; what may be in use is not lent before it is sure."""
    replica, incarnation, now, gap = Replica(), run_id, 0, False
    lost: dict[str, to.Added] = {}
    try:
        async for event in client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
            payloads = _content(event)
            if payloads is None:
                gap = gap or event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
                continue
            values = await client.data_converter.decode(payloads, [RawValue] * len(payloads))
            data = values[0].payload.data if values else b""
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                if values and values[0].payload.metadata.get("encoding") == b"binary/plain":
                    estate = say.thaw(data)
                    replica = Replica(State.load(estate.image), estate.version)
                    incarnation, now = estate.incarnation, estate.now
                continue
            answer = msgspec.json.decode(zlib.decompress(data) if data[:1] == b"x" else data, type=say.Answer)
            now = max(now, answer.now)
            gap = gap or answer.base != replica.version
            for entry in answer.entries:
                if not gap:
                    replica.follow(entry)
                for change in entry.changes:
                    if gap and isinstance(change, to.Added):
                        lost[change.resource.name] = change
    except (RPCError, ValueError, msgspec.DecodeError, KeyError, zlib.error) as error:
        gap, why = True, f"{why}; {error}"
    for name, change in lost.items():
        if name not in replica.state.resources:
            slot = len(replica.state.slots)
            replica.state.evolve(to.Added(msgspec.structs.replace(change.resource, slot=slot)), now)
            replica.version += 1
    keeper = Keeper(workflow_id, incarnation)
    keeper.replica, keeper.now = replica, now
    quarantine = f"its pool was ended and its state could not be read ({why[:200]}): uncordon it when it is surely free"
    return say.Inheritance(keeper.estate(), quarantine=quarantine)


def _content(event: Any) -> Any:
    """Return the payloads of an event that matters, else None."""
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        return event.workflow_execution_started_event_attributes.input.payloads
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
        return event.workflow_execution_update_completed_event_attributes.outcome.success.payloads or None
    return None
