"""Who is dead, as the server says: a chain lives on over continue-as-new, also on a server that does not name it."""

from __future__ import annotations

import asyncio

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from millpond.resources.engines.temporal import _sessions
from millpond.resources.engines.temporal._pool_client import PoolClient
from millpond.resources.engines.temporal._watch import Watch


@workflow.defn
class Onward:
    """Continues as new once, then waits."""

    @workflow.run
    async def run(self, left: int) -> None:
        if left:
            workflow.continue_as_new(left - 1)
        await asyncio.sleep(3600)


@pytest.mark.parametrize("tells", [True, False])
def test_a_chain_is_judged_by_its_first_run(temporal, monkeypatch, tells):
    async def main() -> None:
        client = await Client.connect(temporal.address)
        watch = Watch(PoolClient(client, "nobody", "nowhere"))
        async with Worker(client, task_queue=f"watch-{tells}", workflows=[Onward]):
            handle = await client.start_workflow(Onward.run, 2, id=f"onward-{tells}", task_queue=f"watch-{tells}")
            first = handle.first_execution_run_id
            while (found := await handle.describe()).run_id == first:
                await asyncio.sleep(0.01)
            assert await watch._first_run(found) == first
            mine = _sessions.of_workflow(handle.id, str(first))
            others = _sessions.of_workflow(handle.id, "another-run")
            assert [one.session for one in await watch.look([mine, others])] == [others]
            await client.get_workflow_handle(handle.id).terminate()
            [death] = await watch.look([mine])
            assert death.session == mine and "terminated" in death.how

    if not tells:
        real = Watch._first_run

        async def first_run(self, found):
            found.raw_description.workflow_execution_info.first_run_id = ""
            return await real(self, found)

        monkeypatch.setattr(Watch, "_first_run", first_run)
    asyncio.run(main())
