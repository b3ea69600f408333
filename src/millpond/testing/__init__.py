"""What tests of Millpond, and of programs that use it, are made of.

- `in_memory(pool)` runs the jobs of a keyed pool in a test, without a server.
- `FakeClock` moves only when told; `MemoryEngine(clock=FakeClock())` sees no other time.
- `Bench`, `ENGINE_CHECKS` and `check_engine` are the conformance suite of resource engines: plain functions, to be run
  by any test runner on any engine. `StoreBench`, `STORE_CHECKS` and `check_store` are that of stores of keyed pools.
- `temporal_server()` is a Temporal development server for as long as a block lasts, `hosted_pools(url)` a worker that
  hosts resource pools on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond._lazy import lazy

__all__ = [
    "ENGINE_CHECKS",
    "STORE_CHECKS",
    "Bench",
    "FakeClock",
    "StoreBench",
    "check_engine",
    "check_store",
    "hosted_pools",
    "in_memory",
    "temporal_server",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ENGINE_CHECKS": "millpond.testing._engines",
        "STORE_CHECKS": "millpond.testing._stores",
        "Bench": "millpond.testing._engines",
        "FakeClock": "millpond.testing._clock",
        "StoreBench": "millpond.testing._stores",
        "check_engine": "millpond.testing._engines",
        "check_store": "millpond.testing._stores",
        "hosted_pools": "millpond.testing._temporal_host",
        "in_memory": "millpond.testing._in_memory",
        "temporal_server": "millpond.testing._temporal",
    },
    {"hosted_pools": ("temporalio", "temporal")},
)

if TYPE_CHECKING:
    from millpond.testing._clock import FakeClock
    from millpond.testing._engines import ENGINE_CHECKS, Bench, check_engine
    from millpond.testing._in_memory import in_memory
    from millpond.testing._stores import STORE_CHECKS, StoreBench, check_store
    from millpond.testing._temporal import temporal_server
    from millpond.testing._temporal_host import hosted_pools
