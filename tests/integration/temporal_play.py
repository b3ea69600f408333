"""What tests of workflows that use pools do with them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import temporal_flows as flows
import temporal_pools
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from millpond.resources import AsyncResourcePool


async def start(client: Client, flow: Any, *args: Any, **options: Any) -> WorkflowHandle[Any, Any]:
    options = {"id": uuid.uuid4().hex, "task_queue": flows.TASK_QUEUE, **options}
    return await client.start_workflow(flow.run, args=list(args), **options)


async def until(question: Callable[[], Awaitable[object]]) -> None:
    """Wait until an answer is true; a call that nobody answered in time is made again."""

    async def ask() -> object:
        try:
            return await question()
        except RPCError as error:
            if not temporal_pools.is_late(error):
                raise
            return None

    await temporal_pools.until(ask, bool)


async def stands(flow: WorkflowHandle[Any, Any], is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Wait until a workflow stands as wanted, and return how."""
    found: dict[str, Any] = {}

    async def look() -> object:
        found.update(await flow.query("standing"))
        return is_so(found)

    await until(look)
    return found


async def holds(flow: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    """Wait until a workflow holds, and return what."""
    return await stands(flow, lambda found: found["held"])


async def waits(pool: AsyncResourcePool, count: int = 1) -> None:
    async def all_wait() -> bool:
        return len(await pool.waiters()) == count

    await until(all_wait)


async def is_free(pool: AsyncResourcePool) -> bool:
    return not await pool.holders() and not await pool.waiters()


async def let_go(*handles: WorkflowHandle[Any, Any]) -> list[Any]:
    for one in handles:
        await one.signal("go_on")
    return [await one.result() for one in handles]


async def failure(flow: WorkflowHandle[Any, Any]) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as caught:
        await flow.result()
    assert isinstance(caught.value.cause, ApplicationError), caught.value.cause
    return caught.value.cause


async def waits_for(pool: AsyncResourcePool, flow: WorkflowHandle[Any, Any]) -> bool:
    return any(one.id == flow.id and one.host == flow.first_execution_run_id for one in await pool.waiters())


async def has_holders(pool: AsyncResourcePool, count: int) -> bool:
    return len(await pool.holders()) == count


async def has_said(flow: WorkflowHandle[Any, Any], word: str) -> bool:
    return word in (await flow.query("standing"))["said"]


def assert_no_overlap(found: list[flows.Use], count: int) -> None:
    assert len(found) == count
    for resource in {one.resource for one in found}:
        mine = sorted((one for one in found if one.resource == resource), key=lambda one: one.began)
        assert all(one.ended <= other.began for one, other in itertools.pairwise(mine)), mine


async def has_pending_activity(flow: WorkflowHandle[Any, Any]) -> bool:
    found = (await flow.describe()).raw_description.pending_activities
    return any(one.state == 2 for one in found)  # started
