"""The worker that hosts pools, and the plugin for the workers of those who use them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import ReplayerConfig, UnsandboxedWorkflowRunner, Worker, WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from millpond.errors import PoolError
from millpond.resources._rules.placement import POLICIES
from millpond.resources._rules.records import Request, Resource
from millpond.resources.engines.temporal._activities import PoolActivities, UserActivities
from millpond.resources.engines.temporal._runner import PoolRunner
from millpond.resources.engines.temporal._url import PREFIX, TASK_QUEUE
from millpond.resources.engines.temporal._workflow import PoolWorkflow

_BUILT_IN: Final = frozenset(POLICIES)
Key = Callable[[Resource, Request], tuple[int, ...]]
"""Says how well a resource suits a request: the smallest tuple wins. It must be pure, and stay as it is."""


def pool_worker(
    client: Client,
    *,
    task_queue: str = TASK_QUEUE,
    placements: Mapping[str, Key] | None = None,
    **options: Any,
) -> Worker:
    """Return a worker that hosts resource pools: run it in one program or in many.

    `placements` are your own ways to choose a resource, by name, for `acquire(..., placement=name)`: functions of a
    resource and a request that return a tuple of whole numbers, the smallest of which is the best. They run inside the
    pool's workflow: pure, and the same in all workers; a changed one gets a new name. Other options are a Worker's.
    """
    for name, key in (placements or {}).items():
        if name in _BUILT_IN:
            raise ValueError(f"placement {name!r} is built in: choose another name")
        if not callable(key):
            raise TypeError(f"placement {name!r} must be a function of a resource and a request, not {key!r}")
        POLICIES[name] = key
    options.setdefault("sticky_queue_schedule_to_start_timeout", timedelta(seconds=2))  # a dead host costs no more
    options.setdefault("unsandboxed_workflow_runner", PoolRunner())
    activities = [*options.pop("activities", ()), *PoolActivities(task_queue).activities]
    workflows = [*options.pop("workflows", ()), PoolWorkflow]
    return Worker(client, task_queue=task_queue, workflows=workflows, activities=activities, **options)


class Plugin(SimplePlugin):
    """What a worker needs so that its workflows can acquire: `Worker(..., plugins=[Plugin()])`.

    It adds the activity that speaks with pools, lets `millpond` and `msgspec` pass the sandbox, and makes errors of
    pools fail a workflow (instead of its task). `task_queue` is where pools are hosted that are started on first use.
    A worker or Replayer that has `PoolWorkflow` among its workflows needs it, too.

    Workflows ask by local activities, so let the worker's cache hold all that are busy at once: one that is evicted
    while it asks does so again, but only after its task has timed out.
    """

    def __init__(self, *, task_queue: str = TASK_QUEUE, prefix: str = PREFIX) -> None:
        super().__init__(
            "millpond",
            activities=UserActivities(task_queue, prefix).activities,
            workflow_runner=_let_pass,
            workflow_failure_exception_types=[PoolError],
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """See base class."""
        config = super().configure_worker(config)
        if type(config.get("unsandboxed_workflow_runner")) is UnsandboxedWorkflowRunner:
            config["unsandboxed_workflow_runner"] = PoolRunner()
        return config

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """See base class."""
        config = super().configure_replayer(config)
        if type(config.get("unsandboxed_workflow_runner")) is UnsandboxedWorkflowRunner:
            config["unsandboxed_workflow_runner"] = PoolRunner()
        return config


def _let_pass(runner: WorkflowRunner | None) -> WorkflowRunner:
    if isinstance(runner, SandboxedWorkflowRunner):
        passed = runner.restrictions.with_passthrough_modules("millpond", "msgspec")
        return dataclasses.replace(runner, restrictions=passed)
    if runner is None:
        raise RuntimeError("a worker without a workflow runner")
    return runner
