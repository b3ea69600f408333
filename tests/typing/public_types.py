"""What an editor shows for the public names: checked by mypy, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import assert_type

from temporalio.client import Client
from temporalio.worker import Worker

from millpond import CancelToken, Group, ProcessPool, Statistics, Task, ThreadPool, as_completed
from millpond._events import Event
from millpond.resources import (
    Admin,
    AsyncAdmin,
    AsyncGrant,
    AsyncResourcePool,
    Grant,
    HolderView,
    PoolStatistics,
    ResourcePool,
    ResourceView,
    WaiterView,
    temporal,
    want,
)


def area(width: int, *, height: float = 1.0) -> float:
    return width * height


def threads() -> None:
    pool = ThreadPool(4)
    executor: ThreadPoolExecutor = pool
    assert_type(pool.submit(area, 3, height=2.0), Task[float])
    future: Future[float] = pool.submit(area, 3)
    assert_type(pool.submit(area, 3).result(), float)
    assert_type(pool.try_submit(area, 3), Task[float] | None)
    assert_type(pool.map(area, [1, 2]), Iterator[float])
    assert_type(pool.submit_many(area, [(1,)]), list[Task[float]])
    assert_type(pool.options(timeout=1).submit(area, 1), Task[float])
    assert_type(pool.group(), Group)
    assert_type(pool.statistics(), Statistics)
    assert_type(pool.go(area, 1), None)
    assert_type(CancelToken().remaining(), float | None)
    pool.submit(area, "3")  # type: ignore[arg-type]
    pool.submit(area, 3, depth=1)  # type: ignore[call-arg]
    ThreadPool(when_full="explode")  # type: ignore[arg-type]
    for each in as_completed([future]):
        assert_type(each, Future[float])
    del executor


async def awaited() -> None:
    pool = ThreadPool(4)
    assert_type(await pool.submit(area, 3), float)
    assert_type(await pool.run(area, 3), float)


def processes() -> None:
    pool = ProcessPool(4)
    assert_type(pool.submit(area, 3, height=2.0), Task[float])
    assert_type(pool.map(area, [1, 2]), Iterator[float])


def resources() -> None:
    pool = ResourcePool("gpus", "sqlite:///pools.db", placement=lambda candidates: [one.name for one in candidates])
    assert_type(pool.acquire({"model": "a100"}, timeout=60, reason="train"), Grant)
    assert_type(pool.acquire_all([{"model": "a100"}, want(name="licence", units=2)]), Grant)
    assert_type(pool.try_acquire(name="gpu-0"), Grant | None)
    assert_type(pool.adopt(17), Grant)
    assert_type(pool.add("gpu-0", labels={"model": "a100", "nvlink": True}, capacity=2), None)
    assert_type(pool.resources(), list[ResourceView])
    assert_type(pool.holders(), list[HolderView])
    assert_type(pool.waiters(), list[WaiterView])
    assert_type(pool.statistics(), PoolStatistics)
    assert_type(pool.watch(), Iterator[Event])
    with pool, pool.acquire(units="all") as grant:
        assert_type(grant, Grant)
        assert_type(grant.resource, str)
        assert_type(grant.resources, tuple[str, ...])
        assert_type(grant.units, Mapping[str, int])
        assert_type(grant.token, int)
        assert_type(grant.deadline, float | None)
        assert_type(grant.is_held, bool)
        assert_type(grant.labels(), dict[str, str])
        assert_type(grant.transfer(), int)
        assert_type(grant.release(), None)
    assert_type(pool.admin, Admin)
    assert_type(pool.admin.steal("gpu-0", token=1, reason="mine"), Grant)
    assert_type(pool.admin.keep("gpu-0", token=1, holder="ada", reason="look"), int)
    assert_type(pool.admin.reserve("gpu-0", holder="ada", reason="demo"), str)
    assert_type(pool.admin.history(), list[Event])
    assert_type(pool.admin.explain("gpu-0"), str)
    pool.acquire({"model": 1.5})  # type: ignore[dict-item]
    pool.acquire(units="some")  # type: ignore[arg-type]
    pool.acquire(timeout="5")  # type: ignore[arg-type]
    pool.admin.release("gpu-0", token=1)  # type: ignore[call-arg]
    ResourcePool("gpus", on_lost=lambda grant: grant.check())


async def resources_awaited() -> None:
    pool = AsyncResourcePool("gpus")
    assert_type(pool.acquire(), AsyncGrant)
    assert_type(await pool.acquire(lease=30), AsyncGrant)
    assert_type(await pool.acquire_all([{"model": "a100"}]), AsyncGrant)
    assert_type(await pool.try_acquire(), AsyncGrant | None)
    assert_type(await pool.adopt(17), AsyncGrant)
    assert_type(await pool.holders(), list[HolderView])
    assert_type(await pool.waiters(), list[WaiterView])
    assert_type(await pool.statistics(), PoolStatistics)
    assert_type(pool.watch(), AsyncIterator[Event])
    async with pool, pool.acquire() as grant:
        assert_type(grant, AsyncGrant)
        assert_type(grant.token, int)
        assert_type(grant.check(), None)
        assert_type(await grant.labels(), dict[str, str])
        assert_type(await grant.renew(), None)
        assert_type(await grant.transfer(), int)
        assert_type(await grant.release(), None)
    assert_type(pool.admin, AsyncAdmin)
    assert_type(await pool.admin.steal("gpu-0", token=1, reason="mine"), AsyncGrant)
    assert_type(await pool.admin.drain("gpu-0", timeout=5), None)
    assert_type(await pool.admin.history(), list[Event])


async def resources_in_workflows(client: Client) -> None:
    assert_type(temporal.acquire("gpus", {"model": "a100"}, work_ends_within=5), temporal.WorkflowGrant)
    assert_type(await temporal.acquire("gpus", name="gpu-0"), temporal.WorkflowGrant)
    assert_type(temporal.acquire_all("gpus", [{"model": "a100"}, want(name="licence")]), temporal.WorkflowGrant)
    async with temporal.acquire("gpus", timeout=5) as grant:
        assert_type(grant.resource, str)
        assert_type(grant.resources, tuple[str, ...])
        assert_type(grant.units, Mapping[str, int])
        assert_type(grant.token, int)
        assert_type(grant.is_held, bool)
        assert_type(grant.check(), None)
        assert_type(await grant.lost(), str)
        assert_type(await grant.release(), None)
        held = grant.detach()
        assert_type(held, temporal.Detached)
        assert_type(await temporal.acquire("gpus", reattach=held), temporal.WorkflowGrant)
    assert_type(temporal.pool_worker(client, placements={"any": lambda resource, request: (resource.slot,)}), Worker)
    Worker(client, task_queue="q", workflows=[temporal.PoolWorkflow], plugins=[temporal.Plugin(task_queue="q")])
    temporal.acquire("gpus", timeout="5")  # type: ignore[arg-type]
    temporal.acquire("gpus", reattach=17)  # type: ignore[arg-type]
