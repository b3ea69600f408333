"""One process's copy of a pool: the state, how far it has followed, and what happened lately.

Whoever has the right to decide calls `decide`; everybody else calls `follow` with the entries of those who did.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from millpond.resources._rules.commands import Command, Reply
from millpond.resources._rules.state import State
from millpond.resources._rules.step import step
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
