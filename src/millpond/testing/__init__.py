"""What tests of programs that use Millpond are made of.

- `in_memory(pool)` runs the jobs of a keyed pool in a test, without a server.
- `FakeClock` moves only when told; `MemoryEngine(clock=FakeClock())` sees no other time.
- `temporal_server()` is a Temporal development server for as long as a block lasts, `hosted_pools(url)` a worker that
  hosts resource pools on it.

The conformance suites, for those who write an engine or a store, are a distribution of their own:
`pip install millpond-conformance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond._lazy import lazy

__all__ = [
    "FakeClock",
    "hosted_pools",
    "in_memory",
    "temporal_server",
]

_find, __dir__ = lazy(
    __name__,
    {
        "FakeClock": "millpond.testing._clock",
        "hosted_pools": "millpond.testing._temporal_host",
        "in_memory": "millpond.testing._in_memory",
        "temporal_server": "millpond.testing._temporal",
    },
    {"hosted_pools": ("temporalio", "temporal")},
)

_ELSEWHERE = ("ENGINE_CHECKS", "STORE_CHECKS", "Bench", "StoreBench", "check_engine", "check_store")

if TYPE_CHECKING:
    from millpond.testing._clock import FakeClock
    from millpond.testing._in_memory import in_memory
    from millpond.testing._temporal import temporal_server
    from millpond.testing._temporal_host import hosted_pools
else:

    def __getattr__(name: str) -> Any:
        if name in _ELSEWHERE:
            raise AttributeError(
                f"{name} is not part of {__name__}: pip install millpond-conformance, "
                f"and import it from millpond_conformance"
            )
        return _find(name)
