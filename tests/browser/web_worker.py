"""A worker for the page to look at. usage: python web_worker.py URL"""

from __future__ import annotations

import asyncio
import sys

from millpond import Job, KeyedPool


def make(url: str) -> KeyedPool:
    pool = KeyedPool("tenants", url, slots=256, lease=3.0)

    @pool.job
    async def sync(job: Job, seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)

    @pool.job(max_attempts=1)
    async def bill(job: Job, card: str) -> None:
        raise RuntimeError(f"no such <b>card</b> of {job.key}")

    @pool.job(max_attempts=5, backoff=600)
    async def mail(job: Job) -> None:
        raise ConnectionError("the mail server does not answer")

    return pool


if __name__ == "__main__":
    make(sys.argv[1]).run(concurrency=30)
