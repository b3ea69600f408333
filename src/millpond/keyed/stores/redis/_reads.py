"""Answers to questions, read by scripts: none of them looks at more than `CHUNK` slots, or at a page of what there is.

Where to go on is written as `<place>:<where in it>`: mailboxes are listed by slot first, then those that stand
elsewhere (they wait for a retry, are paused or parked).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from millpond.keyed import _questions as about
from millpond.keyed._envelope import opened
from millpond.keyed._page import Page, page_of
from millpond.keyed._questions import Question
from millpond.keyed._records import (
    HEAVY,
    LOOKED_AT,
    STAMP,
    Beat,
    Counts,
    DeadLetter,
    Delayed,
    KeyView,
    Member,
    Paused,
    Slot,
)

T = TypeVar("T")
CHUNK: Final = 256
"""Slots (or letters, or outcomes) of one call: the server does nothing else meanwhile."""
PAGE: Final = 1000
"""Mailboxes of one call."""
_PLACES: Final = ("slots", "later", "held", "shelves")
_unpack: Final = msgspec.msgpack.Decoder().decode
Run: TypeAlias = Callable[[str, list[Any]], list[Any]]
"""How a script is run."""


def answer_to(question: Question[Any], run: Run) -> Any:  # noqa: C901  (a table)
    """Answer a question."""
    match question:
        case about.Members():
            return beat_of(run("beat", []))
        case about.Owners():
            version, many, owned, _ = run("owners", [0])
            owners = [""] * int(many)
            for slot, owner in zip(owned[::2], owned[1::2], strict=True):
                owners[int(slot)] = owner.decode()
            return int(version), owners
        case about.Slots():
            return _slots(run)
        case about.Keys(lane, after, limit):
            return _keys(run, lane, after, limit)
        case about.Key(slot, mailbox):
            _, _, found = run("keys", [mailbox[0], 1, "one", slot, mailbox])
            return next(map(_view, found), None)
        case about.Jobs(spans):
            return run("jobs", [HEAVY, *(part for span in spans for part in span)])
        case about.DelayedJobs(after, limit):
            return _delayed(run, after, limit)
        case about.DeadLetters(after, limit):
            return _dead_letters(run, after, limit)
        case about.Pauses(after, limit):
            return _pauses(run, after, limit)
        case about.Where(slot, mailbox, job):
            return run("where", [slot, mailbox, job])[0].decode()
        case about.Outcomes(ids):
            return [_outcome(one) for some in chunks(ids) or [()] for one in run("outcomes", [*some])]
        case about.Counts():
            return _counts(run)
    raise TypeError(f"no question: {question!r}")


def chunks(things: Sequence[Any]) -> list[Sequence[Any]]:
    """Return these in parts that are not too large for one call."""
    return [things[first : first + CHUNK] for first in range(0, len(things), CHUNK)]


def beat_of(answer: list[Any]) -> Beat:
    """Return a beat, as scripts answer it."""
    now, incarnation, version, shut, found = answer
    members = []
    for worker, described, joined, lease, leaving, gone in found:
        label, weight, concurrency, names = _unpack(described)
        members.append(
            Member(
                worker.decode(),
                label,
                weight,
                concurrency,
                tuple(names),
                int(joined),
                int(lease),
                is_leaving=leaving == b"1",
                is_dead=gone == b"1",
            )
        )
    return Beat(int(now), incarnation.decode(), int(version), shut == b"1", tuple(members))


def _slots(run: Run) -> list[Slot]:
    _, many, owned, moved = run("owners", [1])
    owners = dict(zip(owned[::2], owned[1::2], strict=True))
    slots = [Slot()] * int(many)
    for slot, packed in zip(moved[::2], moved[1::2], strict=True):
        epoch, since, why, before = _unpack(packed)
        slots[int(slot)] = Slot(owners.get(slot, b"").decode(), int(epoch), int(since), why, before)
    return slots


def _keys(run: Run, lane: str, after: str, limit: int | None) -> Page[KeyView]:
    """Return mailboxes; one that moves meanwhile from one place to another is listed once."""
    place, _, rest = (after or "slots:0:").partition(":")
    found: dict[str, tuple[str, KeyView]] = {}
    while True:
        most = PAGE if limit is None else min(PAGE, limit - len(found))
        if place == "slots":
            now, next_, views = run("keys", [lane, most, place, *rest.split(":", 1)])
            some = [(f"{one.slot}:{one.mailbox}", one) for one in map(_view, views)]
            rest = next_.decode()
        else:
            now, some, rest = _scan(run, "keys", [lane, most, place], rest, most, _view, _mailbox)
        found.update((view.mailbox, (f"{place}:{mark}", view)) for mark, view in some if view.mailbox not in found)
        if not rest and place != _PLACES[-1]:
            place, rest = _PLACES[_PLACES.index(place) + 1], "0"
        if not rest or (limit is not None and len(found) >= limit):
            marks, items = [mark for mark, _ in found.values()], [view for _, view in found.values()]
            return Page(items, f"{place}:{rest}" if rest else "", int(now), marks)


def _mailbox(view: KeyView) -> str:
    return view.mailbox


def _scan(
    run: Run, script: str, args: list[Any], after: str, limit: int, read: Callable[[Any], T], name: Callable[[T], str]
) -> tuple[bytes, list[tuple[str, T]], str]:
    """Read on from a place in a hash: the server gives what it has there, which may be more than was asked for.

    Return the time, what was found with where to go on behind each, and where to go on: from the next place, or from
    the same one behind the last name.
    """
    cursor, _, last = after.partition(":")
    now, next_, rows = run(script, [*args, cursor])
    items = sorted((one for one in map(read, rows) if not last or name(one) > last), key=name)
    found = [(f"{cursor}:{name(one)}", one) for one in items]
    if len(found) > limit:
        return now, found[:limit], found[limit - 1][0]
    return now, found, "" if next_ in (b"", b"0") else next_.decode()


def _view(answer: list[Any]) -> KeyView:
    slot, mailbox, depth, oldest, state, owner, run, trouble, due, moved, last, ending = answer
    token, taken, worker = 0, 0, owner.decode()
    if run:
        parts = run.split(b":", 4)
        token, taken, worker = int(parts[0]), int(parts[1]) - int(parts[2]), parts[4].decode()
    failures, losses, _, error = trouble.split(b":", 3) if trouble else (0, 0, 0, b"")
    _, since, why, _ = _unpack(moved) if moved else (0, 0, Slot().why, "")
    return KeyView(
        int(slot),
        mailbox.decode(),
        depth,
        int(oldest),
        state.decode(),
        worker,
        token,
        taken,
        int(failures),
        int(losses),
        error,
        int(due or 0),
        int(since),
        why,
        last,
        bool(ending),
    )


def _delayed(run: Run, after: str, limit: int | None) -> Page[Delayed]:
    found: dict[str, Delayed] = {}
    rest = after or "0"
    while True:
        most = CHUNK if limit is None else min(CHUNK, limit - len(found))
        now, some, rest = _scan(run, "delayed", [most], rest, most, _read_delayed, _job)
        found.update(some)
        if not rest or (limit is not None and len(found) >= limit):
            return Page(found.values(), rest, int(now), list(found))


def _read_delayed(row: list[Any]) -> Delayed:
    due, slot, mailbox, body = row
    return Delayed(int(due), int(slot), mailbox.decode(), body)


def _job(one: Delayed) -> str:
    return opened(b"0" * STAMP + one.body).id


def _dead_letters(run: Run, after: str, limit: int | None) -> Page[DeadLetter]:
    stamp, found = run("dead", [])
    numbers = sorted(number for number in map(int, found) if number > int(after or 0))
    wanted = numbers if limit is None else numbers[:limit]
    letters = []
    for some in chunks(wanted):
        for number, letter in zip(some, run("dead", [*some]), strict=True):
            if letter is not None:
                slot, mailbox, at, reason, job, attempts = letter
                letters.append(DeadLetter(number, int(slot), mailbox.decode(), int(at), reason, job, attempts))
    next_ = str(wanted[-1]) if len(wanted) < len(numbers) else ""
    return Page(letters, next_, int(stamp), [str(letter.number) for letter in letters])


def _pauses(run: Run, after: str, limit: int | None) -> Page[Paused]:
    stamp, found = run("pauses", [])
    pauses = []
    for key, packed in zip(found[::2], found[1::2], strict=True):
        since, by, reason = _unpack(packed)
        pauses.append(Paused(key.decode(), int(since), by, reason))
    rest = sorted(one for one in pauses if f"={one.key}" > after)
    return page_of(rest, [f"={one.key}" for one in rest], int(stamp), limit)


def _outcome(value: bytes | None) -> tuple[str, bytes] | None:
    if value is None:
        return None
    status, _, data = value.partition(b" ")
    return status.decode(), data


def _counts(run: Run) -> Counts:
    now, jobs, ready, running, delayed, dead, residents, *numbers = map(int, run("counts", []))
    *counters, paused, shut = numbers
    oldest = _oldest(run, ready) if ready else 0
    known = (now, jobs, ready, running, delayed, dead, residents, oldest, *counters, bool(paused), bool(shut))
    return Counts._make(known)


def _oldest(run: Run, ready: int) -> int:
    """Return when the oldest job came that is ready."""
    slots, looked_at = int(run("owners", [0])[1]), ready if ready <= LOOKED_AT else 1
    ranges = [(first, min(first + CHUNK, slots) - 1) for first in range(0, slots, CHUNK)]
    found = [run("oldest", [first, last, looked_at])[0] for first, last in ranges]
    return min((int(one) for one in found if one), default=0)
