"""A worker for workflows that use pools, a client, and a pool for each test: a plugin of pytest."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
import temporal_flows as flows
from temporalio.client import Client

from millpond.resources import AsyncResourcePool
from millpond.testing._temporal import TemporalServer


@pytest.fixture(scope="session")
def worker(pools: TemporalServer) -> Iterator[TemporalServer]:
    """A server with a worker that hosts pools, and one with workflows that use them."""
    with flows.serving(pools.address):
        yield pools


@pytest_asyncio.fixture
async def client(worker) -> Client:
    return await Client.connect(worker.address)


@pytest_asyncio.fixture
async def pool(worker) -> AsyncIterator[AsyncResourcePool]:
    """A pool with one resource, "a"."""
    async with AsyncResourcePool(f"flows-{uuid.uuid4().hex}", worker.url()) as pool:
        await pool.add("a")
        yield pool
