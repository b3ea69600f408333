"""`millpond worker app:tenants`: find a keyed pool by its name in a module, and be a worker of it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import importlib
import json
import logging
import os
import sys
from typing import Any

import click

from millpond import AsyncKeyedPool, KeyedPool
from millpond.cli import family, processes
from millpond.errors import PoolError


def find(target: str) -> KeyedPool | AsyncKeyedPool:
    """Return the pool that `module:name` stands for; modules of the current folder count."""
    module, colon, name = target.partition(":")
    if not module or not colon or not name:
        raise click.UsageError(f"{target!r} names no pool: write MODULE:POOL, such as app:tenants")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise click.UsageError(f"there is no module {module!r} here: run this in the folder that has it") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"module {module!r} has no {name!r}: give the variable that holds the KeyedPool")
        found = getattr(found, part)
    if not isinstance(found, (KeyedPool, AsyncKeyedPool)):
        raise click.UsageError(f"{target!r} is {type(found).__name__}, not a KeyedPool or AsyncKeyedPool")
    return found


class JsonLines(logging.Formatter):
    """One line of JSON for each record: time, level, message, what it is about, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text."""
        about = getattr(record, "millpond", {})
        found = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **(about if isinstance(about, dict) else {}),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


def _log(log_format: str) -> None:
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if log_format == "json" else plain)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def run_many(target: str, number: int, log_format: str, *, reload: bool, **options: Any) -> int:
    """Run several worker processes; return the exit code."""
    _log(log_format)
    given = [f"--log-format={log_format}"]
    for name, value in options.items():
        if value is True:
            given.append(f"--{name}")
        elif value is not None and value is not False:
            given.append(f"--{name}={value}")
    return processes.run(target, number, reload=reload, options=given)


def run(target: str, log_format: str = "text", supervised: int | None = None, **options: Any) -> int:
    """Run a worker; return the exit code."""
    if supervised is not None:
        family.end_with(supervised)
    _log(log_format)
    pool = find(target)
    logger = logging.getLogger("millpond")
    logger.info("worker of pool %r: %r", pool.name, pool)
    if pool.url.startswith("memory:"):
        logger.warning("pool %r lives in the memory of this process: nobody else can dispatch to it", pool.name)
    try:
        is_shut = asyncio.run(_work(pool, options)) if isinstance(pool, AsyncKeyedPool) else _run(pool, options)
    except (PoolError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    return 0 if is_shut or supervised is None else processes.LEFT


def _run(pool: KeyedPool, options: dict[str, Any]) -> bool:
    """Work; return whether the whole pool was shut down."""
    pool.run(**options)
    with contextlib.suppress(PoolError):
        return pool.statistics().is_shut
    return False


async def _work(pool: AsyncKeyedPool, options: dict[str, Any]) -> bool:
    await pool.run(**options)
    with contextlib.suppress(PoolError):
        return (await pool.statistics()).is_shut
    return False
