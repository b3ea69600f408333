"""SAQ, told to try more than once: by default (retries=1) it aborts the jobs of a dead worker instead."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# what is imported here is in the environment of the peer only

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import uvloop
from program import URL, Job, Program, become, do_async, main
from saq import Queue

CONCURRENCY = 10

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # `saq` makes its loop by the policy
queue = Queue.from_url(URL)


async def work(_: Any, *, n: int, k: int, t: int, ms: int) -> None:
    """Do a job; `key` is a word of SAQ's own, hence the short names."""
    await do_async(n, k, t, ms)


settings = {"queue": queue, "functions": [work], "concurrency": CONCURRENCY}


class Saq(Program):
    packages = ("saq", "redis", "hiredis", "uvloop")
    settings: ClassVar[dict[str, Any]] = {
        "worker": "saq SETTINGS",
        "concurrency": CONCURRENCY,
        "concurrency is": "the default; 20 and 100 do not drain faster",
        "loop": "uvloop",
        "results": "none, ttl=-1 (default 600 s)",
        "retries": "3 (default 1, which loses the jobs of a dead worker)",
        "timers": "the defaults: sweeps every 60 s; a job is stuck after its timeout, 10 s",
        "bulk": "100 gathered enqueue(); it has no call for many",
    }
    chunk = 100

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        await queue.connect()
        yield
        await queue.disconnect()

    async def one(self, job: Job) -> None:
        number, key, put, ms = job
        await queue.enqueue("work", n=number, k=key, t=put, ms=ms, retries=3, ttl=-1)

    async def many(self, jobs: list[Job]) -> None:
        await asyncio.gather(*(self.one(job) for job in jobs))

    def work(self) -> None:
        become("saq", "on_saq.settings")


if __name__ == "__main__":
    main(Saq())
