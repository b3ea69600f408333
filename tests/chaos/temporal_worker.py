"""Programs of the chaos on Temporal: `python temporal_worker.py workflows|plain URL POOL FOLDER SEED`.

Whoever holds a resource locks its device file: the kernel knows whether two use it at once, and lets go when a process
dies. A conflict is noted in `faults`, and a lock or lease of a plain program that was lost before its time; every use with
its token in `uses`, and who made it with its process in `users`.

A use that a busy machine made longer than its limit (that of an activity, or of a lease) is judged by nobody: what it
uses may have been lent again by then, and rightly.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from millpond.errors import LeaseLost, PoolError
    from millpond.resources import ResourcePool, temporal
    from millpond.resources.engines.temporal._url import parse

QUEUE = "chaos"
FAILURE = "it fails while it holds"
LIMIT = 2.0
"""Seconds that an activity may take; leases are longer."""


def note(folder: str, name: str, line: str) -> None:
    with open(os.path.join(folder, name), "a", buffering=1) as file:
        file.write(line + "\n")


@contextlib.contextmanager
def device(folder: str, resource: str, token: int, began: float) -> Iterator[None]:
    """Use a resource; `began` is when that was allowed, by the time of day."""
    path = os.path.join(folder, f"device-{resource}")
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            other, _, since = file.read().strip().partition(" ")
            is_late = _is_late(began) or _is_late(float(since or "inf"))
            if other != str(token) and not is_late:  # the same token: an earlier attempt of the same activity
                note(folder, "faults", f"{resource} is used under {other} and {token}")
            yield
            return
        is_late = _is_late(began)
        file.seek(0)
        file.truncate()
        file.write(f"{token} {0 if is_late else began}")
        file.flush()
        if not is_late:
            note(folder, "uses", f"{resource} {token}")
        note(folder, "users", str(os.getpid()))
        yield


def _is_late(began: float) -> bool:
    return time.time() - began > 0.9 * LIMIT


@activity.defn
async def use(folder: str, resource: str, token: int, seconds: float) -> None:
    with device(folder, resource, token, activity.info().started_time.timestamp()):
        await asyncio.sleep(seconds)


@workflow.defn
class Cycle:
    """Holds a resource several times, with activities; ends as its number says."""

    @workflow.run
    async def run(self, pool: str, folder: str, number: int, rounds: int, kept: temporal.Detached | None = None) -> int:
        for left in range(rounds, 0, -1):
            grant = (
                temporal.acquire(pool, reattach=kept)
                if kept is not None
                else temporal.acquire(pool, work_ends_within=3.0, reason=f"cycle {number}")
            )
            kept = None
            async with grant:
                for _ in range(2):
                    await grant.execute_activity(
                        use,
                        args=[folder, grant.resource, grant.token, 0.02],
                        start_to_close_timeout=timedelta(seconds=LIMIT),
                        retry_policy=RetryPolicy(
                            initial_interval=timedelta(milliseconds=50), maximum_interval=timedelta(milliseconds=200)
                        ),
                    )
                if number % 5 == 1 and left == rounds:
                    raise ApplicationError(FAILURE, non_retryable=True)
                if number % 5 == 2 and left > 1:
                    workflow.continue_as_new(args=[pool, folder, number, left - 1, grant.detach()])
        return number


async def serve(url: str) -> None:
    client = await parse(url).connect()
    async with Worker(client, task_queue=QUEUE, workflows=[Cycle], activities=[use], plugins=[temporal.Plugin()]):
        print("ready", flush=True)
        await asyncio.Event().wait()


def plain(url: str, name: str, folder: str, seed: int) -> None:
    dice = random.Random(seed)
    pool = ResourcePool(name, url, on_lost="ignore", holder=f"plain-{os.getpid()}")
    print("ready", flush=True)
    while True:
        lease = 4.0 if dice.random() < 0.5 else None
        asked = time.time()
        try:
            with pool.acquire(timeout=20, lease=lease) as grant:
                began = time.time()
                grant.check()
                with device(folder, grant.resource, grant.token, began):
                    time.sleep(dice.random() * 0.05)
        except PoolError as error:
            note(folder, "errors", f"{os.getpid()} {type(error).__name__}: {error}")
            if isinstance(error, LeaseLost) and (lease is None or time.time() - asked < 0.9 * lease):
                note(folder, "faults", f"lost before its time: {error}")


async def terminate(url: str, workflow_id: str, *, kindly: bool) -> None:
    """End a workflow from outside, for the test."""
    handle = (await Client.connect(parse(url).target)).get_workflow_handle(workflow_id)
    await (handle.cancel() if kindly else handle.terminate())


if __name__ == "__main__":
    role, url, name, folder, seed = sys.argv[1:]
    assert Path(folder).is_dir()
    if role == "workflows":
        asyncio.run(serve(url))
    else:
        plain(url, name, folder, int(seed))
