"""The requests and grants of one pool object: it sends them, and listens to the engine for news of them.

It neither blocks nor awaits: threads and event loops put their own latches into a request. What it does by itself:

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
from millpond.resources import _timers
from millpond.resources._engine import AUDIT, Engine, Ticket
from millpond.resources._own_request import ASKING, LOST, OVER, GrantRef, OwnRequest
from millpond.resources._questions import Standing, Standings
from millpond.resources._rules import changes
from millpond.resources._rules.commands import Claim, Release, Renew, Reply, Suspect, Withdraw
from millpond.resources._rules.records import HELD, OFFERED, WAITING, Holder
from millpond.resources._rules.wire import Entry

_numbers = itertools.count(1)


class _ChosenIds:
    """The chosen request ids in use in this process, through whatever pool object: the engine takes them for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: weakref.WeakValueDictionary[tuple[int, str, str], OwnRequest] = weakref.WeakValueDictionary()

    def take(self, key: tuple[int, str, str], request: OwnRequest) -> bool:
        """Reserve an id (of that engine and pool) for a request; False if it is in use."""
        with self._lock:
            if self._is_used(key):
                return False
            self._users[key] = request
            return True

    def has(self, key: tuple[int, str, str]) -> bool:
        """Return whether an id is in use."""
        with self._lock:
            return self._is_used(key)

    def _is_used(self, key: tuple[int, str, str]) -> bool:
        user = self._users.get(key)
        return user is not None and user.state not in (OVER, LOST)

    def start_over(self) -> None:
        self.__init__()  # type: ignore[misc]  # in a forked child the lock may be held by a thread that is not there


class _AllOwnRequests:
    """The requests of all pool objects of this process: a session's request may be of any of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[OwnRequests] = weakref.WeakSet()

    def add(self, own: OwnRequests) -> None:
        with self._lock:
            self._all.add(own)

    def beside(self, own: OwnRequests) -> list[OwnRequests]:
        """Return those of the same pool and session."""
        with self._lock:
            return [one for one in self._all if one.engine is own.engine and one.pool == own.pool]

    def start_over(self) -> None:
        self.__init__()  # type: ignore[misc]  # as above


_chosen = _ChosenIds()
_all = _AllOwnRequests()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_chosen.start_over)
    os.register_at_fork(after_in_child=_all.start_over)


class OwnRequests:
    """All that one pool object has asked for and holds."""

    def __init__(self, engine: Engine, pool: str, holder_id: str, suspect_after: float | None) -> None:
        self.engine = engine
        self.pool = pool
        mine = engine.holder
        self.holder = Holder(mine.kind, holder_id, mine.host, mine.pid, mine.started)
        """Who asks, as people will see it."""
        self._suspect_after = suspect_after
        self._lock = threading.Lock()
        self._requests: dict[str, OwnRequest] = {}
        self._pid = this.pid
        self._is_closed = False
        self._audit: _timers.Timer | None = None
        self._gone: deque[GrantRef] = deque()  # grants that were freed, also after their release
        self._adopting = 0  # grants that are being taken over: they are the session's, and in no `_requests` yet
        self.seen = 0
        _all.add(self)
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

    def ask(self, request: OwnRequest, *, block: bool) -> Ticket:
        """Send a request; its `state` tells how it goes."""
        self.check_open()
        with self._lock:
            if request.command.chosen and not _chosen.take((id(self.engine), self.pool, request.id), request):
                raise AlreadyExists(
                    f"request {request.id!r} is in use in this process already: choose another request_id"
                )
            self._requests[request.id] = request
        request.sent = elapsed()
        ticket = self.engine.apply(
            self.pool, request.command, lambda answer: self._answered(request, answer), block=block
        )
        if request.state in (ASKING, WAITING):
            self._watch_over()
        return ticket

    def knows(self, request: OwnRequest) -> bool:
        """Return whether a request is asked for or held."""
        return self._requests.get(request.id) is request

    def withdrawal(self, request: OwnRequest) -> Withdraw:
        """Return the command that takes a request back."""
        return Withdraw(self.engine.session, request.id)

    def wait_again(self, request: OwnRequest, token: int) -> bool:
        """Go back to waiting for this offer; False when it is not offered any more."""
        with self._lock:
            if request.state != OFFERED or request.token != token:
                return False
            request.state = WAITING
            return True

    def claim(self, request: OwnRequest) -> Claim:
        """Return the command that accepts an offer."""
        request.sent = elapsed()
        return Claim(self.engine.session, (request.id,))

    def owe(self, command: Release | Withdraw) -> None:
        """Send what could not be sent again and again, until the engine has taken it or is closed."""

        def answered(answer: Reply | Exception) -> None:
            if isinstance(answer, Exception) and not isinstance(answer, PoolClosed):
                _timers.call_later(AUDIT, again)

        def again() -> None:
            if not isinstance(command, Withdraw) or not _chosen.has((id(self.engine), self.pool, command.id)):
                self.owe(command)  # else it was asked for anew, and this would take that back

        try:
            self.engine.apply(self.pool, command, answered, block=False)
        except Exception as error:
            answered(error)

    @contextlib.contextmanager
    def taking_over(self) -> Iterator[None]:
        """Treat no grant as a stray while one is adopted."""
        with self._lock:
            self._adopting += 1
        try:
            yield
        finally:
            with self._lock:
                self._adopting -= 1

    def adopt(self, request: OwnRequest, reply: Reply) -> None:
        """Take over a grant that another had."""
        with self._lock:
            old = self._requests.pop(request.id, None)
            self._requests[request.id] = request
        if old is not None:
            self._lose(old, "it was passed on within this process")
        self._hold(request, reply.token, reply.shares)

    def forget(self, request: OwnRequest, how: str) -> None:
        """End a request, by its owner's will."""
        with self._lock:
            if self._requests.get(request.id) is request:
                del self._requests[request.id]
            request.set_timers()
            request.how = how
            request.state = OVER

    def tie(self, request: OwnRequest, grant: object) -> GrantRef:
        """Notice the end of a request's grant, even if a signal strikes its `__del__`: no Python code runs for that."""
        request.grant = GrantRef(grant, self._gone.append)
        request.grant.id = request.id
        return request.grant

    # --- hearing -----------------------------------------------------------------------------------------------

    def _answered(self, request: OwnRequest, answer: Reply | Exception) -> None:
        if isinstance(answer, Reply):
            if answer.kind == HELD:
                if request.lease and request.command.chosen:  # it may be running since an earlier request of this id
                    self._look((request.id,))
                else:
                    self._hold(request, answer.token, answer.shares)
                return
            if answer.kind in (WAITING, OFFERED, "away"):
                with self._lock:
                    if request.state == ASKING:
                        request.state = WAITING
                if answer.kind != WAITING:
                    self._audit_now()
                return
        with self._lock:
            if request.state != ASKING:
                return
            request.state = OVER
            request.refusal = answer
            self._requests.pop(request.id, None)
        if isinstance(answer, EngineUnavailable):  # it may take effect yet
            self.owe(self.withdrawal(request))
        request.settled(request)

    def _hear(self, entries: Sequence[Entry]) -> None:
        """Listen to what happened in the pool, for those of our own. No entries: something may have been missed."""
        requests = self._requests
        if self._gone:
            self._look_for_dropped()
        if not entries:
            self._look([one.id for one in list(requests.values()) if one.state != OFFERED], strays=True)
            return
        if not requests:
            return
        claims: list[str] = []
        for entry in entries:
            for change in entry.changes:
                kind = type(change)
                if kind is changes.Asked:
                    self._hear_asked(change)  # type: ignore[arg-type]
                elif kind in _HEARD:
                    request = requests.get(change.id)  # type: ignore[union-attr]
                    if request is not None:
                        _HEARD[kind](self, request, change, claims)
        if claims:
            now = elapsed()
            for one in claims:
                if (request := requests.get(one)) is not None:
                    request.sent = now
            self._claim(claims)

    def _hear_asked(self, change: changes.Asked) -> None:
        """Mark a request of ours as waiting: what we hear of it from now on is about this one."""
        asked = change.request
        request = self._requests.get(asked.id)
        if request is not None and asked.session == self.engine.session and asked.state == WAITING:
            request.begin_waiting()

    def _hear_returned(self, request: OwnRequest, change: changes.Returned, claims: list[str]) -> None:
        if change.session == self.engine.session:
            request.begin_waiting()

    def _hear_held(self, request: OwnRequest, change: changes.Held, claims: list[str]) -> None:
        if request.lease:  # it runs since that was decided, not since it was asked for or heard of
            self._look((request.id,))
        else:
            self._hold(request, change.token, change.shares)

    def _hear_offered(self, request: OwnRequest, change: changes.Offered, claims: list[str]) -> None:
        request.token, request.shares = change.token, change.shares
        if request.command.picky:
            self._show(request)
        elif not request.command.lease and self.engine.accept(self.pool, request.id, change.token, change.until):
            self._hold(request, change.token, change.shares)
        else:
            claims.append(request.id)

    def _hear_claimed(self, request: OwnRequest, change: changes.Claimed, claims: list[str]) -> None:
        self._hold(request, request.token, request.shares)

    def _hear_left(self, request: OwnRequest, change: changes.Left, claims: list[str]) -> None:
        if request.state == HELD:  # it was accepted, but nobody could see that any more
            self._lose(request, "it was offered and could not be claimed in time")
        elif request.state != ASKING:  # else it is about an earlier request with this id
            claims.append(request.id)

    def _hear_adopted(self, request: OwnRequest, change: changes.Adopted, claims: list[str]) -> None:
        if change.token != request.token:
            self._lose(request, f"{change.how} by {change.by or change.holder}", change.reason)

    def _hear_ended(self, request: OwnRequest, change: changes.Ended, claims: list[str]) -> None:
        if request.state != ASKING:  # else it is about an earlier request with this id
            self._end(request, change)

    def _claim(self, ids: Sequence[str]) -> None:
        self.engine.apply(self.pool, Claim(self.engine.session, tuple(ids)), _log_failure, block=False)

    def _show(self, request: OwnRequest) -> None:
        with self._lock:
            if request.state not in (ASKING, WAITING):
                return
            request.state = OFFERED
        request.settled(request)

    def _hold(self, request: OwnRequest, token: int, shares: tuple[tuple[str, int], ...]) -> None:
        with self._lock:
            if self._is_closed or request.state in (HELD, OVER, LOST):
                return
            request.state = HELD
            request.held_since = elapsed()
            request.token = token
            request.shares = shares
            self.seen = max(self.seen, token)
            self._keep_watch(request)
        request.settled(request)

    def _end(self, request: OwnRequest, change: changes.Ended) -> None:
        if request.state == HELD:
            if change.how == "released" and change.token == request.token:  # by ourselves
                self.forget(request, "released")
            elif change.token in (0, request.token):
                how = f"{change.how} by {change.by}" if change.by else change.how
                self._lose(request, how, change.reason)
            return
        with self._lock:
            if request.state in (OVER, LOST):
                return
            request.state = OVER
            request.how = change.how
            request.refusal = Reply("ended", request.id, detail=change.how)
            self._requests.pop(request.id, None)
        request.settled(request)

    def lose(self, request: OwnRequest, answer: Reply) -> None:
        """Handle a reply that says that the token of a grant does not count any more."""
        self._lose(request, answer.detail or answer.kind)

    def _lose(self, request: OwnRequest, how: str, reason: str = "") -> None:
        with self._lock:
            if request.state != HELD:
                return
            request.state = LOST
            request.how = f"{how}: {reason}" if reason else how
            request.set_timers()
            if self._requests.get(request.id) is request:
                del self._requests[request.id]
        if request.on_lost is not None and not request.is_passed_on:
            _timers.call_at(0.0, request.on_lost)

    # --- keeping -----------------------------------------------------------------------------------------------

    def _keep_watch(self, request: OwnRequest) -> None:
        """Set the timers of a grant. The lock is held."""
        timers = []
        if request.lease:
            request.deadline = request.sent + 0.9 * request.lease
            timers.append(_timers.call_at(request.sent + request.lease / 3, lambda: self._renew(request)))
            timers.append(_timers.call_at(request.deadline, lambda: self._expire(request)))
        if self._suspect_after is not None:
            too_long = request.held_since + self._suspect_after
            timers.append(_timers.call_at(too_long, lambda: self._held_too_long(request)))
        if timers:
            request.set_timers(*timers)

    def _renew(self, request: OwnRequest) -> None:
        if request.state != HELD:
            return
        sent = elapsed()
        self.engine.apply(
            self.pool,
            Renew(self.engine.session, request.token),
            lambda answer: self.renewed(request, answer, sent),
            block=False,
        )

    def renewed(self, request: OwnRequest, answer: Reply | Exception, sent: float) -> None:
        """Handle the answer to a renewal."""
        if isinstance(answer, Reply):
            if answer.kind != HELD:
                self.lose(request, answer)
                return
            with self._lock:
                if request.state == HELD and request.lease:
                    request.sent = max(request.sent, sent)
                    self._keep_watch(request)
            return
        logger.warning("a lease could not be renewed", extra={"millpond": {"pool": self.pool, "error": str(answer)}})
        with self._lock:
            if request.state == HELD and request.deadline is not None:
                request.set_timers(
                    _timers.call_later(request.lease / 10, lambda: self._renew(request)),
                    _timers.call_at(request.deadline, lambda: self._expire(request)),
                )

    def _expire(self, request: OwnRequest) -> None:
        if request.deadline is not None and elapsed() >= request.deadline:
            self._lose(request, f"its lease of {request.lease:g} s could not be renewed in time")

    def _held_too_long(self, request: OwnRequest) -> None:
        self._suspect(request, f"held for more than {self._suspect_after:g} s")

    def dropped(self, request: OwnRequest) -> None:
        """Give back a grant that nobody can release any more.

        Called by the garbage collector, so maybe from within an engine: only timers are made here.
        """
        if request.state == HELD and not request.is_passed_on and not sys.is_finalizing() and this.pid == self._pid:
            _timers.call_at(0.0, lambda: self._release_dropped(request))
            self._warn(
                request, "the grant was dropped without release(), so it is free again: keep it while you use it"
            )

    def _look_for_dropped(self) -> None:
        """Give back what grants held that are gone, and whose `__del__` did not get to that."""
        for one in self._gone.copy():
            request = self._requests.get(one.id)
            if request is not None and request.grant is one:
                self.dropped(request)
            with contextlib.suppress(ValueError, IndexError):  # another thread is here, too
                self._gone.remove(one)

    def _release_dropped(self, request: OwnRequest) -> None:
        if request.state == HELD and not request.is_passed_on and this.pid == self._pid:
            self.give_back(request, "dropped")

    def give_back(self, request: OwnRequest, how: str) -> None:
        """End a grant, and release it as soon as the engine answers: nobody waits for that."""
        command = Release(self.engine.session, request.token)
        self.forget(request, how)
        self.owe(command)

    def _suspect(self, request: OwnRequest, why: str) -> None:
        """Mark a grant as suspect, for everybody who looks."""
        if request.state != HELD or request.is_passed_on or this.pid != self._pid:
            return
        self._warn(request, why)
        command = Suspect(self.engine.session, request.token, why)
        self.engine.apply(self.pool, command, _log_failure, block=False)

    def _warn(self, request: OwnRequest, why: str) -> None:
        if request.is_suspect:
            return
        request.is_suspect = True
        names = ", ".join(name for name, _ in request.shares)
        text = f"{names} of pool {self.pool!r}: {why} (token {request.token})"
        logger.warning("%s", text, extra={"millpond": {"pool": self.pool, "token": request.token, "why": why}})
        with contextlib.suppress(ResourceWarning):  # where warnings are errors: this may be the garbage collector
            warnings.warn(text, ResourceWarning, stacklevel=4)

    # --- the safety net ----------------------------------------------------------------------------------------

    def _watch_over(self) -> None:
        with self._lock:
            if self._audit is None and not self._is_closed:
                self._audit = _timers.call_later(self.engine.audit_every, self._audit_now)

    def _audit_now(self) -> None:
        if self._gone:
            self._look_for_dropped()
        with self._lock:
            if self._audit is not None:
                self._audit.cancel()
                self._audit = None
            asked = [one.id for one in self._requests.values() if one.state in (ASKING, WAITING)]
        if asked and not self._is_closed and this.pid == self._pid:
            self._look(asked)

    def _look(self, asked: Sequence[str], *, strays: bool = False) -> None:
        """Ask the engine how requests stand, and with `strays` for those that nobody here knows of."""
        sent = elapsed()

        def answered(answer: list[Standing] | Exception) -> None:
            if not isinstance(answer, Exception):
                self._compare(answer, sent)
            self._watch_over()

        self.engine.ask(self.pool, Standings(self.engine.session, tuple(asked), strays), answered, block=False)

    def _compare(self, standing: list[Standing], sent: float) -> None:
        claims: list[str] = []
        for one in standing:
            request = self._requests.get(one.id)
            if one.state == "stray":
                self._end_stray(one.id)
            elif request is None:
                continue
            elif one.state == HELD:
                if request.lease and request.state != HELD:
                    request.sent = sent + one.left - request.lease
                self._hold(request, one.token, one.shares)
            elif one.state == OFFERED:
                if request.token != one.token:  # else it was claimed when we heard of it, and counts from then
                    request.token, request.shares, request.sent = one.token, one.shares, sent
                if request.command.picky:
                    self._show(request)
                else:
                    claims.append(one.id)
            elif one.state == "away":
                claims.append(one.id)
            else:
                self._miss(request, one, sent)
        if claims:
            self._claim(claims)

    def _end_stray(self, stray: str) -> None:
        """Take back what is the session's and nobody's here: the store went back to when it was, or a call was lost."""
        beside = _all.beside(self)
        if not self._is_closed and not any(one._adopting or stray in one._requests for one in beside):
            self.owe(Withdraw(self.engine.session, stray))

    def _miss(self, request: OwnRequest, found: Standing, sent: float) -> None:
        """Handle a request that the engine does not know as ours any more."""
        if found.state == "gone" and request.state == WAITING:
            limit = request.command.timeout / 1_000_000
            is_late = bool(limit) and sent - request.sent >= limit
            how = found.how or ("timed out" if is_late else "it ended unheard")
            self._end(request, changes.Ended(request.id, how))
        elif found.state == "gone" and request.state == HELD and request.held_since < sent:
            self._lose(request, found.how or "the pool does not know it any more")
        elif found.state == "taken" and request.state == HELD and found.token > request.token:
            self._lose(request, "it is in other hands")

    def close(self) -> list[Release | Withdraw]:
        """Stop, and end all that is asked for or held; return the commands that do so at the engine."""
        with self._lock:
            self._is_closed = True
            left = list(self._requests.values())
            self._requests.clear()
            if self._audit is not None:
                self._audit.cancel()
        self._stop()
        commands: list[Release | Withdraw] = []
        for request in left:
            was_held = request.state == HELD
            commands.append(Release(self.engine.session, request.token) if was_held else self.withdrawal(request))
            self.forget(request, "the pool was closed")
            request.settled(request)
        return commands

    @property
    def is_closed(self) -> bool:
        """Whether the pool object was closed."""
        return self._is_closed


def _log_failure(answer: Reply | Exception) -> None:
    if isinstance(answer, Exception):
        logger.warning("an engine failed", extra={"millpond": {"error": str(answer)}})


_HEARD: Final[dict[type[changes.Change], Callable[[OwnRequests, OwnRequest, Any, list[str]], None]]] = {
    changes.Returned: OwnRequests._hear_returned,
    changes.Held: OwnRequests._hear_held,
    changes.Offered: OwnRequests._hear_offered,
    changes.Claimed: OwnRequests._hear_claimed,
    changes.Left: OwnRequests._hear_left,
    changes.Adopted: OwnRequests._hear_adopted,
    changes.Ended: OwnRequests._hear_ended,
}
