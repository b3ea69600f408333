"""Runs what a worker has taken, in its event loop: coroutines there, plain functions in threads.

The jobs of one key run one after another in one `RunningTake`; how each ended is gathered and reported with the take,
or on the way when it takes long. A coroutine that has to stop is cancelled; a plain function cannot be: it is told by
`job.lost`, and its key is not let go before it has returned.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from millpond._clock import elapsed
from millpond._events import Observer, emit, logger
from millpond._tracing import Tracing
from millpond.errors import LeaseLost
from millpond.keyed.jobs import Job, Resident, Retry
from millpond.keyed.rules.envelope import UNREADABLE, Envelope, came, opened
from millpond.keyed.rules.records import LONGEST_ERROR, SECOND, Outcome, Report, Signal, Take
from millpond.keyed.shared.arguments import DoesNotFit
from millpond.keyed.shared.arguments import encode as encode_result
from millpond.keyed.shared.definition import Definition
from millpond.keyed.shared.notices import tell
from millpond.keyed.shared.outcome import bare, failure
from millpond.keyed.shared.outcome import encode as encode_failure
from millpond.keyed.worker.handlers import Caller
from millpond.keyed.worker.membership import Membership
from millpond.keyed.worker.running_take import RunningTake
from millpond.keyed.worker.watched import WatchedCaller

REPORT_EVERY = 0.05
"""Seconds after which a run that goes on reports what it has done so far."""
TINY = 0.0001
"""Jobs that take less, on average, share a task as long as none of them waits, and are taken ahead."""
AHEAD = 4
"""How many times `concurrency` of quick ones a worker holds."""
QUICK = 0.001
"""Jobs that take less, on average, are taken many at a time."""
PROGRESS_KEPT = 24 * 3600 * SECOND
"""How long the progress of a job is kept, beyond the time for which its result is."""
LONG_LIFE = 60.0
"""A resident that ran for so many seconds has not failed in a row."""


class Runner:
    """What runs on one worker."""

    def __init__(
        self,
        pool: str,
        definitions: Mapping[str, Definition],
        concurrency: int,
        report: Callable[[Report], None],
        observer: Observer | None = None,
        largest: int = 1 << 20,
        tracing: Tracing | None = None,
    ) -> None:
        self.pool = pool
        self.concurrency = concurrency
        self._largest = largest
        """Bytes that a result may have."""
        self.runs: set[RunningTake] = set()
        self.residents: set[RunningTake] = set()
        self.is_closing = False
        self._definitions = definitions
        self._hand_in = report
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._caller = Caller(pool, concurrency)
        self._watched = WatchedCaller(self._caller, pool, () if observer is None else (observer,), tracing)
        self._cancelled: set[str] = set()
        self._pace = 20 * QUICK  # not known yet: one at a time
        self._running = 0
        """Visits to keys that have begun."""
        self._waiting: deque[tuple[Membership, RunningTake]] = deque()
        self._is_attended = False
        """Whether a task is begun as soon as the loop has time."""
        self._context = contextvars.copy_context()
        self._idle = asyncio.Event()
        self._is_hurried = False

    # -- asked by the feed, from its thread ---------------------------------------------------------------------------

    def room(self) -> int:
        """Return how many more keys can be taken: as many as can be run at once, or more of quick ones.

        What is taken beyond that waits here, so that the next lot is on its way while this one is run.
        """
        many = self.concurrency if self._pace >= TINY else AHEAD * self.concurrency
        return 0 if self.is_closing else max(0, many - len(self.runs))

    def per_key(self) -> int:
        """Return how many jobs of a key to take at once: many when they are quick, so that a take is worth it."""
        return 16 if self._pace < QUICK else 4 if self._pace < 10 * QUICK else 1

    def start(self, membership: Membership, takes: Iterable[Take], *, is_handed: bool = False) -> None:
        """Let the loop run what was taken, or handed over."""
        runs = []
        for take in takes:
            run = RunningTake(take)
            membership.runs[take.mailbox] = run
            (self.runs if take.mailbox[0] == "j" else self.residents).add(run)
            runs.append(run)
        self._soon(self._begin, membership, runs, is_handed)

    def hear(self, membership: Membership, signals: Iterable[Signal], before: int = 0) -> bool:
        """Act upon what others want of something that runs here, and run what was handed over.

        Return False, and do nothing, when the signal `before` these has not been heard: they come again.
        """
        with membership.hearing:
            if before > membership.heard:
                return False
            for signal in signals:
                if signal.number > membership.heard:
                    if signal.kind != "take":
                        self._soon(self._on_signal, membership, signal)
                    elif signal.data:
                        take = Take(signal.slot, signal.mailbox, signal.note, (signal.data,))
                        self.start(membership, [take], is_handed=True)
                    membership.heard = signal.number
        return True

    def give_up(self, membership: Membership, reason: str) -> None:
        """Stop everything that runs under a membership that is over."""
        self._soon(self._stop, membership.runs, reason)

    def give_away(self, membership: Membership, slots: Iterable[int], until: float) -> None:
        """Begin nothing more in slots that are another's now; residents move at once, jobs have time to end."""
        self._soon(self._move, membership, set(slots), until)

    def take_back(self, membership: Membership, slots: Iterable[int]) -> None:
        """Go on in slots that are ours again."""
        if membership.given or any(run.is_moved for run in list(membership.runs.values())):
            self._soon(self._return, membership, set(slots))

    def measure(self, observer: Observer) -> None:
        """Also tell this observer of every run of a handler from now on; from whatever thread."""
        self._watched.add(observer)

    def _soon(self, step: Callable[..., object], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(step, *args)
        except RuntimeError:  # the loop is closed: the process ends, and the store finds out by the lease
            logger.debug("the event loop of a worker of pool %r is closed", self.pool)

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _begin(self, membership: Membership, runs: list[RunningTake], is_handed: bool) -> None:
        for run in runs:
            run.is_moved = is_handed and run.take.slot in membership.given  # it was given away after the hand-over
            if run.take.mailbox[0] == "j":
                if self._pace < TINY:
                    self._waiting.append((membership, run))
                else:
                    run.task = self._loop.create_task(self._run_take(membership, run))
            else:
                run.running = opened(run.take.jobs[0]).id
                run.task = self._loop.create_task(self._run_resident(membership, run))
        self._attend_soon()

    def _attend_soon(self) -> None:
        self._is_attended = False
        if self._waiting and self._running < self.concurrency:
            self._loop.create_task(self._attend())

    async def _attend(self) -> None:
        """Run what waits, one run after another as long as each ends at once: one that does not keeps this task.

        A task costs as much as a job that does nothing. The next task is begun as soon as this one has to wait, and
        this one goes no further when a job has left something in it: a variable of its context, a cancellation.
        """
        task = asyncio.current_task()
        assert task is not None
        context = contextvars.copy_context()
        while self._waiting and self._running < self.concurrency:
            if not self._is_attended:
                self._is_attended = True
                self._loop.call_soon(self._attend_soon, context=self._context)
            membership, run = self._waiting.popleft()
            run.task = task
            await self._run_take(membership, run)
            if task.cancelling() or contextvars.copy_context() != context:
                return

    def _stop(self, runs: Mapping[str, RunningTake], reason: str) -> None:
        for run in list(runs.values()):
            run.stop(reason, again=True)
        self._give_back()

    def _give_back(self) -> None:
        """Let go of what was taken ahead and is not to begin here any more."""
        for membership, run in [self._waiting.popleft() for _ in range(len(self._waiting))]:
            if self.is_closing or run.is_moved or run.lost.is_set:
                self._report(run, Report(*run.take[:3], 0))
                self._leave(membership, run)
            else:
                self._waiting.append((membership, run))

    def _on_signal(self, membership: Membership, signal: Signal) -> None:
        run = membership.runs.get(signal.mailbox)
        if run is None:
            return
        if signal.kind == "note":
            if run.resident is not None:
                run.resident.deliver(signal.note, signal.data)
            else:
                run.early.append((signal.note, signal.data))
        elif signal.kind == "pause":
            run.stop("paused")
        elif run.running == signal.id:
            run.stop("stopped" if signal.mailbox[0] == "r" else "cancelled")
        else:
            self._cancelled.add(signal.id)

    def _move(self, membership: Membership, slots: set[int], until: float) -> None:
        membership.given |= slots
        for run in list(membership.runs.values()):
            if run.take.slot in slots and not run.is_moved:
                run.is_moved = True
                if run.take.mailbox[0] == "r":
                    run.stop("moved")
                else:
                    left = max(0.0, until - elapsed())
                    run.drained = self._loop.call_later(left, self._drained, membership, run)
        self._give_back()

    def _return(self, membership: Membership, slots: set[int]) -> None:
        membership.given -= slots
        for run in list(membership.runs.values()):
            if run.take.slot in slots and run.is_moved and not run.lost.is_set:
                run.is_moved = False
                if run.drained is not None:
                    run.drained.cancel()

    def _drained(self, membership: Membership, run: RunningTake) -> None:
        if membership.runs.get(run.take.mailbox) is run:
            run.stop("drain")

    def close(self) -> None:
        """Begin nothing more; what runs may end. Residents are ended now."""
        self.is_closing = True
        self._give_back()
        for run in list(self.residents):
            run.stop("closing")

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return not self.runs and not self.residents

    async def idle(self, timeout: float | None, *, hurried: bool = False) -> bool:
        """Wait until nothing runs, for so many seconds, or until `hurry`; tell whether nothing does."""
        try:
            async with asyncio.timeout(timeout):
                while not self.is_idle and (hurried or not self._is_hurried):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            pass
        return self.is_idle

    def hurry(self) -> None:
        """Give what runs no more time."""
        self._is_hurried = True
        self.stop("closing")
        self._idle.set()

    def stop(self, reason: str) -> None:
        """Ask everything that runs to stop."""
        for run in [*self.runs, *self.residents]:
            run.stop(reason, again=True)

    def shut(self) -> None:
        """Let go of the threads; those that still run something are left to the end of the process."""
        self._caller.shut()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def _run_take(self, membership: Membership, run: RunningTake) -> None:
        """Run the jobs of a run and report, come what may."""
        run.is_begun = True
        self._running += 1
        take = run.take
        how = Report(take.slot, take.mailbox, take.token, 0)
        try:
            how = await self._go_through(membership, run, how)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            logger.exception("a worker of pool %r failed at key %r", self.pool, take.mailbox[2:])
            how = how._replace(how="to_dead_letters", reason=f"its worker failed: {error!r}".encode(errors="replace"))
        finally:
            self._running -= 1
            self._report(run, how)
            self._leave(membership, run)
            if self._waiting and not self._is_attended:
                self._is_attended = True
                self._loop.call_soon(self._attend_soon, context=self._context)

    async def _go_through(self, membership: Membership, run: RunningTake, how: Report) -> Report:
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
                return how._replace(how="park", reason=envelope.name.encode())
            if self._cancelled and envelope.id in self._cancelled:
                self._cancelled.discard(envelope.id)
                self._conclude(run, envelope, "cancelled", b"")
                continue
            attempt, at = failures + losses + 1, came(raw) / SECOND
            watch = partial(self._tell, run, envelope) if envelope.keep else _nobody
            job = Job(key, envelope.id, envelope.name, attempt, take.token, at, self.pool, run.lost, watch)
            run.running = envelope.id
            ended = await self._run(run, definition, job, envelope)
            run.running = ""
            if ended is None:  # it was stopped, and will be run again by whoever owns the key then
                break
            if isinstance(ended, Report):
                return ended
            if run.done < len(take.jobs) and contextvars.copy_context() != context:
                break  # the next one is not to see what this one has set
            failures = losses = 0
            now = elapsed()
            self._pace += 0.2 * (now - began - self._pace)
            began = now
            if now - reported > REPORT_EVERY and run.done < len(take.jobs):
                self._report(run, how._replace(how="keep"))
                reported = now
        return how

    async def _run(
        self, run: RunningTake, definition: Definition, job: Job, envelope: Envelope
    ) -> Report | bool | None:
        """Run one job: True when it has ended, a `Report` when the run ends with it, None when it was stopped."""
        try:
            args, kwargs = definition.shape.decode(envelope.payload)
        except Exception as error:  # DoesNotFit, or whatever a model of the user's raises
            words = str(error) if isinstance(error, DoesNotFit) else repr(error)
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
                if task is not None and task.cancelling():
                    raise  # the loop is being torn down
                return self._fail(run, definition, job, envelope, RuntimeError("the handler cancelled itself"))
            return self._stopped(run, envelope)
        except Retry as error:
            pause = definition.policy.pause(job.attempt) if error.delay is None else error.delay
            return self._again(run, pause, error)
        except BaseException as error:  # SystemExit, too: it is the handler's, not ours
            is_stopped = run.lost.is_set
            return self._stopped(run, envelope) if is_stopped else self._fail(run, definition, job, envelope, error)
        is_heeded = definition.is_async or run.lost.is_heeded
        if run.lost.is_set and is_heeded and run.lost.reason != "cancelled":
            return None  # it ended early
        try:
            data = self._encoded(value, job.name) if envelope.keep else b""
        except (TypeError, ValueError) as misfit:
            return self._to_dead_letters(run, envelope, job.attempt, misfit)
        self._conclude(run, envelope, "done", data)
        if self._observer is not None:
            emit(self._observer, "job_done", self.pool, key=job.key, id=job.id, job=job.name, token=job.token)
        return True

    def _encoded(self, value: Any, job: str, verb: str = "returned") -> bytes:
        """Return a result as bytes; raise when it cannot travel, or is too large."""
        try:
            data = encode_result(value)
        except Exception as error:
            raise TypeError(
                f"job {job!r} {verb} what cannot travel: {error}; use plain types, dataclasses or msgspec Structs, or "
                "declare it with keep_result=0"
            ) from None
        if len(data) > self._largest:
            raise ValueError(
                f"job {job!r} {verb} {len(data)} bytes, and pool {self.pool!r} allows {self._largest}: store it "
                "elsewhere and send where it is, or create the pool with payload_limit="
            )
        return data

    def _tell(self, run: RunningTake, envelope: Envelope, value: Any) -> None:
        """Tell the caller of a job how far it is; from whatever thread."""
        data = self._encoded(value, envelope.name, "told a progress of")
        outcome = Outcome(envelope.id, "progress", data, envelope.keep + PROGRESS_KEPT, envelope.reply)
        is_first, run.progress = run.progress is None, outcome
        if is_first:  # else the loop knows that there is something, and takes the latest
            self._soon(self._loop.call_later, REPORT_EVERY, self._report_progress, run)

    def _report_progress(self, run: RunningTake) -> None:
        outcome, run.progress = run.progress, None
        if outcome is not None and run.running == outcome.id:  # else it has ended, which says more
            run.outcomes.append(outcome)
            self._report(run, Report(*run.take[:3], 0, "keep"))

    def _stopped(self, run: RunningTake, envelope: Envelope) -> Report | None:
        """Say what becomes of a job that was stopped: it is over if it was cancelled, else it will be run again."""
        if run.lost.reason != "cancelled":
            return None
        self._conclude(run, envelope, "cancelled", b"")
        return Report(*run.take[:3], 0)

    def _conclude(self, run: RunningTake, envelope: Envelope, status: str, data: bytes) -> None:
        """Count a job as finished."""
        run.done += 1
        if envelope.keep:
            run.outcomes.append(Outcome(envelope.id, status, data, envelope.keep, envelope.reply))

    def _fail(
        self, run: RunningTake, definition: Definition, job: Job, envelope: Envelope, error: BaseException
    ) -> Report:
        policy = definition.policy
        if job.attempt < policy.max_attempts and isinstance(error, policy.retry_on):
            pause = policy.pause(job.attempt)
            about: dict[str, Any] = {"key": job.key, "id": job.id, "job": job.name, "error": repr(error)}
            tell(self._observer, "job_retried", self.pool, delay=pause, **about)
            return self._again(run, pause, error)
        return self._to_dead_letters(run, envelope, job.attempt, error)

    def _again(self, run: RunningTake, pause: float, error: BaseException) -> Report:
        take = run.take
        failures = take.failures + 1 if run.done == 0 else 1
        return Report(take.slot, take.mailbox, take.token, 0, "retry", round(pause * SECOND), failures, _words(error))

    def _to_dead_letters(self, run: RunningTake, envelope: Envelope, attempts: int, error: BaseException) -> Report:
        """Say that a job has failed for good."""
        take, kept = run.take, failure(bare(error), attempts)
        key, job = take.mailbox[2:], envelope.name
        tell(self._observer, "job_failed", self.pool, cause=error, key=key, id=envelope.id, job=job, error=repr(error))
        if envelope.keep:
            outcome = Outcome(envelope.id, "dead", encode_failure(kept), envelope.keep, envelope.reply)
            run.outcomes.append(outcome)
        text = f"{kept.type}: {kept.message}\n\n{kept.traceback}".encode(errors="backslashreplace")
        return Report(take.slot, take.mailbox, take.token, 0, "to_dead_letters", reason=text)

    def _report(self, run: RunningTake, how: Report) -> None:
        outcomes, run.outcomes = tuple(run.outcomes), []
        slot, mailbox, token, _, word, delay, failures, reason, _, _ = how
        done = run.done
        self._hand_in(Report(slot, mailbox, token, done, word, delay, failures, reason, outcomes, run.notes))

    def _leave(self, membership: Membership, run: RunningTake) -> None:
        if membership.runs.get(run.take.mailbox) is run:
            del membership.runs[run.take.mailbox]
        self.runs.discard(run)
        self.residents.discard(run)
        if self._cancelled:
            self._cancelled.difference_update(opened(raw).id for raw in run.take.jobs)
        if not self.runs and not self.residents:
            self._idle.set()

    # -- residents ----------------------------------------------------------------------------------------------------

    async def _run_resident(self, membership: Membership, run: RunningTake) -> None:
        run.is_begun = True
        take = run.take
        raw = take.jobs[0]
        envelope = opened(raw)
        name, _, key = take.mailbox[2:].partition(":")
        how = Report(take.slot, take.mailbox, take.token, 0)
        began = elapsed()
        definition = self._definitions.get(name)
        try:
            if definition is None or definition.function is None or not definition.is_resident:
                how = how._replace(how="park", reason=name.encode())
                return
            if run.is_moved or self.is_closing or not membership.may_begin() or run.lost.is_set:
                run.done += run.lost.reason == "stopped"
                return
            args, kwargs = definition.shape.decode(envelope.payload)
            job = Job(key, envelope.id, name, take.failures + 1, take.token, came(raw) / SECOND, self.pool, run.lost)
            notes = [*take.notes, *run.early]
            run.resident = resident = Resident(job, notes, lambda number: self._note(run, number))
            emit(self._observer, "resident_started", self.pool, key=key, resident=name, token=take.token)
            await self._caller.stay(definition, resident, args, kwargs)
            run.done += run.lost.reason in ("", "stopped")
        except DoesNotFit as error:
            how = how._replace(how="to_dead_letters", reason=f"its arguments do not fit: {error}".encode())
        except BaseException as error:
            if run.lost.is_set:
                run.done += run.lost.reason == "stopped"
                if not isinstance(error, (asyncio.CancelledError, LeaseLost)):
                    logger.info("resident %r of key %r failed while it was ending", name, key, exc_info=error)
            else:
                failures = 1 if elapsed() - began > LONG_LIFE else take.failures + 1
                pause = definition.policy.pause(failures) if definition is not None else 1.0
                how = how._replace(how="retry", delay=round(pause * SECOND), failures=failures, reason=_words(error))
                about = {"key": key, "resident": name, "error": repr(error)}
                tell(self._observer, "resident_failed", self.pool, cause=bare(error), delay=pause, **about)
        finally:
            emit(self._observer, "resident_ended", self.pool, key=key, resident=name, reason=run.lost.reason)
            self._report(run, how)
            self._leave(membership, run)

    def _note(self, run: RunningTake, number: int) -> None:
        """Let the store forget a message that was handled; from whatever thread."""
        run.notes = max(run.notes, number)
        take = run.take
        self._hand_in(Report(take.slot, take.mailbox, take.token, 0, "keep", notes=run.notes))


def _words(error: BaseException) -> bytes:
    """Return what a person reads of an error after which something is tried again."""
    return f"{type(error).__name__}: {error}".encode(errors="backslashreplace")[:LONGEST_ERROR]


def _nobody(value: Any) -> None:
    """Tell nobody how far a job is: it keeps no result."""
