# Generated from _async_grant.py by tools/twins.py: edit that file, then run `make format`.
"""A grant: what is held, under which token, and how to give it back.

The synchronous twin, `_grant.py`, is generated from this file by `tools/twins.py`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, TypeAlias

import msgspec

from millpond._clock import elapsed
from millpond._events import logger
from millpond._fork import this
from millpond._urls import shown
from millpond.errors import (
    AcquireTimeout,
    EngineError,
    LeaseLost,
    PoolClosed,
    PoolError,
    StaleToken,
)
from millpond.resources import _case
from millpond.resources import _questions as about
from millpond.resources._case import Case
from millpond.resources._desk import Desk
from millpond.resources._engine import Ticket
from millpond.resources._port import Latch, Obtainable, Port, Scope
from millpond.resources._refusals import Asked, add_note, grant_name, lost, not_held
from millpond.resources._rules.commands import Acquire, Decline, Pass, Release, Renew, Reply
from millpond.resources._views import ResourceView

OnLost: TypeAlias = str | Callable[["Grant"], object]
Chooser: TypeAlias = Callable[[Sequence[ResourceView]], Sequence[ResourceView | str]]
LOOK: Final = "waiters() and holders() tell who is ahead and who holds what"
GLANCE: Final = 0.25
"""Seconds that who waited in vain waits to learn why."""
TAKEN_BACK: Final = 2.0
"""Seconds to wait until a request is taken back; after that it is taken back as soon as the engine answers."""


class Grant(Obtainable):
    """Resources in your hands, until you leave the block or `release` them.

    A lock is yours until you give it back; a lease is renewed for you while you hold it. `check()` raises `LeaseLost`
    as soon as it may be in other hands. Give `token` to whatever you write to, so that it can refuse the writes of
    one who lost the grant and does not know it yet: a fence protects only what checks it.
    """

    __slots__ = (
        "__weakref__",
        "_case",
        "_chooser",
        "_desk",
        "_latch",
        "_on_lost",
        "_pid",
        "_port",
        "_scope",
        "_timeout",
    )

    def __init__(
        self,
        port: Port,
        desk: Desk,
        command: Acquire,
        timeout: float | None = None,
        on_lost: OnLost = "ignore",
        chooser: Chooser | None = None,
    ) -> None:
        self._port = port
        self._desk = desk
        self._timeout = timeout
        self._on_lost = on_lost
        self._chooser = chooser
        self._pid = this.pid
        self._latch: Latch[Case] | None = None
        self._scope: Scope | None = None
        self._case = Case(command)

    # --- what is held ------------------------------------------------------------------------------------------

    @property
    def resource(self) -> str:
        """The name of the resource; of the first one, if there are several."""
        return self._held().shares[0][0]

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of all resources, in the order in which they were asked for."""
        return tuple(name for name, _ in self._held().shares)

    @property
    def units(self) -> Mapping[str, int]:
        """How many units of each resource."""
        return dict(self._held().shares)

    @property
    def token(self) -> int:
        """The number of this grant: it grows with every grant of the pool. For fences."""
        return self._held().token

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self._case.id

    @property
    def deadline(self) -> float | None:
        """Seconds for which the lease is surely held without another renewal; None for a lock."""
        deadline = self._held().deadline
        return None if deadline is None else deadline - elapsed()

    @property
    def is_held(self) -> bool:
        """Whether it is held, as far as this process knows."""
        case = self._case
        return case.state == _case.HELD and (case.deadline is None or elapsed() < case.deadline)

    def check(self) -> None:
        """Raise `LeaseLost` unless the grant is surely held. Call it before each effect that matters."""
        case = self._case
        if case.state == _case.LOST or (case.state == _case.HELD and not self.is_held):
            raise self._lost()
        if case.state != _case.HELD:
            raise not_held(self._name(), case.how or case.state)

    def labels(self) -> dict[str, str]:
        """Return the labels of the resource (of the first one), as they are now."""
        self._check_process()
        return self._port.ask(about.LabelsOf(self.resource))

    # --- giving it back ----------------------------------------------------------------------------------------

    def release(self) -> None:
        """Give it back. Doing so again does nothing; a grant that was lost meanwhile raises `LeaseLost`."""
        self._check_process()
        case = self._case
        if case.state == _case.OVER:
            return
        if case.state == _case.LOST:
            raise self._lost()
        if case.state != _case.HELD:
            raise RuntimeError(f"request {case.id!r} holds nothing yet: acquire it first")
        command = Release(self._desk.engine.session, case.token)
        answer, interrupt = self._port.finish(command)
        if isinstance(answer, Exception):
            self._desk.give_back(case, "released")
        elif answer.kind == "stale":
            self._desk.forget(case, answer.detail)
            answer = self._lost()
        elif case.state == _case.HELD:
            self._desk.forget(case, "released")
        if interrupt is not None:
            raise interrupt
        if isinstance(answer, Exception):
            raise answer

    def renew(self) -> None:
        """Renew a lease for its whole length from now. It is done for you every third of it."""
        self._check_process()
        self.check()
        sent = elapsed()
        reply = self._port.send(Renew(self._desk.engine.session, self._case.token))
        self._desk.renewed(self._case, reply, sent)
        self.check()

    def transfer(self) -> int:
        """Pass the grant on: return its token, with which another process (or this one) can `adopt` it.

        Until then it stays in the hands of this process, also after the block, and it ends if this process ends. If
        this call is cancelled or fails, the end of the block releases the grant as ever.
        """
        self._check_process()
        self.check()
        case = self._case
        case.is_passed_on = True  # before it is: who adopts it at once is no thief
        try:
            reply = self._port.send(Pass(self._desk.engine.session, case.token))
            if reply.kind != "ok":
                self._desk.lose(case, reply)
                raise self._lost()
        except BaseException:
            case.is_passed_on = False
            raise
        return case.token

    def __enter__(self) -> Grant:
        try:
            if self._case.state == _case.ASKING and self._latch is None:
                self._obtain()
            self.check()
            self._scope = Scope(self._on_lost)
            return self
        except BaseException:
            self._abandon()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(error)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Give back what is still held although the block is left: a signal struck."""
        if self._case.state == _case.HELD and not self._case.is_passed_on:
            self._desk.give_back(self._case, "interrupted")

    def _leave(self, error: BaseException | None) -> None:
        scope, self._scope = self._scope, None
        if self._case.is_passed_on and self._case.state == _case.HELD:
            return
        is_lost = self._case.state == _case.LOST
        if not is_lost:
            try:
                self.release()
            except LeaseLost:
                is_lost = True
            except (EngineError, RuntimeError) as trouble:  # it is released as soon as the engine can, or not ours
                if error is None:
                    raise
                add_note(error, str(trouble))
        if is_lost and self._on_lost != "ignore" and not self._case.is_passed_on:
            cancelled = scope is not None and scope.absorb(error)
            if error is None or cancelled:
                raise self._lost() from None
            add_note(error, str(self._lost()))

    def __del__(self) -> None:
        case = getattr(self, "_case", None)
        if case is not None and case.state == _case.HELD:
            self._desk.dropped(case)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self._name()} cannot be sent to another process as it is: send the token that transfer() returns, and "
            "adopt() it there"
        )

    def __repr__(self) -> str:
        case = self._case
        names = ", ".join(name for name, _ in case.shares) or "nothing yet"
        return f"<{type(self).__name__} {case.state}: {names} of {self._desk.pool!r}, token {case.token}>"

    # --- getting it --------------------------------------------------------------------------------------------

    def _obtain(self) -> None:
        """Ask, wait, and return when it is held; else raise, with nothing held and nothing asked for."""
        case = self._case
        if self._latch is not None or case.state != _case.ASKING:
            self.check()
            return
        deadline = None if self._timeout is None or not case.command.wait else elapsed() + self._timeout
        if self._chooser is not None:
            self._rank(self._chooser)
        latch = self._hang_latch()
        case.on_lost = _forward(self._desk.tie(case, self))
        ticket: Ticket | None = None
        try:
            ticket = self._desk.ask(case, block=self._port.blocks)
            while True:
                left = None if deadline is None else deadline - elapsed()
                if not latch.wait(left) and case.state != _case.HELD:
                    error = self._unanswered(ticket) or self._asked().timed_out(self._standing() or LOOK)
                    if case.state != _case.HELD:  # it may have come as we looked
                        raise error
                if case.state != _case.OFFERED:
                    break
                latch = self._look_at_offer()
            if case.state == _case.OVER or case.state == _case.ASKING:
                raise self._refused(self._standing() if self._is_timed_out() else "")
        except BaseException:
            try:
                self._give_up(ticket)
            except BaseException:  # a signal; wherever it struck, all of it may be done again
                self._give_up(ticket)
                raise
            raise

    def _give_up(self, ticket: Ticket | None) -> None:
        """Take the request back, wherever it stands."""
        case = self._case
        interrupt = None
        if self._desk.knows(case) and (ticket is None or not ticket.cancel()):
            command = self._desk.withdrawal(case)
            interrupt = self._port.take_back(command, lambda: self._desk.owe(command), TAKEN_BACK)
        self._desk.forget(case, case.how or "withdrawn")
        if interrupt is not None:
            raise interrupt

    def _unanswered(self, ticket: Ticket) -> AcquireTimeout | None:
        """Leave a request that the engine has not answered yet to be taken back later, and return what says so."""
        case = self._case
        if case.state != _case.ASKING:
            return None
        why = ticket.obstacle()
        if not ticket.cancel():
            self._desk.owe(self._desk.withdrawal(case))
        self._desk.forget(case, "not answered in time")
        words = f"pool {self._desk.pool!r} on {shown(self._desk.engine.url)} did not answer within {self._timeout:g} s"
        return AcquireTimeout(f"{words}: {why}" if why else words)

    def _hang_latch(self) -> Latch[Case]:
        """Be told of the next step."""
        latch: Latch[Case] = Latch()
        self._latch = latch
        self._case.settled = latch.set
        return latch

    def _rank(self, chooser: Chooser) -> None:
        """Show the requester's placement what is free; what it leaves out, it will not take."""
        candidates = self._port.ask(about.Candidates(self._case.command.wants))
        rank = _names(chooser(candidates))
        refused = tuple(sorted({one.name for one in candidates} - set(rank)))
        self._case.command = msgspec.structs.replace(self._case.command, rank=rank, refused=refused)

    def _look_at_offer(self) -> Latch[Case]:
        """Let the requester's placement accept or decline what was offered; return what tells how that goes on."""
        case = self._case
        offered = {name for name, _ in case.shares}
        token = case.token
        everything = self._port.ask(about.Resources())
        taken = _names(self._chooser([one for one in everything if one.name in offered])) if self._chooser else ()
        latch = self._hang_latch()
        if not self._desk.wait_again(case, token):  # it was ended meanwhile, or offered something else
            latch.set(case)
        elif offered <= set(taken):
            self._port.send(self._desk.claim(case))
        else:
            self._port.send(Decline(self._desk.engine.session, case.id, token))
        return latch

    def _adopted(self, reply: Reply, sent: float) -> None:
        """Begin as held: the grant was another's until now."""
        self._hang_latch()
        self._case.sent = sent
        self._case.on_lost = _forward(self._desk.tie(self._case, self))
        self._desk.adopt(self._case, reply)

    def _is_timed_out(self) -> bool:
        """Tell whether it has waited in vain. One who would not wait has no questions."""
        case = self._case
        answer = case.refusal
        return case.command.wait and "timed out" in (case.how, answer.detail if isinstance(answer, Reply) else "")

    def _refused(self, standing: str = "") -> PoolError:
        """Return the error that says why there is no grant."""
        case = self._case
        answer = case.refusal
        if isinstance(answer, PoolError):
            return answer
        if isinstance(answer, Exception):
            raise answer
        kind = answer.kind if isinstance(answer, Reply) else case.how
        detail = answer.detail if isinstance(answer, Reply) else case.how
        error = self._asked().refused(kind, detail, standing or LOOK)
        if isinstance(error, StaleToken) and self._desk.is_closed:
            return PoolClosed(f"pool {self._desk.pool!r} was closed while request {case.id!r} waited")
        return error

    def _asked(self) -> Asked:
        return Asked(self._desk.pool, self._case.id, self._case.command.wants, self._timeout)

    def _standing(self) -> str:
        """Say who is in the way, if the pool tells at once."""
        return self._port.glance(about.WhyNot(self._case.command), "", GLANCE)

    # --- small things ------------------------------------------------------------------------------------------

    def _held(self) -> Case:
        if not self._case.shares:
            raise RuntimeError(f"request {self._case.id!r} holds nothing yet: await it, or use it in a with block")
        return self._case

    def _lost(self) -> LeaseLost:
        case = self._case
        how = case.how or (
            f"its lease of {case.lease:g} s could not be renewed in time" if case.lease else "it is over"
        )
        return lost(self._name(), how)

    def _name(self) -> str:
        return grant_name(self._case.token, self._case.shares, self._desk.pool)

    def _check_process(self) -> None:
        if this.pid != self._pid:
            raise RuntimeError(
                f"{self._name()} belongs to process {self._pid}, and this is its forked child {this.pid}: "
                "release it there, or pass it on with transfer() and adopt()"
            )

    def _on_loss(self) -> None:
        """Do what was asked for when the grant is lost; called from a thread of the engine."""
        if callable(self._on_lost):  # in a thread of its own: it may take its time, and renewals must not wait for it
            threading.Thread(target=_call, args=(self._on_lost, self), name="millpond-on-lost", daemon=True).start()
        elif self._scope is not None:
            self._scope.interrupt()


def _call(on_lost: Callable[[Any], object], grant: object) -> None:
    try:
        on_lost(grant)
    except Exception:
        logger.exception("on_lost raised", extra={"millpond": {"grant": repr(grant)}})


def _names(chosen: Sequence[ResourceView | str]) -> tuple[str, ...]:
    return tuple(one if isinstance(one, str) else one.name for one in chosen)


def _forward(grant: weakref.ref[Any]) -> Callable[[], None]:
    def tell() -> None:
        owner = grant()
        if owner is not None:
            owner._on_loss()

    return tell
