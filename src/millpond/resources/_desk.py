"""The desk of one pool object: it knows all requests and grants of its users, and listens to the engine for them.

It has no colour: threads and event loops hang their own latches on a case. What it does by itself:

- claims offers as soon as it hears of them (picky requests are shown to the requester first);
- says "I am here" when one of its waiters was taken for away;
- sends what ends something again and again until the engine has taken it;
- renews leases every third of their length, and tells a holder that a lease is lost a tenth of its length *before*
  the engine can give it to somebody else;
- asks once a second (on Temporal more rarely), while somebody waits, how its waiters stand: so a lost wake-up costs
  that, and not for ever (G5);
- marks grants that are held too long as suspect;
- gives back grants that nobody can release any more: their objects are gone, or a signal struck as they were left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from millpond._clock import elapsed
from millpond._events import logger
from millpond._fork import this
from millpond.errors import AlreadyExists, EngineUnavailable, PoolClosed
from millpond.resources import _alarm, _case
from millpond.resources._case import Case, GrantRef
from millpond.resources._engine import AUDIT, Engine, Ticket
from millpond.resources._questions import Standing, Standings
from millpond.resources._rules import changes as to
from millpond.resources._rules.commands import Claim, Release, Renew, Reply, Suspect, Withdraw
from millpond.resources._rules.records import HELD, OFFERED, WAITING, Holder
from millpond.resources._rules.wire import Entry

_numbers = itertools.count(1)


class _ChosenIds:
    """Who uses a chosen request id in this process, through whatever pool object: the engine takes them for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: weakref.WeakValueDictionary[tuple[int, str, str], Case] = weakref.WeakValueDictionary()

    def take(self, key: tuple[int, str, str], case: Case) -> bool:
        """Let a case have an id (of that engine and pool), unless it is in use."""
        with self._lock:
            if self._is_used(key):
                return False
            self._users[key] = case
            return True

    def has(self, key: tuple[int, str, str]) -> bool:
        """Tell whether an id is in use."""
        with self._lock:
            return self._is_used(key)

    def _is_used(self, key: tuple[int, str, str]) -> bool:
        user = self._users.get(key)
        return user is not None and user.state not in (_case.OVER, _case.LOST)

    def start_over(self) -> None:
        self.__init__()  # type: ignore[misc]  # in a forked child the lock may be held by a thread that is not there


class _Desks:
    """All desks of this process: a session's request may be of any of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[Desk] = weakref.WeakSet()

    def add(self, desk: Desk) -> None:
        with self._lock:
            self._all.add(desk)

    def beside(self, desk: Desk) -> list[Desk]:
        """Return the desks of the same pool and session."""
        with self._lock:
            return [one for one in self._all if one.engine is desk.engine and one.pool == desk.pool]

    def start_over(self) -> None:
        self.__init__()  # type: ignore[misc]  # as above


_chosen = _ChosenIds()
_desks = _Desks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_chosen.start_over)
    os.register_at_fork(after_in_child=_desks.start_over)


class Desk:
    """All that one pool object has asked for and holds."""

    def __init__(self, engine: Engine, pool: str, holder_id: str, suspect_after: float | None) -> None:
        self.engine = engine
        self.pool = pool
        mine = engine.holder
        self.holder = Holder(mine.kind, holder_id, mine.host, mine.pid, mine.started)
        """Who asks, as people will see it."""
        self._suspect_after = suspect_after
        self._lock = threading.Lock()
        self._cases: dict[str, Case] = {}
        self._pid = this.pid
        self._is_closed = False
        self._audit: _alarm.Appointment | None = None
        self._gone: deque[GrantRef] = deque()  # grants that were freed, also after their release
        self._adopting = 0  # grants that are being taken over: they are the session's, and at no desk yet
        self.seen = 0
        _desks.add(self)
        self._stop = engine.watch(pool, self._hear, own=True)

    # --- identity ----------------------------------------------------------------------------------------------

    def new_id(self) -> str:
        """Return a request id that nobody else has."""
        return f"#{self.engine.session}-{next(_numbers)}"

    def check_open(self) -> None:
        """Refuse to work after close, and in a forked child."""
        if self._gone:
            self._look_for_dropped()
        if this.pid != self._pid:
            raise RuntimeError(
                f"this is of pool {self.pool!r} in process {self._pid}, and here is its forked child {this.pid}: "
                "take it from the pool again"
            )
        if self._is_closed:
            raise PoolClosed(f"pool {self.pool!r} is closed: open another one")

    # --- asking ------------------------------------------------------------------------------------------------

    def ask(self, case: Case, *, block: bool) -> Ticket:
        """Send a request; the case tells how it goes."""
        self.check_open()
        with self._lock:
            if case.command.chosen and not _chosen.take((id(self.engine), self.pool, case.id), case):
                raise AlreadyExists(f"request {case.id!r} is in use in this process already: choose another request_id")
            self._cases[case.id] = case
        case.sent = elapsed()
        ticket = self.engine.apply(self.pool, case.command, lambda answer: self._answered(case, answer), block=block)
        if case.state in (_case.ASKING, _case.WAITING):
            self._watch_over()
        return ticket

    def knows(self, case: Case) -> bool:
        """Tell whether a case is asked for or held."""
        return self._cases.get(case.id) is case

    def withdrawal(self, case: Case) -> Withdraw:
        """Return the command that takes a request back."""
        return Withdraw(self.engine.session, case.id)

    def wait_again(self, case: Case, token: int) -> bool:
        """Let one who was shown an offer wait for what comes of it; False when it is not that offer any more."""
        with self._lock:
            if case.state != _case.OFFERED or case.token != token:
                return False
            case.state = _case.WAITING
            return True

    def claim(self, case: Case) -> Claim:
        """Return the command that accepts an offer."""
        case.sent = elapsed()
        return Claim(self.engine.session, (case.id,))

    def owe(self, command: Release | Withdraw) -> None:
        """Send what could not be sent again and again, until the engine has taken it or is closed."""

        def answered(answer: Reply | Exception) -> None:
            if isinstance(answer, Exception) and not isinstance(answer, PoolClosed):
                _alarm.call_later(AUDIT, again)

        def again() -> None:
            if not isinstance(command, Withdraw) or not _chosen.has((id(self.engine), self.pool, command.id)):
                self.owe(command)  # else it was asked for anew, and this would take that back

        try:
            self.engine.apply(self.pool, command, answered, block=False)
        except Exception as error:
            answered(error)

    @contextlib.contextmanager
    def taking_over(self) -> Iterator[None]:
        """Let nobody take a grant for a stray while it is adopted."""
        with self._lock:
            self._adopting += 1
        try:
            yield
        finally:
            with self._lock:
                self._adopting -= 1

    def adopt(self, case: Case, reply: Reply) -> None:
        """Take over a grant that another had."""
        with self._lock:
            old = self._cases.pop(case.id, None)
            self._cases[case.id] = case
        if old is not None:
            self._lose(old, "it was passed on within this process")
        self._hold(case, reply.token, reply.shares)

    def forget(self, case: Case, how: str) -> None:
        """Let a case be over, by its owner's will."""
        with self._lock:
            if self._cases.get(case.id) is case:
                del self._cases[case.id]
            case.keep()
            case.how = how
            case.state = _case.OVER

    def tie(self, case: Case, grant: object) -> GrantRef:
        """Notice the end of a case's grant, even if a signal strikes its `__del__`: no Python code runs for that."""
        case.grant = GrantRef(grant, self._gone.append)
        case.grant.id = case.id
        return case.grant

    # --- hearing -----------------------------------------------------------------------------------------------

    def _answered(self, case: Case, answer: Reply | Exception) -> None:
        if isinstance(answer, Reply):
            if answer.kind == HELD:
                if case.lease and case.command.chosen:  # it may be running since an earlier request of this id
                    self._look((case.id,))
                else:
                    self._hold(case, answer.token, answer.shares)
                return
            if answer.kind in (WAITING, OFFERED, "away"):
                with self._lock:
                    if case.state == _case.ASKING:
                        case.state = _case.WAITING
                if answer.kind != WAITING:
                    self._audit_now()
                return
        with self._lock:
            if case.state != _case.ASKING:
                return
            case.state = _case.OVER
            case.refusal = answer
            self._cases.pop(case.id, None)
        if isinstance(answer, EngineUnavailable):  # it may take effect yet
            self.owe(self.withdrawal(case))
        case.settled(case)

    def _hear(self, entries: Sequence[Entry]) -> None:
        """Listen to what happened in the pool, for those of our own. No entries: something may have been missed."""
        cases = self._cases
        if self._gone:
            self._look_for_dropped()
        if not entries:
            self._look([one.id for one in list(cases.values()) if one.state != _case.OFFERED], strays=True)
            return
        if not cases:
            return
        claims: list[str] = []
        for entry in entries:
            for change in entry.changes:
                kind = type(change)
                if kind is to.Asked:
                    self._hear_asked(change)  # type: ignore[arg-type]
                elif kind in _EARS:
                    case = cases.get(change.id)  # type: ignore[union-attr]
                    if case is not None:
                        _EARS[kind](self, case, change, claims)
        if claims:
            now = elapsed()
            for one in claims:
                if (case := cases.get(one)) is not None:
                    case.sent = now
            self._claim(claims)

    def _hear_asked(self, change: to.Asked) -> None:
        """Take note that a request of ours stands in line: what we hear of it from now on is about this one."""
        request = change.request
        case = self._cases.get(request.id)
        if case is not None and request.session == self.engine.session and request.state == WAITING:
            case.begin_waiting()

    def _hear_returned(self, case: Case, change: to.Returned, claims: list[str]) -> None:
        if change.session == self.engine.session:
            case.begin_waiting()

    def _hear_held(self, case: Case, change: to.Held, claims: list[str]) -> None:
        if case.lease:  # it runs since that was decided, not since it was asked for or heard of
            self._look((case.id,))
        else:
            self._hold(case, change.token, change.shares)

    def _hear_offered(self, case: Case, change: to.Offered, claims: list[str]) -> None:
        case.token, case.shares = change.token, change.shares
        if case.command.picky:
            self._show(case)
        elif not case.command.lease and self.engine.accept(self.pool, case.id, change.token, change.until):
            self._hold(case, change.token, change.shares)
        else:
            claims.append(case.id)

    def _hear_claimed(self, case: Case, change: to.Claimed, claims: list[str]) -> None:
        self._hold(case, case.token, case.shares)

    def _hear_left(self, case: Case, change: to.Left, claims: list[str]) -> None:
        if case.state == _case.HELD:  # it was accepted, but nobody could see that any more
            self._lose(case, "it was offered and could not be claimed in time")
        elif case.state != _case.ASKING:  # else it is about an earlier request with this id
            claims.append(case.id)

    def _hear_adopted(self, case: Case, change: to.Adopted, claims: list[str]) -> None:
        if change.token != case.token:
            self._lose(case, f"{change.how} by {change.by or change.holder}", change.reason)

    def _hear_ended(self, case: Case, change: to.Ended, claims: list[str]) -> None:
        if case.state != _case.ASKING:  # else it is about an earlier request with this id
            self._end(case, change)

    def _claim(self, ids: Sequence[str]) -> None:
        self.engine.apply(self.pool, Claim(self.engine.session, tuple(ids)), _log_failure, block=False)

    def _show(self, case: Case) -> None:
        with self._lock:
            if case.state not in (_case.ASKING, _case.WAITING):
                return
            case.state = _case.OFFERED
        case.settled(case)

    def _hold(self, case: Case, token: int, shares: tuple[tuple[str, int], ...]) -> None:
        with self._lock:
            if self._is_closed or case.state in (_case.HELD, _case.OVER, _case.LOST):
                return
            case.state = _case.HELD
            case.held_since = elapsed()
            case.token = token
            case.shares = shares
            self.seen = max(self.seen, token)
            self._keep_watch(case)
        case.settled(case)

    def _end(self, case: Case, change: to.Ended) -> None:
        if case.state == _case.HELD:
            if change.how == "released" and change.token == case.token:  # by ourselves
                self.forget(case, "released")
            elif change.token in (0, case.token):
                how = f"{change.how} by {change.by}" if change.by else change.how
                self._lose(case, how, change.reason)
            return
        with self._lock:
            if case.state in (_case.OVER, _case.LOST):
                return
            case.state = _case.OVER
            case.how = change.how
            case.refusal = Reply("ended", case.id, detail=change.how)
            self._cases.pop(case.id, None)
        case.settled(case)

    def lose(self, case: Case, answer: Reply) -> None:
        """Take note of an answer that says that the token of a grant does not count any more."""
        self._lose(case, answer.detail or answer.kind)

    def _lose(self, case: Case, how: str, reason: str = "") -> None:
        with self._lock:
            if case.state != _case.HELD:
                return
            case.state = _case.LOST
            case.how = f"{how}: {reason}" if reason else how
            case.keep()
            if self._cases.get(case.id) is case:
                del self._cases[case.id]
        if case.on_lost is not None and not case.is_passed_on:
            _alarm.call_at(0.0, case.on_lost)

    # --- keeping -----------------------------------------------------------------------------------------------

    def _keep_watch(self, case: Case) -> None:
        """Make the appointments of a grant. The lock is held."""
        appointments = []
        if case.lease:
            case.deadline = case.sent + 0.9 * case.lease
            appointments.append(_alarm.call_at(case.sent + case.lease / 3, lambda: self._renew(case)))
            appointments.append(_alarm.call_at(case.deadline, lambda: self._expire(case)))
        if self._suspect_after is not None:
            too_long = case.held_since + self._suspect_after
            appointments.append(_alarm.call_at(too_long, lambda: self._held_too_long(case)))
        if appointments:
            case.keep(*appointments)

    def _renew(self, case: Case) -> None:
        if case.state != _case.HELD:
            return
        sent = elapsed()
        self.engine.apply(
            self.pool,
            Renew(self.engine.session, case.token),
            lambda answer: self.renewed(case, answer, sent),
            block=False,
        )

    def renewed(self, case: Case, answer: Reply | Exception, sent: float) -> None:
        """Take note of the answer to a renewal."""
        if isinstance(answer, Reply):
            if answer.kind != HELD:
                self.lose(case, answer)
                return
            with self._lock:
                if case.state == _case.HELD and case.lease:
                    case.sent = max(case.sent, sent)
                    self._keep_watch(case)
            return
        logger.warning("a lease could not be renewed", extra={"millpond": {"pool": self.pool, "error": str(answer)}})
        with self._lock:
            if case.state == _case.HELD and case.deadline is not None:
                case.keep(
                    _alarm.call_later(case.lease / 10, lambda: self._renew(case)),
                    _alarm.call_at(case.deadline, lambda: self._expire(case)),
                )

    def _expire(self, case: Case) -> None:
        if case.deadline is not None and elapsed() >= case.deadline:
            self._lose(case, f"its lease of {case.lease:g} s could not be renewed in time")

    def _held_too_long(self, case: Case) -> None:
        self._suspect(case, f"held for more than {self._suspect_after:g} s")

    def dropped(self, case: Case) -> None:
        """Give back a grant that nobody can release any more.

        Called by the garbage collector, so maybe from within an engine: only appointments are made here.
        """
        if case.state == _case.HELD and not case.is_passed_on and not sys.is_finalizing() and this.pid == self._pid:
            _alarm.call_at(0.0, lambda: self._release_dropped(case))
            self._warn(case, "the grant was dropped without release(), so it is free again: keep it while you use it")

    def _look_for_dropped(self) -> None:
        """Give back what grants held that are gone, and whose `__del__` did not get to that."""
        for one in self._gone.copy():
            case = self._cases.get(one.id)
            if case is not None and case.grant is one:
                self.dropped(case)
            with contextlib.suppress(ValueError, IndexError):  # another thread is here, too
                self._gone.remove(one)

    def _release_dropped(self, case: Case) -> None:
        if case.state == _case.HELD and not case.is_passed_on and this.pid == self._pid:
            self.give_back(case, "dropped")

    def give_back(self, case: Case, how: str) -> None:
        """Let a grant be over, and release it as soon as the engine answers: nobody waits for that."""
        command = Release(self.engine.session, case.token)
        self.forget(case, how)
        self.owe(command)

    def _suspect(self, case: Case, why: str) -> None:
        """Show everybody who looks that something seems to be wrong with a grant."""
        if case.state != _case.HELD or case.is_passed_on or this.pid != self._pid:
            return
        self._warn(case, why)
        command = Suspect(self.engine.session, case.token, why)
        self.engine.apply(self.pool, command, _log_failure, block=False)

    def _warn(self, case: Case, why: str) -> None:
        if case.is_suspect:
            return
        case.is_suspect = True
        names = ", ".join(name for name, _ in case.shares)
        text = f"{names} of pool {self.pool!r}: {why} (token {case.token})"
        logger.warning("%s", text, extra={"millpond": {"pool": self.pool, "token": case.token, "why": why}})
        with contextlib.suppress(ResourceWarning):  # where warnings are errors: this may be the garbage collector
            warnings.warn(text, ResourceWarning, stacklevel=4)

    # --- the safety net ----------------------------------------------------------------------------------------

    def _watch_over(self) -> None:
        with self._lock:
            if self._audit is None and not self._is_closed:
                self._audit = _alarm.call_later(self.engine.audit_every, self._audit_now)

    def _audit_now(self) -> None:
        if self._gone:
            self._look_for_dropped()
        with self._lock:
            if self._audit is not None:
                self._audit.cancel()
                self._audit = None
            asked = [one.id for one in self._cases.values() if one.state in (_case.ASKING, _case.WAITING)]
        if asked and not self._is_closed and this.pid == self._pid:
            self._look(asked)

    def _look(self, asked: Sequence[str], *, strays: bool = False) -> None:
        """See how requests stand with the engine, and with `strays` whether it has some that nobody here knows of."""
        sent = elapsed()

        def answered(answer: list[Standing] | Exception) -> None:
            if not isinstance(answer, Exception):
                self._compare(answer, sent)
            self._watch_over()

        self.engine.ask(self.pool, Standings(self.engine.session, tuple(asked), strays), answered, block=False)

    def _compare(self, standing: list[Standing], sent: float) -> None:
        claims: list[str] = []
        for one in standing:
            case = self._cases.get(one.id)
            if one.state == "stray":
                self._end_stray(one.id)
            elif case is None:
                continue
            elif one.state == HELD:
                if case.lease and case.state != _case.HELD:
                    case.sent = sent + one.left - case.lease
                self._hold(case, one.token, one.shares)
            elif one.state == OFFERED:
                if case.token != one.token:  # else it was claimed when we heard of it, and counts from then
                    case.token, case.shares, case.sent = one.token, one.shares, sent
                if case.command.picky:
                    self._show(case)
                else:
                    claims.append(one.id)
            elif one.state == "away":
                claims.append(one.id)
            else:
                self._miss(case, one, sent)
        if claims:
            self._claim(claims)

    def _end_stray(self, request: str) -> None:
        """Take back what is the session's and nobody's here: the store went back to when it was, or a call was lost."""
        beside = _desks.beside(self)
        if not self._is_closed and not any(one._adopting or request in one._cases for one in beside):
            self.owe(Withdraw(self.engine.session, request))

    def _miss(self, case: Case, found: Standing, sent: float) -> None:
        """Handle a request that the engine does not know as ours any more."""
        if found.state == "gone" and case.state == _case.WAITING:
            limit = case.command.timeout / 1_000_000
            is_late = bool(limit) and sent - case.sent >= limit
            self._end(case, to.Ended(case.id, found.how or ("timed out" if is_late else "it ended unheard")))
        elif found.state == "gone" and case.state == _case.HELD and case.held_since < sent:
            self._lose(case, found.how or "the pool does not know it any more")
        elif found.state == "taken" and case.state == _case.HELD and found.token > case.token:
            self._lose(case, "it is in other hands")

    def close(self) -> list[Release | Withdraw]:
        """Stop, and send away those who wait; return what ends all that is still asked for or held."""
        with self._lock:
            self._is_closed = True
            left = list(self._cases.values())
            self._cases.clear()
            if self._audit is not None:
                self._audit.cancel()
        self._stop()
        commands: list[Release | Withdraw] = []
        for case in left:
            was_held = case.state == _case.HELD
            commands.append(Release(self.engine.session, case.token) if was_held else self.withdrawal(case))
            self.forget(case, "the pool was closed")
            case.settled(case)
        return commands

    @property
    def is_closed(self) -> bool:
        """Whether the pool object was closed."""
        return self._is_closed


def _log_failure(answer: Reply | Exception) -> None:
    if isinstance(answer, Exception):
        logger.warning("an engine failed", extra={"millpond": {"error": str(answer)}})


_EARS: Final[dict[type[to.Change], Callable[[Desk, Case, Any, list[str]], None]]] = {
    to.Returned: Desk._hear_returned,
    to.Held: Desk._hear_held,
    to.Offered: Desk._hear_offered,
    to.Claimed: Desk._hear_claimed,
    to.Left: Desk._hear_left,
    to.Adopted: Desk._hear_adopted,
    to.Ended: Desk._hear_ended,
}
