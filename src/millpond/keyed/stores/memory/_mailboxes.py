"""Mailboxes in this process: by name, and by where they stand.

Each place is an ordered dictionary: putting behind or before, taking from the front and leaving the middle all cost the
same, however many stand there. (A plain dictionary that is eaten from its front does not: `next(iter(…))` walks over
all that was deleted.) Those that run are only ever read all at once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from millpond.keyed.rules.envelope import opened
from millpond.keyed.rules.records import key_of
from millpond.keyed.rules.tables import PARKED, PAUSED, READY, RUNNING, SUSPECTS, Mailbox

K = TypeVar("K")
P = TypeVar("P", bound="dict[str, MemoryMailbox]")


@dataclass(slots=True, eq=False)
class MemoryMailbox(Mailbox):
    """A mailbox with its jobs."""

    jobs: deque[bytes] = field(default_factory=deque)


class MemoryMailboxes:
    """The mailboxes of a pool."""

    def __init__(self) -> None:
        self.all: dict[str, MemoryMailbox] = {}
        """Those that are not empty."""
        self.ready_in: dict[tuple[str, int], OrderedDict[str, MemoryMailbox]] = {}
        """Those that are ready, by queue and slot. Here and below, a place where nobody stands is not kept."""
        self.running_in: dict[int, dict[str, MemoryMailbox]] = {}
        """Those that run, by slot."""
        self.parked_for: dict[tuple[str, str], OrderedDict[str, MemoryMailbox]] = {}
        """Those that are parked, by lane and by the name that is not known."""
        self.paused_of: dict[str, OrderedDict[str, MemoryMailbox]] = {}
        """Those that are paused, by key."""
        self.counts = {"j": 0, "r": 0}
        """How many there are, by lane."""
        self.suspects: dict[str, int] = {}
        """How many suspects each worker runs, of those that do."""
        self.borrowed_by_name: OrderedDict[str, MemoryMailbox] = OrderedDict()

    @property
    def has_parked(self) -> bool:
        return bool(self.parked_for)

    def get(self, name: str) -> MemoryMailbox | None:
        return self.all.get(name)

    def make(self, slot: int, name: str) -> MemoryMailbox:
        box = self.all.get(name)
        if box is None:
            box = self.all[name] = MemoryMailbox(name, name[0], slot)
            self.counts[box.lane] += 1
        return box

    def preload(self, names: Iterable[str]) -> None:
        """Everything is there already."""

    def changed(self, box: MemoryMailbox) -> None:
        """Nothing has to be written."""

    # -- places -------------------------------------------------------------------------------------------------------

    def move(self, box: MemoryMailbox, state: int) -> None:
        if box.state >= READY:
            self._leave(box)
        box.state = state
        if state == RUNNING:
            place = self.running_in.get(box.slot)
            if place is None:
                self.running_in[box.slot] = {box.name: box}
            else:
                place[box.name] = box
            if box.is_borrowed:
                self.borrowed_by_name[box.name] = box
            if box.queue == SUSPECTS:
                self.suspects[box.worker] = self.suspects.get(box.worker, 0) + 1
            return
        box.queue = box.lane
        if state == PARKED:
            self.parked_for.setdefault((box.lane, box.unknown), OrderedDict())[box.name] = box
        elif state == PAUSED:
            self.paused_of.setdefault(key_of(box.name), OrderedDict())[box.name] = box

    def make_ready(self, box: MemoryMailbox, queue: str, *, first: bool = False) -> bool:
        if box.state >= READY:
            self._leave(box)
        box.state, box.queue = READY, queue
        place = self.ready_in.get((queue, box.slot))
        if place is None:
            self.ready_in[queue, box.slot] = OrderedDict({box.name: box})
            return True
        place[box.name] = box
        if first:
            place.move_to_end(box.name, last=False)
        return False

    def _leave(self, box: MemoryMailbox) -> None:
        """Take a mailbox away from where it stands."""
        if box.state == RUNNING:
            _remove(self.running_in, box.slot, box.name)
            if box.is_borrowed:
                del self.borrowed_by_name[box.name]
            if box.queue == SUSPECTS:
                self._run_no_suspect(box.worker)
        elif box.state == READY:
            _remove(self.ready_in, (box.queue, box.slot), box.name)
        elif box.state == PARKED:
            _remove(self.parked_for, (box.lane, box.unknown), box.name)
        elif box.state == PAUSED:
            _remove(self.paused_of, key_of(box.name), box.name)

    def _run_no_suspect(self, worker: str) -> None:
        self.suspects[worker] -= 1
        if not self.suspects[worker]:
            del self.suspects[worker]

    def runs_suspect(self, worker: str) -> bool:
        return worker in self.suspects

    def has_ready(self, queue: str, slot: int) -> bool:
        return (queue, slot) in self.ready_in

    def ready(self, queue: str, slot: int, most: int) -> tuple[Sequence[MemoryMailbox], bool]:
        place = self.ready_in.get((queue, slot))
        return ((), False) if place is None else (list(islice(place.values(), most)), len(place) > most)

    def ready_slots(self, queue: str, slots: Sequence[int]) -> set[int]:
        return {slot for slot in slots if (queue, slot) in self.ready_in}

    def running(self, slots: Sequence[int]) -> dict[int, list[MemoryMailbox]]:
        return {slot: list(place.values()) for slot in slots if (place := self.running_in.get(slot))}

    def borrowed(self) -> list[MemoryMailbox]:
        return list(self.borrowed_by_name.values())

    def parked(self, lane: str, unknown: str, most: int) -> list[MemoryMailbox]:
        place = self.parked_for.get((lane, unknown))
        return [] if place is None else list(islice(place.values(), most))

    def paused(self, slot: int, key: str) -> list[MemoryMailbox]:
        return list(self.paused_of.get(key, {}).values())

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def append(self, box: MemoryMailbox, raw: bytes) -> None:
        box.jobs.append(raw)
        box.depth += 1

    def heads(self, box: MemoryMailbox, count: int, size: int = 0) -> Sequence[bytes]:
        return (box.jobs[0],) if count == 1 else tuple(islice(box.jobs, count))

    def last(self, box: MemoryMailbox) -> bytes:
        return box.jobs[-1]

    def waiting(self, box: MemoryMailbox, taken: int, text: str) -> list[tuple[int, bytes]]:
        return list(enumerate(box.jobs))[taken:]

    def find(self, box: MemoryMailbox, job: str, taken: int) -> tuple[int, bytes, bool] | None:
        places = zip(range(box.depth - 1, -1, -1), reversed(box.jobs), strict=True)
        return next(((index, raw, index < taken) for index, raw in places if opened(raw).id == job), None)

    def remove(self, box: MemoryMailbox, position: int) -> bool:
        del box.jobs[position]
        self._shrink(box, 1)
        return not position

    def pop(self, box: MemoryMailbox, count: int) -> None:
        if count == box.depth:
            box.jobs.clear()
        else:
            for _ in range(count):
                box.jobs.popleft()
        self._shrink(box, count)

    def cut(self, box: MemoryMailbox, keep: int) -> list[bytes]:
        removed = [box.jobs.pop() for _ in range(box.depth - keep)]
        self._shrink(box, len(removed))
        return removed[::-1]

    def _shrink(self, box: MemoryMailbox, count: int) -> None:
        box.depth -= count
        if not box.depth and self.all.pop(box.name, None) is not None:
            self.counts[box.lane] -= 1


def _remove(places: dict[K, P], key: K, name: str) -> None:
    place = places[key]
    if len(place) == 1:
        del places[key]
    else:
        del place[name]
