"""One batch: all that is waiting, decided on top of what others have written, in one transaction.

The order matters. First the replicas follow, and what they have followed is told: a watcher may queue claims. Then the
dead are buried, then what was accepted a while ago is claimed, then the calls are decided, also those that watchers
queue meanwhile. All entries of a pool become one row.

A batch knows what it took and what it made, so that the engine can undo it or make it known.

Locks. All methods expect the gate and `_use` to be held, except `concerned`, for which `_use` is enough.
"""

from __future__ import annotations

from collections.abc import Iterable

from millpond._events import logger
from millpond._sqlite import EngineClock, Transaction, enrolled, note_use, strike, used
from millpond.resources._rules import changes
from millpond.resources._rules.commands import Adopt, Bury, Claim, Command, Pass, Reply
from millpond.resources._rules.records import OFFERED
from millpond.resources._rules.wire import Entry
from millpond.resources.engines.sqlite import _log
from millpond.resources.engines.sqlite._accepted import AcceptedOffers
from millpond.resources.engines.sqlite._log import UnreadablePool
from millpond.resources.engines.sqlite._queue import Call, CallQueue
from millpond.resources.engines.sqlite._replicas import Pool, Replicas
from millpond.resources.engines.sqlite._sessions import Sessions

_QUIET = frozenset({"released", "withdrawn"})
"""Endings that concern nobody but the one who asked for them."""


class Batch:
    """What is carried out in one transaction."""

    def __init__(
        self, replicas: Replicas, queue: CallQueue, accepted: AcceptedOffers, sessions: Sessions, clock: EngineClock
    ) -> None:
        self._replicas = replicas
        self._queue = queue
        self._accepted = accepted
        self._sessions = sessions
        self._clock = clock
        self.taken: list[Call] = []
        self.made: dict[str, list[Entry]] = {}
        self.noted: set[int] = set()  # pools, by id, that are noted as used by this session from now on

    def carry_out(self, transaction: Transaction, also: Iterable[str]) -> None:
        """Carry out all that is queued; `also` follow these pools."""
        self._follow_all(transaction, also)
        self._bury(transaction, self._sessions.own.dead)
        self._claim_old()
        self._decide_all(transaction)
        self._note_use(transaction)
        self._replicas.append(transaction, self.made)
        self._clock.record(transaction)

    def bury_only(self, transaction: Transaction, dead: set[int]) -> None:
        """End all that these sessions held, and leave what is queued."""
        self._replicas.begin()
        self._bury(transaction, dead)
        self._replicas.append(transaction, self.made)

    def concerned(self) -> set[int]:
        """Return the other sessions that must hear of it soon."""
        found: set[str] = set()
        for name, entries in self.made.items():
            replica = self._replicas.pools[name].replica
            requests = replica.state.requests if replica is not None else {}
            for entry in entries:
                for change in entry.changes:
                    kind = type(change)
                    if kind is changes.Offered or kind is changes.Held or kind is changes.Left:
                        request = requests.get(change.id)  # type: ignore[union-attr]
                        if request is not None:
                            found.add(request.session)
                    elif (kind is changes.Ended and change.how not in _QUIET) or kind is changes.Adopted:  # type: ignore[union-attr]
                        return self._sessions.own.others()
        found -= {"", self._sessions.session}
        return {int(session) for session in found}

    # --- the steps ---------------------------------------------------------------------------------------------

    def _follow_all(self, transaction: Transaction, also: Iterable[str]) -> None:
        """Follow what others have done in all pools that matter now, and tell it: a watcher may queue claims."""
        self._replicas.begin()
        accepted = self._accepted.offers.values()
        for name in {*also, *self._queue.pools(), *(pool for pool, _, _ in accepted)}:
            try:
                self._replicas.bring_up(transaction, name)
            except UnreadablePool:
                continue  # whoever asks for something in it is told

    def _bury(self, transaction: Transaction, dead: set[int]) -> None:
        """End all that the dead held, in every pool that they used."""
        if not dead:
            return
        there = enrolled(transaction)
        for number in sorted(dead):
            if number in there and self._bury_one(transaction, number):
                strike(transaction, number)
        self._sessions.own.forget(dead)

    def _bury_one(self, transaction: Transaction, number: int) -> bool:
        """End all that a session held; False if it used a pool that cannot be read here: then its row stays."""
        is_done = True
        for name in _log.names(transaction, used(transaction, number)):
            try:
                pool = self._replicas.bring_up(transaction, name)
            except UnreadablePool as error:
                is_done = False
                self._sessions.left.add(number)
                logger.warning(
                    "what a dead process held in pool %r is left as it is: %s",
                    name,
                    error,
                    extra={"millpond": {"pool": name, "session": number, "error": str(error)}},
                )
            else:
                self._decide(pool, Bury(str(number)))
        return is_done

    def _note_use(self, transaction: Transaction) -> None:
        """Note the pools that this session has changed for the first time: it may hold something there."""
        mine, known = self._sessions.session, self._sessions.noted
        for name, entries in self.made.items():
            pool = self._replicas.pools[name].id
            if pool is not None and pool not in known and any(entry.by == mine for entry in entries):
                note_use(transaction, self._sessions.own.number, pool)
                self.noted.add(pool)

    def _claim_old(self) -> None:
        """Claim what we accepted a while ago and still hold."""
        for name, request in self._accepted.old():
            self._decide(self._replicas.pools[name], Claim(self._sessions.session, (request,)))

    def _decide_all(self, transaction: Transaction) -> None:
        """Carry out what is queued, also what is queued meanwhile by watchers."""
        is_alone = self._queue.alone > 0
        while self._queue.waiting and not (is_alone and self.taken):
            self._queue.alone -= is_alone
            call = self._queue.take(self.taken)
            try:
                pool = self._replicas.bring_up(transaction, call.pool)
            except UnreadablePool as error:
                call.reply = error
                continue
            if isinstance(call.command, Adopt | Pass):
                self._claim_first(pool, call.command.token)
            call.reply = self._decide(pool, call.command)  # type: ignore[arg-type]

    def _claim_first(self, pool: Pool, token: int) -> None:
        """Claim what somebody holds by its byte only, so far, before it is passed on or comes into other hands."""
        assert pool.replica is not None
        request = pool.replica.state.requests.get(pool.replica.state.index.tokens.get(token, ""))
        if request is not None and request.state == OFFERED and self._accepted.is_accepted(token):
            self._decide(pool, Claim(request.session, (request.id,)))

    def _decide(self, pool: Pool, command: Command, now: int = 0) -> Reply:
        """Decide one command; but nothing lapses that was accepted in time."""
        assert pool.replica is not None
        state = pool.replica.state
        if not now:
            now = self._clock.now()
            due = state.due()
            if due is not None and due <= now:
                # The first to lapse first: a claim is decided at a moment at which no later one is over yet.
                over = [one for one in state.requests.values() if one.state == OFFERED and one.until <= now]
                for request in sorted(over, key=lambda one: one.until):
                    if self._accepted.is_accepted(request.token):
                        self._decide(pool, Claim(request.session, (request.id,)), request.until - 1)
        reply, entry = pool.replica.decide(command, now)
        if entry is not None:
            self.made.setdefault(pool.name, []).append(entry)
        return reply
