"""The whole hierarchy of errors.

A `PoolError` says that a pool refused or lost something. Misuse is a TypeError, ValueError or
RuntimeError, and an exception of the user's own function is re-raised as it is, never wrapped.
Every message says what happened, with the value, and then what to do about it.
"""

from __future__ import annotations

__all__ = [
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
]


class PoolError(Exception):
    """Something that a pool could not do."""


class PoolClosed(PoolError, RuntimeError):
    """The pool was shut down, so it takes no more work."""


class PoolFull(PoolError):
    """A bounded pool has no room left and its policy is to refuse."""

    receipts: object = None
    """Of a `dispatch_many`: the receipts of what was accepted, None in place of what was refused."""


class TaskTimeout(PoolError, TimeoutError):
    """A task ran longer than its `timeout=` allows."""


class WorkerDied(PoolError):
    """The process or thread that ran a task is gone, so its outcome is unknown."""


class JobFailed(PoolError):
    """A job of a keyed pool did not end well: it raised, was cancelled, or stands among the dead letters.

    `error` is the name of the exception's type, `traceback` its text as the worker saw it.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        job_id: str = "",
        status: str = "failed",
        error: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.key = key
        self.job_id = job_id
        self.status = status
        """`failed`, `dead`, `lost` (its worker died too often), `cancelled`, `replaced` or `purged`."""
        self.error = error
        self.traceback = traceback


class AcquireTimeout(PoolError, TimeoutError):
    """A request waited for its whole `timeout=` and was withdrawn: nothing is held."""


class LeaseLost(PoolError):
    """A grant is no longer held: its lease ended, or an operator, a steal or a transfer took it away."""


class StaleToken(PoolError):
    """A token is not, or no longer, the one that counts: nothing was changed."""


class Unsatisfiable(PoolError):
    """No resource of the pool could ever satisfy the request, so waiting would be in vain."""


class NotFound(PoolError, LookupError):
    """There is no resource, request or pool of that name."""


class AlreadyExists(PoolError):
    """There is already a resource, request or job of that name."""

    receipts: object = None
    """Of a `dispatch_many`: the receipts of what was accepted, None in place of what was refused."""


class EngineError(PoolError):
    """The engine or store of a pool cannot do its work: the message says why and what to do."""


class EngineUnavailable(EngineError):
    """The engine cannot be reached now; the same call may succeed later."""
