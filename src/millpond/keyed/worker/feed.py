"""Takes jobs from the store and reports what became of them: one thread, one call at a time.

A call reports what has ended and takes more, as much as there is room for; what ends meanwhile goes with the next. Each
turn begins with a look at the members (`rebalancer`), since a backlog may last for any time.

The thread sleeps until it is woken: by the runner (something ended), by a hint of the store, by a heartbeat; and looks
by itself once a second, since a hint may be lost.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from millpond._atomic import FREE_THREADED
from millpond._clock import elapsed
from millpond._events import Observer, logger
from millpond.errors import EngineError, EngineUnavailable
from millpond.keyed.rules import commands as do
from millpond.keyed.rules.placement import Placement
from millpond.keyed.rules.records import SECOND, PoolState, Report, Settings, Signal, Work
from millpond.keyed.shared.notices import tell
from millpond.keyed.stores.base import PoolGone, Store
from millpond.keyed.worker.membership import Membership
from millpond.keyed.worker.rebalancer import Rebalancer
from millpond.keyed.worker.runner import Runner

LOOK = 1.0
"""Seconds after which it looks by itself."""
WANT = 200
"""Keys that are asked for in one call at most, so that the store has time for others in between."""
RESIDENTS = 200
REPORTS = 1000
SPARE = 8
"""Keys that an idle worker may be handed before its next call."""


class Feed:
    """The thread that talks to the store for a worker."""

    def __init__(
        self,
        pool: str,
        store: Store,
        settings: Settings,
        placement: Placement,
        lost: Callable[[Membership, str], None],
        renew_soon: Callable[[], None],
        shut: Callable[[], None],
        observer: Observer | None = None,
    ) -> None:
        self.pool = pool
        self._store = store
        self._lost = lost
        self._renew_soon = renew_soon
        self.rebalancer = Rebalancer(pool, store, settings, placement, self._reported, shut, observer)
        self._observer = observer
        self._reports: deque[Report] = deque()
        self._at_once = REPORTS
        """How many of them go in one call: fewer after the store refused some."""
        self._bell = threading.Event()
        self._membership: Membership | None = None
        self._former: list[Membership] = []
        """Memberships that were lost, but not yet given up in the store."""
        self._runner: Runner | None = None
        self._is_idle = True
        """Whether the last call brought little: then a job that is dispatched may be handed over at once."""
        self._rounds = 0
        """How often the store was asked."""
        self._failures = 0
        """Turns in a row that failed, though the pool is there."""
        self._ended = threading.Event()
        self._due = 0.0
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"millpond-{pool}-feed", daemon=True)

    def start(self, runner: Runner) -> None:
        """Begin to talk."""
        self._runner = runner
        self._thread.start()

    # -- told from other threads --------------------------------------------------------------------------------------

    def report(self, one: Report) -> None:
        """Report something with the next call."""
        self._reports.append(one)
        self.wake()

    def wake(self) -> None:
        """Look at the store soon."""
        if FREE_THREADED or not self._bell.is_set():  # without the GIL it may look set though it was just cleared
            self._bell.set()

    def hand(self, before: int, signal: Signal, membership: Membership) -> None:
        """Run a job that came with a hint; called by the store's thread."""
        if self._runner is None or not self._runner.hear(membership, [signal], before):
            self.wake()  # the next call brings it, and what came before it

    def serve(self, membership: Membership, state: PoolState, settings: Settings) -> None:
        """Work under this membership from now on; a pool that was made anew may have other settings."""
        if self._membership is not None:
            self._former.append(self._membership)
        self.rebalancer.serve(state, settings)
        self._membership = membership
        self.wake()

    def tell(self, state: PoolState) -> None:
        """Look at the members soon: a heartbeat told of them."""
        self.rebalancer.tell(state)
        self.wake()

    def stop_taking(self) -> None:
        """Take nothing more: the worker leaves."""
        self.rebalancer.is_leaving = True

    def _reported(self) -> set[int]:
        """Return the tokens of takes whose reports are still to be sent."""
        return {one.token for one in self._reports.copy()}  # one step, also without the GIL

    def flush(self, timeout: float) -> bool:
        """Wait until everything has been reported, and the store was asked once more: it may have handed something."""
        deadline, rounds = elapsed() + timeout, self._rounds
        while self._reports or not self._idle.is_set() or self._rounds <= rounds + 1:
            if elapsed() > deadline or not self._thread.is_alive():
                return False
            self.wake()
            self._idle.wait(0.01)
            if self._reports or self._rounds <= rounds + 1:
                self._idle.clear()
        return True

    def is_stuck(self) -> bool:
        """Return whether nothing is taken or reported: the last turns failed, or the thread has ended of an error."""
        has_ended = self._thread.ident is not None and not self._thread.is_alive()
        return self._failures > 0 or (has_ended and not self._ended.is_set())

    def is_quiet(self) -> bool:
        """Return whether there is nothing to report."""
        return not self._reports

    def end(self, *, wait: bool = True) -> None:
        """Stop the thread."""
        self._ended.set()
        self.wake()
        if wait and self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(timeout=10)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        pause = away = 0.0
        while not self._ended.is_set():
            self._bell.wait(pause or min(LOOK, max(0.0, self._due - elapsed()) if self._due else LOOK))
            self._bell.clear()
            if self._ended.is_set():
                return
            try:
                self._idle.clear()
                self._round()
                self._rounds += 1
                self._idle.set()
                pause = 0.0
                if away:
                    tell(self._observer, "store_back", self.pool, seconds=elapsed() - away)
                    away = 0.0
            except EngineUnavailable as error:
                self._failures += 1
                if not away:
                    away = elapsed()
                    tell(self._observer, "store_unavailable", self.pool, error=str(error))
                self.rebalancer.note_lost_answer()
                pause = min(1.0, pause * 2 or 0.05)
            except PoolGone:
                self._failures = 0  # the heartbeat makes the pool anew
                if self._membership is not None:
                    self._lost(self._membership, "the store lost the pool")
                pause = 0.2
            except EngineError as error:
                self._failures += 1
                if self._at_once < REPORTS:
                    pause = 0.05  # one report is to blame: it is being looked for
                else:
                    logger.error("pool %r: %s", self.pool, error)
                    pause = 1.0
            except Exception:
                self._failures += 1
                logger.exception("the feed of a worker of pool %r failed", self.pool)
                pause = 1.0

    def _round(self) -> None:
        membership, runner = self._membership, self._runner
        if membership is None or runner is None:
            return
        while True:  # each turn begins with the members: a backlog keeps us here for as long as it lasts
            self.rebalancer.turn(membership, runner)
            is_leaving = self.rebalancer.is_leaving
            is_serving = membership.may_begin() and not is_leaving
            want = min(WANT, runner.room()) if is_serving else 0
            work = self._work(membership, want, runner.per_key(), RESIDENTS if is_serving else 0)
            self._is_idle = len(work.takes) <= SPARE
            if work.is_gone and not membership.is_over:
                self._renew_soon()  # we are no member any more, or the clock of the store jumped: a renewal will tell
            self._handle_answer(membership, runner, work)
            if work.version != membership.version and not (membership.is_over or is_leaving or work.is_gone):
                self.rebalancer.ask_and_rebalance(membership, runner)
            if self.rebalancer.is_more:
                self.wake()
            self._failures = 0
            if self._membership is not membership or self._ended.is_set():
                return
            if not self._reports and not (work.is_more and is_serving and runner.room()):
                return

    def _handle_answer(self, membership: Membership, runner: Runner, work: Work) -> None:
        """Do what the answer says."""
        if work.stale:
            tell(self._observer, "stale_reports", self.pool, number=len(work.stale))
        if work.takes:
            runner.start(membership, work.takes)
        if work.signals:
            runner.hear(membership, work.signals)
        self._due = elapsed() + max(0.001, (work.due - work.now) / SECOND) if work.due else 0.0
        if self._former and not self._reports:
            self._give_up_former(runner)

    def _give_up_former(self, runner: Runner) -> None:
        """Leave under an id that was lost, once nothing runs under it: so nobody has to wait for its lease to end."""
        for former in [each for each in self._former if not runner.takes.under(each.id)]:
            self._store.do(do.Leave(former.id))
            self._former.remove(former)

    def _work(self, membership: Membership, want: int, per: int, residents: int) -> Work:
        reports = self._reports
        batch = [reports.popleft() for _ in range(min(self._at_once, len(reports)))]
        membership.call += 1
        try:
            spare = SPARE if self._is_idle and self._store.hands_over else 0
            work = self._store.do(
                do.Work(membership.id, membership.call, batch, want, per, residents, membership.heard, spare)
            )
        except BaseException as error:
            reports.extendleft(reversed(batch))  # a report may be sent twice: it names its take and an absolute count
            if isinstance(error, EngineError) and not isinstance(error, EngineUnavailable | PoolGone):
                self._isolate_refused_report(membership, len(batch), error)
            raise
        self._at_once = REPORTS
        return work

    def _isolate_refused_report(self, membership: Membership, number: int, error: EngineError) -> None:
        """Find the report that the store cannot take, by halves; alone, it goes without what it carries, or not at all.

        Else one of them would hold up all the others, and with them every key of this worker, for ever.
        """
        self._at_once = max(1, number // 2)
        if number == 1:
            try:  # is it the report at all? The same number of a call takes nothing
                self._store.do(do.Work(membership.id, membership.call, [], 0, 1, heard=membership.heard))
            except EngineError:
                self._at_once = REPORTS
                raise
            report = self._reports.popleft()
            logger.error("pool %r cannot take the report of %r: %s", self.pool, report.mailbox, error)
            why = f"the store refused its outcome: {error}".encode()[:1000]
            outcomes = tuple(one._replace(status="failed", data=why) for one in report.outcomes)
            bare = report._replace(outcomes=outcomes, reason=why if report.reason else b"")
            if bare != report:
                self._reports.appendleft(bare)
