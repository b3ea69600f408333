"""Where resource pools live: one module per engine, found by the scheme of its URL. None imports another."""

from __future__ import annotations

import importlib

from millpond._urls import shown
from millpond.resources._engine import Engine

_HOMES = {
    "memory": "millpond.resources.engines.memory",
    "sqlite": "millpond.resources.engines.sqlite",
    "temporal": "millpond.resources.engines.temporal._engine",
    **dict.fromkeys(
        [
            "redis",
            "rediss",
            "valkey",
            "valkeys",
            "unix",
            "redis+unix",
            "valkey+unix",
            "redis+cluster",
            "rediss+cluster",
            "valkey+cluster",
            "valkeys+cluster",
            "postgresql",
            "postgres",
        ],
        "millpond.resources.engines.log",
    ),
}


def open_engine(url: str) -> Engine:
    """Open the engine of a URL, or share the one that this process has open already."""
    if not isinstance(url, str):
        raise TypeError(f"a pool's URL must be a string such as 'sqlite:///pools.db', not {type(url).__name__}")
    scheme = url.partition(":")[0]
    home = _HOMES.get(scheme) if ":" in url else None
    if home is None:
        raise ValueError(
            f"no engine for {shown(url)!r}: use 'memory:', 'sqlite:///path/to/file.db', 'redis://host:port', "
            "'postgresql://user@host/database' or 'temporal://host:port/namespace'"
        )
    engine: Engine = importlib.import_module(home).open(url)
    return engine


def pools(url: str) -> list[str]:
    """Return the names of the resource pools that live at a URL."""
    engine = open_engine(url)
    try:
        return sorted(engine.pools())
    finally:
        engine.close()


def has_registry(url: object) -> bool:
    """Return whether pools of a URL can have placements of their own, registered with whoever hosts them."""
    return isinstance(url, str) and url.startswith("temporal:")
