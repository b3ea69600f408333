"""What an operator should know: each is an event for `on_event`, and a line of the log, said here only."""

from __future__ import annotations

from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any, Final

from millpond._events import Observer, emit, log, logger

LINES: Final = {
    "worker_joined": (INFO, "worker {worker} has joined pool {pool!r}"),
    "worker_left": (INFO, "worker {worker} has left pool {pool!r}"),
    "worker_lost": (WARNING, "worker {worker} of pool {pool!r} is cut off ({why}): its handlers stop"),
    "worker_died": (WARNING, "worker {worker} of pool {pool!r} is dead: others take over its keys"),
    "worker_back": (WARNING, "worker {worker} of pool {pool!r} is back: it was cut off as {was}"),
    "store_unavailable": (WARNING, "pool {pool!r} cannot be reached: {error}"),
    "store_back": (WARNING, "pool {pool!r} can be reached again, after {seconds:.1f} s"),
    "slots_claimed": (DEBUG, "worker {worker} of pool {pool!r} has taken over {slots} slots"),
    "slots_given": (DEBUG, "worker {worker} of pool {pool!r} has given {slots} slots away"),
    "keys_recovered": (INFO, "worker {worker} of pool {pool!r} runs again what nobody runs any more, keys: {keys}"),
    "stale_reports": (INFO, "{number} jobs of pool {pool!r} have ended here, but were run again elsewhere meanwhile"),
    "job_retried": (INFO, "job {job!r} of key {key!r} failed, and is tried again in {delay:.1f} s: {error}"),
    "job_failed": (ERROR, "job {job!r} of key {key!r} failed for good and is among the dead letters: {error}"),
    "job_unknown": (WARNING, "no handler for job {job!r} of key {key!r} here: it waits for a worker that has one"),
    "resident_failed": (WARNING, "resident {resident!r} of key {key!r} failed, again in {delay:.1f} s: {error}"),
}


def tell(observer: Observer | None, name: str, pool: str, *, cause: BaseException | None = None, **data: Any) -> None:
    """Emit an event, and log its line, with the traceback of its cause."""
    level, line = LINES[name]
    if logger.isEnabledFor(level):
        log(level, line.format(pool=pool, **data), cause, event=name, pool=pool, **data)
    emit(observer, name, pool, **data)
