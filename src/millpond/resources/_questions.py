"""What can be asked about a pool. A question is plain data and changes nothing, so an engine may answer it anywhere."""

from __future__ import annotations

from typing import NamedTuple

from millpond._events import Event
from millpond.resources import _views
from millpond.resources._engine import Question
from millpond.resources._history import Known
from millpond.resources._rules.changes import Ended
from millpond.resources._rules.commands import Acquire
from millpond.resources._rules.records import DRAINING, QUARANTINED, Settings, Want
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.step import told
from millpond.resources._rules.wire import freeze
from millpond.resources._views import HolderView, PoolStatistics, ResourceView, WaiterView

# --- of a session ------------------------------------------------------------------------------------------------


class Standing(NamedTuple):
    """How a request stands, and the seconds left of its lease or offer.

    "gone": it is over; "taken": it is another's; "stray": it was not asked about, and is the session's.
    """

    id: str
    state: str
    token: int = 0
    shares: tuple[tuple[str, int], ...] = ()
    left: float = 0.0
    how: str = ""
    """How one that is gone has ended, if that was lately."""


class Standings(Question[list[Standing]], frozen=True):
    """How requests of a session stand."""

    session: str
    ids: tuple[str, ...]
    strays: bool = False
    """Whether all other requests of the session are wanted, too."""

    def answer(self, replica: Replica, now: int) -> list[Standing]:
        """Return how they stand."""
        requests = replica.state.requests
        found: list[Standing] = []
        for one in self.ids:
            request = requests.get(one)
            if request is None:
                found.append(Standing(one, "gone", how=_ending(replica, one)))
            elif request.session == self.session:
                left = (request.until - now) / 1e6
                found.append(Standing(one, request.state, request.token, request.shares, left))
            else:
                found.append(Standing(one, "taken", request.token))
        if self.strays:
            others = sorted(set(replica.state.index.sessions.get(self.session, ())).difference(self.ids))
            found += [Standing(one, "stray", requests[one].token) for one in others]
        return found


def _ending(replica: Replica, request: str) -> str:
    """Say how a request has ended, if that is remembered."""
    for entry in reversed(replica.history):
        for change in entry.changes:
            if isinstance(change, Ended) and change.id == request:
                return told(change.how, change.by, change.reason)
    return ""


class WhyNot(Question[str], frozen=True):
    """Why a request that has just ended was not granted; "" where that would take long."""

    asked: Acquire

    def answer(self, replica: Replica, now: int) -> str:
        """Return a sentence."""
        return _views.standing(replica, now, self.asked)


class Candidates(Question[list[ResourceView]], frozen=True):
    """The resources that could be lent now to one with these wants."""

    wants: tuple[Want, ...]

    def answer(self, replica: Replica, now: int) -> list[ResourceView]:
        """Return them in the pool's order."""
        return _views.candidates(replica, now, self.wants)


class LabelsOf(Question[dict[str, str]], frozen=True):
    """The labels of a resource; none if there is no such resource."""

    resource: str

    def answer(self, replica: Replica, now: int) -> dict[str, str]:
        """Return a copy of them."""
        resource = replica.state.resources.get(self.resource)
        return dict(resource.labels) if resource is not None else {}


# --- of people ---------------------------------------------------------------------------------------------------


class Resources(Question[list[ResourceView]], frozen=True):
    """All resources."""

    def answer(self, replica: Replica, now: int) -> list[ResourceView]:
        """Return them in the pool's order."""
        return _views.resources(replica, now)


class Holders(Question[list[HolderView]], frozen=True):
    """Who holds what."""

    def answer(self, replica: Replica, now: int) -> list[HolderView]:
        """Return the longest hold first."""
        return _views.holders(replica, now)


class Waiters(Question[list[WaiterView]], frozen=True):
    """Who waits for what, and why."""

    def answer(self, replica: Replica, now: int) -> list[WaiterView]:
        """Return them in the order of service."""
        return _views.waiters(replica, now)


class Statistics(Question[PoolStatistics], frozen=True):
    """The pool in figures."""

    def answer(self, replica: Replica, now: int) -> PoolStatistics:
        """Return the figures."""
        return _views.statistics(replica, now)


class History(Question[list[Event]], frozen=True):
    """The last events; with `resource`, those that touch it; with `acts`, those of operators."""

    pool: str
    resource: str | None
    limit: int
    acts: bool = False

    def answer(self, replica: Replica, now: int) -> list[Event]:
        """Return the oldest first."""
        return _views.history(replica, self.pool, self.resource, self.limit, acts=self.acts)


class Explain(Question[str], frozen=True):
    """How a request or a resource stands."""

    name: str

    def answer(self, replica: Replica, now: int) -> str:
        """Return a sentence; raise `NotFound` if there is neither."""
        return _views.explain(replica, now, self.name)


class IsDraining(Question[bool], frozen=True):
    """Whether a resource that is to be drained is still held."""

    resource: str

    def answer(self, replica: Replica, now: int) -> bool:
        """Return whether it is there, lent to nobody more, and not given back yet."""
        found = replica.state.resources.get(self.resource)
        return found is not None and found.state in (DRAINING, QUARANTINED) and found.used > 0


class CountRequests(Question[int], frozen=True):
    """How many hold or wait."""

    def answer(self, replica: Replica, now: int) -> int:
        """Return the number."""
        return len(replica.state.requests)


class PoolSettings(Question[Settings], frozen=True):
    """What the pool is configured to do."""

    def answer(self, replica: Replica, now: int) -> Settings:
        """Return the settings, which are never changed but replaced."""
        return replica.state.settings


class Requests(Question[list[Known]], frozen=True):
    """Who has asked for what and has it, for one who is to hear of them from now on."""

    def answer(self, replica: Replica, now: int) -> list[Known]:
        """Return all requests that are not over."""
        return [Known(one.id, one.holder, one.shares, one.state) for one in replica.state.requests.values()]


# --- all of it ---------------------------------------------------------------------------------------------------


class PoolCopy(NamedTuple):
    """A pool at rest: `_wire.thaw` makes a state of the image."""

    version: int
    now: int
    image: bytes


class WholePool(Question[PoolCopy], frozen=True):
    """The whole pool. It takes long where there is much: for tests, and for tools that look at everything."""

    def answer(self, replica: Replica, now: int) -> PoolCopy:
        """Return a copy."""
        return PoolCopy(replica.version, now, freeze(replica.state))
