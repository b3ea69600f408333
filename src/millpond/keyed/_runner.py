"""Runs what a worker has taken, in its event loop: coroutines there, plain functions in threads.

The jobs of one key run one after another in one `Visit`; how each ended is gathered and reported with the visit, or on
the way when it takes long. A coroutine that has to stop is cancelled; a plain function cannot be: it is told by
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
from millpond.keyed._call import Caller
from millpond.keyed._definition import Definition
from millpond.keyed._envelope import UNREADABLE, Envelope, came, opened
from millpond.keyed._job import Job, Resident, Retry
from millpond.keyed._news import tell
from millpond.keyed._outcome import bare, failure
from millpond.keyed._outcome import encode as encode_failure
from millpond.keyed._payload import DoesNotFit
from millpond.keyed._payload import encode as encode_result
from millpond.keyed._records import LONGEST_ERROR, SECOND, Outcome, Settle, Signal, Take
from millpond.keyed._tenure import Tenure
from millpond.keyed._visit import Visit
from millpond.keyed._watched import WatchedCaller
from millpond.local._atomic import lock_of

REPORT_EVERY = 0.05
"""Seconds after which a visit that goes on reports what it has done so far."""
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
        settle: Callable[[Settle], None],
        observer: Observer | None = None,
        largest: int = 1 << 20,
        tracing: Tracing | None = None,
    ) -> None:
        self.pool = pool
        self.concurrency = concurrency
        self._largest = largest
        """Bytes that a result may have."""
        self.visits: set[Visit] = set()
        self.residents: set[Visit] = set()
        self.is_closing = False
        self._definitions = definitions
        self._settle = settle
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._caller = Caller(pool, concurrency)
        self._watched = WatchedCaller(self._caller, pool, () if observer is None else (observer,), tracing)
        self._cancelled: set[str] = set()
        self._pace = 20 * QUICK  # not known yet: one at a time
        self._running = 0
        """Visits to keys that have begun."""
        self._waiting: deque[tuple[Tenure, Visit]] = deque()
        self._is_attended = False
        """Whether a task is begun as soon as the loop has time."""
        self._context = contextvars.copy_context()
        self._idle = asyncio.Event()
        self._is_hurried = False

    # -- asked by the lane, from its thread ---------------------------------------------------------------------------

    def room(self) -> int:
        """Return how many more keys can be taken: as many as can be run at once, or more of quick ones.

        What is taken beyond that waits here, so that the next lot is on its way while this one is run.
        """
        many = self.concurrency if self._pace >= TINY else AHEAD * self.concurrency
        return 0 if self.is_closing else max(0, many - len(self.visits))

    def per_key(self) -> int:
        """Return how many jobs of a key to take at once: many when they are quick, so that a take is worth it."""
        return 16 if self._pace < QUICK else 4 if self._pace < 10 * QUICK else 1

    def admit(self, tenure: Tenure, takes: Iterable[Take], *, is_handed: bool = False) -> None:
        """Let the loop run what was taken, or handed over."""
        visits = []
        for take in takes:
            visit = Visit(take)
            tenure.visits[take.mailbox] = visit
            (self.visits if take.mailbox[0] == "j" else self.residents).add(visit)
            visits.append(visit)
        self._soon(self._begin, tenure, visits, is_handed)

    def hear(self, tenure: Tenure, signals: Iterable[Signal], before: int = 0) -> bool:
        """Act upon what others want of something that runs here, and run what was handed over.

        Return False, and do nothing, when the signal `before` these has not been heard: they come again.
        """
        with tenure.hearing:
            if before > tenure.heard:
                return False
            for signal in signals:
                if signal.number > tenure.heard:
                    if signal.kind != "take":
                        self._soon(self._act, tenure, signal)
                    elif signal.data:
                        take = Take(signal.slot, signal.mailbox, signal.note, (signal.data,))
                        self.admit(tenure, [take], is_handed=True)
                    tenure.heard = signal.number
        return True

    def give_up(self, tenure: Tenure, reason: str) -> None:
        """Stop everything that runs under a membership that is over."""
        self._soon(self._stop, tenure.visits, reason)

    def give_away(self, tenure: Tenure, slots: Iterable[int], until: float) -> None:
        """Begin nothing more in slots that are another's now; residents move at once, jobs have time to end."""
        self._soon(self._move, tenure, set(slots), until)

    def take_back(self, tenure: Tenure, slots: Iterable[int]) -> None:
        """Go on in slots that are ours again."""
        if tenure.given or any(visit.is_moved for visit in list(tenure.visits.values())):
            self._soon(self._return, tenure, set(slots))

    def measure(self, observer: Observer) -> None:
        """Also tell this observer of every run of a handler from now on; from whatever thread."""
        self._watched.add(observer)

    def _soon(self, step: Callable[..., object], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(step, *args)
        except RuntimeError:  # the loop is closed: the process ends, and the store finds out by the lease
            logger.debug("the event loop of a worker of pool %r is closed", self.pool)

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _begin(self, tenure: Tenure, visits: list[Visit], is_handed: bool) -> None:
        for visit in visits:
            visit.is_moved = is_handed and visit.take.slot in tenure.given  # it was given away after the hand-over
            if visit.take.mailbox[0] == "j":
                if self._pace < TINY:
                    self._waiting.append((tenure, visit))
                else:
                    visit.task = self._loop.create_task(self._visit(tenure, visit))
            else:
                visit.running = opened(visit.take.jobs[0]).id
                visit.task = self._loop.create_task(self._stay(tenure, visit))
        self._attend_soon()

    def _attend_soon(self) -> None:
        self._is_attended = False
        if self._waiting and self._running < self.concurrency:
            self._loop.create_task(self._attend())

    async def _attend(self) -> None:
        """Run what waits, one visit after another as long as each ends at once: one that does not keeps this task.

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
            tenure, visit = self._waiting.popleft()
            visit.task = task
            await self._visit(tenure, visit)
            if task.cancelling() or contextvars.copy_context() != context:
                return

    def _stop(self, visits: Mapping[str, Visit], reason: str) -> None:
        for visit in list(visits.values()):
            visit.stop(reason, again=True)
        self._give_back()

    def _give_back(self) -> None:
        """Let go of what was taken ahead and is not to begin here any more."""
        for tenure, visit in [self._waiting.popleft() for _ in range(len(self._waiting))]:
            if self.is_closing or visit.is_moved or visit.lost.is_set:
                self._report(visit, Settle(*visit.take[:3], 0))
                self._leave(tenure, visit)
            else:
                self._waiting.append((tenure, visit))

    def _act(self, tenure: Tenure, signal: Signal) -> None:
        visit = tenure.visits.get(signal.mailbox)
        if visit is None:
            return
        if signal.kind == "note":
            if visit.resident is not None:
                visit.resident.deliver(signal.note, signal.data)
            else:
                visit.early.append((signal.note, signal.data))
        elif signal.kind == "pause":
            visit.stop("paused")
        elif visit.running == signal.id:
            visit.stop("stopped" if signal.mailbox[0] == "r" else "cancelled")
        else:
            self._cancelled.add(signal.id)

    def _move(self, tenure: Tenure, slots: set[int], until: float) -> None:
        tenure.given |= slots
        for visit in list(tenure.visits.values()):
            if visit.take.slot in slots and not visit.is_moved:
                visit.is_moved = True
                if visit.take.mailbox[0] == "r":
                    visit.stop("moved")
                else:
                    left = max(0.0, until - elapsed())
                    visit.drained = self._loop.call_later(left, self._drained, tenure, visit)
        self._give_back()

    def _return(self, tenure: Tenure, slots: set[int]) -> None:
        tenure.given -= slots
        for visit in list(tenure.visits.values()):
            if visit.take.slot in slots and visit.is_moved and not visit.lost.is_set:
                visit.is_moved = False
                if visit.drained is not None:
                    visit.drained.cancel()

    def _drained(self, tenure: Tenure, visit: Visit) -> None:
        if tenure.visits.get(visit.take.mailbox) is visit:
            visit.stop("drain")

    def close(self) -> None:
        """Begin nothing more; what runs may end. Residents are ended now."""
        self.is_closing = True
        self._give_back()
        for visit in list(self.residents):
            visit.stop("closing")

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return not self.visits and not self.residents

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
        for visit in [*self.visits, *self.residents]:
            visit.stop(reason, again=True)

    def shut(self) -> None:
        """Let go of the threads; those that still run something are left to the end of the process."""
        self._caller.shut()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def _visit(self, tenure: Tenure, visit: Visit) -> None:
        """Run the jobs of a visit and report, come what may."""
        visit.is_begun = True
        self._running += 1
        take = visit.take
        how = Settle(take.slot, take.mailbox, take.token, 0)
        try:
            how = await self._go_through(tenure, visit, how)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            logger.exception("a worker of pool %r failed at key %r", self.pool, take.mailbox[2:])
            how = how._replace(how="bury", reason=f"its worker failed: {error!r}".encode(errors="replace"))
        finally:
            self._running -= 1
            self._report(visit, how)
            self._leave(tenure, visit)
            if self._waiting and not self._is_attended:
                self._is_attended = True
                self._loop.call_soon(self._attend_soon, context=self._context)

    async def _go_through(self, tenure: Tenure, visit: Visit, how: Settle) -> Settle:
        """Run one job after another; return what is to happen to the key."""
        take = visit.take
        key = take.mailbox[2:]
        context = contextvars.copy_context()
        failures, losses = take.failures, take.losses
        began = reported = elapsed()
        for raw in take.jobs:
            if visit.is_moved or self.is_closing or not tenure.may_begin() or visit.lost.is_set:
                break
            envelope = opened(raw)
            if envelope is UNREADABLE:
                damage = ValueError("the job cannot be read: it was written by something else, or was damaged")
                return self._bury(visit, envelope, 1, damage)
            definition = self._definitions.get(envelope.name)
            if definition is None or definition.function is None or definition.is_resident:
                tell(self._observer, "job_unknown", self.pool, key=key, id=envelope.id, job=envelope.name)
                return how._replace(how="shelve", reason=envelope.name.encode())
            if self._cancelled and envelope.id in self._cancelled:
                self._cancelled.discard(envelope.id)
                self._conclude(visit, envelope, "cancelled", b"")
                continue
            attempt, at = failures + losses + 1, came(raw) / SECOND
            watch = partial(self._tell, visit, envelope) if envelope.keep else _nobody
            job = Job(key, envelope.id, envelope.name, attempt, take.token, at, self.pool, visit.lost, watch)
            visit.running = envelope.id
            ended = await self._run(visit, definition, job, envelope)
            visit.running = ""
            if ended is None:  # it was stopped, and will be run again by whoever owns the key then
                break
            if isinstance(ended, Settle):
                return ended
            if visit.done < len(take.jobs) and contextvars.copy_context() != context:
                break  # the next one is not to see what this one has set
            failures = losses = 0
            now = elapsed()
            self._pace += 0.2 * (now - began - self._pace)
            began = now
            if now - reported > REPORT_EVERY and visit.done < len(take.jobs):
                self._report(visit, how._replace(how="keep"))
                reported = now
        return how

    async def _run(self, visit: Visit, definition: Definition, job: Job, envelope: Envelope) -> Settle | bool | None:
        """Run one job: True when it has ended, a `Settle` when the visit ends with it, None when it was stopped."""
        try:
            args, kwargs = definition.shape.decode(envelope.payload)
        except Exception as error:  # DoesNotFit, or whatever a model of the user's raises
            words = str(error) if isinstance(error, DoesNotFit) else repr(error)
            misfit = TypeError(f"the arguments do not fit the handler of {job.name!r} on this worker: {words}")
            return self._bury(visit, envelope, job.attempt, misfit)
        try:
            if self._watched.is_wanted:
                value = await self._watched.call(definition, job, args, kwargs, visit.take.jobs[visit.done])
            else:
                value = await self._caller.call(definition, job, args, kwargs)
        except asyncio.CancelledError:
            if not visit.lost.is_set:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # the loop is being torn down
                return self._fail(visit, definition, job, envelope, RuntimeError("the handler cancelled itself"))
            return self._stopped(visit, envelope)
        except Retry as error:
            pause = definition.policy.pause(job.attempt) if error.delay is None else error.delay
            return self._again(visit, pause, error)
        except BaseException as error:  # SystemExit, too: it is the handler's, not ours
            is_stopped = visit.lost.is_set
            return self._stopped(visit, envelope) if is_stopped else self._fail(visit, definition, job, envelope, error)
        is_heeded = definition.is_async or visit.lost.is_heeded
        if visit.lost.is_set and is_heeded and visit.lost.reason != "cancelled":
            return None  # it ended early
        try:
            data = self._encoded(value, job.name) if envelope.keep else b""
        except (TypeError, ValueError) as misfit:
            return self._bury(visit, envelope, job.attempt, misfit)
        self._conclude(visit, envelope, "done", data)
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

    def _tell(self, visit: Visit, envelope: Envelope, value: Any) -> None:
        """Tell the caller of a job how far it is; from whatever thread."""
        data = self._encoded(value, envelope.name, "told a progress of")
        outcome = Outcome(envelope.id, "progress", data, envelope.keep + PROGRESS_KEPT, envelope.reply)
        with lock_of(visit):
            is_first, visit.progress = visit.progress is None, outcome
        if is_first:  # else the loop knows that there is something, and takes the latest
            self._soon(self._loop.call_later, REPORT_EVERY, self._report_progress, visit)

    def _report_progress(self, visit: Visit) -> None:
        with lock_of(visit):
            outcome, visit.progress = visit.progress, None
        if outcome is not None and visit.running == outcome.id:  # else it has ended, which says more
            visit.outcomes.append(outcome)
            self._report(visit, Settle(*visit.take[:3], 0, "keep"))

    def _stopped(self, visit: Visit, envelope: Envelope) -> Settle | None:
        """Say what becomes of a job that was stopped: it is over if it was cancelled, else it will be run again."""
        if visit.lost.reason != "cancelled":
            return None
        self._conclude(visit, envelope, "cancelled", b"")
        return Settle(*visit.take[:3], 0)

    def _conclude(self, visit: Visit, envelope: Envelope, status: str, data: bytes) -> None:
        """Count a job as finished."""
        visit.done += 1
        if envelope.keep:
            visit.outcomes.append(Outcome(envelope.id, status, data, envelope.keep, envelope.reply))

    def _fail(self, visit: Visit, definition: Definition, job: Job, envelope: Envelope, error: BaseException) -> Settle:
        policy = definition.policy
        if job.attempt < policy.max_attempts and isinstance(error, policy.retry_on):
            pause = policy.pause(job.attempt)
            about: dict[str, Any] = {"key": job.key, "id": job.id, "job": job.name, "error": repr(error)}
            tell(self._observer, "job_retried", self.pool, delay=pause, **about)
            return self._again(visit, pause, error)
        return self._bury(visit, envelope, job.attempt, error)

    def _again(self, visit: Visit, pause: float, error: BaseException) -> Settle:
        take = visit.take
        failures = take.failures + 1 if visit.done == 0 else 1
        return Settle(take.slot, take.mailbox, take.token, 0, "retry", round(pause * SECOND), failures, _words(error))

    def _bury(self, visit: Visit, envelope: Envelope, attempts: int, error: BaseException) -> Settle:
        """Say that a job has failed for good."""
        take, kept = visit.take, failure(bare(error), attempts)
        key, job = take.mailbox[2:], envelope.name
        tell(self._observer, "job_failed", self.pool, cause=error, key=key, id=envelope.id, job=job, error=repr(error))
        if envelope.keep:
            outcome = Outcome(envelope.id, "dead", encode_failure(kept), envelope.keep, envelope.reply)
            visit.outcomes.append(outcome)
        text = f"{kept.type}: {kept.message}\n\n{kept.traceback}".encode(errors="backslashreplace")
        return Settle(take.slot, take.mailbox, take.token, 0, "bury", reason=text)

    def _report(self, visit: Visit, how: Settle) -> None:
        outcomes, visit.outcomes = tuple(visit.outcomes), []
        slot, mailbox, token, _, word, delay, failures, reason, _, _ = how
        done = visit.done
        self._settle(Settle(slot, mailbox, token, done, word, delay, failures, reason, outcomes, visit.notes))

    def _leave(self, tenure: Tenure, visit: Visit) -> None:
        if tenure.visits.get(visit.take.mailbox) is visit:
            del tenure.visits[visit.take.mailbox]
        self.visits.discard(visit)
        self.residents.discard(visit)
        if self._cancelled:
            self._cancelled.difference_update(opened(raw).id for raw in visit.take.jobs)
        if not self.visits and not self.residents:
            self._idle.set()

    # -- residents ----------------------------------------------------------------------------------------------------

    async def _stay(self, tenure: Tenure, visit: Visit) -> None:
        visit.is_begun = True
        take = visit.take
        raw = take.jobs[0]
        envelope = opened(raw)
        name, _, key = take.mailbox[2:].partition(":")
        how = Settle(take.slot, take.mailbox, take.token, 0)
        began = elapsed()
        definition = self._definitions.get(name)
        try:
            if definition is None or definition.function is None or not definition.is_resident:
                how = how._replace(how="shelve", reason=name.encode())
                return
            if visit.is_moved or self.is_closing or not tenure.may_begin() or visit.lost.is_set:
                visit.done += visit.lost.reason == "stopped"
                return
            args, kwargs = definition.shape.decode(envelope.payload)
            job = Job(key, envelope.id, name, take.failures + 1, take.token, came(raw) / SECOND, self.pool, visit.lost)
            notes = [*take.notes, *visit.early]
            visit.resident = resident = Resident(job, notes, lambda number: self._note(visit, number))
            emit(self._observer, "resident_started", self.pool, key=key, resident=name, token=take.token)
            await self._caller.stay(definition, resident, args, kwargs)
            visit.done += visit.lost.reason in ("", "stopped")
        except DoesNotFit as error:
            how = how._replace(how="bury", reason=f"its arguments do not fit: {error}".encode())
        except BaseException as error:
            if visit.lost.is_set:
                visit.done += visit.lost.reason == "stopped"
                if not isinstance(error, (asyncio.CancelledError, LeaseLost)):
                    logger.info("resident %r of key %r failed while it was ending", name, key, exc_info=error)
            else:
                failures = 1 if elapsed() - began > LONG_LIFE else take.failures + 1
                pause = definition.policy.pause(failures) if definition is not None else 1.0
                how = how._replace(how="retry", delay=round(pause * SECOND), failures=failures, reason=_words(error))
                about = {"key": key, "resident": name, "error": repr(error)}
                tell(self._observer, "resident_failed", self.pool, cause=bare(error), delay=pause, **about)
        finally:
            emit(self._observer, "resident_ended", self.pool, key=key, resident=name, reason=visit.lost.reason)
            self._report(visit, how)
            self._leave(tenure, visit)

    def _note(self, visit: Visit, number: int) -> None:
        """Let the store forget a message that was handled; from whatever thread."""
        visit.notes = max(visit.notes, number)
        take = visit.take
        self._settle(Settle(take.slot, take.mailbox, take.token, 0, "keep", notes=visit.notes))


def _words(error: BaseException) -> bytes:
    """Return what a person reads of an error after which something is tried again."""
    return f"{type(error).__name__}: {error}".encode(errors="backslashreplace")[:LONGEST_ERROR]


def _nobody(value: Any) -> None:
    """Tell nobody how far a job is: it keeps no result."""
