"""What producers and people ask for: dispatch, cancel, purge, replay jobs; start, stop, message residents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic

from millpond.keyed.rules.envelope import opened, stamped
from millpond.keyed.rules.mailboxes import MailboxRules
from millpond.keyed.rules.records import STAMP, Delayed, Order, OrderOptions, Paused, Signal, key_of
from millpond.keyed.rules.tables import (
    NOWHERE,
    PARKED,
    READY,
    RETRY,
    RUNNING,
    SUSPECTS,
    M,
    Mailbox,
    Tables,
)
from millpond.keyed.rules.takes import TakeRules


class OrderRules(Generic[M]):
    """What may be asked of the mailboxes of a pool."""

    def __init__(
        self, tables: Tables[M], rules: MailboxRules[M], takes: TakeRules[M], hint: Callable[[str], None]
    ) -> None:
        self._tables = tables
        self._boxes = tables.mailboxes
        self._numbers = tables.numbers
        self._rules = rules
        self._takes = takes
        self._hint = hint

    # -- dispatching --------------------------------------------------------------------------------------------------

    def dispatch(self, now: int, order: Order, *, is_small: bool) -> str:
        """Dispatch one order, or say why not. Orders of a small batch may be handed to workers at once."""
        options, replaced = order.options, 0
        if options is not None:
            is_known = options.unique_for and self._tables.unique.get(now, options.id)
            if is_known or self._tables.delayed.get(options.id) is not None:
                return "same"
            if options.on_busy != "queue":
                answer, replaced = self._on_busy(now, order, options)
                if answer:
                    return answer
        if not replaced and (answer := self._fullness(order)):  # where something was replaced, there is room
            return answer
        self._numbers.dispatched += 1
        if options is not None:
            if options.unique_for:
                self._tables.unique.put(now + options.unique_for, options.id, True)
            due = options.at or now + options.delay
            if due > now:
                self._delay(due, order, options.id)
                return ""
        raw = stamped(now, order.body)
        if is_small:
            self._rules.enter(order.slot, order.mailbox, raw, partial(self._takes.hand_over, now))
        else:
            self._rules.enter(order.slot, order.mailbox, raw)
        return ""

    def _on_busy(self, now: int, order: Order, options: OrderOptions) -> tuple[str, int]:
        """Return a verdict, or how many jobs were dropped to be replaced."""
        box = self._boxes.get(order.mailbox)
        if box is None:
            return "", 0
        if options.on_busy == "reject":
            return "busy", 0
        cancelled = self._tables.cancelled
        waiting = self._boxes.waiting(box, taken_of(box, order.slot), options.name)
        named = [(position, raw, opened(raw)) for position, raw in waiting]
        alike = [one for one in named if one[2].name == options.name and one[2].id not in cancelled]
        if options.on_busy == "coalesce":
            return (f"into:{alike[-1][2].id}" if alike else ""), 0
        for position, raw, _ in reversed(alike):  # replace; from the end, so that positions stay valid
            self._remove(now, box, position, raw, "replaced")
        return "", len(alike)

    def _fullness(self, order: Order) -> str:
        """Return which limit an order would pass, or nothing."""
        settings, numbers = self._tables.settings, self._numbers
        if settings.max_jobs and numbers.jobs + numbers.delayed >= settings.max_jobs:
            return "pool"
        if settings.max_per_key:
            box = self._boxes.get(order.mailbox)
            if box is not None and box.depth >= settings.max_per_key:
                return "full"
        return ""

    def _delay(self, due: int, order: Order, job: str) -> None:
        self._tables.delayed.put(job, Delayed(due, order.slot, order.mailbox, order.body))
        self._numbers.delayed += 1
        self._rules.add_due(due, "delayed", job)
        if owner := self._rules.owner_of(order.slot):
            self._hint(owner)  # so that it knows when to look

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def cancel(self, now: int, slot: int, mailbox: str, job: str) -> str:
        """Take a job back, if it is there."""
        delayed = self._tables.delayed.get(job)
        if delayed is not None and delayed.mailbox == mailbox:
            self._rules.drop_delayed(job)
            self._rules.end(now, stamped(now, delayed.body), "cancelled")
            return "cancelled"
        box = self._boxes.get(mailbox)
        found = None if box is None else self._boxes.find(box, job, taken_of(box, slot))
        if box is None or found is None:
            return "gone"
        position, raw, is_taken = found
        if is_taken:
            self._tables.cancelled.add(job)
            self._signal(box.worker, "cancel", mailbox, job=job)
            return "asked"
        self._remove(now, box, position, raw, "cancelled")
        return "cancelled"

    def _remove(self, now: int, box: M, position: int, raw: bytes, status: str) -> None:
        """Take a job that no worker has out of its mailbox."""
        was_first = self._boxes.remove(box, position)
        if box.lane == "j":
            self._numbers.jobs -= 1
        if not self._rules.is_emptied(box) and was_first:
            self._rules.clear_failures(box)
            if box.state in (RETRY, PARKED) or (box.state == READY and box.queue == SUSPECTS):
                self._rules.make_ready(box)
        self._rules.end(now, raw, status)

    def purge(self, now: int, slot: int, mailbox: str, most: int) -> int:
        """Drop jobs of a key that no worker has, the newest first, then delayed ones; return how many."""
        box = self._boxes.get(mailbox)
        waiting = [] if box is None else self._boxes.cut(box, max(taken_of(box, slot), box.depth - most))
        if box is not None and waiting:
            if box.lane == "j":
                self._numbers.jobs -= len(waiting)
            self._rules.is_emptied(box)
        for raw in waiting:
            self._rules.end(now, raw, "purged")
        delayed = self._tables.delayed.of(mailbox, most - len(waiting))
        for job, body in delayed:
            self._rules.drop_delayed(job)
            self._rules.end(now, stamped(now, body), "purged")
        return len(waiting) + len(delayed)

    def pause(self, now: int, slot: int, key: str, by: str, reason: str) -> None:
        """Pause a key: nothing of it begins; residents of it that run are asked to stop, and wait."""
        self._tables.pauses.put(Paused(key, now, by, reason))
        for box in self._boxes.running([slot]).get(slot, ()):
            if box.lane == "r" and key_of(box.name) == key:
                self._signal(box.worker, "pause", box.name)

    def retry(self, now: int, mailbox: str) -> str:
        """Try the first job of a mailbox again now, if it waits for that."""
        box = self._boxes.get(mailbox)
        if box is None or box.state != RETRY:
            return "gone"
        self._rules.try_again(now, box)
        return "ready"

    def resume(self, slot: int, key: str) -> None:
        """Undo a pause."""
        self._tables.pauses.drop(key)
        for box in self._boxes.paused(slot, key):
            self._rules.make_ready(box)

    def replay(self, now: int, numbers: Iterable[int]) -> int:
        """Put dead letters back into their mailboxes, in their order."""
        count = 0
        for number in sorted(set(numbers)):
            letter = self._tables.dead.get(number)
            if letter is not None:
                count += self.drop((number,))
                self._tables.outcomes.drop(opened(letter.job).id)
                self._rules.enter(letter.slot, letter.mailbox, stamped(now, letter.job[STAMP:]))
        return count

    def drop(self, numbers: Iterable[int]) -> int:
        """Forget dead letters."""
        count = sum(self._tables.dead.drop(number) for number in set(numbers))
        self._numbers.dead -= count
        return count

    # -- residents ----------------------------------------------------------------------------------------------------

    def start(self, now: int, slot: int, mailbox: str, body: bytes) -> str:
        """Start a resident with these arguments."""
        raw, boxes = stamped(now, body), self._boxes
        box = boxes.get(mailbox)
        if box is None:
            self._rules.enter(slot, mailbox, raw)
            return "started"
        last = opened(boxes.last(box))
        if last.payload == opened(raw).payload and last.id not in self._tables.cancelled:
            return "same"
        if taken_of(box, slot):
            self._cancel_running(box)
            boxes.append(box, raw)
        else:
            boxes.move(box, NOWHERE)
            self._rules.pop(box, box.depth)
            self._rules.enter(slot, mailbox, raw)
        return "replaced"

    def stop(self, slot: int, mailbox: str) -> str:
        """End a resident."""
        box = self._boxes.get(mailbox)
        if box is None:
            return "gone"
        if taken_of(box, slot):
            self._cancel_running(box)
            return "stopping"
        self._boxes.move(box, NOWHERE)
        self._rules.pop(box, box.depth)
        self._rules.go_on(box)
        return "stopped"

    def _cancel_running(self, box: M) -> None:
        """Signal the worker of a resident to end it, and drop what waits behind it."""
        self._boxes.cut(box, 1)
        running = self._rules.first(box).id
        self._tables.cancelled.add(running)
        self._signal(box.worker, "cancel", box.name, job=running)

    def message(self, slot: int, mailbox: str, data: bytes) -> str:
        """Leave a message for a resident."""
        box = self._boxes.get(mailbox)
        if box is None or opened(self._boxes.last(box)).id in self._tables.cancelled:
            return "gone"
        most = self._tables.settings.max_per_key
        if most and self._tables.messages.count(mailbox) >= most:
            return "full"
        self._numbers.last_message += 1
        number = self._numbers.last_message
        self._tables.messages.add(mailbox, number, data)
        if box.state == RUNNING and box.slot == slot and box.depth == 1:  # else it is for the one that replaces it
            self._signal(box.worker, "note", mailbox, number=number, data=data)
        return "sent"

    def _signal(
        self, worker: str, kind: str, mailbox: str, *, job: str = "", number: int = 0, data: bytes = b""
    ) -> None:
        if worker in self._tables.members:
            self._numbers.last_signal += 1
            self._tables.signals.add(worker, Signal(self._numbers.last_signal, kind, mailbox, job, number, data))
            self._hint(worker)


def taken_of(box: Mailbox, slot: int) -> int:
    """Return how many jobs at the head of a mailbox a worker has."""
    return box.taken - box.done if box.state == RUNNING and box.slot == slot else 0
