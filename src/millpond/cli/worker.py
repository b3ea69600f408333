"""`millpond worker app:tenants`: find a keyed pool by its name in a module, and be a worker of it."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from typing import Any

import click

from millpond import AsyncKeyedPool, KeyedPool


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


def run(target: str, **options: Any) -> None:
    """Be a worker."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    pool = find(target)
    logging.getLogger("millpond").info("worker of pool %r: %r", pool.name, pool)
    if isinstance(pool, AsyncKeyedPool):
        asyncio.run(pool.run(**options))
    else:
        pool.run(**options)
