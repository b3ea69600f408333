"""In which order a pool takes what comes with one workflow task: batches last, as if they came with a later one.

The SDK hands a workflow what happened together with the updates that have just come, and lets updates go first. In some
cases it hands out what happened first and the updates later, and when that is replayed, both at once: a timer and a
batch had changed places, the replay gave other commands than the history has, and the pool was stuck for ever. With
batches always last, it does not matter how they are handed out (docs/decisions/0032).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final, TypeAlias, cast

from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

from millpond.resources.engines.temporal import _messages

_HERE: Final = "millpond_updates_last"
Activation: TypeAlias = Any  # the SDK's own types of these have no public names
Completion: TypeAlias = Any


class PoolRunner(UnsandboxedWorkflowRunner):
    """Runs pools with updates last, and other workflows as ever."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Make an instance of a workflow."""
        if det.defn.name != _messages.WORKFLOW:
            return super().create_instance(det)
        det = dataclasses.replace(det, extern_functions={**det.extern_functions, _HERE: bool})
        return cast(WorkflowInstance, _UpdatesLast(super().create_instance(det)))


def insist_on_order() -> None:
    """Leave a pool to other workers where this one would not take updates last."""
    if _HERE not in workflow.extern_functions():
        raise RuntimeError("host pools with temporal.pool_worker(), or with Worker(..., plugins=[temporal.Plugin()])")


class _UpdatesLast:
    def __init__(self, instance: WorkflowInstance) -> None:
        self._instance = instance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)

    def activate(self, act: Activation) -> Completion:
        """Do all that came: first what is no update, then, as if it came later, what is one."""
        updates = [job for job in act.jobs if job.HasField("do_update")]
        if not updates or len(updates) == len(act.jobs):
            return self._instance.activate(act)
        done = self._instance.activate(_with_jobs(act, [job for job in act.jobs if not job.HasField("do_update")]))
        if done.HasField("failed"):
            return done
        later = self._instance.activate(_with_jobs(act, updates))
        if later.HasField("failed"):
            return later
        done.successful.MergeFrom(later.successful)
        return done


def _with_jobs(act: Activation, jobs: list[Any]) -> Activation:
    part = type(act)()
    part.CopyFrom(act)
    del part.jobs[:]
    part.jobs.extend(jobs)
    return part
