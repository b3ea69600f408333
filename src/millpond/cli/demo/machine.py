"""The program of one worker of the demo: what a user would write, and a line on stdout for all that it does.

`python -m millpond.cli.demo.machine URL`. It ends when its stdin does, so it does not outlive the demo.
"""

from __future__ import annotations

import asyncio
import sys

from millpond import Event, Job, KeyedPool
from millpond.cli.demo.telling import end_with_parent, tell
from millpond.keyed import KeyedJob

POOL = "tenants"
SLOTS = 512


def declare(pool: KeyedPool) -> KeyedJob[[int, float], None]:
    """Say what the jobs of this pool do."""

    @pool.job(keep_result=0)
    async def serve(job: Job, number: int, seconds: float) -> None:
        tell("began", key=job.key, number=number)
        await asyncio.sleep(seconds)
        tell("ended", key=job.key, number=number)

    return serve


def hear(event: Event) -> None:
    """Pass on under which id this process is a worker."""
    if event.name in ("worker_joined", "worker_back"):
        tell("joined", id=event.data["worker"])


def main(url: str) -> None:
    """Run a worker until told to end."""
    end_with_parent()
    pool = KeyedPool(POOL, url, slots=SLOTS, on_event=hear)
    declare(pool)
    pool.run(concurrency=50, grace=5)
    tell("left")


if __name__ == "__main__":
    main(*sys.argv[1:])
