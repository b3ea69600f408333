"""`temporal://host:port/namespace`: pools that live in Temporal workflows.

_url          what the URL says
_messages     what travels between a pool's workflow and the world
_hosted_pool  what a pool does, without Temporal: pure
_workflow     the pool as a workflow
_pool_client  where a pool is: starting and calling its workflow
_sender       how commands travel to it: batches by update
_follower     how a process keeps up with it: the workflow's history is the log
_engine       both, behind the protocol of engines
_in_workflow  the same words inside a workflow
_activities   what workflows have done outside: commands, watching over holders, recovery
_watch        which workflows are closed
_recovery     what a pool that was closed left behind
_queries      what people see with Temporal's own tools
_worker       the worker that hosts pools, and the plugin for workers of those who use them
"""

from __future__ import annotations

try:
    import temporalio as _temporalio  # noqa: F401
except ModuleNotFoundError as _error:  # pragma: no cover  (a test runs it without the package)
    raise ModuleNotFoundError(
        'temporal: URLs need the temporalio package: pip install "millpond[temporal]"', name="temporalio"
    ) from _error
