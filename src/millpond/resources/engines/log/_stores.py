"""Which store a URL means. Each is imported when it is needed, and says which extra it lacks."""

from __future__ import annotations

import importlib

from millpond._urls import shown
from millpond.resources.engines.log._log import Log

_REDIS = ("redis", "rediss", "valkey", "valkeys", "unix")


def open_log(url: str) -> Log:
    """Return the log of a URL. Nothing is connected yet."""
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme in _REDIS:
        name, kind = "_redis_log", "RedisLog"
    elif scheme in ("postgresql", "postgres"):
        name, kind = "_postgres_log", "PostgresLog"
    else:
        raise ValueError(f"no log for {shown(url)!r}")
    module = importlib.import_module(f"millpond.resources.engines.log.{name}")
    log: Log = getattr(module, kind)(url)
    return log
