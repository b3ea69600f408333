"""Looking in: pools as they stand, read from the tables. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.keyed._envelope import came, opened
from millpond.keyed._records import Counts, DeadLetter, KeyView
from millpond.keyed.rules.orders import taken_of
from millpond.keyed.rules.tables import READY, RUNNING, STATES
from millpond.keyed.stores.memory._mailboxes import MemoryMailbox
from millpond.keyed.stores.memory._tables import MemoryTables


def outcomes(tables: MemoryTables, now: int, ids: Iterable[str]) -> list[tuple[str, bytes] | None]:
    """Return how jobs ended, as far as that is (still) known."""
    return [tables.outcomes.get(now, one) for one in ids]


def where(tables: MemoryTables, slot: int, mailbox: str, job: str) -> str:
    """Return where a job is: `delayed`, `waiting`, `running` (a worker has it), `dead` or `gone`."""
    if tables.delayed.get(job) is not None:
        return "delayed"
    box = tables.mailboxes.get(mailbox)
    found = None if box is None else tables.mailboxes.find(box, job, taken_of(box, slot))
    if found is not None:
        return "running" if found[2] else "waiting"
    return "dead" if any(opened(one.job).id == job for one in tables.dead.rows.values()) else "gone"


def owners(tables: MemoryTables) -> tuple[int, list[str]]:
    """Return the version, and who owns each slot."""
    return tables.numbers.version, [slot.owner for slot in tables.slots.rows]


def keys(tables: MemoryTables, lane: str) -> list[KeyView]:
    """Return every mailbox of a lane that is not empty."""
    views = [_view(tables, box) for box in tables.mailboxes.all.values() if box.lane == lane]
    return sorted(views, key=lambda view: (view.oldest, view.mailbox))


def _view(tables: MemoryTables, box: MemoryMailbox) -> KeyView:
    owner = tables.slots.get(box.slot).owner
    worker, token = (box.worker, box.token) if box.state == RUNNING else (owner, 0)
    oldest, state = came(box.jobs[0]), STATES[box.state]
    return KeyView(box.slot, box.name, box.depth, oldest, state, worker, token, box.failures, box.losses)


def residents(tables: MemoryTables) -> list[tuple[KeyView, bytes]]:
    """Return the residents, each with its stored job (the last one, should it be about to be replaced)."""
    return [(view, tables.mailboxes.all[view.mailbox].jobs[-1]) for view in keys(tables, "r")]


def dead_letters(tables: MemoryTables) -> list[DeadLetter]:
    """Return the dead letters, the oldest first."""
    return list(tables.dead.rows.values())


def counts(tables: MemoryTables, now: int) -> Counts:
    """Return how the pool stands."""
    numbers = tables.numbers
    jobs = [box for box in tables.mailboxes.all.values() if box.lane == "j"]
    ready = [box for box in jobs if box.state == READY]
    return Counts(
        now,
        numbers.jobs,
        len(ready),
        sum(box.state == RUNNING for box in jobs),
        numbers.delayed,
        numbers.dead,
        len(tables.mailboxes.all) - len(jobs),
        min((came(box.jobs[0]) for box in ready), default=0),
        numbers.dispatched,
        numbers.done,
        numbers.retried,
        numbers.buried,
        numbers.recovered,
        numbers.moved,
        bool(numbers.is_paused),
        bool(numbers.is_shut),
    )
