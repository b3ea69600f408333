"""`redis://host:port/0`: keyed pools that live in Redis (6.2 or newer) or Valkey.

lua/          what a pool does: one script for each step, atomic
_scripts      the scripts, put together
_connection   a connection for one purpose
_listener     hints
_store        the verbs

The URL is `redis://`, `rediss://` (TLS) or `unix://`, and `redis+cluster://` for a node of a cluster: a pool lives on
one shard. `?prefix=` is what all keys begin with, `millpond:` unless told; `millpond._redis` knows the other options.
"""

from __future__ import annotations

from millpond.keyed.stores.redis._store import RedisStore, examine, has, pools


def open(url: str, pool: str) -> RedisStore:  # noqa: A001
    """Return the pool of that name at that server; nothing is sent before it is asked for something."""
    return RedisStore(url, pool)


__all__ = ["RedisStore", "examine", "has", "open", "pools"]
