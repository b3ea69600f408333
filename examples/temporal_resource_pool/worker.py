"""The worker: it hosts the pool, and it runs the workflows that use it. See the package's docstring."""

from __future__ import annotations

import asyncio
import signal

from temporalio.client import Client
from temporalio.worker import Worker

from millpond.resources import temporal
from temporal_resource_pool.shared import TASK_QUEUE, address
from temporal_resource_pool.workflows import UseGpu, use


async def main() -> None:
    client = await Client.connect(address())
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    users = Worker(client, task_queue=TASK_QUEUE, workflows=[UseGpu], activities=[use], plugins=[temporal.Plugin()])
    async with temporal.pool_worker(client), users:  # two programs would do as well
        print("worker is ready", flush=True)
        await stop.wait()
    await asyncio.sleep(0.2)  # threads of Temporal's client that outlive the interpreter would crash it


if __name__ == "__main__":
    asyncio.run(main())
