"""Runs the jobs of one take, one after another, and says what is to happen to the key."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from millpond._atomic import lock_of
from millpond._clock import elapsed
from millpond._events import Observer, emit, log, logger
from millpond._saying import kind_of, said, shown
from millpond._tracing import Tracing
from millpond.keyed.jobs import Job, Retry
from millpond.keyed.rules.envelope import UNREADABLE, Envelope, came, opened
from millpond.keyed.rules.records import LONGEST_ERROR, SECOND, Outcome, Report
from millpond.keyed.shared.arguments import DoesNotFit
from millpond.keyed.shared.arguments import encode as encode_result
from millpond.keyed.shared.definition import Definition
from millpond.keyed.shared.notices import tell
from millpond.keyed.shared.outcome import bare, failure
from millpond.keyed.shared.outcome import encode as encode_failure
from millpond.keyed.worker.handlers import Caller
from millpond.keyed.worker.membership import Membership
from millpond.keyed.worker.pace import Pace
from millpond.keyed.worker.running_take import RunningTake
from millpond.keyed.worker.watched import WatchedCaller

REPORT_EVERY = 0.05
"""Seconds after which a take that goes on reports what it has done so far."""
PROGRESS_KEPT = 24 * 3600 * SECOND
"""How long the progress of a job is kept, beyond the time for which its result is."""


class JobRunner:
    """Runs takes of jobs, in the event loop."""

    def __init__(
        self,
        pool: str,
        definitions: Mapping[str, Definition],
        caller: Caller,
        pace: Pace,
        hand_in: Callable[[Report], None],
        observer: Observer | None,
        largest: int,
        tracing: Tracing | None,
    ) -> None:
        self.pool = pool
        self.is_closing = False
        """Whether no more jobs are begun."""
        self._largest = largest
        """Bytes that a result may have."""
        self._definitions = definitions
        self._pace = pace
        self._hand_in = hand_in
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._caller = caller
        self._watched = WatchedCaller(caller, pool, () if observer is None else (observer,), tracing)
        self._cancelled: set[str] = set()
        """Ids of jobs that were taken back before they began."""

    def measure(self, observer: Observer) -> None:
        """Also tell this observer of every run of a handler from now on; from whatever thread."""
        self._watched.add(observer)

    def cancel(self, run: RunningTake, job: str) -> None:
        """Stop a job of a take: at once when it runs, else it is passed over."""
        if run.running == job:
            run.stop("cancelled")
        else:
            self._cancelled.add(job)

    def forget(self, run: RunningTake) -> None:
        """Forget what was asked about jobs of a take that has ended."""
        if self._cancelled:
            self._cancelled.difference_update(opened(raw).id for raw in run.take.jobs)

    async def run(self, membership: Membership, run: RunningTake) -> None:
        """Run the jobs of a take and report, come what may."""
        report = run.report()
        try:
            report = await self._run_all(membership, run, report)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            log(logging.ERROR, f"a worker of pool {self.pool!r} failed at key {run.take.mailbox[2:]!r}", error)
            reason = f"its worker failed: {shown(error)}".encode(errors="replace")
            report = run.report("to_dead_letters", reason=reason)
        finally:
            self._hand_in(run.filled(report))

    async def _run_all(self, membership: Membership, run: RunningTake, end: Report) -> Report:
        """Run one job after another; return what is to happen to the key."""
        take = run.take
        key = take.mailbox[2:]
        context = contextvars.copy_context()
        failures, losses = take.failures, take.losses
        began = reported = elapsed()
        for raw in take.jobs:
            if run.is_moved or self.is_closing or not membership.may_begin() or run.lost.is_set:
                break
            envelope = opened(raw)
            if envelope is UNREADABLE:
                damage = ValueError("the job cannot be read: it was written by something else, or was damaged")
                return self._to_dead_letters(run, envelope, 1, damage)
            definition = self._definitions.get(envelope.name)
            if definition is None or definition.function is None or definition.is_resident:
                tell(self._observer, "job_unknown", self.pool, key=key, id=envelope.id, job=envelope.name)
                return run.report("park", reason=envelope.name.encode())
            if self._cancelled and envelope.id in self._cancelled:
                self._cancelled.discard(envelope.id)
                _conclude(run, envelope, "cancelled", b"")
                continue
            attempt, at = failures + losses + 1, came(raw) / SECOND
            watch = partial(self._note_progress, run, envelope) if envelope.keep else _ignore
            job = Job(key, envelope.id, envelope.name, attempt, take.token, at, self.pool, run.lost, watch)
            run.running = envelope.id
            ended = await self._run_one(run, definition, job, envelope)
            run.running = ""
            if ended is None:  # it was stopped, and will be run again by whoever owns the key then
                break
            if isinstance(ended, Report):
                return ended
            if run.done < len(take.jobs) and self._has_left_traces(context):
                break  # the next one is not to see what this one has set, nor to be cancelled for it
            failures = losses = 0
            now = elapsed()
            self._pace.note(now - began)
            began = now
            if now - reported > REPORT_EVERY and run.done < len(take.jobs):
                self._hand_in(run.filled(run.report("keep")))
                reported = now
        return end

    @staticmethod
    def _has_left_traces(context: contextvars.Context) -> bool:
        """Return whether a job has left something in its task."""
        task = asyncio.current_task()
        return contextvars.copy_context() != context or (task is not None and task.cancelling() > 0)

    async def _run_one(
        self, run: RunningTake, definition: Definition, job: Job, envelope: Envelope
    ) -> Report | bool | None:
        """Run one job: True when it has ended, a `Report` when the take ends with it, None when it was stopped."""
        try:
            args, kwargs = definition.shape.decode(envelope.payload)
        except Exception as error:  # DoesNotFit, or whatever a model of the user's raises
            words = str(error) if isinstance(error, DoesNotFit) else shown(error)
            misfit = TypeError(f"the arguments do not fit the handler of {job.name!r} on this worker: {words}")
            return self._to_dead_letters(run, envelope, job.attempt, misfit)
        try:
            if self._watched.is_wanted:
                value = await self._watched.call(definition, job, args, kwargs, run.take.jobs[run.done])
            else:
                value = await self._caller.call(definition, job, args, kwargs)
        except asyncio.CancelledError:
            if not run.lost.is_set:
                task = asyncio.current_task()
                if task is not None and task.cancelling() and not getattr(task, "has_cancelled_itself", False):
                    raise  # the loop is being torn down
                return self._failed(run, definition, job, envelope, RuntimeError("the handler cancelled itself"))
            return _stopped(run, envelope)
        except Retry as error:
            pause = definition.policy.pause(job.attempt) if error.delay is None else error.delay
            return _again(run, pause, error)
        except BaseException as error:  # SystemExit, too: it is the handler's, not ours
            is_stopped = run.lost.is_set
            return _stopped(run, envelope) if is_stopped else self._failed(run, definition, job, envelope, error)
        is_heeded = definition.is_async or run.lost.is_heeded
        if run.lost.is_set and is_heeded and run.lost.reason != "cancelled":
            return None  # it ended early
        try:
            data = self._encoded(value, job.name) if envelope.keep else b""
        except (TypeError, ValueError) as misfit:
            return self._to_dead_letters(run, envelope, job.attempt, misfit)
        _conclude(run, envelope, "done", data)
        if self._observer is not None:
            emit(self._observer, "job_done", self.pool, key=job.key, id=job.id, job=job.name, token=job.token)
        return True

    def _encoded(self, value: Any, job: str, verb: str = "returned") -> bytes:
        """Return a result as bytes; raise when it cannot travel, or is too large."""
        try:
            data = encode_result(value)
        except Exception as error:
            raise TypeError(
                f"job {job!r} {verb} what cannot travel: {said(error)}; use plain types, dataclasses or msgspec "
                "Structs, or declare it with keep_result=0"
            ) from None
        if len(data) > self._largest:
            raise ValueError(
                f"job {job!r} {verb} {len(data)} bytes, and pool {self.pool!r} allows {self._largest}: store it "
                "elsewhere and send where it is, or create the pool with payload_limit="
            )
        return data

    # -- progress -----------------------------------------------------------------------------------------------------

    def _note_progress(self, run: RunningTake, envelope: Envelope, value: Any) -> None:
        """Note how far a job is, for its caller; from whatever thread."""
        data = self._encoded(value, envelope.name, "told a progress of")
        outcome = Outcome(envelope.id, "progress", data, envelope.keep + PROGRESS_KEPT, envelope.reply)
        with lock_of(run):
            is_first, run.progress = run.progress is None, outcome
        if is_first:  # else the loop knows that there is something, and takes the latest
            try:
                self._loop.call_soon_threadsafe(self._loop.call_later, REPORT_EVERY, self._report_progress, run)
            except RuntimeError:
                logger.debug("the event loop of a worker of pool %r is closed", self.pool)

    def _report_progress(self, run: RunningTake) -> None:
        with lock_of(run):
            outcome, run.progress = run.progress, None
        if outcome is not None and run.running == outcome.id:  # else it has ended, which says more
            run.outcomes.append(outcome)
            self._hand_in(run.filled(run.report("keep")))

    # -- failures -----------------------------------------------------------------------------------------------------

    def _failed(
        self, run: RunningTake, definition: Definition, job: Job, envelope: Envelope, error: BaseException
    ) -> Report:
        """Return what becomes of a job that raised: it is tried again, or is dead."""
        policy = definition.policy
        if job.attempt < policy.max_attempts and issubclass(type(error), policy.retry_on):
            pause = policy.pause(job.attempt)
            about: dict[str, Any] = {"key": job.key, "id": job.id, "job": job.name, "error": shown(error)}
            tell(self._observer, "job_retried", self.pool, delay=pause, **about)
            return _again(run, pause, error)
        return self._to_dead_letters(run, envelope, job.attempt, error)

    def _to_dead_letters(self, run: RunningTake, envelope: Envelope, attempts: int, error: BaseException) -> Report:
        """Return the report of a job that has failed for good."""
        kept = failure(bare(error), attempts)
        key, job = run.take.mailbox[2:], envelope.name
        tell(self._observer, "job_failed", self.pool, cause=error, key=key, id=envelope.id, job=job, error=shown(error))
        if envelope.keep:
            outcome = Outcome(envelope.id, "dead", encode_failure(kept), envelope.keep, envelope.reply)
            run.outcomes.append(outcome)
        text = f"{kept.type}: {kept.message}\n\n{kept.traceback}".encode(errors="backslashreplace")
        return run.report("to_dead_letters", reason=text)


def _conclude(run: RunningTake, envelope: Envelope, status: str, data: bytes) -> None:
    """Count a job as finished."""
    run.done += 1
    if envelope.keep:
        run.outcomes.append(Outcome(envelope.id, status, data, envelope.keep, envelope.reply))


def _stopped(run: RunningTake, envelope: Envelope) -> Report | None:
    """Return what becomes of a job that was stopped: it is over if it was cancelled, else it will be run again."""
    if run.lost.reason != "cancelled":
        return None
    _conclude(run, envelope, "cancelled", b"")
    return run.report()


def _again(run: RunningTake, pause: float, error: BaseException) -> Report:
    """Return the report of a job that is to be tried again."""
    failures = run.take.failures + 1 if run.done == 0 else 1
    return run.report("retry", delay=round(pause * SECOND), failures=failures, reason=words_of(error))


def words_of(error: BaseException) -> bytes:
    """Return what a person reads of an error after which something is tried again."""
    return f"{kind_of(error).rpartition('.')[2]}: {said(error)}".encode(errors="backslashreplace")[:LONGEST_ERROR]


def _ignore(value: Any) -> None:
    """Ignore how far a job is: it keeps no result."""
