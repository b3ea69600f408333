"""The whole hierarchy of errors.

A `PoolError` says that a pool refused or lost something. Misuse is a TypeError, ValueError or
RuntimeError, and an exception of the user's own function is re-raised as it is, never wrapped.
Every message says what happened, with the value, and then what to do about it.
"""

from __future__ import annotations

__all__ = ["PoolClosed", "PoolError", "PoolFull", "TaskTimeout", "WorkerDied"]


class PoolError(Exception):
    """Something that a pool could not do."""


class PoolClosed(PoolError, RuntimeError):
    """The pool was shut down, so it takes no more work."""


class PoolFull(PoolError):
    """A bounded pool has no room left and its policy is to refuse."""


class TaskTimeout(PoolError, TimeoutError):
    """A task ran longer than its `timeout=` allows."""


class WorkerDied(PoolError):
    """The process or thread that ran a task is gone, so its outcome is unknown."""
