"""Workers of Temporal in a thread of their own, for as long as a block lasts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from temporalio.worker import Worker

from millpond.resources.engines.temporal._url import parse
from millpond.resources.engines.temporal._worker import pool_worker


@contextlib.contextmanager
def hosted_pools(url: str, **options: Any) -> Iterator[None]:
    """Host the pools of a `temporal://` URL; options are those of `pool_worker`."""
    address = parse(url)

    async def make() -> Worker:
        return pool_worker(await address.connect(), task_queue=address.task_queue, **options)

    with running(make):
        yield


@contextlib.contextmanager
def running(make: Callable[[], Awaitable[Worker]]) -> Iterator[None]:
    """Run the worker that `make` returns; it is called in the loop of the thread."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="temporal_worker"))  # as the SDK names its own
    started = threading.Event()
    stop = asyncio.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        async with await make():
            started.set()
            await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            failures.append(error)
        finally:
            started.set()
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    thread = threading.Thread(target=run, name="millpond-temporal-worker", daemon=True)
    thread.start()
    started.wait()
    try:
        if failures:
            raise failures[0]
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # it is over already
            loop.call_soon_threadsafe(stop.set)
        thread.join(60)
