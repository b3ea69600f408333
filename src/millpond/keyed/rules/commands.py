"""What people and producers ask of a store beside dispatching: each is one atomic step."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Start(NamedTuple):
    """Start a resident: `started`, `replaced` (it had other arguments) or `same` (nothing to do), or `closed`."""

    slot: int
    mailbox: str
    body: bytes


class Stop(NamedTuple):
    """End a resident: `stopped` (it did not run), `stopping` (its worker was told) or `gone`."""

    slot: int
    mailbox: str


class Notify(NamedTuple):
    """Send a message to a resident: `sent`, `full` (as many as a mailbox may have wait for it) or `gone`."""

    slot: int
    mailbox: str
    data: bytes


class Cancel(NamedTuple):
    """Take a job back: `cancelled`, `asked` (a worker has it and was told) or `gone`."""

    slot: int
    mailbox: str
    id: str


class Purge(NamedTuple):
    """Drop the jobs of a key that no worker has, delayed ones included: the number as text."""

    slot: int
    mailbox: str


class Retry(NamedTuple):
    """Try the first job of a mailbox again that waits for that: `ready`, or `gone` (it does not wait)."""

    slot: int
    mailbox: str


class Log(NamedTuple):
    """Keep a line of what a person does to the pool."""

    by: str
    what: str
    about: str = ""
    reason: str = ""


class Pause(NamedTuple):
    """Pause a key (or the pool, with an empty key): nothing of it begins, and residents of it that run are stopped."""

    slot: int = 0
    key: str = ""
    by: str = ""
    reason: str = ""


class Resume(NamedTuple):
    """Undo `Pause`; for the pool also `Shut`."""

    slot: int = 0
    key: str = ""


class Shut(NamedTuple):
    """Refuse dispatches and tell all workers to drain and end."""


class Gone(NamedTuple):
    """Take note that the process of a worker has ended: `noted`, or `unknown` (it is no member)."""

    worker: str


class Replay(NamedTuple):
    """Put dead letters back into their mailboxes, by number: how many, as text."""

    numbers: tuple[int, ...]


class Drop(NamedTuple):
    """Forget dead letters, by number: how many, as text."""

    numbers: tuple[int, ...]


class Configure(NamedTuple):
    """Change settings of the pool: `done`, or `busy` (lease or drain would change under workers)."""

    changes: tuple[tuple[str, int], ...]


Command: TypeAlias = (
    Start | Stop | Notify | Cancel | Purge | Retry | Log | Pause | Resume | Shut | Gone | Replay | Drop | Configure
)
