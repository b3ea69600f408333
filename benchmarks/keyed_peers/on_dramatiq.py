"""dramatiq on Redis; its mutex (a ConcurrentRateLimiter of one) where keys count.

The loser of a mutex raises, and is tried again after a while. That while is 15 s at least by default; here it is 10 to
200 ms, and there is no end to trying, lest contended jobs be given up.

Its threads are in each other's way when jobs do nothing, and it fetches only 2 jobs ahead for each of them. With 2
threads and 100 jobs ahead it drains such jobs nearly twice as fast as with its defaults: both take part in `drain`.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# what is imported here is in the environment of the peer only

from __future__ import annotations

import os
from typing import Any, ClassVar

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend
from program import URL, Job, Program, become, do, main

THREADS = int(os.environ.get("KEYED_THREADS", 8))
PREFETCH = int(os.environ.get("KEYED_PREFETCH", 0))
TIMEOUT = 10

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)
locks = RedisBackend(url=URL)


@dramatiq.actor
def work(number: int, key: int, put: int, ms: int) -> None:
    do(number, key, put, ms)


@dramatiq.actor(max_retries=None, min_backoff=10, max_backoff=200)
def work_alone(number: int, key: int, put: int, ms: int) -> None:
    with ConcurrentRateLimiter(locks, f"lock-{key}", limit=1).acquire():
        do(number, key, put, ms)


class Dramatiq(Program):
    packages = ("dramatiq", "redis", "hiredis")
    settings: ClassVar[dict[str, Any]] = {
        "worker": f"dramatiq --processes 1 --threads {THREADS}",
        "concurrency": THREADS,
        "concurrency is": "the default, threads" if THREADS == 8 else "tuned (default 8), threads",
        "dramatiq_queue_prefetch": PREFETCH or "the default, twice the threads",
        "results": "none, the default",
        "dramatiq_worker_timeout": f"{TIMEOUT} ms (default 1000): how rarely it polls when there is nothing",
        "heartbeat_timeout": "60 s, the default; then by chance, at 1 of 1,000 commands",
        "mutex": "ConcurrentRateLimiter, retried after 10 to 200 ms (default 15 s and more), without end",
        "bulk": "send() one by one; it has no call for many on Redis",
    }
    actor = work_alone if os.environ.get("KEYED_ALONE") else work

    async def one(self, job: Job) -> None:
        self.actor.send(*job)

    def work(self) -> None:
        os.environ.update(dramatiq_worker_timeout=str(TIMEOUT), dramatiq_queue_prefetch=str(PREFETCH))
        become("dramatiq", "on_dramatiq", "--processes", "1", "--threads", str(THREADS), "--skip-logging")


if __name__ == "__main__":
    main(Dramatiq())
