"""A worker that hosts resource pools on Temporal, in a thread of its own, for as long as a block lasts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from millpond.resources.engines.temporal._url import parse
from millpond.resources.engines.temporal._worker import pool_worker


@contextlib.contextmanager
def hosted_pools(url: str, **options: Any) -> Iterator[None]:
    """Host the pools of a `temporal://` URL; options are those of `pool_worker`."""
    address = parse(url)
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        client = await address.connect()
        async with pool_worker(client, task_queue=address.task_queue, **options):
            started.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            failures.append(error)
        finally:
            started.set()
            loop.close()

    thread = threading.Thread(target=run, name="millpond-pool-host", daemon=True)
    thread.start()
    started.wait()
    try:
        if failures:
            raise failures[0]
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # it is over already
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)
