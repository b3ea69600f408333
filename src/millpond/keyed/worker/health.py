"""Tells those who look after processes how a worker is: over HTTP, or by a file that is touched every second.

    GET /healthz    200 while the event loop of the worker answers; 503 when it is stuck
    GET /readyz     200 while it is a member of the pool; 503 before, after, and while it is cut off
    GET /metrics    for Prometheus (`pip install "millpond[metrics]"`); jobs are measured from the first time on

A worker that is cut off is not ready, but healthy: to start it again would not bring the store back.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from millpond._events import logger
from millpond.keyed.shared.connection import PoolConnection
from millpond.keyed.worker.worker import Worker

TOUCH = 1.0


def check_health(health: object) -> tuple[str, int] | str | None:
    """Return where to tell: a host and a port, or a file; None: nowhere."""
    if health is None:
        return None
    if not isinstance(health, str) or not health:
        raise ValueError(f"health is 'HOST:PORT' or the path of a file, not {health!r}")
    host, colon, port = health.rpartition(":")
    if colon and "/" not in health:
        if not port.isascii() or not port.isdigit() or int(port) > 65535 or not host:
            raise ValueError(f"health is 'HOST:PORT' or the path of a file, not {health!r}")
        return host.strip("[]"), int(port)
    return health


@contextlib.asynccontextmanager
async def telling(
    connection: PoolConnection, worker: Worker, health: tuple[str, int] | str | None
) -> AsyncIterator[None]:
    """Answer health checks of a worker while the block runs."""
    if health is None:
        yield
    elif isinstance(health, str):
        task = asyncio.ensure_future(_touch(worker, health))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            _remove(health)
    else:
        make: Any = importlib.import_module("millpond.keyed.worker.health_server").HealthServer  # 20 ms, and seldom
        try:
            measured = partial(_metrics, connection.name, connection.url, worker)
            server = make(health, lambda: worker.is_member, asyncio.get_running_loop(), measured)
        except OSError as error:
            raise ValueError(f"health cannot be told at {health[0]}:{health[1]}: {error.strerror or error}") from None
        logger.info("health of this worker: http://%s:%d/healthz, /readyz and /metrics", *server.server_address[:2])
        try:
            yield
        finally:
            await asyncio.to_thread(server.stop)


def _metrics(name: str, url: str, worker: Worker) -> Any:
    """Return what tells the metrics of a worker. It is above us and needs another package, so it is found by name."""
    return importlib.import_module("millpond.metrics._worker").WorkerMetrics(name, url, worker.measure)


async def _touch(worker: Worker, path: str) -> None:
    """Touch a file while the worker is a member; there is none while it is not."""
    said = ""
    while True:
        problem = _show(path, is_member=worker.is_member)
        if problem != said and problem:
            logger.warning("the health of this worker cannot be told: %s", problem)
        said = problem
        await asyncio.sleep(TOUCH)


def _show(path: str, *, is_member: bool) -> str:
    """Touch or remove a file; return what is wrong."""
    try:
        if is_member:
            Path(path).touch()
        else:
            _remove(path)
    except OSError as error:
        return str(error)
    return ""


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)
