"""Options of single tasks: `pool.options(priority=, key=, timeout=, cancel=).submit(...)`.

They travel beside the call, never inside its keywords, so no function's own `timeout=` is stolen.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from threading import TIMEOUT_MAX
from typing import Any

from millpond.local._cancel import CancelToken
from millpond.local._task import OptionTask


@dataclass(frozen=True, slots=True)
class Options:
    """What may be said of a single task."""

    priority: float | None = None
    key: Hashable | None = None
    timeout: float | None = None
    cancel: CancelToken | None = None

    def __post_init__(self) -> None:
        try:
            hash(self.key)
        except TypeError:
            raise TypeError(f"key must be hashable, not {self.key!r}") from None
        timeout = self.timeout
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
            raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, not {timeout!r}")
        object.__setattr__(self, "timeout", None if timeout is None else float(min(timeout, TIMEOUT_MAX)))
        if self.cancel is not None and not isinstance(self.cancel, CancelToken):
            raise TypeError(f"cancel must be a CancelToken, not {self.cancel!r}")


NO_OPTIONS = Options()


def option_task(options: Options) -> OptionTask[Any]:
    """Make a task with options; the pool fills in the rest."""
    task: OptionTask[Any] = OptionTask.__new__(OptionTask)
    task.priority, task.key = options.priority or 0, options.key
    task.timeout, task.token = options.timeout, options.cancel
    task.link = task.queue = None
    return task
