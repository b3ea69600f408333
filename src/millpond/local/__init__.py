"""Local pools: run function calls in this process with bounded concurrency.

Where to look:

    _threads     ThreadPool, the face          _crew, _worker   its threads: the hot path and its rules
    _processes   ProcessPool                   _async           AsyncPool
    _process_*   its one I/O thread, workers    _async_*         its limiter, tasks, maps
    _task        Task, a lean Future           _bridge          from threads to an asyncio loop
    _queues      which task is next            _seats           dedicated lines, keys, stealing
    _rejection   what when it is full          _sizing          how many workers (pure), _scaling carries it out
    _map, _thread_map, _group, _waiting, _subpool, _token, _options, _stats   one verb or noun each
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond._lazy import lazy

__all__ = [
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
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "AsyncPool": "millpond.local.coroutines._pool",
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
    from millpond.local.coroutines._pool import AsyncPool
    from millpond.local.processes._pool import ProcessPool
    from millpond.local.threads._pool import SubPool, ThreadPool
