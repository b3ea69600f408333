"""A worker that has much to do: `python keyed_backlog.py URL LOG`. What is not of the backlog is written down."""

from __future__ import annotations

import asyncio
import sys

from millpond import KeyedPool
from millpond.keyed import Job

POOL = "backlog"
CONCURRENCY = 3000
SECONDS = 0.01

if __name__ == "__main__":
    pool = KeyedPool(POOL, sys.argv[1])
    log = open(sys.argv[2], "a", buffering=1)

    @pool.job(keep_result=0)
    async def work(job: Job, is_backlog: bool) -> None:
        if not is_backlog:
            log.write(f"{job.key}\n")
        await asyncio.sleep(SECONDS)

    pool.run(concurrency=CONCURRENCY)
