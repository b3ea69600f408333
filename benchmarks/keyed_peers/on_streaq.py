"""streaq, on coredis and Redis functions, so it needs Redis 7."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# what is imported here is in the environment of the peer only

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from program import URL, Job, Program, do_async, main
from streaq import Worker

CONCURRENCY = 16

worker = Worker(redis_url=URL, concurrency=CONCURRENCY, anyio_kwargs={"use_uvloop": True})


@worker.task(ttl=0, silent=True)
async def work(number: int, key: int, put: int, ms: int) -> None:
    await do_async(number, key, put, ms)


class Streaq(Program):
    packages = ("streaq", "coredis", "hiredis", "uvloop")
    settings: ClassVar[dict[str, Any]] = {
        "worker": "Worker.run_sync(), which is what `streaq run` calls",
        "concurrency": CONCURRENCY,
        "concurrency is": "the default",
        "loop": "uvloop",
        "results": "none, ttl=0 (default 5 min)",
        "idle_timeout": "60 s, the default: how long until others take the jobs of a dead worker",
        "bulk": "enqueue_many() of 1,000",
    }

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        async with worker:
            yield

    async def one(self, job: Job) -> None:
        await work.enqueue(*job)

    async def many(self, jobs: list[Job]) -> None:
        await worker.enqueue_many([work.enqueue(*job) for job in jobs])

    def work(self) -> None:
        worker.run_sync()


if __name__ == "__main__":
    main(Streaq())
