"""What a worker has taken, in its event loop: how much at once, what waits, what stops when keys move.

A take begins as soon as there is room. A coroutine that has to stop is cancelled; a plain function cannot be: it is
told by `job.lost`, and its key is not let go before it has returned. How a take is run is in `job_runner` and
`residents`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millpond._clock import elapsed
from millpond._events import Observer, logger
from millpond._tracing import Tracing
from millpond.keyed.rules.envelope import opened
from millpond.keyed.rules.records import Report, Signal, Take
from millpond.keyed.shared.definition import Definition
from millpond.keyed.worker.handler_task import start
from millpond.keyed.worker.handlers import Caller
from millpond.keyed.worker.job_runner import JobRunner
from millpond.keyed.worker.membership import Membership
from millpond.keyed.worker.pace import Pace
from millpond.keyed.worker.residents import ResidentRunner
from millpond.keyed.worker.running_take import RunningTake, RunningTakes


class Runner:
    """Begins and stops what one worker has taken."""

    def __init__(
        self,
        pool: str,
        definitions: Mapping[str, Definition],
        concurrency: int,
        hand_in: Callable[[Report], None],
        observer: Observer | None = None,
        largest: int = 1 << 20,
        tracing: Tracing | None = None,
    ) -> None:
        self.pool = pool
        self.concurrency = concurrency
        self.takes = RunningTakes()
        """Everything that was taken here and has not ended."""
        self._hand_in = hand_in
        self._loop = asyncio.get_running_loop()
        self._caller = Caller(pool, concurrency)
        self._pace = Pace()
        self._jobs = JobRunner(
            pool, definitions, self._caller, self._pace, hand_in, observer, largest=largest, tracing=tracing
        )
        self._residents = ResidentRunner(pool, definitions, self._caller, hand_in, observer)
        self._is_closing = False
        self._running = 0
        """Takes of jobs that have begun."""
        self._waiting: deque[tuple[Membership, RunningTake]] = deque()
        self._is_attended = False
        """Whether a task is begun as soon as the loop has time."""
        self._context = contextvars.copy_context()
        self._idle = asyncio.Event()
        self._is_hurried = False

    # -- asked by the feed, from its thread ---------------------------------------------------------------------------

    def room(self) -> int:
        """Return how many more keys can be taken."""
        return 0 if self._is_closing else max(0, self._pace.held(self.concurrency) - self.takes.keys)

    def per_key(self) -> int:
        """Return how many jobs of a key to take at once."""
        return self._pace.per_key()

    def start(self, membership: Membership, takes: Iterable[Take], *, is_handed: bool = False) -> None:
        """Run what was taken, or handed over, as soon as the loop has time."""
        runs = [RunningTake(take, membership.id) for take in takes]
        self.takes.add(runs)
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
        self._soon(self._stop, membership, reason)

    def give_away(self, membership: Membership, slots: Iterable[int], until: float) -> None:
        """Begin nothing more in slots that are another's now; residents move at once, jobs have time to end."""
        self._soon(self._move, membership, set(slots), until)

    def take_back(self, membership: Membership, slots: Iterable[int]) -> None:
        """Go on in slots that are ours again."""
        if membership.given or any(run.is_moved for run in self.takes.under(membership.id)):
            self._soon(self._return, membership, set(slots))

    def measure(self, observer: Observer) -> None:
        """Also tell this observer of every run of a handler from now on; from whatever thread."""
        self._jobs.measure(observer)

    def _soon(self, step: Callable[..., object], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(step, *args)
        except RuntimeError:  # the loop is closed: the process ends, and the store finds out by the lease
            logger.debug("the event loop of a worker of pool %r is closed", self.pool)

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _begin(self, membership: Membership, runs: list[RunningTake], is_handed: bool) -> None:
        for run in runs:
            run.is_moved = is_handed and run.take.slot in membership.given  # it was given away after the hand-over
            if run.is_resident:
                run.running = opened(run.take.jobs[0]).id
                run.task = start(self._loop, self._run_resident(membership, run))
            elif self._pace.is_tiny:
                self._waiting.append((membership, run))
            else:
                run.task = start(self._loop, self._run_jobs(membership, run))
        self._attend_soon()

    def _attend_soon(self) -> None:
        self._is_attended = False
        if self._waiting and self._running < self.concurrency:
            start(self._loop, self._attend())

    async def _attend(self) -> None:
        """Run what waits, one take after another as long as each ends at once: one that does not keeps this task.

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
            await self._run_jobs(membership, run)
            if task.cancelling() or contextvars.copy_context() != context:
                return

    async def _run_jobs(self, membership: Membership, run: RunningTake) -> None:
        run.is_begun = True
        self._running += 1
        try:
            await self._jobs.run(membership, run)
        finally:
            self._running -= 1
            self._remove(run)
            if self._waiting and not self._is_attended:
                self._is_attended = True
                self._loop.call_soon(self._attend_soon, context=self._context)

    async def _run_resident(self, membership: Membership, run: RunningTake) -> None:
        run.is_begun = True
        try:
            await self._residents.run(membership, run)
        finally:
            self._remove(run)

    def _remove(self, run: RunningTake) -> None:
        self.takes.remove(run)
        self._jobs.forget(run)
        if not self.takes:
            self._idle.set()

    def _on_signal(self, membership: Membership, signal: Signal) -> None:
        run = self.takes.find(membership.id, signal.mailbox)
        if run is None:
            return
        if signal.kind == "note":
            self._residents.deliver(run, signal)
        elif signal.kind == "pause":
            run.stop("paused")
        elif run.is_resident and run.running == signal.id:
            run.stop("stopped")
        else:
            self._jobs.cancel(run, signal.id)

    # -- what moves ---------------------------------------------------------------------------------------------------

    def _stop(self, membership: Membership, reason: str) -> None:
        for run in self.takes.under(membership.id):
            run.stop(reason, again=True)
        self._give_back()

    def _give_back(self) -> None:
        """Give back what was taken ahead and is not to begin here any more."""
        for membership, run in [self._waiting.popleft() for _ in range(len(self._waiting))]:
            if self._is_closing or run.is_moved or run.lost.is_set:
                self._hand_in(run.filled(run.report()))
                self._remove(run)
            else:
                self._waiting.append((membership, run))

    def _move(self, membership: Membership, slots: set[int], until: float) -> None:
        membership.given |= slots
        for run in self.takes.under(membership.id):
            if run.take.slot in slots and not run.is_moved:
                run.is_moved = True
                if run.is_resident:
                    run.stop("moved")
                else:
                    left = max(0.0, until - elapsed())
                    run.drained = self._loop.call_later(left, self._drained, run)
        self._give_back()

    def _return(self, membership: Membership, slots: set[int]) -> None:
        membership.given -= slots
        for run in self.takes.under(membership.id):
            if run.take.slot in slots and run.is_moved and not run.lost.is_set:
                run.is_moved = False
                if run.drained is not None:
                    run.drained.cancel()

    def _drained(self, run: RunningTake) -> None:
        if run in self.takes:
            run.stop("drain")

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Begin nothing more; what runs may end. Residents are ended now."""
        self._is_closing = self._jobs.is_closing = self._residents.is_closing = True
        self._give_back()
        for run in self.takes.all():
            if run.is_resident:
                run.stop("closing")

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return not self.takes

    async def idle(self, timeout: float | None, *, hurried: bool = False) -> bool:
        """Wait until nothing runs, for so many seconds, or until `hurry`; return whether nothing does."""
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
        for run in self.takes.all():
            run.stop(reason, again=True)

    def shut(self) -> None:
        """Release the threads; those that still run something are left to the end of the process."""
        self._caller.shut()
