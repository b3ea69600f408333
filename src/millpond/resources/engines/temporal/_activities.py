"""What has to be done outside of workflows: commands to pools, an eye on their holders, what a closed pool left."""

from __future__ import annotations

import asyncio
import weakref
import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from millpond._clock import elapsed
from millpond._events import logger
from millpond.errors import EngineError
from millpond.resources import _changes as to
from millpond.resources._replica import Replica
from millpond.resources._state import State
from millpond.resources.engines.temporal import _messages as say
from millpond.resources.engines.temporal import _sessions
from millpond.resources.engines.temporal._keeper import Keeper
from millpond.resources.engines.temporal._lane import Lane, Place
from millpond.resources.engines.temporal._orders import Order, raw
from millpond.resources.engines.temporal._url import PREFIX, TASK_QUEUE

ROUND: Final = 0.7
"""Seconds between two looks at the workflows that hold."""
EACH: Final = 20
"""So many workflows are looked at one by one every time; of more, those that Temporal's visibility says are closed."""
IDLE: Final = 30.0
"""Seconds without workflows after which nobody looks any more."""


class Office:
    """Carries commands of workflows, those of one worker together."""

    def __init__(self, task_queue: str = TASK_QUEUE, prefix: str = PREFIX) -> None:
        self._task_queue = task_queue
        self._prefix = prefix
        self._lanes: weakref.WeakKeyDictionary[Client, dict[str, Lane]] = weakref.WeakKeyDictionary()

    @activity.defn(name=say.COMMAND)
    async def apply(self, order: RawValue) -> RawValue:
        """Run one command in a pool, which is started if it is not there."""
        wanted = msgspec.json.decode(order.payload.data, type=Order)
        lanes = self._lanes.setdefault(activity.client(), {})
        lane = lanes.get(wanted.pool)
        if lane is None:
            place = Place(activity.client(), self._prefix + wanted.pool, self._task_queue)
            lane = lanes[wanted.pool] = Lane(place, asyncio.get_running_loop())
        try:
            reply = await lane.send(wanted.command, wanted.grace)
        except EngineError as error:
            raise ApplicationError(str(error), type=type(error).__name__) from error
        return raw(msgspec.json.encode(reply))

    @property
    def activities(self) -> list[Callable[..., Any]]:
        """All of them, for a worker."""
        return [self.apply]


class Steward:
    """What pools need done for themselves."""

    def __init__(self, task_queue: str = TASK_QUEUE) -> None:
        self._task_queue = task_queue

    @property
    def activities(self) -> list[Callable[..., Any]]:
        """All of them, for a worker."""
        return [self.watch, self.inherit]

    @activity.defn(name=say.WATCH)
    async def watch(self, workflow_id: str) -> None:
        """Tell a pool which of its workflows are closed, until it has none for a while."""
        place = Place(activity.client(), workflow_id, self._task_queue)
        lane = Lane(place, asyncio.get_running_loop())
        watch = _Watch(place)
        busy = elapsed()
        while elapsed() - busy < IDLE:
            activity.heartbeat()
            try:
                sessions = await place.handle().query(say.CHAINS, result_type=list[str])
                for death in await watch.look(sessions):
                    await lane.send(death)
                if sessions:
                    busy = elapsed()
            except (RPCError, WorkflowQueryFailedError, EngineError) as error:
                logger.warning("a look at workflows failed", extra={"millpond": {"error": str(error)}})
            await asyncio.sleep(ROUND)

    @activity.defn(name=say.INHERIT)
    async def inherit(self, workflow_id: str, run_id: str, previous: str | None) -> RawValue:
        """Return what a closed run of a pool left."""
        client = activity.client()
        if previous is None:
            previous = await _last_closed(client, workflow_id, run_id)
        if not previous:
            return raw(say.write(say.Inheritance()))
        return raw(say.write(await _inherit(client, workflow_id, previous)))


# --- who is alive ----------------------------------------------------------------------------------------------------


class _Watch:
    """Finds the workflows that are closed, with few calls."""

    def __init__(self, place: Place) -> None:
        self._client = place.client
        self._turn = 0

    async def look(self, sessions: list[str]) -> list[say.Death]:
        """Return who is dead, as the server says."""
        if len(sessions) > EACH:
            suspects = await self._suspects(sessions)
            some = [sessions[(self._turn + index) % len(sessions)] for index in range(EACH // 2)]
            self._turn += EACH // 2
            sessions = list(dict.fromkeys([*suspects, *some]))
        deaths = await asyncio.gather(*(self._judge(one) for one in sessions))
        return [one for one in deaths if one is not None]

    async def _suspects(self, sessions: list[str]) -> list[str]:
        """Return those of which visibility has a closed run lately; it may lag, and is never taken for proof."""
        found: list[str] = []
        for start in range(0, len(sessions), 100):
            part = {_sessions.workflow_of(one)[0]: one for one in sessions[start : start + 100]}
            names = ", ".join("'" + name.replace("'", "''") + "'" for name in part)
            query = f"WorkflowId IN ({names}) AND ExecutionStatus != 'Running' AND ExecutionStatus != 'ContinuedAsNew'"
            found += [part[one.id] async for one in self._client.list_workflows(query, limit=200)]
        return found

    async def _judge(self, session: str) -> say.Death | None:
        """Ask the server itself about one workflow: a chain lives while its id's last run is of it, and runs."""
        workflow_id, chain = _sessions.workflow_of(session)
        try:
            found = await self._client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return say.Death(session, 0, "its workflow is gone from the server")
            raise
        info = found.raw_description.workflow_execution_info
        first = info.first_run_id or found.run_id
        if session.startswith("w:") and first != chain:
            return say.Death(session, 0, f"another workflow runs under the id {workflow_id!r}")
        if found.status in (WorkflowExecutionStatus.RUNNING, None):
            return None
        if found.close_time is None:  # paused, or whatever else is not an end
            return None
        how = found.status.name.lower().replace("_", " ")
        return say.Death(session, int(found.close_time.timestamp() * 1_000_000), f"its workflow is closed: {how}")


# --- what is left ----------------------------------------------------------------------------------------------------


async def _last_closed(client: Client, workflow_id: str, run_id: str) -> str:
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


async def _inherit(client: Client, workflow_id: str, run_id: str) -> say.Inheritance:
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
