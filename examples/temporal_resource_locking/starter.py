"""The starter: it makes the locks, and starts twelve transfers at once. See the package's docstring."""

from __future__ import annotations

import asyncio
import uuid

from temporalio.client import Client

from millpond import AsyncResourcePool
from temporal_resource_locking.shared import ACCOUNTS, POOL, TASK_QUEUE, address
from temporal_resource_locking.workflows import Audit, Order, Transfer

ORDERS = [
    Order(source, target, amount)
    for amount, (source, target) in enumerate(((a, b) for a in ACCOUNTS for b in ACCOUNTS if a != b), 1)
]


async def main() -> None:
    client = await Client.connect(address())
    async with AsyncResourcePool(POOL, f"temporal://{address()}/default") as locks:
        for account in ACCOUNTS:
            await locks.add(account, exist_ok=True)
        run = uuid.uuid4().hex[:8]
        await asyncio.gather(
            *(
                client.execute_workflow(
                    Transfer.run, order, id=f"{order.source}-to-{order.target}-{run}", task_queue=TASK_QUEUE
                )
                for order in ORDERS
            )
        )
        balances = {
            account: await client.execute_workflow(
                Audit.run, account, id=f"audit-{account}-{run}", task_queue=TASK_QUEUE
            )
            for account in ACCOUNTS
        }
        print(f"{len(ORDERS)} transfers are done: {balances}")
        print(f"together: {sum(balances.values())}")
        print("all is given back" if not await locks.holders() else f"still held: {await locks.holders()}")


if __name__ == "__main__":
    asyncio.run(main())
