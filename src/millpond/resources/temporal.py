"""Resource pools on Temporal: in workflows, and in the workers that host them.

    from millpond.resources import temporal

    @workflow.defn
    class Train:
        @workflow.run
        async def run(self) -> None:
            async with temporal.acquire("gpus", {"model": "a100"}, reason="train v7") as grant:
                await grant.execute_activity(prepare, grant.resource, start_to_close_timeout=...)
                await grant.execute_activity(train, grant.resource, start_to_close_timeout=...)

    async with temporal.pool_worker(client), Worker(client, ..., plugins=[temporal.Plugin()]):
        ...

Programs and activities use `ResourcePool("gpus", "temporal://host:port/namespace")` as everywhere else.
`python -m millpond.resources.temporal temporal://host:port/namespace` runs a worker that hosts pools.
"""

from __future__ import annotations

from millpond.resources.engines.temporal._in_workflow import Detached, WorkflowGrant, acquire, acquire_all
from millpond.resources.engines.temporal._worker import Plugin, pool_worker
from millpond.resources.engines.temporal._workflow import PoolWorkflow

__all__ = ["Detached", "Plugin", "PoolWorkflow", "WorkflowGrant", "acquire", "acquire_all", "pool_worker"]

if __name__ == "__main__":
    from millpond.resources.engines.temporal._host import main

    main()
