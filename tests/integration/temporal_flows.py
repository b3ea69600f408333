"""Workflows that use resource pools in every way the tests need, and a worker for them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from millpond.errors import AcquireTimeout, LeaseLost
from millpond.resources import temporal

with workflow.unsafe.imports_passed_through():
    from temporalio.client import Client
    from temporalio.worker import Worker

    from millpond.resources import AsyncResourcePool
    from millpond.testing._temporal_host import running

TASK_QUEUE = "flows"


class Use(NamedTuple):
    resource: str
    who: str
    began: float
    ended: float


uses: list[Use] = []
"""What activities of this process did with resources, by the clock on the wall."""


@activity.defn
async def use(resource: str, seconds: float, who: str) -> str:
    began = time.time()
    try:
        deadline = began + seconds
        while time.time() < deadline:
            activity.heartbeat()
            await asyncio.sleep(min(0.02, seconds))
    except asyncio.CancelledError:
        await asyncio.sleep(0.2)  # it takes a while to stop, in which nobody else may begin
        raise
    finally:
        uses.append(Use(resource, who, began, time.time()))
    return resource


@activity.defn
async def borrow(pool: str, url: str) -> str:
    async with AsyncResourcePool(pool, url) as mine, mine.acquire(reason="in an activity") as grant:
        return grant.resource


OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(hours=2),
    "heartbeat_timeout": timedelta(seconds=60),
    "retry_policy": RetryPolicy(maximum_attempts=1),
}


class Steered:
    """A workflow that stands still until it is told to go on, and tells how it stands."""

    def __init__(self) -> None:
        self.steps = 0
        self.taken = 0
        self.said: list[Any] = []
        self.grant: temporal.WorkflowGrant | None = None

    async def step(self) -> None:
        self.taken += 1
        await workflow.wait_condition(lambda: self.steps >= self.taken)

    @workflow.signal
    def go_on(self) -> None:
        self.steps += 1

    @workflow.query
    def standing(self) -> dict[str, Any]:
        grant = self.grant
        if grant is None or not grant.is_held:
            return {"held": False, "said": self.said, "taken": self.taken}
        return {"held": True, "said": self.said, "taken": self.taken, "on": grant.resource, "token": grant.token}


def told(grant: temporal.WorkflowGrant) -> dict[str, Any]:
    return {"resources": list(grant.resources), "token": grant.token, "units": dict(grant.units)}


@workflow.defn
class Hold(Steered):
    """Acquires, and holds until it is told to go on."""

    @workflow.run
    async def run(self, pool: str, options: dict[str, Any]) -> dict[str, Any]:
        self.grant = temporal.acquire(pool, **options)
        async with self.grant as grant:
            await self.step()
        return told(grant)


@workflow.defn
class HoldAll(Steered):
    @workflow.run
    async def run(self, pool: str, selectors: list[str], options: dict[str, Any]) -> dict[str, Any]:
        self.grant = temporal.acquire_all(pool, selectors, **options)
        async with self.grant as grant:
            await self.step()
        return told(grant)


@workflow.defn
class HoldTwo:
    """Holds one of each of two pools."""

    @workflow.run
    async def run(self, first: str, second: str) -> list[str]:
        async with temporal.acquire(first) as one, temporal.acquire(second) as two:
            return [one.resource, two.resource]


@workflow.defn
class Cycles:
    """Acquires and lets go at once, again and again."""

    @workflow.run
    async def run(self, pool: str, times: int) -> list[int]:
        tokens = []
        for _ in range(times):
            async with temporal.acquire(pool) as grant:
                tokens.append(grant.token)
        return tokens


@workflow.defn
class Using:
    """Runs activities while it holds."""

    @workflow.run
    async def run(self, pool: str, seconds: float, times: int = 1) -> int:
        async with temporal.acquire(pool, reason="to use it") as grant:
            for _ in range(times):
                await grant.execute_activity(use, grant.resource, seconds, workflow.info().workflow_id, **OPTIONS)
            return grant.token


@workflow.defn
class UsingFor:
    """Declares how long its work may go on without it."""

    @workflow.run
    async def run(self, pool: str, seconds: float, work_ends_within: float) -> None:
        async with temporal.acquire(pool, work_ends_within=work_ends_within) as grant:
            await grant.execute_activity(use, grant.resource, seconds, workflow.info().workflow_id, **OPTIONS)


@workflow.defn
class Many:
    """Acquires several times at once."""

    @workflow.run
    async def run(self, pool: str, count: int, seconds: float) -> list[int]:
        async def one(number: int) -> int:
            async with temporal.acquire(pool) as grant:
                who = f"{workflow.info().workflow_id}/{number}"
                await grant.execute_activity(use, grant.resource, seconds, who, **OPTIONS)
                return grant.token

        return await asyncio.gather(*(one(number) for number in range(count)))


@workflow.defn
class LivesOn(Steered):
    """Gives up waiting, by its own limit or by cancelling, and lives on."""

    @workflow.run
    async def run(self, pool: str, timeout: float, cancels: bool) -> str:
        grant = temporal.acquire(pool, timeout=None if cancels else timeout)
        try:
            if cancels:
                async with asyncio.timeout(timeout):
                    await grant
            else:
                await grant
        except AcquireTimeout as error:
            self.said.append(f"AcquireTimeout: {error}")
        except TimeoutError:
            self.said.append("cancelled")
        await self.step()
        return repr(grant)


@workflow.defn
class Moves(Steered):
    """Keeps its grant through continue-as-new, so many times, and tells all tokens."""

    @workflow.run
    async def run(
        self, pool: str, times: int, detached: temporal.Detached | None = None, tokens: list[int] | None = None
    ) -> list[int]:
        tokens = tokens or []
        self.grant = temporal.acquire(pool, reattach=detached)
        async with self.grant as grant:
            tokens.append(grant.token)
            if len(tokens) > times:
                await self.step()
                return tokens
            workflow.continue_as_new(args=[pool, times, grant.detach(), tokens])


@workflow.defn
class Forgets(Steered):
    """Detaches, continues as new, and never takes it up."""

    @workflow.run
    async def run(self, pool: str, is_next: bool = False) -> None:
        if is_next:
            self.said.append("next")
            await self.step()
            return
        async with temporal.acquire(pool) as grant:
            detached = grant.detach()
            assert detached.pool == pool
            workflow.continue_as_new(args=[pool, True])


@workflow.defn
class Reattaches(Steered):
    """Takes up what it is given, wherever that comes from."""

    @workflow.run
    async def run(self, pool: str, detached: temporal.Detached) -> dict[str, Any]:
        await self.step()
        async with temporal.acquire(pool, reattach=detached) as grant:
            return told(grant)


@workflow.defn
class DetachesThen(Steered):
    """Detaches, and hands over what the next run needs only when it is told to."""

    @workflow.run
    async def run(self, pool: str, detached: temporal.Detached | None = None) -> dict[str, Any]:
        if detached is None:
            async with temporal.acquire(pool) as grant:
                workflow.continue_as_new(args=[pool, grant.detach()])
        self.said.append("next")
        await self.step()
        try:
            async with temporal.acquire(pool, reattach=detached) as grant:
                return told(grant)
        except LeaseLost as error:
            return {"lost": str(error)}


@workflow.defn
class FailsOnce(Steered):
    """Fails its first run in the worst way, without giving anything back, and asks again in the next."""

    @workflow.run
    async def run(self, pool: str, where: str) -> dict[str, Any]:
        if workflow.info().attempt == 1:
            if where == "holding":
                self.grant = await temporal.acquire(pool)
                if workflow.info().retry_policy is None:
                    await self.step()
            else:
                waiting = asyncio.ensure_future(_wait_for(temporal.acquire(pool)))
                await self.step()
                assert not waiting.done()
            raise ApplicationError("the first run fails")
        self.said.append("again")
        self.grant = temporal.acquire(pool, timeout=60)
        async with self.grant as grant:
            await self.step()
        return told(grant)


async def _wait_for(grant: temporal.WorkflowGrant) -> None:
    await grant


@workflow.defn
class MovesWaiting(Steered):
    """Continues as new while it waits, and asks again."""

    @workflow.run
    async def run(self, pool: str, is_next: bool = False) -> dict[str, Any]:
        if not is_next:
            waiting = asyncio.ensure_future(_wait_for(temporal.acquire(pool)))
            await self.step()
            assert not waiting.done()
            workflow.continue_as_new(args=[pool, True])
        self.grant = temporal.acquire(pool)
        async with self.grant as grant:
            await self.step()
        return told(grant)


@workflow.defn
class Listens(Steered):
    """Holds until it is told that it has lost its grant."""

    @workflow.run
    async def run(self, pool: str, options: dict[str, Any]) -> list[str]:
        self.grant = grant = await temporal.acquire(pool, **options)
        how = await grant.lost()
        said = [how]
        for attempt in (grant.check, grant.release):
            try:
                found = attempt()
                if found is not None:
                    await found
            except LeaseLost as error:
                said.append(str(error))
        return said


@workflow.defn
class Renews(Steered):
    """Renews its lease whenever it is told to go on."""

    @workflow.run
    async def run(self, pool: str, lease: float) -> None:
        self.grant = temporal.acquire(pool, lease=lease)
        async with self.grant as grant:
            while True:
                await self.step()
                await grant.renew()


@workflow.defn
class CancelledAnywhere(Steered):
    """Counts its turns in the event loop and cancels its own acquire at the given one."""

    @workflow.run
    async def run(self, pool: str, turn: int, holds: bool) -> str:
        async def work() -> None:
            async with temporal.acquire(pool):
                if holds:
                    await asyncio.sleep(0)

        task = asyncio.ensure_future(work())
        for _ in range(turn):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "done"


@workflow.defn
class Cancelled(Steered):
    """Is cancelled from outside, and says where it got."""

    @workflow.run
    async def run(self, pool: str, seconds: float) -> None:
        self.grant = temporal.acquire(pool)
        async with self.grant as grant:
            await grant.execute_activity(use, grant.resource, seconds, workflow.info().workflow_id, **OPTIONS)


@workflow.defn
class Borrows:
    """Lets an activity acquire."""

    @workflow.run
    async def run(self, pool: str, url: str) -> str:
        return await workflow.execute_activity(borrow, args=[pool, url], **OPTIONS)


@workflow.defn
class Leaves(Steered):
    """Ends without giving anything back."""

    @workflow.run
    async def run(self, pool: str) -> int:
        return (await temporal.acquire(pool, timeout=60)).token


FLOWS = [
    Borrows,
    Leaves,
    Hold,
    HoldAll,
    HoldTwo,
    Cycles,
    Using,
    UsingFor,
    Many,
    LivesOn,
    Moves,
    Forgets,
    Reattaches,
    DetachesThen,
    FailsOnce,
    MovesWaiting,
    Listens,
    Renews,
    CancelledAnywhere,
    Cancelled,
]


@contextlib.contextmanager
def serving(address: str, task_queue: str = TASK_QUEUE, **options: Any) -> Iterator[None]:
    """Run a worker for all these workflows, in a thread of its own."""
    settings: dict[str, Any] = {"plugins": [temporal.Plugin()], "workflows": FLOWS, "activities": [use, borrow]}
    settings |= {"max_heartbeat_throttle_interval": timedelta(seconds=0.2), **options}

    async def make() -> Worker:
        return Worker(await Client.connect(address), task_queue=task_queue, **settings)

    with running(make):
        yield
