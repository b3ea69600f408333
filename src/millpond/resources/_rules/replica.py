"""One process's copy of a pool: the state, how far it has followed, and what happened lately.

Whoever has the right to decide calls `decide`; everybody else calls `follow` with the entries of those who did.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from msgspec import Struct

from millpond.resources._rules.changes import Ended
from millpond.resources._rules.commands import Command, Reply
from millpond.resources._rules.state import State
from millpond.resources._rules.step import step, told
from millpond.resources._rules.wire import Entry

HISTORY: Final = 1000
"""Entries that a process remembers of a pool."""


class Replica:
    """A state with its version (how many entries made it) and its recent history."""

    __slots__ = ("history", "state", "version")

    def __init__(self, state: State | None = None, version: int = 0) -> None:
        self.state = state or State()
        self.version = version
        self.history: deque[Entry] = deque(maxlen=HISTORY)

    def decide(self, command: Command, now: int) -> tuple[Reply, Entry | None]:
        """Apply a command; return the answer and, if anything changed, the entry to make known."""
        reply, changes = step(self.state, command, now)
        if not changes:
            return reply, None
        entry = Entry(now, getattr(command, "session", ""), changes)
        self.history.append(entry)
        self.version += 1
        return reply, entry

    def follow(self, entry: Entry) -> None:
        """Apply what somebody else decided."""
        evolve, now = self.state.evolve, entry.at
        for change in entry.changes:
            evolve(change, now)
        self.history.append(entry)
        self.version += 1


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


class Standings(Struct, frozen=True):
    """The question how requests of a session stand. It is plain data, so that an engine can ask it elsewhere."""

    session: str
    ids: tuple[str, ...]
    strays: bool = False
    """Whether to tell of all other requests of the session, too."""

    def __call__(self, replica: Replica, now: int) -> list[Standing]:
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
            others = sorted(set(replica.state.sessions.get(self.session, ())).difference(self.ids))
            found += [Standing(one, "stray", requests[one].token) for one in others]
        return found


def _ending(replica: Replica, request: str) -> str:
    """Say how a request has ended, if that is remembered."""
    for entry in reversed(replica.history):
        for change in entry.changes:
            if isinstance(change, Ended) and change.id == request:
                return told(change.how, change.by, change.reason)
    return ""
