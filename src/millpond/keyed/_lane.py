"""A worker's conversation with its store: one thread, one call at a time.

A call reports what has ended and takes more, as much as there is room for; what ends meanwhile goes with the next. The
thread sleeps until it is woken: by the runner (something ended), by a hint of the store, by a heartbeat; and looks by
itself once a second, since a hint may be lost.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from millpond._clock import elapsed
from millpond._events import Observer, emit, logger
from millpond.errors import EngineError, EngineUnavailable
from millpond.keyed import _questions as about
from millpond.keyed._core import Placement
from millpond.keyed._news import tell
from millpond.keyed._plan import ROUND, Sightings, farewell, plan
from millpond.keyed._records import SECOND, Beat, Settings, Settle, Signal, Work
from millpond.keyed._runner import Runner
from millpond.keyed._store import PoolGone, Store
from millpond.keyed._tenure import MARGIN, Tenure
from millpond.local._atomic import FREE_THREADED, lock_of

LOOK = 1.0
"""Seconds after which it looks by itself."""
WANT = 200
"""Keys that are asked for in one call at most, so that the store has time for others in between."""
RESIDENTS = 200
REPORTS = 1000
SPARE = 8
"""Keys that an idle worker may be handed before its next call."""
PATROL = 64
"""Own slots that are looked after at each heartbeat, in turn: what a lost answer or hint left behind is found so."""


class Lane:
    """The thread that talks to the store for a worker."""

    def __init__(
        self,
        pool: str,
        store: Store,
        settings: Settings,
        placement: Placement,
        lost: Callable[[Tenure, str], None],
        doubt: Callable[[], None],
        shut: Callable[[], None],
        observer: Observer | None = None,
    ) -> None:
        self.pool = pool
        self.is_closing = False
        self._store = store
        self._settings = settings
        self._placement = placement
        self._lost = lost
        self._doubt = doubt
        self._shut = shut
        self._observer = observer
        self._settles: deque[Settle] = deque()
        self._reports = REPORTS
        """How many of them go in one call: fewer after the store refused some."""
        self._bell = threading.Event()
        self._beat: Beat | None = None
        self._tenure: Tenure | None = None
        self._former: list[Tenure] = []
        """Memberships that were lost, but not yet given up in the store."""
        self._runner: Runner | None = None
        self._sightings = Sightings(settings.lease / SECOND)
        self._is_unsure = False
        self._is_idle = True
        """Whether the last call brought little: then a job that is dispatched may be handed over at once."""
        self._is_more = False
        """Whether the last round was too small for all that was to be given and claimed."""
        self._rounds = 0
        """How often the store was asked."""
        self._failures = 0
        """Turns in a row that failed, though the pool is there."""
        self._ended = threading.Event()
        self._due = 0.0
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"millpond-{pool}-lane", daemon=True)

    def start(self, runner: Runner) -> None:
        """Begin to talk."""
        self._runner = runner
        self._thread.start()

    # -- told from other threads --------------------------------------------------------------------------------------

    def settle(self, one: Settle) -> None:
        """Report something with the next call."""
        self._settles.append(one)
        self.wake()

    def wake(self) -> None:
        """Look at the store soon."""
        if FREE_THREADED or not self._bell.is_set():  # without the GIL it may look set though it was just cleared
            self._bell.set()

    def hand(self, before: int, signal: Signal, tenure: Tenure) -> None:
        """Run a job that came with a hint; called by the store's thread."""
        if self._runner is None or not self._runner.hear(tenure, [signal], before):
            self.wake()  # the next call brings it, and what came before it

    def serve(self, tenure: Tenure, beat: Beat, settings: Settings) -> None:
        """Work under this membership from now on; a pool that was made anew may have other settings."""
        if self._tenure is not None:
            self._former.append(self._tenure)
        self._settings = settings
        self._sightings.lease = settings.lease / SECOND
        self._tenure = tenure
        self.tell(beat)

    def tell(self, beat: Beat) -> None:
        """Take note of a heartbeat."""
        with lock_of(self):
            self._beat = beat
        self.wake()

    def flush(self, timeout: float) -> bool:
        """Wait until everything has been reported, and the store was asked once more: it may have handed something."""
        deadline, rounds = elapsed() + timeout, self._rounds
        while self._settles or not self._idle.is_set() or self._rounds <= rounds + 1:
            if elapsed() > deadline or not self._thread.is_alive():
                return False
            self.wake()
            self._idle.wait(0.01)
            if self._settles or self._rounds <= rounds + 1:
                self._idle.clear()
        return True

    def is_stuck(self) -> bool:
        """Return whether nothing is taken or reported: the last turns failed, or the thread has ended of an error."""
        has_ended = self._thread.ident is not None and not self._thread.is_alive()
        return self._failures > 0 or (has_ended and not self._ended.is_set())

    def is_quiet(self) -> bool:
        """Tell whether there is nothing to report."""
        return not self._settles

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
                self._is_unsure = True
                pause = min(1.0, pause * 2 or 0.05)
            except PoolGone:
                self._failures = 0  # the heart makes the pool anew
                if self._tenure is not None:
                    self._lost(self._tenure, "the store lost the pool")
                pause = 0.2
            except EngineError as error:
                self._failures += 1
                if self._reports < REPORTS:
                    pause = 0.05  # one report is to blame: it is being looked for
                else:
                    logger.error("pool %r: %s", self.pool, error)
                    pause = 1.0
            except Exception:
                self._failures += 1
                logger.exception("the lane of a worker of pool %r failed", self.pool)
                pause = 1.0

    def _round(self) -> None:
        tenure, runner = self._tenure, self._runner
        if tenure is None or runner is None:
            return
        while True:  # each turn begins with the members: a backlog keeps us here for as long as it lasts
            if self._is_unsure and not tenure.is_over:
                self._reassure(tenure)
            beat = self._next_beat()
            if beat is not None and not tenure.is_over:
                self._steer(tenure, runner, beat)
            is_serving = tenure.may_begin() and not self.is_closing
            want = min(WANT, runner.room()) if is_serving else 0
            work = self._work(tenure, want, runner.per_key(), RESIDENTS if is_serving else 0)
            self._is_idle = len(work.takes) <= SPARE
            if work.is_gone and not tenure.is_over:
                self._doubt()  # we are no member any more, or the clock of the store jumped: a renewal will tell
            self._heed(tenure, runner, work)
            if work.version != tenure.version and not tenure.is_over and not self.is_closing and not work.is_gone:
                self._steer(tenure, runner, self._store.ask(about.Members()))
            self._failures = 0
            if self._tenure is not tenure or self._ended.is_set():
                return
            if not self._settles and not (work.is_more and is_serving and runner.room()):
                return

    def _next_beat(self) -> Beat | None:
        """Return what a heartbeat told, once; or ask, when the last round left something to do.

        A beat that was used is old: it shows a worker as living that has been found dead since.
        """
        with lock_of(self):
            beat, self._beat = self._beat, None
        is_more, self._is_more = self._is_more, False
        return self._store.ask(about.Members()) if is_more and beat is None else beat

    def _heed(self, tenure: Tenure, runner: Runner, work: Work) -> None:
        """Do what the answer says."""
        if work.stale:
            tell(self._observer, "stale_reports", self.pool, number=len(work.stale))
        if work.takes:
            runner.admit(tenure, work.takes)
        if work.signals:
            runner.hear(tenure, work.signals)
        self._due = elapsed() + max(0.001, (work.due - work.now) / SECOND) if work.due else 0.0
        if self._former and not self._settles:
            self._give_up_former()

    def _give_up_former(self) -> None:
        """Leave under an id that was lost, once nothing runs under it: so nobody has to wait for its lease to end."""
        for former in [each for each in self._former if not each.visits]:
            self._store.leave(former.id)
            self._former.remove(former)

    def _work(self, tenure: Tenure, want: int, per: int, residents: int) -> Work:
        settles = self._settles
        batch = [settles.popleft() for _ in range(min(self._reports, len(settles)))]
        tenure.call += 1
        try:
            spare = SPARE if self._is_idle and self._store.hands_over else 0
            work = self._store.work(tenure.id, tenure.call, batch, want, per, residents, tenure.heard, spare)
        except BaseException as error:
            settles.extendleft(reversed(batch))  # a report may be sent twice: it names its take and an absolute count
            if isinstance(error, EngineError) and not isinstance(error, EngineUnavailable | PoolGone):
                self._suspect(len(batch), error)
            raise
        self._reports = REPORTS
        return work

    def _suspect(self, number: int, error: EngineError) -> None:
        """Find the report that the store cannot take, by halves; alone, it goes without what it carries, or not at all.

        Else one of them would hold up all the others, and with them every key of this worker, for ever.
        """
        self._reports = max(1, number // 2)
        if number == 1:
            report = self._settles.popleft()
            logger.error("pool %r cannot take the report of %r: %s", self.pool, report.mailbox, error)
            why = f"the store refused its outcome: {error}".encode()[:1000]
            outcomes = tuple(one._replace(status="failed", data=why) for one in report.outcomes)
            bare = report._replace(outcomes=outcomes, reason=why if report.reason else b"")
            if bare != report:
                self._settles.appendleft(bare)

    def _reassure(self, tenure: Tenure) -> None:
        """After an answer was lost: have given back what the store gave us and we never got."""
        _, owners = self._store.ask(about.Owners())
        own = [slot for slot, owner in enumerate(owners) if owner == tenure.id]
        claimed = self._store.claim(tenure.id, own, {}, *self._known(tenure))
        self._is_unsure = False
        if claimed.recovered:
            emit(self._observer, "reclaimed", self.pool, keys=claimed.recovered)

    def _known(self, tenure: Tenure) -> tuple[set[int], int, int]:
        """Return the takes that this worker knows of, its last call, and the last signal that it heard."""
        with tenure.hearing:
            heard = tenure.heard  # first: what is handed over meanwhile is kept by its number
        running = tenure.tokens()  # then these: what ends meanwhile is among the reports
        return running | {one.token for one in self._settles.copy()}, tenure.call, heard  # one step, also without GIL

    # -- slots --------------------------------------------------------------------------------------------------------

    def _steer(self, tenure: Tenure, runner: Runner, beat: Beat) -> None:
        """Do this worker's part of what the members make necessary."""
        if beat.is_shut:
            self._shut()
            return
        if self.is_closing:
            self._give_rest(tenure, runner, self._store.ask(about.Members()) if beat.is_brief else beat)
            return
        dead = self._sightings.look((one for one in beat.members if one.id != tenure.id), beat.now, elapsed())
        if beat.version != tenure.version or dead:
            if beat.is_brief:
                beat = self._store.ask(about.Members())
            _, owners = self._store.ask(about.Owners())
            todo = plan(tenure.id, beat.members, dead, owners, self._placement)
            if todo.gives:
                self._give(tenure, runner, todo.gives, "rebalanced")
            given = {slot for slot, _ in todo.gives}
            tenure.own = [slot for slot, owner in enumerate(owners) if owner == tenure.id and slot not in given]
            gone = dead or any(owner and owner not in {one.id for one in beat.members} for owner in set(owners))
            slots = [*todo.claims, *tenure.own] if gone else todo.claims
            if slots:
                claimed = self._claim(tenure, slots, dead)
                tenure.own += claimed
            runner.take_back(tenure, tenure.own)
            if todo.is_more:
                self._is_more = True
                self.wake()
            else:
                tenure.version = beat.version  # of the members: should the owners be newer, we come here again
        else:
            start = tenure.patrol % max(1, len(tenure.own))
            tenure.patrol += PATROL
            self._claim(tenure, [*tenure.contested, *tenure.own[start : start + PATROL]], {})

    def _claim(self, tenure: Tenure, slots: list[int], dead: dict[str, int]) -> list[int]:
        if not slots:
            return []
        for one in dead:
            tell(self._observer, "worker_died", self.pool, worker=one)
        claimed = self._store.claim(tenure.id, list(dict.fromkeys(slots)), dead, *self._known(tenure))
        tenure.contested = {*(tenure.contested - set(slots)), *claimed.contested}
        if claimed.got:
            tell(self._observer, "slots_claimed", self.pool, worker=tenure.id, slots=len(claimed.got))
        if claimed.recovered:
            tell(self._observer, "keys_recovered", self.pool, worker=tenure.id, keys=claimed.recovered)
        return list(claimed.got)

    def _give(self, tenure: Tenure, runner: Runner, moves: Iterable[tuple[int, str]], why: str) -> None:
        moves = list(moves)
        sent = elapsed()
        for start in range(0, len(moves), ROUND):
            self._store.give(tenure.id, moves[start : start + ROUND], why)
        tell(self._observer, "slots_given", self.pool, worker=tenure.id, slots=len(moves))
        # the next owner may begin `drain` seconds after the store took note: by then all must have stopped here
        until = sent + (1 - MARGIN) * self._settings.drain / SECOND
        runner.give_away(tenure, (slot for slot, _ in moves), until)

    def hand_over(self, tenure: Tenure, runner: Runner) -> None:
        """Give everything away, on leaving; called when `is_closing` is set."""
        beat = self._store.renew(tenure.id, leaving=True)
        if beat is not None:
            self._give_rest(tenure, runner, beat)

    def _give_rest(self, tenure: Tenure, runner: Runner, beat: Beat) -> None:
        """Give away what a leaving worker owns: at once, and at every heartbeat should that have failed."""
        _, owners = self._store.ask(about.Owners())
        moves = farewell(tenure.id, beat.members, owners, self._placement)
        if moves:
            self._give(tenure, runner, moves, "left")
