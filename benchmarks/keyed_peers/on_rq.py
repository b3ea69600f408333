"""RQ, for its bulk enqueue only: its worker is slow, and does not rerun what it had when killed."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# what is imported here is in the environment of the peer only

from __future__ import annotations

from typing import Any, ClassVar

from program import URL, Job, Program, do, main
from redis import Redis
from rq import Queue

queue = Queue(connection=Redis.from_url(URL))


class Rq(Program):
    packages = ("rq", "redis", "hiredis")
    settings: ClassVar[dict[str, Any]] = {"bulk": "enqueue_many() of 1,000"}

    async def one(self, job: Job) -> None:
        queue.enqueue(do, args=tuple(job))

    async def many(self, jobs: list[Job]) -> None:
        queue.enqueue_many([Queue.prepare_data(do, args=tuple(job)) for job in jobs])


if __name__ == "__main__":
    main(Rq())
