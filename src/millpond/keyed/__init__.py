"""Keyed pools: jobs that carry a key, on many workers and machines; one worker owns a key at a time.

The folders, from the top; each imports only from those below it:

    client   hands jobs over, waits for results, looks and changes: what users call (`_async`; `_sync` is generated)
    worker   runs jobs: membership, feed, runner
    jobs     what a handler is given; views, what people are shown
    shared   what both sides use: the connection to the store, handlers, arguments
    stores   where pools live: memory, sqlite, redis, behind `stores.base`
    rules    what every verb of a store does, and what it is about: pure, no input or output
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
        "ActView": "millpond.keyed.views",
        "AsyncKeyedAdmin": "millpond.keyed.client._async.admin",
        "AsyncKeyedJob": "millpond.keyed.client._async.handle",
        "AsyncKeyedPool": "millpond.keyed.client._async.pool",
        "AsyncKeyedResident": "millpond.keyed.client._async.handle",
        "AsyncReceipt": "millpond.keyed.client._async.handle",
        "DeadLetterView": "millpond.keyed.views",
        "Job": "millpond.keyed.jobs",
        "JobView": "millpond.keyed.views",
        "Jump": "millpond.keyed.rules.placement",
        "KeyInfo": "millpond.keyed.views",
        "KeyedAdmin": "millpond.keyed.client._sync.admin",
        "KeyedJob": "millpond.keyed.client._sync.handle",
        "KeyedPool": "millpond.keyed.client._sync.pool",
        "KeyedResident": "millpond.keyed.client._sync.handle",
        "KeyedStatistics": "millpond.keyed.views",
        "Page": "millpond.keyed.rules.page",
        "PauseView": "millpond.keyed.views",
        "Receipt": "millpond.keyed.client._sync.handle",
        "Rendezvous": "millpond.keyed.rules.placement",
        "Resident": "millpond.keyed.jobs",
        "ResidentView": "millpond.keyed.views",
        "Retry": "millpond.keyed.jobs",
        "SlotView": "millpond.keyed.views",
        "WorkerView": "millpond.keyed.views",
        "pools": "millpond.keyed.shared.connection",
    },
)

if TYPE_CHECKING:
    from millpond.keyed.client._async.admin import AsyncKeyedAdmin
    from millpond.keyed.client._async.handle import AsyncKeyedJob, AsyncKeyedResident, AsyncReceipt
    from millpond.keyed.client._async.pool import AsyncKeyedPool
    from millpond.keyed.client._sync.admin import KeyedAdmin
    from millpond.keyed.client._sync.handle import KeyedJob, KeyedResident, Receipt
    from millpond.keyed.client._sync.pool import KeyedPool
    from millpond.keyed.jobs import Job, Resident, Retry
    from millpond.keyed.rules.page import Page
    from millpond.keyed.rules.placement import Jump, Rendezvous
    from millpond.keyed.shared.connection import pools
    from millpond.keyed.views import (
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
