"""Pools for the tests of the faces: every colour on every engine."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from millpond.resources import _timers

sys.path.insert(0, str(Path(__file__).parent))
import faces

_timers.LINGER = 0.05  # the timers' thread ends soon after its last timer, so that no test waits for it


@pytest_asyncio.fixture(params=["async-memory", "sync-memory", "async-sqlite", "sync-sqlite"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[faces.Faces]:
    """Opens pools of one colour on one engine: `lab.open()`."""
    colour, engine = request.param.split("-")
    async with faces.faces(colour, engine, tmp_path) as made:
        yield made


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL of each engine, for tests of one colour."""
    return faces.url_of(request.param, tmp_path)
