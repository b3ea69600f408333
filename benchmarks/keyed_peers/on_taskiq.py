"""taskiq with the stream broker of taskiq-redis: acknowledges when done, so at least once."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# what is imported here is in the environment of the peer only

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from program import URL, Job, Program, become, do_async, main
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(URL, consumer_id="0")


@broker.task(task_name="work")
async def work(number: int, key: int, put: int, ms: int) -> None:
    await do_async(number, key, put, ms)


class Taskiq(Program):
    packages = ("taskiq", "taskiq-redis", "redis", "hiredis", "uvloop")
    settings: ClassVar[dict[str, Any]] = {
        "worker": "taskiq worker --workers 1",
        "concurrency": 100,
        "concurrency is": "the default",
        "loop": "uvloop",
        "results": "none, the default",
        "consumer_id": "0 (default $), so that jobs put before the first worker count",
        "idle_timeout": "600 s, the default: how long until others take the jobs of a dead worker",
        "bulk": "20 gathered kiq(), quicker than 50, 100 or 1,000; it has no call for many",
    }
    chunk = 20

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        await broker.startup()
        yield
        await broker.shutdown()

    async def one(self, job: Job) -> None:
        await work.kiq(*job)

    async def many(self, jobs: list[Job]) -> None:
        await asyncio.gather(*(work.kiq(*job) for job in jobs))

    def work(self) -> None:
        become("taskiq", "worker", "on_taskiq:broker", "--workers", "1", "--log-level", "WARNING")


if __name__ == "__main__":
    main(Taskiq())
