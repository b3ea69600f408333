"""A judge of the rules of keyed pools: looks at its tables before and after each verb, and says what is broken.

It knows the promises, not the rules: which takes are valid and by what they may end, that mailboxes only grow at their
end and shrink at their head, that tokens grow, and that what is stale changes nothing. `finish` then lets workers
behave, after which nothing may be left.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from millpond.keyed.rules.envelope import opened
from millpond.keyed.rules.pool import Rules
from millpond.keyed.rules.records import Joiner, Report, Settings, Work, key_of
from millpond.keyed.rules.tables import RUNNING, Numbers
from millpond.keyed.rules.takes import Hand
from millpond.keyed.stores.memory import MemoryTables
from millpond.keyed.stores.memory._mailboxes import MemoryMailbox
from millpond_conformance._stores import check_removals, check_tables, jobs_in

Reference: TypeAlias = Rules[MemoryMailbox]
"""The rules over tables in memory, which stores are compared with."""

NAMES = ("job", "odd", "watch")
"""All jobs and residents that the worlds of these tests know."""


def make_rules(settings: Settings, hand: Hand = lambda worker, before, signal: False) -> Reference:
    """Return the rules of a new pool."""
    return Rules(MemoryTables(settings, "incarnation"), hand=hand)


def tables_of(rules: Reference) -> MemoryTables:
    """Return the tables of a pool."""
    assert isinstance(rules.tables, MemoryTables)
    return rules.tables


def clone(rules: Reference) -> Reference:
    """Return a pool of its own that is equal."""
    tables = tables_of(rules)
    other = MemoryTables(tables.settings, tables.incarnation)
    boxes = {name: replace(box, jobs=box.jobs.copy()) for name, box in tables.mailboxes.all.items()}
    for name, value in vars(tables).items():
        setattr(other, name, _copy(value, boxes))
    return Rules(other, hand=rules.hand)


def _copy(value: Any, boxes: dict[str, MemoryMailbox]) -> Any:
    """Return a copy of a table or a part of one; `boxes` are the copies of mailboxes."""
    if isinstance(value, MemoryMailbox):
        return boxes[value.name]
    if isinstance(value, OrderedDict):
        return OrderedDict((key, _copy(one, boxes)) for key, one in value.items())
    if isinstance(value, dict):
        return {key: _copy(one, boxes) for key, one in value.items()}
    if isinstance(value, (list, set, deque)):
        return value.copy()
    if isinstance(value, Numbers):
        return copy.copy(value)
    if type(value).__module__.startswith("millpond.keyed.stores.memory"):
        other = copy.copy(value)
        vars(other).update((name, _copy(one, boxes)) for name, one in vars(value).items())
        return other
    return value


def dump(rules: Reference) -> object:
    """Return all that a stale report must not change."""
    tables = tables_of(rules)
    boxes = tables.mailboxes
    places = [[(key, list(place)) for key, place in some.items()] for some in (boxes.ready_in, boxes.parked_for)]
    counted = replace(tables.numbers, last_token=0, last_place=0, first_place=0)
    rows = (tables.delayed, tables.outcomes, tables.dead, tables.unique, tables.messages, tables.slots, tables.members)
    rest = (tables.pauses.rows, tables.cancelled, {name: one for name, one in tables.signals.rows.items() if one})
    return repr(
        [list(boxes.all.values()), places, list(boxes.borrowed_by_name), counted, *(one.rows for one in rows), *rest]
    )


@dataclass(frozen=True)
class Sight:
    """What there was before a verb."""

    boxes: dict[str, list[bytes]]
    runs: dict[str, tuple[int, str, int, int, int, bool]]
    """mailbox -> slot, worker, token, taken, done, is_borrowed"""
    jobs: dict[str, str]
    cancelled: frozenset[str]
    calls: dict[str, int]
    spares: dict[str, int]
    dump: object
    is_due: bool
    is_stirred: bool
    """A `work` may change something in passing: hear signals, hold paused keys, drop cancelled jobs."""


@dataclass
class Judge:
    """Follows the rules of one pool."""

    rules: Reference
    tokens: dict[str, int] = field(default_factory=dict)
    """mailbox -> the highest token that a take of it has had"""

    @property
    def tables(self) -> MemoryTables:
        """What the rules work on."""
        return tables_of(self.rules)

    def look(self, now: int, verb: str, arguments: Sequence[Any]) -> Sight:
        """See how it stands before a verb."""
        tables, runs = self.tables, _runs(self.tables)
        tokens = {(name, run[2]) for name, run in runs.items()}
        is_stale = verb == "work" and not any((one.mailbox, one.token) in tokens for one in arguments[2])
        ends = (tables.due.next(), *(one.heap[0][0] for one in (tables.outcomes, tables.unique) if one.heap))
        return Sight(
            {name: list(box.jobs) for name, box in tables.mailboxes.all.items()},
            runs,
            jobs_in(tables),
            frozenset(tables.cancelled),
            dict(tables.members.calls),
            dict(tables.members.spares),
            dump(self.rules) if is_stale else None,
            any(0 < end <= now for end in ends),
            bool(tables.pauses or tables.cancelled or any(tables.signals.rows.values())),
        )

    def after(self, before: Sight, now: int, verb: str, arguments: Sequence[Any], answer: Any) -> None:
        """Judge what a verb has done."""
        check_tables(self.tables)
        check_removals(verb, arguments, before.jobs, jobs_in(self.tables), before.cancelled)
        self._order(before)
        runs = _runs(self.tables)
        ended = {name for name, run in before.runs.items() if name not in runs or runs[name][2] != run[2]}
        begun = {name for name, run in runs.items() if name not in before.runs or before.runs[name][2] != run[2]}
        if verb == "work":
            self._reports(before, arguments[2], answer, ended)
            self._takes(before, now, arguments, answer, begun, runs)
        else:
            assert not begun or verb == "dispatch", f"K1: {verb} began {begun}"
            self._handed(before, now, begun, runs)
            for name in ended:
                slot, worker, token, *_, is_borrowed = before.runs[name]
                owner = self.tables.slots.get(slot)
                is_unknown = verb == "claim" and arguments[0] == worker and arguments[3] is not None
                is_unknown = is_unknown and token not in arguments[3] and arguments[4] >= before.calls[worker]
                heard = arguments[5] if len(arguments) > 5 else 0
                is_unknown = is_unknown and token not in self._on_their_way(worker, heard)
                is_over = owner.since + self.tables.settings.drain <= now and owner.owner == arguments[0] != worker
                is_gone = worker not in self.tables.members
                assert verb == "claim", f"K1: {verb} ended the take of {name}"
                assert is_gone or is_unknown or (is_over and not is_borrowed), f"K1: a claim ended the take of {name}"

    def _on_their_way(self, worker: str, heard: int) -> set[int]:
        """Return the tokens of what was handed to a worker, and it has not heard of yet."""
        signals = self.tables.signals.rows.get(worker, ())
        return {one.note for one in signals if one.kind == "take" and one.number > heard}

    def _handed(self, before: Sight, now: int, begun: set[str], runs: dict[str, Any]) -> None:
        """K1: what a dispatch hands over goes to the owner, whose lease holds, has room, and will hear of it."""
        for worker in {runs[name][1] for name in begun}:
            many = sum(runs[name][1] == worker for name in begun)
            assert many <= before.spares.get(worker, 0), f"{worker} was handed {many}, and has room for fewer"
        for name in begun:
            slot, worker, token, taken, done, is_borrowed = runs[name]
            member, tables = self.tables.members.get(worker), self.tables
            assert member is not None and member.lease_end > now, "K1: a job was handed over under a lease that is over"
            assert tables.slots.get(slot).owner == worker and not is_borrowed, f"K1: {worker} does not own {slot}"
            assert (taken, done, name in before.runs) == (1, 0, False), f"K1: {name} was not free"
            assert opened(tables.mailboxes.all[name].jobs[0]).id not in before.jobs, f"K3: {name} was not empty"
            assert token > self.tokens.get(name, 0), f"K1: token {token} of {name} did not grow"
            assert token in self._on_their_way(worker, 0), f"K2: a lost wake-up would lose {name}"
            assert not tables.numbers.is_paused and not tables.numbers.is_shut and key_of(name) not in tables.pauses
            self.tokens[name] = token

    def _order(self, before: Sight) -> None:
        """K3: a mailbox grows at its end, and what stays keeps its order."""
        for name, mailbox in self.tables.mailboxes.all.items():
            box = mailbox.jobs
            old = set(before.boxes.get(name, ()))
            stayed = [raw for raw in box if raw in old]
            left = set(box)
            assert stayed == [raw for raw in before.boxes.get(name, ()) if raw in left], f"K3: {name} was reordered"
            assert list(box)[: len(stayed)] == stayed, f"K3: something entered {name} before its end"

    def _reports(self, before: Sight, settles: Sequence[Report], answer: Work, ended: set[str]) -> None:
        """K1: exactly the settles of valid takes count, and they remove what they name."""
        valid = {(run[0], name): run for name, run in before.runs.items()}
        done = {name: run[4] for name, run in before.runs.items()}
        popped: dict[str, int] = {}
        stale, over = [], set()
        for index, one in enumerate(settles):
            run = valid.get((one.slot, one.mailbox))
            if run is None or run[2] != one.token:
                stale.append(index)
                continue
            count = max(0, min(one.done, run[3]) - done[one.mailbox])
            done[one.mailbox] += count
            popped[one.mailbox] = popped.get(one.mailbox, 0) + count
            if one.how != "keep" or run[3] == done[one.mailbox]:
                del valid[one.slot, one.mailbox]
                over.add(one.mailbox)
        assert answer.stale == tuple(stale), f"K1: {answer.stale} were called stale, {stale} were"
        assert ended == over, f"K1: the takes of {ended} ended, of {over} should"
        after = jobs_in(self.tables)
        for name, box in before.boxes.items():
            ids = [opened(raw).id for raw in box]
            gone = {one for one in ids if one not in after}
            wanted = set(ids[: popped.get(name, 0)])
            assert wanted <= gone, f"K1: {wanted - gone} of {name} were settled and are still there"
            assert gone <= wanted | before.cancelled, f"K2: {gone - wanted} of {name} are lost"
        is_idle = not answer.takes and not before.is_due and not before.is_stirred
        if before.dump is not None and len(stale) == len(settles) and is_idle:
            assert dump(self.rules) == before.dump, "K1: a stale report changed something"

    def _takes(
        self, before: Sight, now: int, arguments: Sequence[Any], answer: Work, begun: set[str], runs: dict[str, Any]
    ) -> None:
        """K1: a take is of the caller, whose lease holds, and of nobody else; its jobs are the first of their key."""
        worker = arguments[0]
        assert {take.mailbox for take in answer.takes} == begun, f"{begun} run, {answer.takes} were handed out"
        assert len(begun) == len(answer.takes), "K1: a key was handed out twice"
        if begun:
            member = self.tables.members.get(worker)
            assert member is not None and member.lease_end > now, "K1: a take under a lease that is over"
            assert not self.tables.numbers.is_paused and not self.tables.numbers.is_shut
        for take in answer.takes:
            slot, runner, token, taken, done, is_borrowed = runs[take.mailbox]
            assert (slot, runner, token, taken, done) == (take.slot, worker, take.token, len(take.jobs), 0)
            assert take.jobs == tuple(self.tables.mailboxes.all[take.mailbox].jobs)[:taken], "K3: not the first jobs"
            assert is_borrowed or self.tables.slots.get(slot).owner == worker, f"K1: {worker} does not own {slot}"
            assert token > self.tokens.get(take.mailbox, 0), f"K1: token {token} of {take.mailbox} did not grow"
            assert key_of(take.mailbox) not in self.tables.pauses, f"{take.mailbox} is paused"
            assert not {opened(raw).id for raw in take.jobs} & self.tables.cancelled, "a cancelled job runs again"
            self.tokens[take.mailbox] = token


def _runs(tables: MemoryTables) -> dict[str, tuple[int, str, int, int, int, bool]]:
    return {
        box.name: (box.slot, box.worker, box.token, box.taken, box.done, box.is_borrowed)
        for box in tables.mailboxes.all.values()
        if box.state == RUNNING
    }


def finish(rules: Reference, now: int) -> None:
    """End everybody who was there, and play one worker that behaves: it gets all, and nothing is left but the dead."""
    tables = tables_of(rules)
    settings, boxes = tables.settings, tables.mailboxes
    tables.numbers.is_paused = tables.numbers.is_shut = 0
    for key in list(tables.pauses.rows):
        for slot in range(settings.slots):
            rules.orders.resume(slot, key)
    ends = {one.id: one.lease_end for one in tables.members.all()}
    now = max([now, *ends.values()]) + 2 * settings.lease
    rules.join(now, Joiner("last", "last", names=NAMES))
    claimed = rules.claim(now, "last", range(settings.slots), ends)
    assert not claimed.contested and not claimed.is_gone, f"the last one did not get all: {claimed}"
    assert all(slot.owner == "last" for slot in tables.slots.rows)
    for call in range(1, 400):
        now += settings.lease // 2
        rules.renew(now, "last")
        rules.orders.drop(list(tables.dead.rows))
        work = rules.work(now, "last", call, [], 100, 100, 100)
        settles = [Report(take.slot, take.mailbox, take.token, len(take.jobs)) for take in work.takes]
        done = rules.work(now, "last", call, settles, 0, 0)
        assert done.stale == ()
        check_tables(tables)
        if not boxes.all and not tables.delayed.rows:
            break
    assert not boxes.all and not tables.delayed.rows, f"never ran: {list(boxes.all) or list(tables.delayed.rows)}"
    assert not boxes.ready_in and not boxes.running_in and not boxes.parked_for and not boxes.borrowed_by_name
    assert not tables.cancelled and not tables.messages
