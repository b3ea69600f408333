"""The starter: it fills the pool, starts its users, and disturbs some of them. See the package's docstring."""

from __future__ import annotations

import asyncio
import uuid

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from millpond import AsyncResourcePool
from temporal_resource_pool.shared import POOL, TASK_QUEUE, address, show
from temporal_resource_pool.workflows import Job, UseGpu

JOBS = [
    Job("ann", ["load", "train", "save"]),
    Job("bob", ["load", "train", "save"]),
    Job("cid", ["load", "train"], rest=["evaluate", "save"]),
    Job("dan", ["load"], fails=True),
    Job("eve", ["load", "train"], seconds=30),
    Job("fay", ["load", "train"], seconds=30),
]


async def main() -> None:
    client = await Client.connect(address())
    async with AsyncResourcePool(POOL, f"temporal://{address()}/default", holder="gil") as gpus:
        for name in ("gpu-0", "gpu-1"):
            await gpus.add(name, labels={"model": "a100"}, exist_ok=True)
        story = asyncio.create_task(tell(gpus))
        handles = {}
        for job in JOBS:
            name = f"{job.user}-{uuid.uuid4().hex[:8]}"
            handles[job.user] = await client.start_workflow(UseGpu.run, job, id=name, task_queue=TASK_QUEUE)
            await until(gpus, name)
        async with asyncio.TaskGroup() as group:
            group.create_task(be_a_user(gpus))
            group.create_task(disturb(gpus, handles["eve"], "cancel"))
            group.create_task(disturb(gpus, handles["fay"], "terminate"))
            results = [group.create_task(outcome(user, handle)) for user, handle in handles.items()]
        await asyncio.sleep(0.1)  # for the last lines of the story
        story.cancel()
        for result in results:
            print(result.result())
        print("all is given back" if not await gpus.holders() else f"still held: {await gpus.holders()}")


async def until(gpus: AsyncResourcePool, name: str, *, holds: bool = False) -> None:
    """Wait until a workflow stands in line, or holds something."""
    while True:
        found = [*await gpus.holders()] if holds else [*await gpus.holders(), *await gpus.waiters()]
        if name in map(str, found):
            return
        await asyncio.sleep(0.05)


async def tell(gpus: AsyncResourcePool) -> None:
    """Print what the pool decides."""
    async for event in gpus.watch():
        if event.name in ("granted", "released", "died"):
            for name in event.data["resources"]:
                show(name, str(event.data["holder"]).partition("-")[0], f"({event.name})")


async def be_a_user(gpus: AsyncResourcePool) -> None:
    """Take a turn as a plain program, in the same line as the workflows. It wants both GPUs, so it waits for all."""
    async with gpus.acquire({"model": "a100"}, count=2, timeout=60, reason="gil") as grant:
        for name in grant.resources:
            show(name, "gil", "begins plotting")
        await asyncio.sleep(0.3)
        for name in grant.resources:
            show(name, "gil", "ends plotting")


async def disturb(gpus: AsyncResourcePool, handle: WorkflowHandle[UseGpu, str], how: str) -> None:
    """Cancel or terminate a workflow in the middle of its work."""
    await until(gpus, handle.id, holds=True)
    await until_it_works(handle)
    await (handle.cancel() if how == "cancel" else handle.terminate("it was in the way"))


async def until_it_works(handle: WorkflowHandle[UseGpu, str]) -> None:
    """Wait until an activity of a workflow has begun."""
    while True:
        pending = (await handle.describe()).raw_description.pending_activities
        if any(activity.HasField("last_started_time") for activity in pending):
            return
        await asyncio.sleep(0.05)


async def outcome(user: str, handle: WorkflowHandle[UseGpu, str]) -> str:
    """Say what became of a workflow."""
    try:
        return f"{user} is done with {await handle.result()}"
    except WorkflowFailureError as error:
        return f"{user} ended: {error.cause}"


if __name__ == "__main__":
    asyncio.run(main())
