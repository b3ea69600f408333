"""Millpond: thread, process and asyncio pools, jobs in order per key, and fair locks.

| part                 | what it pools                     | runs on                                     |
|----------------------|-----------------------------------|---------------------------------------------|
| `millpond.local`     | tasks (calls) in this process     | threads, processes, asyncio                 |
| `millpond.keyed`     | jobs that carry a key, on workers | memory, SQLite, Redis                       |
| `millpond.resources` | named resources, lent to holders  | memory, SQLite, Redis, PostgreSQL, Temporal |

Layers, from the top (imports only point down; `make check` proves it):

    cli, testing                     people's tools, on the public names only
    local | keyed | resources        the parts; keyed runs plain functions in local's threads, else none imports another
    _sqlite                          plumbing for files that processes share
    errors, _events, _clock, _lazy   small shared ground

Everything below is loaded when it is first used, so `import millpond` is quick and brings in no other package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond._lazy import lazy
from millpond._version import __version__

_LOCAL = (
    "AsyncGroup",
    "AsyncMap",
    "AsyncPool",
    "AsyncSubPool",
    "AsyncTask",
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
_KEYED = ("AsyncKeyedPool", "Job", "KeyedPool", "Receipt", "Resident", "Retry")
_RESOURCES = ("AsyncResourcePool", "Grant", "ResourcePool")
_ERRORS = (
    "AcquireTimeout",
    "AlreadyExists",
    "EngineError",
    "EngineUnavailable",
    "JobFailed",
    "LeaseLost",
    "NotFound",
    "PoolClosed",
    "PoolError",
    "PoolFull",
    "StaleToken",
    "TaskTimeout",
    "Unsatisfiable",
    "WorkerDied",
)

__all__ = [
    "AcquireTimeout",
    "AlreadyExists",
    "AsyncGroup",
    "AsyncKeyedPool",
    "AsyncMap",
    "AsyncPool",
    "AsyncResourcePool",
    "AsyncSubPool",
    "AsyncTask",
    "Block",
    "CancelToken",
    "EngineError",
    "EngineUnavailable",
    "Event",
    "Grant",
    "Group",
    "Job",
    "JobFailed",
    "KeyedPool",
    "LeaseLost",
    "NotFound",
    "PoolClosed",
    "PoolError",
    "PoolFull",
    "Priority",
    "ProcessPool",
    "Reaper",
    "Receipt",
    "Resident",
    "ResourcePool",
    "Retry",
    "Snapshot",
    "StaleToken",
    "Statistics",
    "SubPool",
    "Task",
    "TaskTimeout",
    "ThreadPool",
    "Unsatisfiable",
    "WorkerDied",
    "__version__",
    "as_completed",
    "current_token",
    "wait",
]

_find, __dir__ = lazy(
    __name__,
    {
        **dict.fromkeys(_LOCAL, "millpond.local"),
        **dict.fromkeys(_KEYED, "millpond.keyed"),
        **dict.fromkeys(_RESOURCES, "millpond.resources"),
        **dict.fromkeys(_ERRORS, "millpond.errors"),
        "Event": "millpond._events",
    },
)

if TYPE_CHECKING:
    from millpond._events import Event
    from millpond.errors import (
        AcquireTimeout,
        AlreadyExists,
        EngineError,
        EngineUnavailable,
        JobFailed,
        LeaseLost,
        NotFound,
        PoolClosed,
        PoolError,
        PoolFull,
        StaleToken,
        TaskTimeout,
        Unsatisfiable,
        WorkerDied,
    )
    from millpond.keyed import AsyncKeyedPool, Job, KeyedPool, Receipt, Resident, Retry
    from millpond.local import (
        AsyncGroup,
        AsyncMap,
        AsyncPool,
        AsyncSubPool,
        AsyncTask,
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
    from millpond.resources import AsyncResourcePool, Grant, ResourcePool
else:  # a checker that saw this would take any name to be there
    __getattr__ = _find
