"""A judge of the rules of keyed pools: looks at a ledger before and after each verb, and says what is broken.

It knows the promises, not the rules: which takes are valid and by what they may end, that mailboxes only grow at their
end and shrink at their head, that tokens grow, and that what is stale changes nothing. `finish` then lets workers
behave, after which nothing may be left.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from millpond.keyed._envelope import opened
from millpond.keyed._ledger import Ledger
from millpond.keyed._mail import Mail
from millpond.keyed._records import Joiner, Settle, Work
from millpond.testing._stores import check_ledger, check_removals, jobs_in

NAMES = ("job", "odd", "watch")
"""All jobs and residents that the worlds of these tests know."""


def clone(ledger: Ledger) -> Ledger:
    """Return a ledger of its own that is equal."""
    other = Ledger(ledger.settings, ledger.incarnation)
    for name, value in vars(ledger).items():
        if not callable(value) and not isinstance(value, Mail):
            setattr(other, name, _copy(value))
    for name, value in vars(ledger.mail).items():
        if not callable(value):
            setattr(other.mail, name, _copy(value))
    return other


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    if isinstance(value, (list, set, deque)):
        return value.copy()
    return copy.copy(value) if is_dataclass(value) else value


def dump(ledger: Ledger) -> object:
    """Return all that a stale report must not change."""
    mail = ledger.mail
    names = ("boxes", "ready", "running", "later", "delayed", "paused", "held", "shelves", "lent", "trouble", "doomed")
    more = ("notes", "outcomes", "dead", "unique", "jobs", "counters", "signals")
    return repr([getattr(mail, name) for name in (*names, *more)] + [ledger.slots, ledger.members, ledger.version])


@dataclass(frozen=True)
class Sight:
    """What there was before a verb."""

    boxes: dict[str, list[bytes]]
    runs: dict[str, tuple[int, str, int, int, int, bool]]
    """mailbox -> slot, worker, token, taken, done, is_lent"""
    jobs: dict[str, str]
    doomed: frozenset[str]
    calls: dict[str, int]
    dump: object
    is_due: bool
    is_stirred: bool
    """A `work` may change something in passing: hear signals, hold paused keys, drop cancelled jobs."""


@dataclass
class Judge:
    """Follows one ledger."""

    ledger: Ledger
    tokens: dict[str, int] = field(default_factory=dict)
    """mailbox -> the highest token that a take of it has had"""

    def look(self, now: int, verb: str, arguments: Sequence[Any]) -> Sight:
        """See how it stands before a verb."""
        mail, runs = self.ledger.mail, _runs(self.ledger)
        tokens = {(name, run[2]) for name, run in runs.items()}
        is_stale = verb == "work" and not any((one.mailbox, one.token) in tokens for one in arguments[2])
        return Sight(
            {name: list(box) for name, box in mail.boxes.items()},
            runs,
            jobs_in(self.ledger),
            frozenset(mail.doomed),
            dict(self.ledger._calls),
            dump(self.ledger) if is_stale else None,
            any(heap and heap[0][0] <= now for heap in (mail._due, mail._fading)),
            bool(mail.paused or mail.doomed or any(mail.signals.values())),
        )

    def after(self, before: Sight, now: int, verb: str, arguments: Sequence[Any], answer: Any) -> None:
        """Judge what a verb has done."""
        check_ledger(self.ledger)
        check_removals(verb, arguments, before.jobs, jobs_in(self.ledger), before.doomed)
        self._order(before)
        runs = _runs(self.ledger)
        ended = {name for name, run in before.runs.items() if name not in runs or runs[name][2] != run[2]}
        begun = {name for name, run in runs.items() if name not in before.runs or before.runs[name][2] != run[2]}
        if verb == "work":
            self._reports(before, arguments[2], answer, ended)
            self._takes(before, now, arguments, answer, begun, runs)
        else:
            assert not begun, f"K1: {verb} began {begun}"
            for name in ended:
                slot, worker, token, *_, is_lent = before.runs[name]
                owner = self.ledger.slots[slot]
                is_unknown = verb == "claim" and arguments[0] == worker and arguments[3] is not None
                is_unknown = is_unknown and token not in arguments[3] and arguments[4] >= before.calls[worker]
                is_over = owner.since + self.ledger.settings.drain <= now and owner.owner == arguments[0] != worker
                is_gone = worker not in self.ledger.members
                assert verb == "claim", f"K1: {verb} ended the take of {name}"
                assert is_gone or is_unknown or (is_over and not is_lent), f"K1: a claim ended the take of {name}"

    def _order(self, before: Sight) -> None:
        """K3: a mailbox grows at its end, and what stays keeps its order."""
        for name, box in self.ledger.mail.boxes.items():
            old = set(before.boxes.get(name, ()))
            stayed = [raw for raw in box if raw in old]
            left = set(box)
            assert stayed == [raw for raw in before.boxes.get(name, ()) if raw in left], f"K3: {name} was reordered"
            assert list(box)[: len(stayed)] == stayed, f"K3: something entered {name} before its end"

    def _reports(self, before: Sight, settles: Sequence[Settle], answer: Work, ended: set[str]) -> None:
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
        after = jobs_in(self.ledger)
        for name, box in before.boxes.items():
            ids = [opened(raw).id for raw in box]
            gone = {one for one in ids if one not in after}
            wanted = set(ids[: popped.get(name, 0)])
            assert wanted <= gone, f"K1: {wanted - gone} of {name} were settled and are still there"
            assert gone <= wanted | before.doomed, f"K2: {gone - wanted} of {name} are lost"
        is_idle = not answer.takes and not before.is_due and not before.is_stirred
        if before.dump is not None and len(stale) == len(settles) and is_idle:
            assert dump(self.ledger) == before.dump, "K1: a stale report changed something"

    def _takes(
        self, before: Sight, now: int, arguments: Sequence[Any], answer: Work, begun: set[str], runs: dict[str, Any]
    ) -> None:
        """K1: a take is of the caller, whose lease holds, and of nobody else; its jobs are the first of their key."""
        worker = arguments[0]
        assert {take.mailbox for take in answer.takes} == begun, f"{begun} run, {answer.takes} were handed out"
        assert len(begun) == len(answer.takes), "K1: a key was handed out twice"
        if begun:
            member = self.ledger.members[worker]
            assert member.lease_end > now, "K1: a take under a lease that is over"
            assert not self.ledger.is_paused and not self.ledger.is_shut
        for take in answer.takes:
            slot, runner, token, taken, done, is_lent = runs[take.mailbox]
            assert (slot, runner, token, taken, done) == (take.slot, worker, take.token, len(take.jobs), 0)
            assert take.jobs == tuple(self.ledger.mail.boxes[take.mailbox])[:taken], "K3: not the first jobs"
            assert is_lent or self.ledger.slots[slot].owner == worker, f"K1: {worker} does not own {slot}"
            assert token > self.tokens.get(take.mailbox, 0), f"K1: token {token} of {take.mailbox} did not grow"
            assert take.mailbox not in self.ledger.mail.paused, f"{take.mailbox} is paused"
            assert not {opened(raw).id for raw in take.jobs} & self.ledger.mail.doomed, "a cancelled job runs again"
            self.tokens[take.mailbox] = token


def _runs(ledger: Ledger) -> dict[str, tuple[int, str, int, int, int, bool]]:
    return {
        mailbox: (slot, run.worker, run.token, run.taken, run.done, run.is_lent)
        for slot, runs in ledger.mail.running.items()
        for mailbox, run in runs.items()
    }


def finish(ledger: Ledger, now: int) -> None:
    """Let everybody who was there be dead, and one worker behave: it gets all, and nothing is left but the dead."""
    settings = ledger.settings
    ledger.is_paused = ledger.is_shut = False
    for mailbox in list(ledger.mail.paused):
        ledger.mail.resume(mailbox)
    ends = {one.id: one.lease_end for one in ledger.members.values()}
    now = max([now, *ends.values()]) + 2 * settings.lease
    ledger.join(now, Joiner("last", "last", names=NAMES))
    claimed = ledger.claim(now, "last", range(settings.slots), ends)
    assert not claimed.contested and not claimed.is_gone, f"the last one did not get all: {claimed}"
    assert all(slot.owner == "last" for slot in ledger.slots)
    left = list(ledger.mail.boxes)
    for call in range(1, 400):
        now += settings.lease // 2
        ledger.renew(now, "last")
        for number in list(ledger.mail.dead):
            ledger.mail.drop([number])
        work = ledger.work(now, "last", call, [], 100, 100, 100)
        settles = [Settle(take.slot, take.mailbox, take.token, len(take.jobs)) for take in work.takes]
        done = ledger.work(now, "last", call, settles, 0, 0)
        assert done.stale == ()
        check_ledger(ledger)
        left = list(ledger.mail.boxes)
        if not left and not ledger.mail.delayed:
            break
    assert not left and not ledger.mail.delayed, f"never ran: {left or list(ledger.mail.delayed)}"
    assert not any(ledger.mail.running.values()) and not ledger.mail.doomed and not ledger.mail.lent
    assert not ledger.mail.notes and not ledger.mail.trouble and not ledger.mail.ready and not ledger.mail.shelves
