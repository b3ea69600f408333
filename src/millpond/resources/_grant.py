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
from millpond.resources import _own_request
from millpond.resources import _questions as about
from millpond.resources._bridge import Block, Bridge, Latch, Obtainable
from millpond.resources._engine import Ticket
from millpond.resources._own_request import OwnRequest
from millpond.resources._own_requests import OwnRequests
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
        "_block",
        "_bridge",
        "_chooser",
        "_latch",
        "_on_lost",
        "_own",
        "_pid",
        "_request",
        "_timeout",
    )

    def __init__(
        self,
        bridge: Bridge,
        own: OwnRequests,
        command: Acquire,
        timeout: float | None = None,
        on_lost: OnLost = "ignore",
        chooser: Chooser | None = None,
    ) -> None:
        self._bridge = bridge
        self._own = own
        self._timeout = timeout
        self._on_lost = on_lost
        self._chooser = chooser
        self._pid = this.pid
        self._latch: Latch[OwnRequest] | None = None
        self._block: Block | None = None
        self._request = OwnRequest(command)

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
        return self._request.id

    @property
    def deadline(self) -> float | None:
        """Seconds for which the lease is surely held without another renewal; None for a lock."""
        deadline = self._held().deadline
        return None if deadline is None else deadline - elapsed()

    @property
    def is_held(self) -> bool:
        """Whether it is held, as far as this process knows."""
        request = self._request
        return request.state == _own_request.HELD and (request.deadline is None or elapsed() < request.deadline)

    def check(self) -> None:
        """Raise `LeaseLost` unless the grant is surely held. Call it before each effect that matters."""
        request = self._request
        if request.state == _own_request.LOST or (request.state == _own_request.HELD and not self.is_held):
            raise self._lost()
        if request.state != _own_request.HELD:
            raise not_held(self._name(), request.how or request.state)

    def labels(self) -> dict[str, str]:
        """Return the labels of the resource (of the first one), as they are now."""
        self._check_process()
        return self._bridge.ask(about.LabelsOf(self.resource))

    # --- giving it back ----------------------------------------------------------------------------------------

    def release(self) -> None:
        """Give it back. Doing so again does nothing; a grant that was lost meanwhile raises `LeaseLost`."""
        self._check_process()
        request = self._request
        if request.state == _own_request.OVER:
            return
        if request.state == _own_request.LOST:
            raise self._lost()
        if request.state != _own_request.HELD:
            raise RuntimeError(f"request {request.id!r} holds nothing yet: acquire it first")
        command = Release(self._own.engine.session, request.token)
        answer, interrupt = self._bridge.finish(command)
        if isinstance(answer, Exception):
            self._own.give_back(request, "released")
        elif answer.kind == "stale":
            self._own.forget(request, answer.detail)
            answer = self._lost()
        elif request.state == _own_request.HELD:
            self._own.forget(request, "released")
        if interrupt is not None:
            raise interrupt
        if isinstance(answer, Exception):
            raise answer

    def renew(self) -> None:
        """Renew a lease for its whole length from now. It is done for you every third of it."""
        self._check_process()
        self.check()
        sent = elapsed()
        reply = self._bridge.send(Renew(self._own.engine.session, self._request.token))
        self._own.renewed(self._request, reply, sent)
        self.check()

    def transfer(self) -> int:
        """Pass the grant on: return its token, with which another process (or this one) can `adopt` it.

        Until then it stays in the hands of this process, also after the block, and it ends if this process ends. If
        this call is cancelled or fails, the end of the block releases the grant as ever.
        """
        self._check_process()
        self.check()
        request = self._request
        request.is_passed_on = True  # before it is: who adopts it at once is no thief
        try:
            reply = self._bridge.send(Pass(self._own.engine.session, request.token))
            if reply.kind != "ok":
                self._own.lose(request, reply)
                raise self._lost()
        except BaseException:
            request.is_passed_on = False
            raise
        return request.token

    def __enter__(self) -> Grant:
        try:
            if self._request.state == _own_request.ASKING and self._latch is None:
                self._obtain()
            self.check()
            self._block = Block(self._on_lost)
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
        if self._request.state == _own_request.HELD and not self._request.is_passed_on:
            self._own.give_back(self._request, "interrupted")

    def _leave(self, error: BaseException | None) -> None:
        block, self._block = self._block, None
        if self._request.is_passed_on and self._request.state == _own_request.HELD:
            return
        is_lost = self._request.state == _own_request.LOST
        if not is_lost:
            try:
                self.release()
            except LeaseLost:
                is_lost = True
            except (EngineError, RuntimeError) as trouble:  # it is released as soon as the engine can, or not ours
                if error is None:
                    raise
                add_note(error, str(trouble))
        if is_lost and self._on_lost != "ignore" and not self._request.is_passed_on:
            cancelled = block is not None and block.absorb(error)
            if error is None or cancelled:
                raise self._lost() from None
            add_note(error, str(self._lost()))

    def __del__(self) -> None:
        request = getattr(self, "_request", None)
        if request is not None and request.state == _own_request.HELD:
            self._own.dropped(request)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self._name()} cannot be sent to another process as it is: send the token that transfer() returns, and "
            "adopt() it there"
        )

    def __repr__(self) -> str:
        request = self._request
        names = ", ".join(name for name, _ in request.shares) or "nothing yet"
        return f"<{type(self).__name__} {request.state}: {names} of {self._own.pool!r}, token {request.token}>"

    # --- getting it --------------------------------------------------------------------------------------------

    def _obtain(self) -> None:
        """Ask, wait, and return when it is held; else raise, with nothing held and nothing asked for."""
        request = self._request
        if self._latch is not None or request.state != _own_request.ASKING:
            self.check()
            return
        deadline = None if self._timeout is None or not request.command.wait else elapsed() + self._timeout
        if self._chooser is not None:
            self._rank(self._chooser)
        latch = self._hang_latch()
        request.on_lost = _forward(self._own.tie(request, self))
        ticket: Ticket | None = None
        try:
            ticket = self._own.ask(request, block=self._bridge.blocks)
            while True:
                left = None if deadline is None else deadline - elapsed()
                if not latch.wait(left) and request.state != _own_request.HELD:
                    error = self._unanswered(ticket) or self._asked().timed_out(self._standing() or LOOK)
                    if request.state != _own_request.HELD:  # it may have come as we looked
                        raise error
                if request.state != _own_request.OFFERED:
                    break
                latch = self._look_at_offer()
            if request.state == _own_request.OVER or request.state == _own_request.ASKING:
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
        request = self._request
        interrupt = None
        if self._own.knows(request) and (ticket is None or not ticket.cancel()):
            command = self._own.withdrawal(request)
            interrupt = self._bridge.take_back(command, lambda: self._own.owe(command), TAKEN_BACK)
        self._own.forget(request, request.how or "withdrawn")
        if interrupt is not None:
            raise interrupt

    def _unanswered(self, ticket: Ticket) -> AcquireTimeout | None:
        """Leave a request that the engine has not answered yet to be taken back later, and return what says so."""
        request = self._request
        if request.state != _own_request.ASKING:
            return None
        why = ticket.obstacle()
        if not ticket.cancel():
            self._own.owe(self._own.withdrawal(request))
        self._own.forget(request, "not answered in time")
        words = f"pool {self._own.pool!r} on {shown(self._own.engine.url)} did not answer within {self._timeout:g} s"
        return AcquireTimeout(f"{words}: {why}" if why else words)

    def _hang_latch(self) -> Latch[OwnRequest]:
        """Return a latch that is set by the next step."""
        latch: Latch[OwnRequest] = Latch()
        self._latch = latch
        self._request.settled = latch.set
        return latch

    def _rank(self, chooser: Chooser) -> None:
        """Show the requester's placement what is free; what it leaves out, it will not take."""
        candidates = self._bridge.ask(about.Candidates(self._request.command.wants))
        rank = _names(chooser(candidates))
        refused = tuple(sorted({one.name for one in candidates} - set(rank)))
        self._request.command = msgspec.structs.replace(self._request.command, rank=rank, refused=refused)

    def _look_at_offer(self) -> Latch[OwnRequest]:
        """Ask the requester's placement to accept or decline what was offered; return the latch of what follows."""
        request = self._request
        offered = {name for name, _ in request.shares}
        token = request.token
        everything = self._bridge.ask(about.Resources())
        taken = _names(self._chooser([one for one in everything if one.name in offered])) if self._chooser else ()
        latch = self._hang_latch()
        if not self._own.wait_again(request, token):  # it was ended meanwhile, or offered something else
            latch.set(request)
        elif offered <= set(taken):
            self._bridge.send(self._own.claim(request))
        else:
            self._bridge.send(Decline(self._own.engine.session, request.id, token))
        return latch

    def _adopted(self, reply: Reply, sent: float) -> None:
        """Begin as held: the grant was another's until now."""
        self._hang_latch()
        self._request.sent = sent
        self._request.on_lost = _forward(self._own.tie(self._request, self))
        self._own.adopt(self._request, reply)

    def _is_timed_out(self) -> bool:
        """Return whether it has waited in vain. One who would not wait has no questions."""
        request = self._request
        answer = request.refusal
        return request.command.wait and "timed out" in (request.how, answer.detail if isinstance(answer, Reply) else "")

    def _refused(self, standing: str = "") -> PoolError:
        """Return the error that says why there is no grant."""
        request = self._request
        answer = request.refusal
        if isinstance(answer, PoolError):
            return answer
        if isinstance(answer, Exception):
            raise answer
        kind = answer.kind if isinstance(answer, Reply) else request.how
        detail = answer.detail if isinstance(answer, Reply) else request.how
        error = self._asked().refused(kind, detail, standing or LOOK)
        if isinstance(error, StaleToken) and self._own.is_closed:
            return PoolClosed(f"pool {self._own.pool!r} was closed while request {request.id!r} waited")
        return error

    def _asked(self) -> Asked:
        return Asked(self._own.pool, self._request.id, self._request.command.wants, self._timeout)

    def _standing(self) -> str:
        """Say who is in the way, if the pool tells at once."""
        return self._bridge.glance(about.WhyNot(self._request.command), "", GLANCE)

    # --- small things ------------------------------------------------------------------------------------------

    def _held(self) -> OwnRequest:
        if not self._request.shares:
            raise RuntimeError(f"request {self._request.id!r} holds nothing yet: await it, or use it in a with block")
        return self._request

    def _lost(self) -> LeaseLost:
        request = self._request
        how = request.how or (
            f"its lease of {request.lease:g} s could not be renewed in time" if request.lease else "it is over"
        )
        return lost(self._name(), how)

    def _name(self) -> str:
        return grant_name(self._request.token, self._request.shares, self._own.pool)

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
        elif self._block is not None:
            self._block.interrupt()


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
