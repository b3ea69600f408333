"""Pools for the tests of keyed pools: on a world in memory of their own, and closed afterwards."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from millpond.keyed import AsyncKeyedPool, KeyedPool

sys.path.insert(0, str(Path(__file__).parents[1]))
import keyed_play

_numbers = itertools.count(1)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A world of this test's own: in memory, or where the environment says, to try another store."""
    match os.environ.get("KEYED_STORE", "memory"):
        case "sqlite":
            return f"sqlite:///{tmp_path}/pools.db"
        case "redis":
            return f"{request.getfixturevalue('redis_url')}?prefix={next(_numbers)}"
        case _:
            return str(keyed_play.fresh())


@pytest.fixture
def make(url: str) -> Iterator[Callable[..., KeyedPool]]:
    """Makes pool objects of one pool."""
    pools: list[KeyedPool] = []

    def make(name: str = "p", at: str = url, **options: Any) -> KeyedPool:
        pool = KeyedPool(name, at, **options)
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def pool(make: Callable[..., KeyedPool]) -> KeyedPool:
    """A pool whose lease does not end."""
    return make(lease=keyed_play.LONG, drain=keyed_play.LONG)


@pytest_asyncio.fixture
async def apool(url: str) -> AsyncIterator[AsyncKeyedPool]:
    """The same, in the other colour."""
    made = AsyncKeyedPool("p", url, lease=keyed_play.LONG, drain=keyed_play.LONG)
    yield made
    await made.close()
