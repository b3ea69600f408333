"""What an editor shows for the public names: checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import assert_type

from millpond import CancelToken, Group, ProcessPool, Statistics, Task, ThreadPool, as_completed


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
