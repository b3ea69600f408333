"""The pool, its resident, its controller, and the table of tenants, which stands for your own database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator
from datetime import datetime

from millpond import AsyncKeyedPool, Resident

pool = AsyncKeyedPool("tenants", os.environ.get("MILLPOND_URL", "sqlite:///pools.db"))


@pool.resident
async def look_after(resident: Resident, plan: str) -> None:
    """Do the background work of one tenant, until told to stop."""
    show(f"{resident.key} ({plan}) begins, token {resident.token}")
    rounds = 0
    try:
        while True:
            rounds += 1  # fetch the tenant's mail, refresh its cache, ...
            await asyncio.sleep(0.1)
    finally:
        show(f"{resident.key} ({plan}) ends after {rounds} rounds: {resident.lost.reason}")


@pool.controller(look_after, every=0.2)
async def control(controller: Resident) -> dict[str, dict[str, str]]:
    """Return the residents that are wanted, with their arguments. One worker of the whole pool asks at a time."""
    return {name: {"plan": plan} for name, plan in tenants().items()}


def tenants() -> dict[str, str]:
    """Return the plan of each tenant."""
    with _table() as table:
        return dict(table.execute("SELECT name, plan FROM tenants"))


def add(name: str, plan: str = "basic") -> None:
    """Write a tenant into the table, or give it another plan."""
    with _table() as table:
        table.execute("INSERT OR REPLACE INTO tenants VALUES (?, ?)", [name, plan])


def remove(name: str) -> None:
    """Delete a tenant from the table."""
    with _table() as table:
        table.execute("DELETE FROM tenants WHERE name = ?", [name])


@contextlib.contextmanager
def _table() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect("tenants.db", timeout=5)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS tenants (name TEXT PRIMARY KEY, plan TEXT)")
        yield connection


def show(what: str) -> None:
    """Print a line with the time of day and who says it."""
    say(f"{datetime.now():%H:%M:%S.%f}  {os.getpid()}  {what}")


def say(line: str) -> None:
    """Print a line in one piece, since several programs print to one terminal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
