"""`python -m millpond.resources.temporal URL`: a worker that hosts pools, until it is interrupted."""

from __future__ import annotations

import asyncio
import signal
import sys

from millpond.resources.engines.temporal._url import parse
from millpond.resources.engines.temporal._worker import pool_worker

USAGE = "usage: python -m millpond.resources.temporal temporal://host:port/namespace[?task_queue=...]"


def main(args: list[str] | None = None) -> None:
    """Host pools."""
    args = sys.argv[1:] if args is None else args
    if len(args) != 1 or args[0] in ("-h", "--help"):
        sys.exit(USAGE)
    try:
        asyncio.run(_serve(args[0]))
    except (ValueError, RuntimeError) as error:
        sys.exit(f"{error}\n{USAGE}")


async def _serve(url: str) -> None:
    address = parse(url)
    client = await address.connect()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with pool_worker(client, task_queue=address.task_queue):
        print(f"hosting resource pools of {address.target}/{address.namespace} on {address.task_queue!r}", flush=True)
        await stop.wait()
    await asyncio.sleep(0.2)  # a thread of Temporal's client that calls into an interpreter which ends would break it
