"""The seam between a resource pool and where it lives.

An engine keeps states and runs `_rules.step` (or its twin) on them. It knows no selectors, grants or users; it answers
through callbacks, so that one engine serves threads and event loops alike. Five verbs: `apply`, `read`, `watch`,
`pools` (with `drop`), `close`.

What an engine owes, checked by `millpond_conformance.check_engine`:

- `apply` is atomic, takes effect once, and its answer comes after it is as durable as the engine can make it;
- watchers are told every entry of a pool once, in order, after it is durable, and before the answer to its command;
  one that wants its `own` is told at least what the session did and what concerns its requests;
- a watcher that may have missed something (the way to the store was broken) is called with no entries, and looks;
- a call that cannot begin for a long time is answered with `EngineUnavailable`, which says what is in the way;
- a watcher may call `apply` from within; nothing else that blocks;
- something ends on time (offers, leases, waits) while any process has the pool open, with nobody calling;
- with `proves_death`, what a dead process held is free again soon, and what a living one holds is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar, runtime_checkable

from millpond.errors import PoolError
from millpond.resources._rules.commands import Command, Reply
from millpond.resources._rules.records import Holder
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.wire import Entry

T = TypeVar("T")
Watcher: TypeAlias = Callable[[Sequence[Entry]], None]
Question: TypeAlias = Callable[[Replica, int], T]
"""A pure question about a replica at a time."""


class Ticket(Protocol):
    """A call on its way through an engine."""

    def cancel(self) -> bool:
        """Take the call back if it has not begun: True means that it never will have any effect."""


class Done:
    """The ticket of a call that is over."""

    def cancel(self) -> bool:
        """Say that it is too late."""
        return False


DONE = Done()


class Engine(Protocol):
    """Where resource pools live."""

    url: str
    proves_death: bool
    """Whether it can tell a dead process from a silent one."""
    is_shared: bool
    """Whether other processes can use its pools, a forked child among them."""

    @property
    def session(self) -> str:
        """What stands for the process with the engine, and dies with it."""

    @property
    def holder(self) -> Holder:
        """What stands for the process with people."""

    def apply(self, pool: str, command: Command, done: Callable[[Reply | Exception], None], *, block: bool) -> Ticket:
        """Atomically run a command; `done` gets the answer, from whatever thread. With `block`, it may be this one."""

    def read(self, pool: str, question: Question[T], done: Callable[[T | Exception], None], *, block: bool) -> Ticket:
        """Ask a pure question about the pool as it is now."""

    def watch(self, pool: str, watcher: Watcher, *, own: bool = False) -> Callable[[], None]:
        """Tell every entry from now on; return what stops it. With `own`, what concerns others may be left out."""

    def accept(self, pool: str, request: str, token: int, until: int) -> bool:
        """Take an offered lock at once, if the engine can make sure without a commit that it will not lapse.

        False: send a `Claim` and wait for what comes of it.
        """

    def pools(self) -> list[str]:
        """Return the names of all pools that exist."""

    def drop(self, pool: str) -> None:
        """Forget a pool, with all that it knows."""

    def close(self) -> None:
        """Give up this process's session: what it holds is released."""


UNREAD: Final = 10_000
"""So many batches of entries are kept for a watcher that reads slowly."""


def fell_behind(limit: int) -> PoolError:
    """Return the error for one who reads too slowly."""
    return PoolError(f"watch() was read too slowly: more than {limit} changes waited; call it again, and see history()")


def answer_or(
    owe: Callable[[], None], done: Callable[[Reply | Exception], None]
) -> Callable[[Reply | Exception], None]:
    """Return what takes an answer for `done`, and calls `owe` first if that is an error."""

    def answered(answer: Reply | Exception) -> None:
        if isinstance(answer, Exception):
            owe()
        done(answer)

    return answered


@runtime_checkable
class AuditedRarely(Protocol):
    """An engine that is asked how waiters stand less often than every second, since asking costs it much."""

    audit_every: float
    """Seconds between two such questions of a process: so long a lost wake-up may cost a waiter."""


@runtime_checkable
class KnowsObstacle(Protocol):
    """An engine that can tell what keeps it from answering."""

    def obstacle(self) -> str:
        """Return what keeps the oldest call from being answered, and what to do; "" if nothing. Never wait."""
