# Generated from _async_observed.py by tools/twins.py: edit that file, then run `make format`.
"""A grant that tells an observer how long it was waited for, and how long it was held.

The synchronous twin, `_observed.py`, is generated from this file by `tools/twins.py`. A pool without `on_event` makes
plain grants, so nobody pays for this who does not ask for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millpond._clock import elapsed
from millpond._events import Observer, report
from millpond.errors import AcquireTimeout
from millpond.resources import _own_request
from millpond.resources._grant import Grant
from millpond.resources._views import wishes


class ObservedGrant(Grant):
    """A grant of a pool that has an `on_event`."""

    __slots__ = ("_on_event",)

    _on_event: Observer

    def _obtain(self) -> None:
        request = self._request
        if self._latch is not None or request.state != _own_request.ASKING:
            super()._obtain()
            return
        began = elapsed()
        about = {"request": request.id, "wants": wishes(request.command.wants)}
        try:
            super()._obtain()
        except BaseException as error:
            outcome = "error" if isinstance(error, Exception) else "cancelled"
            if isinstance(error, AcquireTimeout):
                outcome = "timeout" if request.command.wait else "busy"
            data = {**about, "waited": elapsed() - began, "outcome": outcome, "error": error}
            report(self._on_event, "acquire_failed", self._own.pool, data)
            raise
        names = [name for name, _ in request.shares]
        data = {**about, "waited": elapsed() - began, "resources": names, "token": request.token}
        report(self._on_event, "acquired", self._own.pool, data)

    def release(self) -> None:
        """Give it back. Doing so again does nothing; a grant that was lost meanwhile raises `LeaseLost`."""
        request = self._request
        was_held, since = request.state == _own_request.HELD, request.held_since
        try:
            super().release()
        finally:
            if was_held and request.state != _own_request.HELD:
                data = {"request": request.id, "token": request.token, "held": max(0.0, elapsed() - since)}
                report(self._on_event, "released", self._own.pool, data)


def grant_maker(on_event: Observer | None) -> Callable[..., Grant]:
    """Return what makes the grants of a pool: plain ones, unless somebody wants to know of them."""
    return Grant if on_event is None else partial(_observed, on_event)


def _observed(on_event: Observer, *args: object) -> Grant:
    grant = ObservedGrant(*args)  # type: ignore[arg-type]
    grant._on_event = on_event
    return grant
