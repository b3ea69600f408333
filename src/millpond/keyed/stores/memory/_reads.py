"""Answers to questions, read from the tables. Nothing here changes anything."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice
from typing import Any

from millpond.keyed.rules import questions as about
from millpond.keyed.rules.envelope import came, opened
from millpond.keyed.rules.orders import taken_of
from millpond.keyed.rules.page import Page, page_of
from millpond.keyed.rules.pool import Rules
from millpond.keyed.rules.questions import Question
from millpond.keyed.rules.records import LOOKED_AT, TAKE_BYTES, Counts, DeadLetter, Delayed, KeyView, Paused, key_of
from millpond.keyed.rules.tables import RETRY, RUNNING, STATES
from millpond.keyed.stores.memory._mailboxes import MemoryMailbox
from millpond.keyed.stores.memory._tables import MemoryTables


def answer(tables: MemoryTables, now: int, question: Question[Any]) -> Any:  # noqa: C901  (a table)
    """Answer a question."""
    match question:
        case about.Members():
            return Rules(tables).beat(now)
        case about.Owners():
            return owners(tables)
        case about.Slots():
            return list(tables.slots.rows)
        case about.Keys(lane, after, limit, is_running):
            return keys(tables, now, lane, after, limit, is_running=is_running)
        case about.Key(_, mailbox):
            return key(tables, mailbox)
        case about.Jobs(spans):
            return [jobs(tables, *span) for span in spans]
        case about.DelayedJobs(after, limit):
            return delayed(tables, now, after, limit)
        case about.DeadLetters(after, limit, is_newest_first, key_):
            return dead_letters(tables, now, after, limit, is_newest_first=is_newest_first, key=key_)
        case about.Pauses(after, limit):
            return paused(tables, now, after, limit)
        case about.Acts(limit):
            return list(tables.acts.rows)[-limit:]
        case about.Where(slot, mailbox, job):
            return where(tables, slot, mailbox, job)
        case about.Outcomes(ids):
            return outcomes(tables, now, ids)
        case about.Counts():
            return counts(tables, now)
    raise TypeError(f"no question: {question!r}")


def outcomes(tables: MemoryTables, now: int, ids: Iterable[str]) -> list[tuple[str, bytes] | None]:
    """Return how jobs ended, as far as that is (still) known, and as much as fits."""
    found: list[tuple[str, bytes] | None] = []
    size = 0
    for one in ids:
        if size > TAKE_BYTES:
            break
        found.append(outcome := tables.outcomes.get(now, one))
        size += len(outcome[1]) if outcome is not None else 0
    return found


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


def keys(
    tables: MemoryTables,
    now: int,
    lane: str,
    after: str = "",
    limit: int | None = None,
    *,
    is_running: bool = False,
) -> Page[KeyView]:
    """Return mailboxes of a lane that are not empty, by name."""
    boxes = tables.mailboxes.all
    running = (box.name for place in tables.mailboxes.running_in.values() for box in place.values())
    some: Iterable[str] = running if is_running else boxes
    names = _first([name for name in some if name[0] == lane and name > after], limit)
    return page_of([_view(tables, boxes[name]) for name in names], names, now, limit)


def _first(names: list[str], limit: int | None) -> list[str]:
    """Return the first of these names in their order: one more than wanted, to see whether there are more."""
    return sorted(names) if limit is None else heapq.nsmallest(limit + 1, names)


def _view(tables: MemoryTables, box: MemoryMailbox) -> KeyView:
    slot = tables.slots.get(box.slot)
    is_running = box.state == RUNNING
    return KeyView(
        box.slot,
        box.name,
        box.depth,
        came(box.jobs[0]),
        STATES[box.state],
        box.worker if is_running else slot.owner,
        box.token if is_running else 0,
        taken_of(box, box.slot),
        box.failures,
        box.losses,
        box.error,
        box.since if box.state == RETRY else 0,
        slot.since,
        slot.why,
        box.jobs[-1] if box.lane == "r" else b"",
        box.lane == "r" and opened(box.jobs[-1]).id in tables.cancelled,
    )


def key(tables: MemoryTables, mailbox: str) -> KeyView | None:
    """Return a mailbox, if it is not empty."""
    box = tables.mailboxes.get(mailbox)
    return None if box is None else _view(tables, box)


def jobs(tables: MemoryTables, mailbox: str, first: int, limit: int) -> list[bytes]:
    """Return some jobs of a mailbox, in their order."""
    box = tables.mailboxes.get(mailbox)
    return [] if box is None else list(islice(box.jobs, first, first + limit))


def delayed(tables: MemoryTables, now: int, after: str = "", limit: int | None = None) -> Page[Delayed]:
    """Return delayed jobs, by id."""
    rows = tables.delayed.rows
    ids = _first([job for job in rows if job > after], limit)
    return page_of([rows[job] for job in ids], ids, now, limit)


def dead_letters(
    tables: MemoryTables,
    now: int,
    after: str = "",
    limit: int | None = None,
    *,
    is_newest_first: bool = False,
    key: str | None = None,
) -> Page[DeadLetter]:
    """Return dead letters, the oldest first, or the newest: all, or those of a key."""
    rows = [letter for letter in tables.dead.rows.values() if key in (None, key_of(letter.mailbox))]
    if is_newest_first:
        rows = [letter for letter in reversed(rows) if not after or letter.number < int(after)]
    else:
        rows = [letter for letter in rows if letter.number > int(after or 0)]
    return page_of(rows, [str(letter.number) for letter in rows], now, limit)


def paused(tables: MemoryTables, now: int, after: str = "", limit: int | None = None) -> Page[Paused]:
    """Return what is paused, by key."""
    rows = {f"={key}": one for key, one in tables.pauses.rows.items()}
    keys = _first([key for key in rows if key > after], limit)
    return page_of([rows[key] for key in keys], keys, now, limit)


def counts(tables: MemoryTables, now: int) -> Counts:
    """Return how the pool stands."""
    numbers, boxes = tables.numbers, tables.mailboxes
    ready = [place for (queue, _), place in boxes.ready_in.items() if queue != "r"]
    keys_ready = sum(map(len, ready))
    looked_at = keys_ready if keys_ready <= LOOKED_AT else 1
    return Counts(
        now,
        numbers.jobs,
        keys_ready,
        sum(box.lane == "j" for place in boxes.running_in.values() for box in place.values()),
        numbers.delayed,
        numbers.dead,
        boxes.counts["r"],
        min((came(box.jobs[0]) for place in ready for box in islice(place.values(), looked_at)), default=0),
        numbers.dispatched,
        numbers.done,
        numbers.retried,
        numbers.dead_total,
        numbers.recovered,
        numbers.moved,
        bool(numbers.is_paused),
        bool(numbers.is_shut),
    )
