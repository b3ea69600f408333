"""`redis://`, `valkey://`, `postgresql://`: pools of many machines, as a log of decisions in a shared store.

    _engine      LogEngine: the verbs, in the user's process; it talks to the companion of its machine
    _rendezvous  how a process finds that companion, or starts it
    _messages    what they say to each other
    _companion   Companion: the process beside the users: its loop, its sessions, who lives and who does not
    _witness     Process: the kernel's word about a process
    _hosted      HostedPool: one pool in a companion: deciding, posting, following
    _log         Log: what a store must be able to do; the records that it keeps
    _redis_log, _postgres_log   the stores

How it works. The rules (`_rules.step`) run in one companion at a time, which has the gate of the pool. It decides what
its own users ask and what others have posted into the pool's inbox, and appends the decisions to the pool's log in one
atomic step that checks that the gate is still its own. Everybody follows the log; a pool is a snapshot and the items
after it. Who had the gate and died, or stands still, loses it after half a second, and the next goes on with the inbox
as it is. Calls are numbered: one that is sent twice is done once.

Who lives. A companion sees the end of each process it serves (the kernel tells it), and writes it down at once: a
killed holder's lock is the next one's a moment later, on whatever machine. When a machine is gone with its companion,
nobody can prove anything: its locks are marked as suspect, and stay, until that machine has started anew, an operator
ends them, or the pool's setting `free_after` does.
"""

from __future__ import annotations

import atexit

from millpond.resources.engines.log._engine import LogEngine, close_all, open_shared
from millpond.resources.engines.log._url import check

__all__ = ["LogEngine", "open"]


def open(url: str) -> LogEngine:  # noqa: A001
    """Open the engine of a URL, or share the one that this process has."""
    return open_shared(url, check(url))


atexit.register(close_all)
