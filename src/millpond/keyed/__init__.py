"""Keyed pools: jobs that carry a key, on many workers and machines; one worker owns a key at a time.

How a job goes through the layers, from the top:

    _pool, _handle, _admin          what users call; generated from _async_pool, _async_handle, _async_admin
    _port, _async_port              how a thread blocks, how a task awaits; _serve, what `run` does
    _outbox, _replies               dispatches on their way, outcomes on theirs
    _worker                         a member: _heart (lease), _lane (takes and reports), _runner (runs), _tenure, _visit
    _home                           the pool as all of these share it
    stores/                         where pools live: memory, sqlite, redis, behind _store
    rules/                          what every verb of a store does, pure, over tables
    _core, _plan                    which worker owns a key: slots, placement, moves, pure
    _records, _commands, _envelope  what the rules are about
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond._lazy import lazy

__all__ = [
    "ActView",
    "AsyncKeyedAdmin",
    "AsyncKeyedJob",
    "AsyncKeyedPool",
    "AsyncKeyedResident",
    "AsyncReceipt",
    "DeadLetterView",
    "Job",
    "JobView",
    "Jump",
    "KeyInfo",
    "KeyedAdmin",
    "KeyedJob",
    "KeyedPool",
    "KeyedResident",
    "KeyedStatistics",
    "Page",
    "PauseView",
    "Receipt",
    "Rendezvous",
    "Resident",
    "ResidentView",
    "Retry",
    "SlotView",
    "WorkerView",
    "pools",
]

_find, __dir__ = lazy(
    __name__,
    {
        "ActView": "millpond.keyed._views",
        "AsyncKeyedAdmin": "millpond.keyed._async_admin",
        "AsyncKeyedJob": "millpond.keyed._async_handle",
        "AsyncKeyedPool": "millpond.keyed._async_pool",
        "AsyncKeyedResident": "millpond.keyed._async_handle",
        "AsyncReceipt": "millpond.keyed._async_handle",
        "DeadLetterView": "millpond.keyed._views",
        "Job": "millpond.keyed._job",
        "JobView": "millpond.keyed._views",
        "Jump": "millpond.keyed._core",
        "KeyInfo": "millpond.keyed._views",
        "KeyedAdmin": "millpond.keyed._admin",
        "KeyedJob": "millpond.keyed._handle",
        "KeyedPool": "millpond.keyed._pool",
        "KeyedResident": "millpond.keyed._handle",
        "KeyedStatistics": "millpond.keyed._views",
        "Page": "millpond.keyed._page",
        "PauseView": "millpond.keyed._views",
        "Receipt": "millpond.keyed._handle",
        "Rendezvous": "millpond.keyed._core",
        "Resident": "millpond.keyed._job",
        "ResidentView": "millpond.keyed._views",
        "Retry": "millpond.keyed._job",
        "SlotView": "millpond.keyed._views",
        "WorkerView": "millpond.keyed._views",
        "pools": "millpond.keyed._home",
    },
)

if TYPE_CHECKING:
    from millpond.keyed._admin import KeyedAdmin
    from millpond.keyed._async_admin import AsyncKeyedAdmin
    from millpond.keyed._async_handle import AsyncKeyedJob, AsyncKeyedResident, AsyncReceipt
    from millpond.keyed._async_pool import AsyncKeyedPool
    from millpond.keyed._core import Jump, Rendezvous
    from millpond.keyed._handle import KeyedJob, KeyedResident, Receipt
    from millpond.keyed._home import pools
    from millpond.keyed._job import Job, Resident, Retry
    from millpond.keyed._page import Page
    from millpond.keyed._pool import KeyedPool
    from millpond.keyed._views import (
        ActView,
        DeadLetterView,
        JobView,
        KeyedStatistics,
        KeyInfo,
        PauseView,
        ResidentView,
        SlotView,
        WorkerView,
    )
else:  # a checker that saw this would take any name to be there
    __getattr__ = _find
