"""What a worker is handed: mailboxes that are ready in its slots, suspects one at a time, parked ones that it knows.

Handing over. A worker that has taken all there was says how many keys more it would run (`spare`). A job that is
dispatched to a free key of such a worker is its take at once, and goes with the wake-up, so that it can begin without
another call. It is also a signal: should the wake-up be lost, the next `work` brings it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeAlias

from millpond.keyed.rules.envelope import opened
from millpond.keyed.rules.mailboxes import MailboxRules
from millpond.keyed.rules.records import HANDED_BYTES, KEYS_PER_TURN, TAKE_BYTES, Signal, Take, key_of
from millpond.keyed.rules.tables import NOWHERE, PAUSED, RUNNING, SUSPECTS, M, Tables

Hand: TypeAlias = Callable[[str, int, Signal], bool]
"""Sends a worker a `take`, with the number of the signal before it, or 0; returns whether the worker listens."""


class TakeRules(Generic[M]):
    """What workers take of the mailboxes of a pool."""

    def __init__(self, tables: Tables[M], rules: MailboxRules[M], hand: Hand) -> None:
        self._tables = tables
        self._boxes = tables.mailboxes
        self._rules = rules
        self._hand = hand

    def next_token(self, now: int) -> int:
        """Return a token that is higher than all before it."""
        self._tables.numbers.last_token = token = max(self._tables.numbers.last_token + 1, now)
        return token

    def hand_over(self, now: int, box: M, raw: bytes) -> bool:
        """Hand the only job of a mailbox to the owner of its slot at once; return whether that was done."""
        tables, numbers = self._tables, self._tables.numbers
        if box.lane != "j" or len(raw) > HANDED_BYTES or numbers.is_paused or tables.cancelled:
            return False
        if tables.pauses and key_of(box.name) in tables.pauses:
            return False
        worker = self._rules.owner_of(box.slot)
        member = tables.members.get(worker) if worker and tables.members.spare(worker) else None
        if member is None or member.lease_end <= now or member.is_leaving or member.is_dead:
            return False
        token, number = max(numbers.last_token + 1, now), numbers.last_signal + 1
        signal = Signal(number, "take", box.name, "", token, raw, box.slot)
        if not self._hand(worker, tables.signals.last(worker), signal):
            return False
        numbers.last_token, numbers.last_signal = token, number
        tables.signals.add(worker, signal)
        tables.members.use_spare(worker)
        box.token, box.worker, box.taken, box.done, box.is_borrowed = token, worker, 1, 0, False
        self._boxes.move(box, RUNNING)
        return True

    def checked(self, signals: Iterable[Signal]) -> tuple[Signal, ...]:
        """Return signals, without the jobs of takes that are over."""
        return tuple(
            one._replace(data=b"") if one.kind == "take" and not self._is_running(one) else one for one in signals
        )

    def _is_running(self, taken: Signal) -> bool:
        box = self._boxes.get(taken.mailbox)
        return box is not None and box.state == RUNNING and box.token == taken.note

    def take(
        self, now: int, worker: str, queue: str, names: Iterable[str], token: int, want: int, per: int
    ) -> list[Take]:
        """Hand out up to `want` mailboxes that are ready, `per` jobs of each."""
        takes: list[Take] = []
        size, boxes, active = 0, self._boxes, self._tables.active
        per = max(1, per)
        while len(takes) < want and size <= TAKE_BYTES:
            slot = active.pop(queue, worker, want - len(takes))
            if slot is None:
                break
            if self._rules.owner_of(slot) != worker:
                continue
            ready, is_more = boxes.ready(queue, slot, min(KEYS_PER_TURN, want - len(takes)))
            for box in ready:
                size += self._take_one(now, worker, box, token, per, takes)
            if is_more:
                active.push(queue, worker, slot)
        if len(takes) < want and boxes.has_parked:
            self._take_parked(now, worker, queue, names, token, want, takes)
        return takes

    def has_suspect(self, worker: str) -> bool:
        """Return whether a suspect is ready for a worker, which runs no other.

        A job that is dead with its next loss is not run beside another such: should it kill its worker, it is the only
        one that is dead for it, and none that merely ran beside it.
        """
        return self._tables.active.has(SUSPECTS, worker) and not self._boxes.runs_suspect(worker)

    def _take_parked(
        self, now: int, worker: str, lane: str, names: Iterable[str], token: int, want: int, takes: list[Take]
    ) -> None:
        """Hand out mailboxes of any slot that are parked for a job which this worker knows."""
        boxes = self._boxes
        for name in sorted(names):
            while len(takes) < want and (parked := boxes.parked(lane, name, want - len(takes))):
                for box in parked:
                    boxes.move(box, NOWHERE)
                    self._take_one(now, worker, box, token, 1, takes, is_borrowed=True)

    def _take_one(
        self, now: int, worker: str, box: M, token: int, per: int, takes: list[Take], *, is_borrowed: bool = False
    ) -> int:
        """Hand out one mailbox; return the size of its jobs."""
        tables, boxes = self._tables, self._boxes
        if tables.cancelled and self._drop_cancelled(now, box):
            return 0
        if tables.pauses and key_of(box.name) in tables.pauses:
            boxes.move(box, PAUSED)
            return 0
        jobs = self._fitting(boxes.heads(box, 1 if box.losses else per, TAKE_BYTES))
        box.token, box.worker, box.taken, box.done, box.is_borrowed = token, worker, len(jobs), 0, is_borrowed
        boxes.move(box, RUNNING)
        messages = tables.messages.of(box.name) if tables.messages else ()
        takes.append(Take(box.slot, box.name, token, jobs, box.failures, box.losses, messages))
        return sum(map(len, jobs))

    def _drop_cancelled(self, now: int, box: M) -> bool:
        """Remove the first jobs of a mailbox that are not to run again; return whether nothing is left."""
        while True:
            raw = self._boxes.heads(box, 1)[0]
            if opened(raw).id not in self._tables.cancelled:
                return False
            self._rules.pop(box, 1)
            self._rules.end(now, raw, "cancelled")
            if self._rules.is_emptied(box):
                return True

    def _fitting(self, jobs: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the first of these: one at least, fewer when they are large, none that is cancelled."""
        size, cancelled = 0, self._tables.cancelled
        for index, raw in enumerate(jobs):
            size += len(raw)
            if index and (size > TAKE_BYTES or (cancelled and opened(raw).id in cancelled)):
                return tuple(jobs[:index])
        return tuple(jobs)
