"""The way of a first user: a pool on Temporal from a plain program, and from a workflow."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from millpond.resources import ResourcePool

with workflow.unsafe.imports_passed_through():
    from millpond.resources import temporal


@workflow.defn
class Two:
    @workflow.run
    async def run(self, pool: str) -> list[str]:
        async with temporal.acquire(pool, reason="one of two") as grant:
            first = grant.resource
            async with temporal.acquire(pool, timeout=60) as other:
                return [first, other.resource]


def test_a_program_and_a_workflow_share_a_pool(pools):
    with ResourcePool("smoke", pools.url()) as pool:
        pool.add("a")
        pool.add("b")
        with pool.acquire() as grant:
            assert grant.resource == "a"

        async def main() -> list[str]:
            client = await Client.connect(pools.address)
            async with Worker(client, task_queue="smoke", workflows=[Two], plugins=[temporal.Plugin()]):
                return await client.execute_workflow(
                    Two.run, "smoke", id="smoke-two", task_queue="smoke", execution_timeout=timedelta(seconds=100)
                )

        assert asyncio.run(main()) == ["a", "b"]
        assert pool.holders() == []
