"""Where a pool is: how its workflow is started and called."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, UpdateWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from millpond.errors import EngineUnavailable
from millpond.resources.engines.temporal import _messages
from millpond.resources.engines.temporal._orders import raw

ATTEMPT: Final = timedelta(seconds=10)


class Refused(Exception):
    """A pool did not take a batch; `kind` says why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class PoolClient:
    """Where a pool is."""

    def __init__(self, client: Client, workflow_id: str, task_queue: str) -> None:
        self.client = client
        self.workflow_id = workflow_id
        self.task_queue = task_queue

    def handle(self, run_id: str | None = None) -> WorkflowHandle[object, object]:
        """Return what calls it, in whichever run."""
        return self.client.get_workflow_handle(self.workflow_id, run_id=run_id)

    async def update(self, update_id: str, message: bytes) -> bytes:
        """Send the pool a batch to run, and return what it answers.

        The SDK's own call would do, but for its patience: it tries again by itself, and a pool that moves on to a new
        run, in a few milliseconds, would be found there after a second.
        """
        payloads = await self.client.data_converter.encode([raw(message)])
        request = UpdateWorkflowExecutionRequest(
            namespace=self.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=self.workflow_id),
            wait_policy=WaitPolicy(
                lifecycle_stage=UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
            ),
            request=Request(
                meta=Meta(update_id=update_id, identity=self.client.identity),
                input=Input(name=_messages.APPLY, args=Payloads(payloads=payloads)),
            ),
        )
        found = await self.client.workflow_service.update_workflow_execution(request, retry=False, timeout=ATTEMPT)
        if found.outcome.HasField("failure"):
            failure = found.outcome.failure
            raise Refused(failure.application_failure_info.type, failure.message)
        if not found.outcome.success.payloads:
            raise Refused("", "it was not answered yet")
        [value] = await self.client.data_converter.decode(found.outcome.success.payloads, [RawValue])
        answer: bytes = value.payload.data
        return answer

    async def start(self) -> None:
        """Start the pool unless it runs; it inherits from a run that was ended against its will."""
        previous = ""
        try:
            last = await self.handle().describe()
            if last.status == WorkflowExecutionStatus.RUNNING:
                return
            if last.status != WorkflowExecutionStatus.COMPLETED:  # that is how a pool ends that was dropped
                previous = last.run_id
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
        await self.client.start_workflow(
            _messages.WORKFLOW,
            raw(_messages.write(_messages.Opening(previous, await payload_limit(self.client)))),
            id=self.workflow_id,
            task_queue=self.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            memo={"millpond": "resource pool"},
            static_summary=f"Millpond resource pool {self.workflow_id}",
        )

    def unavailable(self, error: BaseException | str) -> EngineUnavailable:
        """Say that the pool does not answer, and what to do."""
        server = self.client.service_client.config.target_host
        return EngineUnavailable(
            f"pool {self.workflow_id!r} on Temporal at {server} does not answer ({error}): is the server there, and a "
            f"worker for task queue {self.task_queue!r}? python -m millpond.resources.temporal runs one"
        )


async def payload_limit(client: Client) -> int:
    """Return how many bytes a payload may have on this server, 0 if it does not tell."""
    try:
        found = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError:
        return 0
    return found.namespace_info.limits.blob_size_limit_error
