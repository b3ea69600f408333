"""The rival of resource pools on Temporal: the protocol of its `resource_pool` sample. Not a benchmark itself.

Written for this comparison after a description of what the sample (temporalio/samples-python, state of August 2026)
sends and when, faithful in what that costs and in how it fails; none of its code is here. What `resources_temporal.py`
does not use is left out: handing a resource on through continue-as-new.

The protocol. A pool is one workflow. A requester, which must be a workflow too, signals `acquire_resource` to the pool;
the pool answers with a signal `assign_resource_<id of the pool>` that names the resource and a key; the requester gives
it back with the signal `release_resource` and the key.

What is slow and what goes wrong in it is part of it, and stays:

- Grants are made one by one: the next begins when the server has confirmed the signal of the last one.
- A resource counts as held only from that confirmation on. A requester that is done sooner sends a key that the pool
  does not know yet; the pool ignores it, then marks the resource as held, and it is lost for ever.
- The pool continues as new only when nothing can be assigned, which under load is never.
- A grant goes to a workflow id, not to a run, and a requester that gave up is not withdrawn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    import time

MAX_WAIT = timedelta(minutes=5)


@dataclass
class Request:
    workflow_id: str


@dataclass
class Assignment:
    release_key: str
    resource: str


@dataclass
class Holder:
    workflow_id: str
    release_key: str


@dataclass
class PoolState:
    """What a pool begins with, and what it carries into its next run."""

    resources: dict[str, Holder | None] = field(default_factory=dict)
    waiters: list[Request] = field(default_factory=list)


@workflow.defn(name="SamplePool")
class SamplePool:
    @workflow.init
    def __init__(self, state: PoolState) -> None:
        self.resources = state.resources
        self.waiters = state.waiters
        self.by_key = {holder.release_key: name for name, holder in self.resources.items() if holder is not None}

    @workflow.signal
    async def acquire_resource(self, request: Request) -> None:
        self.waiters.append(request)

    @workflow.signal
    async def release_resource(self, assignment: Assignment) -> None:
        resource = self.by_key.pop(assignment.release_key, None)
        if resource is None:
            workflow.logger.warning("unknown release key, ignored")
        else:
            self.resources[resource] = None

    @workflow.signal
    async def add_resources(self, names: list[str]) -> None:
        for name in names:
            self.resources.setdefault(name, None)

    @workflow.query
    def get_current_holders(self) -> dict[str, Holder | None]:
        return self.resources

    @workflow.run
    async def run(self, _: PoolState) -> None:
        while True:
            await workflow.wait_condition(lambda: self._can_assign() or self._should_continue_as_new())
            if not self._can_assign():
                workflow.continue_as_new(PoolState(self.resources, self.waiters))
            await self._assign_next()

    def _first_free(self) -> str | None:
        return next((name for name, holder in self.resources.items() if holder is None), None)

    def _can_assign(self) -> bool:
        return bool(self.waiters) and self._first_free() is not None

    def _should_continue_as_new(self) -> bool:
        return workflow.info().is_continue_as_new_suggested() and workflow.all_handlers_finished()

    async def _assign_next(self) -> None:
        request, resource = self.waiters.pop(0), self._first_free()
        assert resource is not None
        key = str(workflow.uuid4())
        requester = workflow.get_external_workflow_handle(request.workflow_id)
        try:
            await requester.signal(f"assign_resource_{workflow.info().workflow_id}", Assignment(key, resource))
        except ApplicationError as error:
            if error.type != "ExternalWorkflowExecutionNotFound":
                raise
            return
        self.resources[resource] = Holder(request.workflow_id, key)
        self.by_key[key] = resource


class SampleClient:
    """How a workflow uses a pool; one for each pool and workflow."""

    def __init__(self, pool_id: str) -> None:
        answer = f"assign_resource_{pool_id}"
        if workflow.get_signal_handler(answer) is not None:
            raise RuntimeError(f"this workflow has a client of {pool_id} already")
        self.pool = workflow.get_external_workflow_handle(pool_id)
        self.assigned: list[Assignment] = []
        workflow.set_signal_handler(answer, self._note)

    async def _note(self, assignment: Assignment) -> None:
        self.assigned.append(assignment)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[str]:
        await self.pool.signal("acquire_resource", Request(workflow.info().workflow_id))
        await workflow.wait_condition(lambda: bool(self.assigned), timeout=MAX_WAIT)
        assignment = self.assigned.pop(0)
        try:
            yield assignment.resource
        finally:
            await self.pool.signal("release_resource", assignment)


@dataclass
class Notes:
    """Of each cycle: which resource, when asked for, got, and about to be given back; on the machine's clock."""

    cycles: list[tuple[str, float, float, float]] = field(default_factory=list)
    replayed: bool = False
    """Whether this was run from history, so that the times are not those of the first time."""


def now() -> float:
    """Read the machine's clock, which a workflow must not do but a stop-watch has to."""
    with workflow.unsafe.sandbox_unrestricted():
        return time.monotonic()


@workflow.defn(name="SampleRequester")
class SampleRequester:
    """Acquires and gives back at once, again and again."""

    def __init__(self) -> None:
        self.seen = Notes()

    @workflow.query
    def notes(self) -> Notes:
        return self.seen

    @workflow.run
    async def run(self, pool_id: str, cycles: int) -> Notes:
        client = SampleClient(pool_id)
        for _ in range(cycles):
            asked = now()
            async with client.acquire() as resource:
                got = now()
                self.seen.cycles.append((resource, asked, got, now()))
            self.seen.replayed |= workflow.unsafe.is_replaying()
        return self.seen
