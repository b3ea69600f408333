"""Resource pools: scarce named things (GPUs, licences, devices, tenants' slots), lent to holders.

How a request goes through the layers, from the top:

    _pool, _grant, _admin       what users call; generated from _async_pool, _async_grant, _async_admin
    _bridge, _async_bridge      how a thread blocks, how a task awaits
    _own_requests               the requests of one pool object: claims, renewals, losses
    engines/                    where pools live: memory, sqlite; each keeps replicas and a log
    _rules/                     the rules: step(state, command, now) -> outcome, pure; its first page says what they are
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond._lazy import lazy

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncGrant",
    "AsyncResourcePool",
    "Grant",
    "HolderView",
    "Labels",
    "PoolStatistics",
    "ResourcePool",
    "ResourceView",
    "Selector",
    "WaiterView",
    "Want",
    "pools",
    "want",
]

_find, __dir__ = lazy(
    __name__,
    {
        "Admin": "millpond.resources._admin",
        "AsyncAdmin": "millpond.resources._async_admin",
        "AsyncGrant": "millpond.resources._async_grant",
        "AsyncResourcePool": "millpond.resources._async_pool",
        "Grant": "millpond.resources._grant",
        "HolderView": "millpond.resources._views",
        "Labels": "millpond.resources._rules.selectors",
        "PoolStatistics": "millpond.resources._views",
        "ResourcePool": "millpond.resources._pool",
        "ResourceView": "millpond.resources._views",
        "Selector": "millpond.resources._rules.selectors",
        "WaiterView": "millpond.resources._views",
        "Want": "millpond.resources._rules.records",
        "pools": "millpond.resources.engines",
        "want": "millpond.resources._arguments",
    },
)

if TYPE_CHECKING:
    from millpond.resources._admin import Admin
    from millpond.resources._arguments import want
    from millpond.resources._async_admin import AsyncAdmin
    from millpond.resources._async_grant import AsyncGrant
    from millpond.resources._async_pool import AsyncResourcePool
    from millpond.resources._grant import Grant
    from millpond.resources._pool import ResourcePool
    from millpond.resources._rules.records import Want
    from millpond.resources._rules.selectors import Labels, Selector
    from millpond.resources._views import HolderView, PoolStatistics, ResourceView, WaiterView
    from millpond.resources.engines import pools
else:  # a checker that saw this would take any name to be there
    __getattr__ = _find
