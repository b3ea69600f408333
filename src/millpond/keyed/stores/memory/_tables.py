"""The tables of a pool in this process: dictionaries and heaps."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

from millpond.keyed.rules.records import (
    KEPT_ACTS,
    Act,
    DeadLetter,
    Delayed,
    Joiner,
    Member,
    Paused,
    Settings,
    Signal,
    Slot,
)
from millpond.keyed.rules.tables import QUEUES, Numbers
from millpond.keyed.stores.memory._mailboxes import MemoryMailboxes

V = TypeVar("V")


class MemoryTables:
    """A pool."""

    def __init__(self, settings: Settings, incarnation: str) -> None:
        self.settings = settings
        self.incarnation = incarnation
        self.numbers = Numbers()
        self.members = MemoryMembers()
        self.slots = MemorySlots(settings.slots)
        self.mailboxes = MemoryMailboxes()
        self.active = MemoryActiveSlots()
        self.due = MemoryDue()
        self.delayed = MemoryDelayedJobs()
        self.outcomes: MemoryExpiring[tuple[str, bytes]] = MemoryExpiring()
        self.unique: MemoryExpiring[bool] = MemoryExpiring()
        self.batches: MemoryExpiring[tuple[int, dict[int, str]]] = MemoryExpiring()
        self.died: MemoryExpiring[bool] = MemoryExpiring()
        self.dead = MemoryDeadLetters()
        self.pauses = MemoryPauses()
        self.cancelled: set[str] = set()
        self.messages = MemoryMessages()
        self.signals = MemorySignals()
        self.acts = MemoryActs()


class MemoryActiveSlots:
    """The slots of each worker in which something is ready."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], OrderedDict[int, None]] = {}

    def push(self, queue: str, worker: str, slot: int) -> bool:
        slots = self.of.get((queue, worker))
        if slots is None:
            slots = self.of[queue, worker] = OrderedDict()
        slots[slot] = None
        return len(slots) == 1

    def pop(self, queue: str, worker: str, want: int) -> int | None:
        slots = self.of.get((queue, worker))
        return slots.popitem(last=False)[0] if slots else None

    def has(self, queue: str, worker: str) -> bool:
        return bool(self.of.get((queue, worker)))

    def drop(self, worker: str) -> None:
        for queue in QUEUES:
            self.of.pop((queue, worker), None)


class MemoryDue:
    """What happens at a time."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, str, str]] = []

    def add(self, due: int, number: int, what: str, name: str) -> None:
        heapq.heappush(self.heap, (due, number, what, name))

    def pop(self, now: int, most: int) -> Sequence[tuple[int, str, str]]:
        heap = self.heap
        found: list[tuple[int, str, str]] = []
        while heap and heap[0][0] <= now and len(found) < most:
            due, _, what, name = heapq.heappop(heap)
            found.append((due, what, name))
        return found

    def next(self) -> int:
        return self.heap[0][0] if self.heap else 0


class MemoryExpiring(Generic[V]):
    """Values by id, each until a time."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, V]] = {}
        self.heap: list[tuple[int, str]] = []
        """When each may be over; what was put again meanwhile is skipped."""

    def get(self, now: int, name: str) -> V | None:
        row = self.rows.get(name)
        return None if row is None or row[0] <= now else row[1]

    def put(self, until: int, name: str, value: V) -> None:
        self.rows[name] = (until, value)
        heapq.heappush(self.heap, (until, name))

    def drop(self, name: str) -> None:
        self.rows.pop(name, None)

    def expire(self, now: int) -> None:
        heap = self.heap
        while heap and heap[0][0] <= now:
            name = heapq.heappop(heap)[1]
            row = self.rows.get(name)
            if row is not None and row[0] <= now:
                del self.rows[name]


class MemoryDelayedJobs:
    """Delayed jobs by id, and their ids by mailbox."""

    def __init__(self) -> None:
        self.rows: dict[str, Delayed] = {}
        self.ids: dict[str, dict[str, None]] = {}

    def get(self, job: str) -> Delayed | None:
        return self.rows.get(job)

    def put(self, job: str, delayed: Delayed) -> None:
        self.rows[job] = delayed
        self.ids.setdefault(delayed.mailbox, {})[job] = None

    def drop(self, job: str) -> None:
        delayed = self.rows.pop(job)
        ids = self.ids[delayed.mailbox]
        del ids[job]
        if not ids:
            del self.ids[delayed.mailbox]

    def of(self, mailbox: str, most: int) -> list[tuple[str, bytes]]:
        return [(job, self.rows[job].body) for job in islice(self.ids.get(mailbox, ()), most)]


class MemoryDeadLetters:
    """Dead letters by number."""

    def __init__(self) -> None:
        self.rows: dict[int, DeadLetter] = {}

    def get(self, number: int) -> DeadLetter | None:
        return self.rows.get(number)

    def put(self, letter: DeadLetter) -> None:
        self.rows[letter.number] = letter

    def drop(self, number: int) -> bool:
        return self.rows.pop(number, None) is not None


class MemoryActs:
    """What people did."""

    def __init__(self) -> None:
        self.rows: deque[Act] = deque(maxlen=KEPT_ACTS)

    def add(self, act: Act) -> None:
        self.rows.append(act)


class MemoryPauses:
    """Keys of which nothing may begin."""

    def __init__(self) -> None:
        self.rows: dict[str, Paused] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, key: object) -> bool:
        return key in self.rows

    def put(self, paused: Paused) -> None:
        self.rows[paused.key] = paused

    def drop(self, key: str) -> None:
        self.rows.pop(key, None)


class MemoryMessages:
    """Messages to residents."""

    def __init__(self) -> None:
        self.rows: dict[str, deque[tuple[int, bytes]]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, mailbox: str, number: int, data: bytes) -> None:
        self.rows.setdefault(mailbox, deque()).append((number, data))

    def of(self, mailbox: str) -> tuple[tuple[int, bytes], ...]:
        return tuple(self.rows.get(mailbox, ()))

    def count(self, mailbox: str) -> int:
        return len(self.rows.get(mailbox, ()))

    def drop(self, mailbox: str, upto: int | None = None) -> None:
        messages = self.rows.get(mailbox, deque())
        while upto is not None and messages and messages[0][0] <= upto:
            messages.popleft()
        if upto is None or not messages:
            self.rows.pop(mailbox, None)


class MemorySignals:
    """What each worker has not heard yet."""

    def __init__(self) -> None:
        self.rows: dict[str, deque[Signal]] = {}

    def add(self, worker: str, signal: Signal) -> None:
        self.rows.setdefault(worker, deque()).append(signal)

    def last(self, worker: str) -> int:
        signals = self.rows.get(worker)
        return signals[-1].number if signals else 0

    def unheard(self, worker: str, heard: int) -> tuple[Signal, ...]:
        signals = self.rows.get(worker)
        if not signals:
            return ()
        while signals and signals[0].number <= heard:
            signals.popleft()
        return tuple(signals)

    def drop(self, worker: str) -> None:
        self.rows.pop(worker, None)


class MemoryMembers:
    """The workers."""

    def __init__(self) -> None:
        self.rows: dict[str, Member] = {}
        self.calls: dict[str, int] = {}
        self.spares: dict[str, int] = {}

    def __contains__(self, worker: object) -> bool:
        return worker in self.rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def get(self, worker: str) -> Member | None:
        return self.rows.get(worker)

    def all(self) -> Sequence[Member]:
        return list(self.rows.values())

    def put(self, joiner: Joiner, now: int, lease_end: int) -> None:
        self.rows[joiner.id] = Member(*joiner[:5], now, lease_end, is_leaving=False)
        self.calls[joiner.id] = self.spares[joiner.id] = 0

    def renew(self, worker: str, lease_end: int, *, is_leaving: bool) -> None:
        self.rows[worker] = self.rows[worker]._replace(lease_end=lease_end, is_leaving=is_leaving)

    def drop(self, worker: str) -> bool:
        self.calls.pop(worker, None)
        self.spares.pop(worker, None)
        return self.rows.pop(worker, None) is not None

    def last_call(self, worker: str) -> int:
        return self.calls[worker]

    def count_call(self, worker: str, call: int, spare: int | None = None) -> None:
        self.calls[worker] = max(self.calls[worker], call)
        if spare is not None:
            self.spares[worker] = spare

    def spare(self, worker: str) -> int:
        return self.spares.get(worker, 0)

    def use_spare(self, worker: str) -> None:
        self.spares[worker] -= 1

    def is_proven_dead(self, worker: str) -> bool:
        return worker in self.rows and self.rows[worker].is_dead

    def set_dead(self, worker: str) -> None:
        self.rows[worker] = self.rows[worker]._replace(is_dead=True)


class MemorySlots:
    """The shares of the key space."""

    def __init__(self, count: int) -> None:
        self.rows = [Slot()] * count

    def get(self, slot: int) -> Slot:
        return self.rows[slot]

    def put(self, slot: int, value: Slot) -> None:
        self.rows[slot] = value

    def preload(self, slots: Sequence[int]) -> None:
        """Everything is there already."""

    def owned(self, worker: str) -> list[int]:
        return [slot for slot, one in enumerate(self.rows) if one.owner == worker]
