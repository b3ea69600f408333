"""`temporal://host:port/namespace`: pools that live in Temporal workflows.

_url          what the URL says
_messages     what travels between a pool's workflow and the world
_keeper       what a pool does, without Temporal: pure
_workflow     the pool as a workflow
_place        where a pool is: starting and calling its workflow
_lane         how commands travel to it: batches by update
_follower     how a process keeps up with it: the workflow's history is the log
_engine       both, behind the protocol of engines
_inside       the same words inside a workflow
_activities   what workflows have done outside: commands, watching over holders, inheriting
_worker       the worker that hosts pools, and the plugin for workers of those who use them
"""

from __future__ import annotations

try:
    import temporalio as _temporalio  # noqa: F401
except ModuleNotFoundError as _error:  # pragma: no cover  (a test runs it without the package)
    raise ModuleNotFoundError(
        'temporal: URLs need the temporalio package: pip install "millpond[temporal]"', name="temporalio"
    ) from _error
