"""Calls handlers as `Caller` does, and tells of each run: by events with times, and by spans.

Only used while somebody wants to know; a worker that nobody watches calls its handlers straight.
"""

from __future__ import annotations

import asyncio
from typing import Any

from millpond._clock import elapsed
from millpond._events import Observer, report
from millpond._tracing import NOT_TRACED, Tracing
from millpond.errors import TaskTimeout
from millpond.keyed.jobs import Job, Retry
from millpond.keyed.rules.envelope import trace_of
from millpond.keyed.rules.records import SECOND
from millpond.keyed.shared.definition import Definition
from millpond.keyed.worker.handlers import Caller


class WatchedCaller:
    """Calls the handlers of jobs, and tells observers and a tracer of it."""

    def __init__(self, caller: Caller, pool: str, observers: tuple[Observer, ...], tracing: Tracing | None) -> None:
        self._caller = caller
        self._pool = pool
        self._observers = observers
        self._tracing = tracing
        self.is_wanted = bool(observers) or tracing is not None

    def add(self, observer: Observer) -> None:
        """Add an observer, from whatever thread."""
        self._observers = (*self._observers, observer)
        self.is_wanted = True

    async def call(
        self, definition: Definition, job: Job, args: tuple[Any, ...], kwargs: dict[str, Any], raw: bytes
    ) -> Any:
        """Run the handler of a job and return its result; `raw` is the job as the store has it."""
        observers = self._observers  # those who saw it begin see it end
        about = {"key": job.key, "id": job.id, "job": job.name, "token": job.token, "attempt": job.attempt}
        # A token is about the time at which a worker took the job, on the clock of the store, as is its dispatch.
        waited = max(0.0, job.token / SECOND - job.dispatched_at)
        self._tell(observers, "job_started", {**about, "waited": waited})
        began, outcome = elapsed(), "error"
        try:
            with self._span(job, raw):
                value = await self._caller.call(definition, job, args, kwargs)
            outcome = "ok"
            return value
        except Retry:
            outcome = "retry"
            raise
        except TaskTimeout:
            outcome = "timeout"
            raise
        except asyncio.CancelledError:
            outcome = "stopped"
            raise
        finally:
            outcome = "stopped" if job.lost.is_set and outcome != "ok" else outcome
            self._tell(observers, "job_ran", {**about, "seconds": elapsed() - began, "outcome": outcome})

    def _span(self, job: Job, raw: bytes) -> Any:
        if self._tracing is None:
            return NOT_TRACED
        return self._tracing.running(self._pool, job.name, job.key, job.id, job.attempt, trace_of(raw))

    def _tell(self, observers: tuple[Observer, ...], name: str, data: dict[str, Any]) -> None:
        for observer in observers:
            report(observer, name, self._pool, data)
