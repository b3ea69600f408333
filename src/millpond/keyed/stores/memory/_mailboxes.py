"""Mailboxes in this process: by name, and by where they stand.

Each place is an ordered dictionary: putting behind or before, taking from the front and leaving the middle all cost the
same, however many stand there. (A plain dictionary that is eaten from its front does not: `next(iter(…))` walks over
all that was deleted.)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from millpond.keyed._envelope import opened
from millpond.keyed.rules.tables import NOWHERE, PARKED, READY, RUNNING, Mailbox

Place = tuple[int, str, int | str]
"""A state, and what tells its places apart: lane and slot (ready), slot (running), lane and name (parked)."""


@dataclass(slots=True, eq=False)
class MemoryMailbox(Mailbox):
    """A mailbox with its jobs."""

    jobs: deque[bytes] = field(default_factory=deque)


class MemoryMailboxes:
    """The mailboxes of a pool."""

    def __init__(self) -> None:
        self.all: dict[str, MemoryMailbox] = {}
        """Those that are not empty."""
        self.places: dict[Place, OrderedDict[str, MemoryMailbox]] = {}
        """Places in which somebody stands."""
        self.borrows: OrderedDict[str, MemoryMailbox] = OrderedDict()
        self.parks = 0

    @property
    def has_parked(self) -> bool:
        return self.parks > 0

    def get(self, name: str) -> MemoryMailbox | None:
        return self.all.get(name)

    def make(self, slot: int, name: str) -> MemoryMailbox:
        box = self.all.get(name)
        if box is None:
            box = self.all[name] = MemoryMailbox(name, name[0], slot)
        return box

    def preload(self, names: Iterable[str]) -> None:
        """Everything is there already."""

    def changed(self, box: MemoryMailbox) -> None:
        """Nothing has to be written."""

    # -- places -------------------------------------------------------------------------------------------------------

    def move(self, box: MemoryMailbox, state: int) -> None:
        self._leave(box)
        box.state = state
        if state in (RUNNING, PARKED):
            self._place(box)[box.name] = box
            self.parks += state == PARKED
            if state == RUNNING and box.is_borrowed:
                self.borrows[box.name] = box
        elif state == NOWHERE and not box.depth:
            self.all.pop(box.name, None)

    def make_ready(self, box: MemoryMailbox, *, first: bool = False) -> bool:
        self._leave(box)
        box.state = READY
        place = self._place(box)
        place[box.name] = box
        if first:
            place.move_to_end(box.name, last=False)
        return len(place) == 1

    def _leave(self, box: MemoryMailbox) -> None:
        state = box.state
        if state in (READY, RUNNING, PARKED):
            key = _place_of(box)
            place = self.places[key]
            del place[box.name]
            if not place:
                del self.places[key]
            self.parks -= state == PARKED
            if box.is_borrowed:
                self.borrows.pop(box.name, None)

    def _place(self, box: MemoryMailbox) -> OrderedDict[str, MemoryMailbox]:
        """Return who stands where a mailbox is to stand."""
        key = _place_of(box)
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = OrderedDict()
        return place

    def has_ready(self, lane: str, slot: int) -> bool:
        return (READY, lane, slot) in self.places

    def ready(self, lane: str, slot: int, most: int) -> tuple[Sequence[MemoryMailbox], bool]:
        place = self.places.get((READY, lane, slot))
        return ((), False) if place is None else (list(islice(place.values(), most)), len(place) > most)

    def ready_slots(self, lane: str, slots: Sequence[int]) -> set[int]:
        return {slot for slot in slots if (READY, lane, slot) in self.places}

    def running(self, slots: Sequence[int]) -> dict[int, list[MemoryMailbox]]:
        return {slot: list(place.values()) for slot in slots if (place := self.places.get((RUNNING, "", slot)))}

    def borrowed(self) -> list[MemoryMailbox]:
        return list(self.borrows.values())

    def parked(self, lane: str, unknown: str, most: int) -> list[MemoryMailbox]:
        place = self.places.get((PARKED, lane, unknown))
        return [] if place is None else list(islice(place.values(), most))

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
        found = ((index, raw, index < taken) for index, raw in enumerate(box.jobs) if opened(raw).id == job)
        return next(found, None)

    def remove(self, box: MemoryMailbox, position: int) -> bool:
        del box.jobs[position]
        self._shrink(box, 1)
        return not position

    def pop(self, box: MemoryMailbox, count: int) -> None:
        popleft = box.jobs.popleft
        for _ in range(count):
            popleft()
        self._shrink(box, count)

    def cut(self, box: MemoryMailbox, keep: int) -> list[bytes]:
        removed = [box.jobs.pop() for _ in range(box.depth - keep)]
        self._shrink(box, len(removed))
        return removed[::-1]

    def _shrink(self, box: MemoryMailbox, count: int) -> None:
        box.depth -= count
        if not box.depth:
            self.all.pop(box.name, None)


def _place_of(box: Mailbox) -> Place:
    if box.state == READY:
        return READY, box.lane, box.slot
    if box.state == RUNNING:
        return RUNNING, "", box.slot
    return PARKED, box.lane, box.unknown
