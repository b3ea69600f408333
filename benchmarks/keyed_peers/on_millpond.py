"""Ours: a keyed pool on Redis, with its defaults.

KEYED_KEEP is how long outcomes are kept, in seconds: 0 unless told, as the rivals keep none. KEYED_FACE=async puts jobs
with AsyncKeyedPool, not with KeyedPool.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from program import URL, Program, do_async, main
from program import Job as Plan

from millpond.keyed import AsyncKeyedPool, Job, KeyedPool

KEEP = float(os.environ.get("KEYED_KEEP", 0))
IS_ASYNC = os.environ.get("KEYED_FACE") == "async"

pool = KeyedPool("bench", URL)


@pool.job(keep_result=KEEP)
async def work(_: Job, number: int, key: int, put: int, ms: int) -> None:
    await do_async(number, key, put, ms)


class Millpond(Program):
    packages = ("millpond", "redis", "hiredis")
    settings: ClassVar[dict[str, Any]] = {
        "worker": "KeyedPool.run()",
        "concurrency": 100,
        "concurrency is": "the default",
        "loop": "asyncio's own",
        "results": f"kept for {KEEP:.0f} s, the default" if KEEP == 60 else "none, keep_result=0 (default 60 s)",
        "lease": "5 s, the default",
        "one": "AsyncKeyedPool.dispatch()" if IS_ASYNC else "KeyedPool.dispatch()",
        "bulk": "dispatch_many() of 1,000",
    }

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        if IS_ASYNC:
            async with AsyncKeyedPool("bench", URL) as self.pool:
                self.work_there = self.pool.declare_job("work", keep_result=KEEP)
                yield
        else:
            with pool:
                yield

    async def one(self, job: Plan) -> None:
        if IS_ASYNC:
            await self.work_there.dispatch(str(job.key), *job)
        else:
            work.dispatch(str(job.key), *job)

    async def many(self, jobs: list[Plan]) -> None:
        calls = [(str(job.key), *job) for job in jobs]
        if IS_ASYNC:
            await self.work_there.dispatch_many(calls)
        else:
            work.dispatch_many(calls)

    def work(self) -> None:
        pool.run()


if __name__ == "__main__":
    main(Millpond())
