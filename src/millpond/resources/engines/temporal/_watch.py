"""Which workflows are closed: the server is asked, with few calls."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Final

from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from millpond._events import logger
from millpond.resources.engines.temporal import _messages, _sessions
from millpond.resources.engines.temporal._pool_client import PoolClient

EACH: Final = 20
"""So many workflows are looked at one by one every time; of the rest, those that Temporal's visibility calls closed."""


class Watch:
    """Finds the workflows that are closed, with few calls."""

    def __init__(self, pool_client: PoolClient) -> None:
        self._client = pool_client.client
        self._turn = 0

    async def look(self, sessions: list[str]) -> list[_messages.Death]:
        """Return who is dead, as the server says. The first are looked at first: those are who hold."""
        rest = sessions[EACH:]
        if rest:
            suspects = await self._suspects(rest)
            some = [rest[(self._turn + index) % len(rest)] for index in range(EACH // 2)]
            self._turn += EACH // 2
            sessions = list(dict.fromkeys([*sessions[:EACH], *suspects, *some]))
        deaths = await asyncio.gather(*(self._judge(one) for one in sessions))
        return [one for one in deaths if one is not None]

    async def _suspects(self, sessions: list[str]) -> list[str]:
        """Return those of which visibility has a closed run lately; it may lag, and is never taken for proof."""
        found: list[str] = []
        for start in range(0, len(sessions), 100):
            part = {_sessions.workflow_of(one)[0]: one for one in sessions[start : start + 100]}
            names = ", ".join("'" + name.replace("'", "''") + "'" for name in part)
            query = f"WorkflowId IN ({names}) AND ExecutionStatus != 'Running' AND ExecutionStatus != 'ContinuedAsNew'"
            try:
                found += [part[one.id] async for one in self._client.list_workflows(query, limit=200)]
            except RPCError as error:  # not all servers can say so; then it takes longer
                logger.warning("no list of closed workflows", extra={"millpond": {"error": str(error)}})
        return found

    async def _judge(self, session: str) -> _messages.Death | None:
        """Ask the server itself about one workflow: a chain lives while its id's last run is of it, and runs."""
        workflow_id, chain = _sessions.workflow_of(session)
        try:
            found = await self._client.get_workflow_handle(workflow_id).describe()
            is_other = session.startswith("w:") and await self._first_run(found) != chain
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):  # no such id, or no id at all
                return _messages.Death(session, int(time.time() * 1_000_000), "its workflow is gone from the server")
            logger.warning("a workflow cannot be seen", extra={"millpond": {"id": workflow_id, "error": str(error)}})
            return None
        if is_other:
            return _messages.Death(
                session, _micro(found.start_time), f"another workflow has the id {workflow_id!r} since"
            )
        if found.status in (WorkflowExecutionStatus.RUNNING, None):
            return None
        if found.close_time is None:  # paused, or whatever else is not an end
            return None
        how = found.status.name.lower().replace("_", " ")
        return _messages.Death(session, _micro(found.close_time), f"its workflow is closed: {how}")

    async def _first_run(self, found: WorkflowExecutionDescription) -> str:
        """Return the run with which a chain began; of a server that does not tell, by the first event."""
        known = found.raw_description.workflow_execution_info.first_run_id
        if known:
            return known
        events = self._client.get_workflow_handle(found.id, run_id=found.run_id).fetch_history_events(page_size=1)
        async for event in events:
            return event.workflow_execution_started_event_attributes.first_execution_run_id
        raise RuntimeError(f"workflow {found.id!r} has no first event")


def _micro(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)
