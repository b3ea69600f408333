"""The seam between a resource pool and where it lives.

An engine keeps states and runs `_rules.step` (or its twin) on them. It knows no selectors, grants or users; it answers
through callbacks, so that one engine serves threads and event loops alike. What goes in is data: `apply` takes a
command, and alone decides anything; `ask` takes a question, and changes nothing. So an engine may carry out both
wherever the pool is. `watch` tells what happened; `accept` is a short cut for a claim; `pools`, `drop` and `close`
are for the house. Decision 25 says why it is as wide as that.

What an engine owes, checked by `millpond_conformance.check_engine`:

- `apply` is atomic, takes effect once, and its answer comes after it is as durable as the engine can make it;
- watchers are told every entry of a pool once, in order, after it is durable, and before the answer to its command;
  one that wants its `own` is told at least what the session did and what concerns its requests;
- a watcher that may have missed something (the way to the store was broken) is called with no entries, and looks;
- a call that cannot begin for a long time is answered with `EngineUnavailable`, which says what is in the way;
- a watcher may call `apply` from within; nothing else that blocks;
- something ends on time (offers, leases, waits) while any process has the pool open, with nobody calling;
- where a death can be proved, what a dead process held is free again soon, and what a living one holds is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from millpond.errors import PoolError
from millpond.resources._rules.commands import Command, Reply
from millpond.resources._rules.records import Holder
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.wire import Entry

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Watcher: TypeAlias = Callable[[Sequence[Entry]], None]


class Question(Struct, Generic[T_co], frozen=True):
    """A question about a pool, and in brackets what its answer is: plain data both. `_questions` has all that exist."""

    def answer(self, replica: Replica, now: int) -> T_co:
        """Return the answer from a copy of the pool at a time; it is called where the copy is."""
        raise NotImplementedError


class Ticket(Protocol):
    """A call on its way through an engine."""

    def cancel(self) -> bool:
        """Take the call back if it has not begun: True means that it never will have any effect."""

    def obstacle(self) -> str:
        """Return what keeps it from being answered, and what to do; "" if nothing is known. Never wait."""


class Done:
    """The ticket of a call that is over."""

    def cancel(self) -> bool:
        """Say that it is too late."""
        return False

    def obstacle(self) -> str:
        """Return nothing: it is answered."""
        return ""


DONE = Done()


class Engine(Protocol):
    """Where resource pools live."""

    url: str
    is_shared: bool
    """Whether other processes can use its pools, a forked child among them."""
    audit_every: float
    """Seconds between two looks of a process at how its waiters stand: so long a lost wake-up may cost one."""

    @property
    def session(self) -> str:
        """What stands for the process with the engine, and dies with it."""

    @property
    def holder(self) -> Holder:
        """What stands for the process with people."""

    def apply(self, pool: str, command: Command, done: Callable[[Reply | Exception], None], *, block: bool) -> Ticket:
        """Atomically run a command; `done` gets the answer, from whatever thread. With `block`, it may be this one."""

    def ask(self, pool: str, question: Question[T], done: Callable[[T | Exception], None], *, block: bool) -> Ticket:
        """Answer a question about the pool as it is now."""

    def watch(self, pool: str, watcher: Watcher, *, own: bool = False) -> Callable[[], None]:
        """Notify of every entry from now on; return what stops it. With `own`, what concerns others may be left out."""

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


AUDIT: Final = 1.0
"""Seconds between two looks where a question is cheap."""
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
