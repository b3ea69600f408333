"""Millpond: pools for Python, from one thread to a fleet.

| part             | what it pools                  | runs on                     |
|------------------|--------------------------------|-----------------------------|
| `millpond.local` | tasks (calls) in this process  | threads, processes, asyncio |

Layers, from the top (imports only point down; `make check` proves it):

    cli                      people's tools, on the public names only
    local                    the parts
    errors, _events, _lazy   small shared ground

Everything below is loaded when it is first used, so `import millpond` is quick and brings in no other package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond._lazy import lazy

__version__ = "0.1.0"

_LOCAL = (
    "AsyncPool",
    "Block",
    "CancelToken",
    "Group",
    "Priority",
    "ProcessPool",
    "Reaper",
    "Snapshot",
    "Statistics",
    "SubPool",
    "Task",
    "ThreadPool",
    "as_completed",
    "current_token",
    "wait",
)
_ERRORS = ("PoolClosed", "PoolError", "PoolFull", "TaskTimeout", "WorkerDied")

__all__ = [
    "AsyncPool",
    "Block",
    "CancelToken",
    "Event",
    "Group",
    "PoolClosed",
    "PoolError",
    "PoolFull",
    "Priority",
    "ProcessPool",
    "Reaper",
    "Snapshot",
    "Statistics",
    "SubPool",
    "Task",
    "TaskTimeout",
    "ThreadPool",
    "WorkerDied",
    "__version__",
    "as_completed",
    "current_token",
    "wait",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        **dict.fromkeys(_LOCAL, "millpond.local"),
        **dict.fromkeys(_ERRORS, "millpond.errors"),
        "Event": "millpond._events",
    },
)

if TYPE_CHECKING:
    from millpond._events import Event
    from millpond.errors import PoolClosed, PoolError, PoolFull, TaskTimeout, WorkerDied
    from millpond.local import (
        AsyncPool,
        Block,
        CancelToken,
        Group,
        Priority,
        ProcessPool,
        Reaper,
        Snapshot,
        Statistics,
        SubPool,
        Task,
        ThreadPool,
        as_completed,
        current_token,
        wait,
    )
