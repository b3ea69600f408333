"""What one worker does when members join, leave and die: it gives slots away, claims others, takes over from the dead.

Every worker computes the same plan (`rules.plan`) and does its own part. The feed calls this at the beginning of each
of its turns, so that deaths are looked at on time whatever the backlog is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from millpond._atomic import lock_of
from millpond._clock import elapsed
from millpond._events import Observer, emit
from millpond.keyed.rules import commands as do
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.placement import Placement
from millpond.keyed.rules.plan import ROUND, Sightings, farewell, plan
from millpond.keyed.rules.records import SECOND, PoolState, Settings
from millpond.keyed.shared.notices import tell
from millpond.keyed.stores.base import Store
from millpond.keyed.worker.membership import MARGIN, Membership
from millpond.keyed.worker.placing import Placing
from millpond.keyed.worker.runner import Runner

PATROL = 64
"""Own slots that are looked after at each heartbeat, in turn: what a lost answer or hint left behind is found so."""


class Rebalancer:
    """Gives and claims the slots of one worker.

    The thread is the feed's; `tell` and `hand_over` come from others. Whoever moves slots holds `_moving`, from reading
    who owns them to the end: what one has just given away, the other must not claim.
    """

    def __init__(
        self,
        pool: str,
        store: Store,
        settings: Settings,
        placement: Placement,
        reported: Callable[[], set[int]],
        shut: Callable[[], None],
        observer: Observer | None = None,
    ) -> None:
        self.pool = pool
        self.is_leaving = False
        """Whether everything is to be given away."""
        self.is_more = False
        """Whether the last round was too small for all that was to be given and claimed."""
        self._store = store
        self._settings = settings
        self._placing = Placing(pool, settings.placement, placement)
        self._reported = reported
        self._shut = shut
        self._observer = observer
        self._state: PoolState | None = None
        """What the last heartbeat told, until it is used."""
        self._sightings = Sightings(settings.lease / SECOND)
        self._has_lost_answer = False
        self._moving = threading.Lock()

    def serve(self, state: PoolState, settings: Settings) -> None:
        """Use these settings from now on: a new membership may be in a pool that was made anew."""
        self._settings = settings
        self._sightings.lease = settings.lease / SECOND
        self.tell(state)

    def tell(self, state: PoolState) -> None:
        """Keep what a heartbeat told for the next turn."""
        with lock_of(self):
            self._state = state

    def note_lost_answer(self) -> None:
        """Note that the store may have given what never arrived here."""
        self._has_lost_answer = True

    def turn(self, membership: Membership, runner: Runner) -> None:
        """Do what the members make necessary, if there is news of them."""
        if self._has_lost_answer and not membership.is_over:
            self._reclaim_after_lost_answer(membership, runner)
        state = self._next_state()
        if state is not None and not membership.is_over:
            self._rebalance(membership, runner, state)

    def ask_and_rebalance(self, membership: Membership, runner: Runner) -> None:
        """Ask who is a member, and do what that makes necessary."""
        self._rebalance(membership, runner, self._store.ask(about.Members()))

    def hand_over(self, membership: Membership, runner: Runner) -> None:
        """Give everything away, on leaving; called when `is_leaving` is set."""
        is_alone = self._moving.acquire(
            timeout=self._settings.lease / SECOND
        )  # else a turn hangs, perhaps on who calls
        try:
            state = self._store.do(do.Renew(membership.id, leaving=True))
            if state is not None:
                self._give_rest(membership, runner, state)
        finally:
            if is_alone:
                self._moving.release()

    def _next_state(self) -> PoolState | None:
        """Return what a heartbeat told, once; or ask, when the last round left something to do.

        A state that was used is old: it shows a worker as living that has been found dead since.
        """
        with lock_of(self):
            state, self._state = self._state, None
        is_more, self.is_more = self.is_more, False
        return self._store.ask(about.Members()) if is_more and state is None else state

    def _rebalance(self, membership: Membership, runner: Runner, state: PoolState) -> None:
        if state.is_shut:
            self._shut()
            return
        with self._moving:
            self._move(membership, runner, state)

    def _move(self, membership: Membership, runner: Runner, state: PoolState) -> None:
        if self.is_leaving:
            self._give_rest(membership, runner, self._store.ask(about.Members()) if state.is_brief else state)
            return
        others = (one for one in state.members if one.id != membership.id)
        dead = self._sightings.look(others, state.now, elapsed())
        if state.version != membership.version or dead:
            if state.is_brief:
                state = self._store.ask(about.Members())
            self._carry_out_plan(membership, runner, state, dead)
        else:
            start = membership.patrol % max(1, len(membership.own))
            membership.patrol += PATROL
            patrolled = membership.own[start : start + PATROL]
            self._claim(membership, runner, [*membership.contested, *patrolled], {})

    def _carry_out_plan(self, membership: Membership, runner: Runner, state: PoolState, dead: dict[str, int]) -> None:
        """Give what others should have, claim what nobody living owns."""
        _, owners = self._store.ask(about.Owners())
        todo = plan(membership.id, state.members, dead, owners, self._placing.among(owners))
        if todo.gives:
            self._give(membership, runner, todo.gives, "rebalanced")
        given = {slot for slot, _ in todo.gives}
        membership.own = [slot for slot, owner in enumerate(owners) if owner == membership.id and slot not in given]
        members = {one.id for one in state.members}
        gone = dead or any(owner and owner not in members for owner in set(owners))
        slots = [*todo.claims, *membership.own] if gone else todo.claims
        if slots:
            membership.own += self._claim(membership, runner, slots, dead)
        runner.take_back(membership, membership.own)
        self.is_more = todo.is_more
        if not todo.is_more:
            membership.version = state.version  # of the members: should the owners be newer, we come here again

    def _claim(self, membership: Membership, runner: Runner, slots: list[int], dead: dict[str, int]) -> list[int]:
        if not slots:
            return []
        for one in dead:
            tell(self._observer, "worker_died", self.pool, worker=one)
        claimed = self._store.do(
            do.Claim(membership.id, list(dict.fromkeys(slots)), dead, *self._known(membership, runner))
        )
        membership.contested = {*(membership.contested - set(slots)), *claimed.contested}
        if claimed.got:
            tell(self._observer, "slots_claimed", self.pool, worker=membership.id, slots=len(claimed.got))
        if claimed.recovered:
            tell(self._observer, "keys_recovered", self.pool, worker=membership.id, keys=claimed.recovered)
        return list(claimed.got)

    def _give(self, membership: Membership, runner: Runner, moves: Iterable[tuple[int, str]], why: str) -> None:
        moves = list(moves)
        sent = elapsed()
        for start in range(0, len(moves), ROUND):
            self._store.do(do.Give(membership.id, moves[start : start + ROUND], why))
        tell(self._observer, "slots_given", self.pool, worker=membership.id, slots=len(moves))
        # the next owner may begin `drain` seconds after the store took note: by then all must have stopped here
        until = sent + (1 - MARGIN) * self._settings.drain / SECOND
        runner.give_away(membership, (slot for slot, _ in moves), until)

    def _give_rest(self, membership: Membership, runner: Runner, state: PoolState) -> None:
        """Give away what a leaving worker owns: at once, and at every heartbeat should that have failed."""
        _, owners = self._store.ask(about.Owners())
        moves = farewell(membership.id, state.members, owners, self._placing.among(owners))
        if moves:
            self._give(membership, runner, moves, "left")

    def _reclaim_after_lost_answer(self, membership: Membership, runner: Runner) -> None:
        """Make the store take back what it gave and what never arrived here."""
        _, owners = self._store.ask(about.Owners())
        own = [slot for slot, owner in enumerate(owners) if owner == membership.id]
        claimed = self._store.do(do.Claim(membership.id, own, {}, *self._known(membership, runner)))
        self._has_lost_answer = False
        if claimed.recovered:
            emit(self._observer, "reclaimed", self.pool, keys=claimed.recovered)

    def _known(self, membership: Membership, runner: Runner) -> tuple[set[int], int, int]:
        """Return the takes that this worker knows of, its last call, and the last signal that it heard."""
        with membership.hearing:
            heard = membership.heard  # first: what is handed over meanwhile is kept by its number
        running = runner.takes.tokens(membership.id)  # then these: what ends meanwhile is among the reports
        return running | self._reported(), membership.call, heard
