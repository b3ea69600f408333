"""Local pools: run function calls in this process with bounded concurrency.

Where to look (each folder has a pool, a runner or limiter, and its map):

    threads/       ThreadPool and SubPool: workers, their hot loop, time limits, scaling
    processes/     ProcessPool: one I/O thread, worker processes, batches, recovery after a crash
    coroutines/    AsyncPool: a limiter of coroutines in one event loop
    _task          Task, a lean Future        _watchers       who looks at it before it is done
    _queues        which task is next         _backlog        what waits, and how a task leaves the queue
    _when_full     what when it is full       _worker_queues  keys, dedicated queues, stealing
    _sizing        how many workers (pure)    _exit_and_fork  the end of the interpreter, and fork
    _pool          what all but AsyncPool do  _verbs          how calls are handed to them, with options or without
    _map, _group, _waiting, _cancel, _options, _statistics, _drainers, _timer   one verb or noun each
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond._lazy import lazy

__all__ = [
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
]

_find, __dir__ = lazy(
    __name__,
    {
        "AsyncGroup": "millpond.local.coroutines._group",
        "AsyncMap": "millpond.local.coroutines._map",
        "AsyncPool": "millpond.local.coroutines._pool",
        "AsyncSubPool": "millpond.local.coroutines._pool",
        "AsyncTask": "millpond.local.coroutines._task",
        "Block": "millpond.local._when_full",
        "CancelToken": "millpond.local._cancel",
        "Group": "millpond.local._group",
        "Priority": "millpond.local._queues",
        "ProcessPool": "millpond.local.processes._pool",
        "Reaper": "millpond.local._sizing",
        "Snapshot": "millpond.local._sizing",
        "Statistics": "millpond.local._statistics",
        "SubPool": "millpond.local.threads._pool",
        "Task": "millpond.local._task",
        "ThreadPool": "millpond.local.threads._pool",
        "as_completed": "millpond.local._waiting",
        "current_token": "millpond.local._cancel",
        "wait": "millpond.local._waiting",
    },
)

if TYPE_CHECKING:
    from millpond.local._cancel import CancelToken, current_token
    from millpond.local._group import Group
    from millpond.local._queues import Priority
    from millpond.local._sizing import Reaper, Snapshot
    from millpond.local._statistics import Statistics
    from millpond.local._task import Task
    from millpond.local._waiting import as_completed, wait
    from millpond.local._when_full import Block
    from millpond.local.coroutines._group import AsyncGroup
    from millpond.local.coroutines._map import AsyncMap
    from millpond.local.coroutines._pool import AsyncPool, AsyncSubPool
    from millpond.local.coroutines._task import AsyncTask
    from millpond.local.processes._pool import ProcessPool
    from millpond.local.threads._pool import SubPool, ThreadPool
else:  # a checker that saw this would take any name to be there
    __getattr__ = _find
