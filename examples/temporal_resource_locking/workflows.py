"""Workflows that lock what they change, by name, and their activities."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from millpond.resources import temporal, want
    from temporal_resource_locking.shared import POOL

TIMEOUT = timedelta(seconds=10)


@dataclass
class Order:
    """Move an amount between two accounts."""

    source: str
    target: str
    amount: int


class Bank:
    """Balances that anybody can read and write: nothing but the locks keeps order here."""

    def __init__(self, balances: dict[str, int]) -> None:
        self._balances = balances

    @activity.defn
    async def read(self, account: str) -> int:
        """Return a balance."""
        return self._balances[account]

    @activity.defn
    async def write(self, account: str, balance: int) -> None:
        """Set a balance, slowly."""
        await asyncio.sleep(0.05)
        self._balances[account] = balance

    @activity.defn
    async def tell(self, order: Order, what: str) -> None:
        """Print a line."""
        print(f"{datetime.now():%H:%M:%S.%f}  {what} {order.source} to {order.target}: {order.amount}", flush=True)


@workflow.defn
class Transfer:
    """Move money, with both accounts locked."""

    @workflow.run
    async def run(self, order: Order) -> None:
        """Lock, read, write."""
        both = [want(name=order.source), want(name=order.target)]
        async with temporal.acquire_all(POOL, both, timeout=60, reason="transfer", work_ends_within=10) as grant:
            await grant.execute_activity(Bank.tell, order, "begins", start_to_close_timeout=TIMEOUT)
            source = await grant.execute_activity(Bank.read, order.source, start_to_close_timeout=TIMEOUT)
            target = await grant.execute_activity(Bank.read, order.target, start_to_close_timeout=TIMEOUT)
            await grant.execute_activity(
                Bank.write, order.source, source - order.amount, start_to_close_timeout=TIMEOUT
            )
            await grant.execute_activity(
                Bank.write, order.target, target + order.amount, start_to_close_timeout=TIMEOUT
            )
            await grant.execute_activity(Bank.tell, order, "ends", start_to_close_timeout=TIMEOUT)


@workflow.defn
class Audit:
    """Look at one account while nobody changes it."""

    @workflow.run
    async def run(self, account: str) -> int:
        """Return its balance."""
        async with temporal.acquire(POOL, name=account, timeout=60, reason="audit") as grant:
            balance: int = await grant.execute_activity(Bank.read, account, start_to_close_timeout=TIMEOUT)
            return balance
