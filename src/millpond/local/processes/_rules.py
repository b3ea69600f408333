"""What the workers of a process pool are like, and when one is replaced."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from millpond.local.processes._worker import ProcessWorker

_born_in = os.getpid()


def usable_context(context: BaseContext) -> BaseContext:
    """Return `context`, or in a forked child, which cannot use its parent's fork server, the one that spawns."""
    is_forked = os.getpid() != _born_in
    if is_forked and context.get_start_method() == "forkserver":
        return multiprocessing.get_context("spawn")
    return context


def is_importing_main() -> bool:
    """Tell whether this is a worker process that is just importing the main script, and so cannot have workers yet."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a pool's workers are like, and when one is replaced."""

    context: BaseContext
    setup: bytes
    idle_timeout: float | None = None
    max_tasks: int | None = None
    max_age: float | None = None
    max_memory: int | None = None
    retries: int = 0
    looks_ahead: bool = True
    """Whether a worker may get its next batch before it has answered the last: not where order is more than fifo."""

    def allowance(self, worker: ProcessWorker) -> int:
        """Return how many more calls `worker` may get before it is replaced."""
        if self.max_age is not None and time.monotonic() - worker.born >= self.max_age:
            return 0
        if self.max_memory is not None and worker.memory > self.max_memory:
            return 0
        return 1 << 30 if self.max_tasks is None else self.max_tasks - worker.ended - worker.load
