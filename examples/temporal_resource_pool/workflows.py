"""A workflow that runs several activities while it owns a GPU, and the activity."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from millpond.resources import temporal
    from temporal_resource_pool.shared import POOL, show


@dataclass
class Job:
    """What one user does with a GPU."""

    user: str
    steps: list[str]
    seconds: float = 0.3
    fails: bool = False
    rest: list[str] | None = None  # steps for a second run, which keeps the GPU
    held: temporal.Detached | None = None


@activity.defn
async def use(resource: str, user: str, step: str, seconds: float) -> None:
    """Stand for work on a GPU. It heartbeats, so it hears soon that it is to stop."""
    show(resource, user, f"begins {step}")
    try:
        left = seconds
        while left > 0:
            activity.heartbeat()
            await asyncio.sleep(min(left, 0.1))
            left -= 0.1
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        if details is None or not details.not_found:  # else its workflow is gone: there is nobody to tell
            raise
    finally:
        show(resource, user, f"ends {step}")


@workflow.defn
class UseGpu:
    """Wait for a GPU, then run all steps on it."""

    @workflow.run
    async def run(self, job: Job) -> str:
        """Return which GPU it was."""
        # work_ends_within: an activity hears of its workflow's end with its next heartbeat. Until then it uses the GPU.
        async with temporal.acquire(
            POOL, {"model": "a100"}, timeout=60, reason=job.user, work_ends_within=2, reattach=job.held
        ) as grant:
            for step in job.steps:
                await grant.execute_activity(
                    use,
                    grant.resource,
                    job.user,
                    step,
                    job.seconds,
                    start_to_close_timeout=timedelta(seconds=60),
                    heartbeat_timeout=timedelta(seconds=1),
                )
            if job.fails:
                raise ApplicationError(f"{job.user} found a mistake in its data", non_retryable=True)
            if job.rest:
                # the end of this block leaves the GPU alone: the next run has it
                workflow.continue_as_new(Job(job.user, job.rest, job.seconds, held=grant.detach()))
            return grant.resource
