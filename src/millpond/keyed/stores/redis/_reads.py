"""Answers to questions, read by scripts: none of them looks at more than `CHUNK` slots, or at a page of what there is.

Mailboxes are listed in three places: by slot those that are ready or run, by time those that wait for a retry or for a
worker that knows them, by name those that are paused. Where to go on is written as `<place>:<where in it>`, by what was
seen last; so it does not matter what has come or gone meanwhile. Names are compared here, by their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from millpond.keyed.rules import questions as about
from millpond.keyed.rules.page import Page, page_of
from millpond.keyed.rules.questions import Question
from millpond.keyed.rules.records import (
    LOOKED_AT,
    TAKE_BYTES,
    Act,
    Counts,
    DeadLetter,
    Delayed,
    KeyView,
    Member,
    Paused,
    PoolState,
    Slot,
)

CHUNK: Final = 256
"""Slots (or letters, or outcomes) of one call: the server does nothing else meanwhile."""
PAGE: Final = 1000
"""Mailboxes of one page."""
LOOK: Final = 100
"""What happens at a time, of one call."""
_PLACES: Final = ("slots", "due", "paused")
_RETRY: Final = b"r"
_DELAYED: Final = b"d"
_PARKED: Final = b"p"
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
        case about.Keys(lane, after, limit, is_running):
            return _keys(run, lane, after, limit, is_running=is_running)
        case about.Key(slot, mailbox):
            return next(iter(_views(run, [(slot, mailbox)])), None)
        case about.Jobs(spans):
            return run("jobs", [TAKE_BYTES, *(part for span in spans for part in span)])
        case about.DelayedJobs(after, limit):
            return _delayed(run, after, limit)
        case about.DeadLetters():
            return _dead_letters(run, question)
        case about.Pauses(after, limit):
            return _pauses(run, after, limit)
        case about.Acts(limit):
            return [Act(int(at), *rest) for at, *rest in map(_unpack, run("acts", [limit]))]
        case about.Where(slot, mailbox, job):
            return searched(run, "where", [slot, mailbox, job])
        case about.Outcomes(ids):
            return _outcomes(run, ids)
        case about.Counts():
            return _counts(run)
    raise TypeError(f"no question: {question!r}")


def _outcomes(run: Run, ids: Sequence[str]) -> list[tuple[str, bytes] | None]:
    """Return how jobs ended, as much as fits."""
    found: list[tuple[str, bytes] | None] = []
    size = 0
    for some in chunks(ids) or [()]:
        answer = run("outcomes", [TAKE_BYTES - size, *some])
        found += map(_outcome, answer)
        size += sum(map(len, filter(None, answer)))
        if len(answer) < len(some) or size > TAKE_BYTES:
            break
    return found


def searched(run: Run, name: str, args: list[Any]) -> str:
    """Return what a script says of a job that it searches for: a deep mailbox is searched in many calls."""
    rest: Any = ""
    while True:
        answer, *more = run(name, [*args, rest])
        if not more:
            return str(answer.decode())
        rest = more[0]


def chunks(things: Sequence[Any]) -> list[Sequence[Any]]:
    """Return these in parts that are not too large for one call."""
    return [things[first : first + CHUNK] for first in range(0, len(things), CHUNK)]


def beat_of(answer: list[Any]) -> PoolState:
    """Return a beat, as scripts answer it."""
    now, incarnation, version, shut, found = answer
    members = []
    for worker, described, joined, lease, leaving, gone in found:
        label, weight, concurrency, names = _unpack(described) if described else ("", 0, 0, ())
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
    return PoolState(int(now), incarnation.decode(), int(version), shut == b"1", tuple(members), _is_brief(found))


def _is_brief(found: list[Any]) -> bool:
    return bool(found) and not found[0][1]


def _slots(run: Run) -> list[Slot]:
    _, many, owned, moved = run("owners", [1])
    owners = dict(zip(owned[::2], owned[1::2], strict=True))
    slots = [Slot()] * int(many)
    for slot, packed in zip(moved[::2], moved[1::2], strict=True):
        epoch, since, why, before = _unpack(packed)
        slots[int(slot)] = Slot(owners.get(slot, b"").decode(), int(epoch), int(since), why, before)
    return slots


def _keys(run: Run, lane: str, after: str, limit: int | None, *, is_running: bool) -> Page[KeyView]:
    """Return mailboxes; one that moves meanwhile from one place to another is listed once."""
    last = _PLACES[0] if is_running else _PLACES[-1]
    place, _, rest = (after or "slots:0:").partition(":")
    found: dict[str, tuple[str, KeyView]] = {}
    now = 0
    while True:
        most = PAGE if limit is None else min(PAGE, limit - len(found))
        if is_running:
            now, some, rest = _in_slots(run, lane, rest, most, is_running=True)
        else:
            now, some, rest = _LISTS[place](run, lane, rest, most)
        marks = {mailbox: mark for mark, _, mailbox in some}
        for view in _views(run, [(slot, mailbox) for _, slot, mailbox in some if mailbox not in found]):
            found[view.mailbox] = (f"{place}:{marks[view.mailbox]}", view)
        if not rest and place != last:
            place = _PLACES[_PLACES.index(place) + 1]
            rest = ":"
        if not rest or (limit is not None and len(found) >= limit):
            next_ = f"{place}:{rest}" if rest else ""
            return Page([view for _, view in found.values()], next_, now, [mark for mark, _ in found.values()])


Listed: TypeAlias = tuple[int, list[tuple[str, int, str]], str]
"""The time; marks, slots and mailboxes; where to go on in this place, or nothing."""


def _in_slots(run: Run, lane: str, rest: str, limit: int, *, is_running: bool = False) -> Listed:
    """List mailboxes that are ready or run, or only run: slot by slot, by name within a slot."""
    first, _, after = rest.partition(":")
    start = int(first)
    stamp, next_, found, slots = run("names", [lane, limit, start, start + CHUNK - 1, int(is_running)])
    some = []
    for slot, names in zip(found[::2], found[1::2], strict=True):
        number = int(slot)
        last = after.encode() if number == start else b""
        some += [(f"{number}:{name.decode()}", number, name.decode()) for name in sorted(names) if name > last]
    if len(some) > limit:
        return int(stamp), some[:limit], some[limit - 1][0]
    return int(stamp), some, f"{next_}:" if next_ < slots else ""


def _in_time(run: Run, lane: str, rest: str, limit: int) -> Listed:
    """List mailboxes that wait for a retry, or for a worker that knows them."""
    stamp, some, next_ = _waiting(run, rest, limit)
    listed = []
    for mark, kind, slot, mailbox, _ in some:
        if slot and kind in (_RETRY, _PARKED) and mailbox[:1] == lane.encode():
            listed.append((mark, int(slot), mailbox.decode()))
    return stamp, listed, next_


def _in_pause(run: Run, lane: str, rest: str, limit: int) -> Listed:
    """List mailboxes that are paused, by name."""
    stamp, found = run("paused", [])
    last = rest.partition(":")[2].encode()
    pairs = sorted(zip(found[::2], found[1::2], strict=True))
    names = [(name, slot) for name, slot in pairs if name[:1] == lane.encode() and name > last]
    some = [(f":{name.decode()}", int(slot), name.decode()) for name, slot in names[:limit]]
    return int(stamp), some, some[-1][0] if len(names) > limit else ""


_LISTS: Final = {"slots": _in_slots, "due": _in_time, "paused": _in_pause}


def _waiting(run: Run, rest: str, limit: int) -> tuple[int, list[tuple[str, bytes, bytes, bytes, bytes]], str]:
    """Return what happens at a time, by that time: where to go on behind it, its kind, slot, mailbox and body."""
    when, _, member = rest.partition(":")
    found: list[tuple[str, bytes, bytes, bytes, bytes]] = []
    while True:
        stamp, is_more, some = run("waiting", [max(limit, LOOK), when, member])
        for due, name, slot, mailbox, body in some:
            is_seen = member and (int(due), name[:16]) <= (int(when), member[:16].encode())
            if not is_seen:
                found.append((f"{int(due)}:{name.decode()}", name[16:17], slot, mailbox, body))
        if len(found) > limit:
            return int(stamp), found[:limit], found[limit - 1][0]
        if not is_more or found:
            return int(stamp), found, found[-1][0] if is_more else ""
        when, _, member = f"{int(some[-1][0])}:{some[-1][1].decode()}".partition(":")


def _views(run: Run, mailboxes: Sequence[tuple[int, str]]) -> list[KeyView]:
    found: list[KeyView] = []
    for some in chunks(mailboxes):
        found += map(_view, run("keys", [part for mailbox in some for part in mailbox])[1])
    return found


def _view(answer: list[Any]) -> KeyView:
    slot, mailbox, depth, oldest, state, owner, run, failed, due, moved, last, ending = answer
    token, taken, worker = 0, 0, owner.decode()
    if run:
        parts = run.split(b":", 4)
        token, taken, worker = int(parts[0]), int(parts[1]) - int(parts[2]), parts[4].decode()
    failures, losses, _, error = failed.split(b":", 3) if failed else (0, 0, 0, b"")
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
    found: list[Delayed] = []
    marks: list[str] = []
    rest = after or ":"
    while True:
        now, some, rest = _waiting(run, rest, CHUNK if limit is None else min(CHUNK, limit - len(found)))
        for mark, kind, slot, mailbox, body in some:
            if slot and kind == _DELAYED:
                found.append(Delayed(int(mark.partition(":")[0]), int(slot), mailbox.decode(), body))
                marks.append(mark)
        if not rest or (limit is not None and len(found) >= limit):
            return Page(found, rest, now, marks)


def _dead_letters(run: Run, question: about.DeadLetters) -> Page[DeadLetter]:
    letters: list[DeadLetter] = []
    after, limit = question.after, question.limit
    keys = [] if question.key is None else [question.key]
    while True:
        most = CHUNK if limit is None else min(CHUNK, limit - len(letters))
        now, rest, found = run("dead", [most, TAKE_BYTES, after, int(question.is_newest_first), *keys])
        for number, slot, mailbox, at, reason, job, attempts in found:
            letters.append(DeadLetter(int(number), int(slot), mailbox.decode(), int(at), reason, job, attempts))
        after = rest.decode()
        if not after or len(letters) == limit:
            return Page(letters, after, int(now), [str(letter.number) for letter in letters])


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
    looked_at = ready if ready <= LOOKED_AT else 1
    found: list[bytes] = []
    first, slots = 0, 1
    while first < slots:
        one, slots = run("oldest", [first, first + CHUNK - 1, looked_at])
        found.append(one)
        first += CHUNK
    return min((int(one) for one in found if one), default=0)
