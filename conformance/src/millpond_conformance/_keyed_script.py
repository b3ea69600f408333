"""Scripts for keyed pools: any list of numbers is one.

A script is played on the bare rules (over tables in memory), which a judge follows, and on any number of stores beside
them; what they answer must be the same.

Times. The clock of the rules stands still but for one microsecond per verb and the steps of a script, which are whole
tens of seconds; a store's clock also runs. What a script makes due lies five seconds beside those steps, or right on
them, so that both see the same, as long as a script is played within `SLACK`. Then times are equal when they differ by
no more than that. Tokens, and the numbers of signals, notes and versions, are translated one to one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from millpond.keyed.rules import commands as do
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.envelope import Envelope, came, encode, opened
from millpond.keyed.rules.records import (
    BATCH_RETENTION,
    SECOND,
    STAMP,
    Act,
    Batch,
    Claimed,
    Counts,
    DeadLetter,
    Delayed,
    Joiner,
    KeyView,
    Order,
    OrderOptions,
    Outcome,
    Paused,
    PoolState,
    Report,
    Settings,
    Signal,
    Slot,
    Take,
    Work,
)
from millpond.keyed.rules.tables import PARKED, READY, RETRY, SUSPECTS
from millpond.keyed.stores.base import Store
from millpond.keyed.stores.memory import _reads
from millpond_conformance._keyed_model import NAMES, Judge, clone, finish, make_rules, tables_of
from millpond_conformance._stores import jobs_in
from millpond_conformance._verbs import Verbs

SLACK = 4 * SECOND
STEP = 10 * SECOND
SLOTS = 3
KEYS = ("k", "l", "m", "n")
LEASE = 25 * SECOND
KEEP = 95 * SECOND
START = 1_000_000_000 * SECOND
MOST = 1 << 16
Move = tuple[int, int, int, int]

SETTINGS = (
    Settings(slots=SLOTS, lease=LEASE, drain=45 * SECOND, unknown=65 * SECOND, max_losses=3),
    Settings(SLOTS, LEASE, 15 * SECOND, max_jobs=7, max_per_key=3, max_dead=1, max_losses=2, unknown=35 * SECOND),
    Settings(SLOTS, LEASE, 45 * SECOND, max_per_key=4, max_losses=1, unknown=15 * SECOND),
)


class Differs(AssertionError):
    """A store did not answer as the rules do."""


@dataclass
class Worker:
    """What a worker knows."""

    id: str
    calls: int = 0
    takes: list[Take] = field(default_factory=list)
    """Those that it knows, by the tokens of the rules."""
    signals: list[int] = field(default_factory=list)
    heard: int = 0

    def hear(self, signal: Signal) -> None:
        """Note what was handed over, once."""
        if signal.kind == "take" and signal.data and all(take.token != signal.note for take in self.takes):
            self.takes.append(Take(signal.slot, signal.mailbox, signal.note, (signal.data,)))


class Verb(NamedTuple):
    """A call, with times and numbers as the rules have them."""

    name: str
    arguments: tuple[Any, ...]


class Side:
    """A store that is played beside the rules: it translates, and compares."""

    def __init__(self, name: str, store: Store, settings: Settings) -> None:
        self.name, self.store = name, Verbs(store)
        store.open(settings)
        self.offset = store.ask(about.Members()).now - START
        self.maps: dict[str, dict[int, int]] = {"token": {}, "signal": {}, "note": {}, "version": {}, "dead": {}}
        self.ends: dict[int, int] = {}

    def listen(self, worker: str) -> None:
        """Listen for a worker, so that it can be handed jobs; where stores are shared, somebody else listens to all."""
        if not self.store.is_shared:
            self.store.listen(worker, lambda: None, lambda before, signal: None)

    def play(self, verb: Verb, wanted: Any) -> None:
        """Call, and compare the answer with that of the rules."""
        match verb:
            case Verb("work", (worker, call, settles, want, per, residents, heard, spare)):
                settles = [self._settle(one) for one in settles]
                heard = self.maps["signal"].get(heard, 0)
                got: Any = self.store.work(worker, call, settles, want, per, residents, heard, spare)
            case Verb("claim", (worker, slots, dead, known, call, heard)):
                dead = {one: self.ends.get(end, end) for one, end in dead.items()}
                known = None if known is None else [self.maps["token"].get(one, one) for one in known]
                got = self.store.claim(worker, slots, dead, known, call, self.maps["signal"].get(heard, 0))
            case Verb("dispatch", (batch, orders)):
                got = dict(self.store.dispatch(batch, [self._order(one) for one in orders]))
            case Verb("beat", ()):
                got = self.store.ask(about.Members())
            case Verb("renew", (worker, leaving)):
                got = self.store.renew(worker, leaving=leaving)
            case Verb("apply", (do.Replay(numbers) | do.Drop(numbers),)):
                numbers = tuple(self.maps["dead"].get(one, one) for one in numbers)
                got = self.store.apply(replace(verb.arguments[0], numbers=numbers))
            case Verb(name, arguments):
                got = getattr(self.store, name)(*arguments)
        self.compare(str(verb), wanted, got)

    def _settle(self, one: Report) -> Report:
        token = self.maps["token"].get(one.token, one.token)
        return one._replace(token=token, notes=self.maps["note"].get(one.notes, 0))

    def _order(self, order: Order) -> Order:
        if order.options is None or not order.options.at:
            return order
        return order._replace(options=order.options._replace(at=order.options.at + self.offset))

    # -- comparing ----------------------------------------------------------------------------------------------------

    def same(self, what: str, wanted: Any, got: Any) -> None:
        if wanted != got:
            raise Differs(f"{self.name}: {what}: the rules say\n  {wanted!r}\nit says\n  {got!r}")

    def time(self, what: str, wanted: int, got: int) -> None:
        if (not wanted) != (not got) or (wanted and abs(got - self.offset - wanted) > SLACK):
            raise Differs(f"{self.name}: {what}: the rules say {wanted - START}, it says {got - self.offset - START}")

    def number(self, kind: str, wanted: int, got: int) -> None:
        known = self.maps[kind].setdefault(wanted, got)
        if known != got or len(set(self.maps[kind].values())) != len(self.maps[kind]):
            raise Differs(f"{self.name}: a {kind} {wanted} was {known}, now it is {got}: {self.maps[kind]}")

    def compare(self, what: str, wanted: Any, got: Any) -> None:  # noqa: C901  (a table)
        """Compare two answers or readings."""
        match wanted:
            case PoolState():
                self.time(f"{what}: now", wanted.now, got.now)
                self.number("version", wanted.version, got.version)
                self.same(f"{what}: is_shut", wanted.is_shut, got.is_shut)
                for one, other in self._pairs(what, wanted.members, got.members):
                    self.same(f"{what}: member", one[:5] + one[7:], other[:5] + other[7:])
                    self.time(f"{what}: joined", one.joined, other.joined)
                    self.time(f"{what}: lease", one.lease_end, other.lease_end)
                    self.ends[one.lease_end] = other.lease_end
            case Work():
                self._work(what, wanted, got)
            case Take():
                self.same(f"{what}: take", wanted[:2] + wanted[4:6], got[:2] + got[4:6])
                self.number("token", wanted.token, got.token)
                self._jobs(what, wanted.jobs, got.jobs)
                for note, other in self._pairs(f"{what}: notes", wanted.notes, got.notes):
                    self.number("note", note[0], other[0])
                    self.same(f"{what}: note", note[1], other[1])
            case KeyView():
                self._key(what, wanted, got)
            case Slot():
                self.same(what, wanted._replace(epoch=0, since=0), got._replace(epoch=0, since=0))
                self.time(f"{what}: since", wanted.since, got.since)
                self.time(f"{what}: epoch", wanted.epoch, got.epoch)
            case DeadLetter():
                self.same(what, wanted._replace(number=0, at=0, job=b""), got._replace(number=0, at=0, job=b""))
                self.number("dead", wanted.number, got.number)
                self.time(f"{what}: at", wanted.at, got.at)
                self._jobs(what, [wanted.job], [got.job])
            case Delayed():
                self.same(what, wanted._replace(due=0), got._replace(due=0))
                self.time(f"{what}: due", wanted.due, got.due)
            case Paused():
                self.same(what, wanted._replace(since=0), got._replace(since=0))
                self.time(f"{what}: since", wanted.since, got.since)
            case Act():
                self.same(what, wanted._replace(at=0), got._replace(at=0))
                self.time(f"{what}: at", wanted.at, got.at)
            case Counts():
                self.same(what, wanted._replace(now=0, oldest=0), got._replace(now=0, oldest=0))
                self.time(f"{what}: oldest", wanted.oldest, got.oldest)
            case Claimed():
                self.same(what, wanted, Claimed(tuple(got.got), tuple(got.contested), got.recovered, got.is_gone))
            case list():
                for number, (one, other) in enumerate(self._pairs(what, wanted, got)):
                    self.compare(f"{what}[{number}]", one, other)
            case _:
                self.same(what, wanted, got)

    def _key(self, what: str, wanted: KeyView, got: KeyView) -> None:
        odd: dict[str, Any] = {"oldest": 0, "token": 0, "due": 0, "owned": 0, "last": b""}
        self.same(what, wanted._replace(**odd), got._replace(**odd))
        self.time(f"{what}: oldest", wanted.oldest, got.oldest)
        self.time(f"{what}: due", wanted.due, got.due)
        self.time(f"{what}: owned", wanted.owned, got.owned)
        self._jobs(what, [wanted.last] if wanted.last else [], [got.last] if got.last else [])
        if wanted.token:
            self.number("token", wanted.token, got.token)

    def _pairs(self, what: str, wanted: Sequence[Any], got: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
        if len(wanted) != len(got):
            raise Differs(f"{self.name}: {what}: the rules say\n  {wanted}\nit says\n  {got}")
        return zip(wanted, got, strict=True)

    def _jobs(self, what: str, wanted: Sequence[bytes], got: Sequence[bytes]) -> None:
        self.same(f"{what}: jobs", [raw[STAMP:] for raw in wanted], [bytes(raw[STAMP:]) for raw in got])
        for one, other in zip(wanted, got, strict=True):
            self.time(f"{what}: came", came(one), came(other))

    def _work(self, what: str, wanted: Work, got: Work) -> None:
        self.same(f"{what}: stale, gone", (wanted.stale, wanted.is_gone), (tuple(got.stale), got.is_gone))
        self.time(f"{what}: now", wanted.now, got.now)
        self.number("version", wanted.version, got.version)
        takes = sorted(wanted.takes, key=lambda take: take.mailbox)
        self.compare(f"{what}: takes", takes, sorted(got.takes, key=lambda take: take.mailbox))
        for one, other in self._pairs(f"{what}: signals", wanted.signals, got.signals):
            odd: dict[str, Any] = {"number": 0, "note": 0, "data": b""}
            self.same(f"{what}: signal", one._replace(**odd), other._replace(**odd))
            self.number("signal", one.number, other.number)
            if one.kind == "take":
                self.number("token", one.note, other.note)
                self._jobs(what, [one.data] if one.data else [], [other.data] if other.data else [])
                continue
            self.same(f"{what}: data", one.data, other.data)
            if one.note:
                self.number("note", one.note, other.note)
        if wanted.is_more and not got.is_more:
            raise Differs(f"{self.name}: {what}: there is more, and it says there is not")
        if wanted.due and not 0 < got.due <= wanted.due + self.offset + SLACK:
            raise Differs(f"{self.name}: {what}: due is {got.due - self.offset - START}, not {wanted.due - START}")


class Stage:
    """A pool on which a script is played: the rules with their judge, and stores beside it."""

    def __init__(self, settings: Settings, stores: dict[str, Store] | None = None) -> None:
        self.settings = settings
        self.now = self.latest = START
        self.sides = [Side(name, store, settings) for name, store in (stores or {}).items()]
        self.hands_over = all(side.store.hands_over for side in self.sides)
        self.rules = make_rules(settings, self._hand)
        self.handed: list[tuple[str, Signal]] = []
        """What workers were handed by the last dispatch."""
        self.tables = tables_of(self.rules)
        self.judge = Judge(self.rules)
        self.workers: list[Worker] = []
        self.old: list[Report] = []
        """What was reported once."""
        self.seen: list[dict[str, int]] = [{}]
        """Ends of leases, as somebody saw them."""
        self.calls: list[tuple[int, Verb]] = []
        """Calls that may be sent again, with the time of the first."""
        self.jobs: list[tuple[str, str]] = []
        self.numbers = itertools.count(1)

    # -- calling ------------------------------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a verb on the rules and on all stores."""
        self.now += 1
        verb = Verb(name, arguments)
        before = self.judge.look(self.now, name, arguments)
        if name == "renew":
            answer: Any = self.rules.renew(self.now, arguments[0], leaving=arguments[1])
        else:
            answer = getattr(self.rules, "do" if name == "apply" else name)(self.now, *arguments)
        answer = dict(answer) if name == "dispatch" else answer
        self.judge.after(before, self.now, name, arguments, answer)
        for side in self.sides:
            side.play(verb, self._exact(arguments, answer) if name == "work" else answer)
        return answer

    def _exact(self, arguments: tuple[Any, ...], answer: Work) -> Work:
        """Say what a store must say at least of what comes next: `is_more` and `due` may also be so in vain."""
        tables, worker = self.tables, arguments[0]
        boxes = tables.mailboxes.all.values()
        ready = {box.queue for box in boxes if box.state == READY and tables.slots.get(box.slot).owner == worker}
        more = bool(ready - {SUSPECTS} if tables.mailboxes.runs_suspect(worker) else ready)
        is_open = not tables.numbers.is_paused and not tables.numbers.is_shut
        parked = [box.since + self.settings.unknown for box in boxes if box.state == PARKED]
        parked = [due for due in parked if due > self.now]  # else the dead letters were full, and it is tried later
        retries = [box.since for box in boxes if box.state == RETRY]
        due = retries + [one.due for one in tables.delayed.rows.values()] + parked
        return answer._replace(is_more=more and is_open and not answer.is_gone, due=min(due, default=0))

    def read(self) -> None:
        """Compare all readings."""
        self.now += 1
        tables, now = self.tables, self.now
        ids = [job for _, job in self.jobs]
        readings: list[tuple[str, Any, Callable[[Store], Any]]] = [
            ("beat", self.rules.beat(now), lambda store: store.ask(about.Members())),
            ("slots", list(tables.slots.rows), lambda store: store.ask(about.Slots())),
            ("owners", _reads.owners(tables)[1], lambda store: list(store.ask(about.Owners())[1])),
            ("keys", _reads.keys(tables, now, "j"), lambda store: _all(store, about.Keys("j", limit=2), _mailbox)),
            ("residents", _reads.keys(tables, now, "r"), lambda store: _all(store, about.Keys("r", limit=1), _mailbox)),
            (
                "key",
                [_reads.key(tables, f"j:{key}") for key in KEYS],
                lambda store: [store.ask(about.Key(slot_of(key), f"j:{key}")) for key in KEYS],
            ),
            (
                "jobs",
                _raws([_reads.jobs(tables, f"j:{key}", 1, 3) for key in KEYS]),
                lambda store: _raws(store.ask(about.Jobs(tuple((f"j:{key}", 1, 3) for key in KEYS)))),
            ),
            ("delayed", _reads.delayed(tables, now), lambda store: _all(store, about.DelayedJobs(limit=2), _body)),
            ("pauses", _reads.paused(tables, now), lambda store: _all(store, about.Pauses(limit=2), _key)),
            ("acts", list(tables.acts.rows), lambda store: store.ask(about.Acts(1000))),
            (
                "dead letters",
                _by_job(_reads.dead_letters(tables, now)),
                lambda store: _by_job(_all(store, about.DeadLetters(limit=2), _number)),
            ),
            (
                "dead letters of a key",
                [_by_job(_reads.dead_letters(tables, now, key=key)) for key in KEYS],
                lambda store: [_by_job(_all(store, about.DeadLetters(limit=1, key=key), _number)) for key in KEYS],
            ),
            ("counts", _reads.counts(tables, now), lambda store: store.ask(about.Counts())),
            ("outcomes", _reads.outcomes(tables, now, ids), lambda store: list(store.ask(about.Outcomes(tuple(ids))))),
            (
                "where",
                [_reads.where(tables, slot_of(key), f"j:{key}", job) for key, job in self.jobs],
                lambda store: [store.ask(about.Where(slot_of(key), f"j:{key}", job)) for key, job in self.jobs],
            ),
        ]
        for side in self.sides:
            for what, wanted, read in readings:
                side.compare(what, wanted, read(side.store))

    # -- moves --------------------------------------------------------------------------------------------------------

    def play(self, moves: Iterable[Move]) -> None:
        """Play a script, compare all that can be read, and see that everything can end."""
        for number, move in enumerate(moves):
            ACTIONS[move[0] % len(ACTIONS)](self, *move[1:])
            if number % 10 == 9:
                self.read()
        self.read()
        finish(clone(self.rules), self.now)

    def worker(self, number: int) -> Worker:
        if not self.workers:
            self.join(0, 1, 0)
        return self.workers[number % len(self.workers)]

    def dispatch(self, key: int, many: int, odd: int) -> None:
        orders = []
        for _ in range(1 + many % 3):
            name = KEYS[(key + _ * (odd % 2)) % len(KEYS)]
            orders.append(self._order(name, NAMES[odd % 7 == 6]))
        self._send(orders)

    def special(self, key: int, what: int, more: int) -> None:
        name = KEYS[key % len(KEYS)]
        job = f"u{more % 3}" if what % 9 in (0, 1) else f"s{next(self.numbers)}"
        special = (
            OrderOptions(job, "job", unique_for=35 * SECOND),
            OrderOptions(job, "job", delay=15 * SECOND),
            OrderOptions(job, "job", delay=(5 + 10 * (more % 4)) * SECOND),
            OrderOptions(job, "job", delay=5 * SECOND),
            OrderOptions(job, "job", at=self.now + 28 * SECOND),  # never at the time of a delay: clocks drift meanwhile
            OrderOptions(job, "job", on_busy="reject"),
            OrderOptions(job, "job", on_busy="coalesce"),
            OrderOptions(job, "job", on_busy="replace"),
            OrderOptions(job, "odd", on_busy="replace", delay=15 * SECOND * (more % 2)),
        )[what % 9]
        is_known = special.unique_for and self.tables.unique.get(self.latest + MOST, job)
        if job[0] == "u" and not is_known and jobs_in(self.tables).get(job, "delayed") != "delayed":
            return  # two jobs of one id would be there at once, which is the caller's fault
        self.jobs.append((name, job))
        keep = KEEP if more % 3 else 0
        body = encode(Envelope(job, special.name, "producer", keep, b"special"))
        orders = [Order(slot_of(name), f"j:{name}", body, special)]
        if more % 5 == 4:
            orders.append(self._order(name, "job"))
        self._send(orders)

    def _order(self, key: str, name: str) -> Order:
        job = f"j{next(self.numbers)}"
        self.jobs.append((key, job))
        body = encode(Envelope(job, name, "producer", KEEP, job.encode()))
        return Order(slot_of(key), f"j:{key}", body)

    def _hand(self, worker: str, before: int, signal: Signal) -> bool:
        if self.hands_over:
            self.handed.append((worker, signal))
        return self.hands_over

    def _send(self, orders: list[Order]) -> None:
        batch = Batch(f"producer-{len(orders) % 2}", next(self.numbers))
        self.handed.clear()
        self.call("dispatch", batch, orders)
        self.calls.append((self.now, Verb("dispatch", (batch, orders))))
        if self.handed:
            self.read()  # so that their tokens are known
        for name, signal in self.handed:
            for worker in [one for one in self.workers if one.id == name and signal.number % 3]:  # else it is lost
                worker.hear(signal)

    def again(self, which: int, _a: int, _b: int) -> None:
        """Send something again that was sent before."""
        if self.calls:
            then, verb = self.calls[which % len(self.calls)]
            if verb.name != "dispatch" or self.latest < then + BATCH_RETENTION - SLACK:
                self.call(verb.name, *verb.arguments)

    def take(self, who: int, want: int, odd: int) -> None:
        worker = self.worker(who)
        settles = self._some(worker, odd)
        self._work(worker, settles, (50, 50, 0)[want % 3], 1 + odd % 3, is_lost=odd % 11 == 10)

    def settle(self, who: int, which: int, how: int) -> None:
        worker = self.worker(who)
        if not worker.takes:
            self._work(worker, [], 50, 1 + how % 3)
            return
        take = worker.takes[which % len(worker.takes)]
        settles = [self._settled(take, how)]
        if which % 4 == 3:
            settles += [self._settled(other, how // 3) for other in worker.takes if other is not take]
        self._work(worker, settles, 50 * (how % 2), 2)

    def late(self, who: int, which: int, odd: int) -> None:
        """Report something old, or wrong."""
        worker = self.worker(who)
        settles = [self.old[(which + step) % len(self.old)] for step in range(min(len(self.old), 1 + odd % 3))]
        settles += [self._settled(take, odd)._replace(token=1) for take in worker.takes[:1]]
        self._work(worker, settles, 0, 1)

    def _some(self, worker: Worker, odd: int) -> list[Report]:
        return [self._settled(take, odd) for take in worker.takes[: odd % 2]]

    def _settled(self, take: Take, how: int) -> Report:
        done = (how // 5) % (len(take.jobs) + 1)
        word = ("end", "keep", "retry", "to_dead_letters", "park")[how % 5]
        some = [opened(raw) for raw in take.jobs[: done + (word == "to_dead_letters")]]
        outcomes = tuple(
            Outcome(one.id, "done" if number < done else "dead", b"data", one.keep, one.reply)
            for number, one in enumerate(some)
        )
        name = opened(take.jobs[min(done, len(take.jobs) - 1)]).name
        notes = take.notes[-1][0] if take.notes and how % 2 else 0
        if how % 17 == 16:
            done += 3  # more than was taken
        delay = (5 + 10 * (how % 3)) * SECOND
        reason = name.encode() if word == "park" else b"broken"
        return Report(take.slot, take.mailbox, take.token, done, word, delay, 1 + how % 4, reason, outcomes, notes)

    def _work(self, worker: Worker, settles: list[Report], want: int, per: int, *, is_lost: bool = False) -> None:
        worker.calls += 1
        if worker.signals:
            worker.heard = worker.signals[len(worker.signals) // 2]
        spare = (0, 1, 3)[worker.calls % 3]
        arguments = (worker.id, worker.calls, tuple(settles), want, per, want, worker.heard, spare)
        answer: Work = self.call("work", *arguments)
        self.calls.append((self.now, Verb("work", arguments)))
        self.old += settles
        over = {(one.mailbox, one.token) for one in settles if one.how != "keep"}
        worker.takes = [take for take in worker.takes if (take.mailbox, take.token) not in over]
        worker.signals = [signal.number for signal in answer.signals]
        if not is_lost:
            worker.takes += answer.takes
            for signal in answer.signals:
                worker.hear(signal)

    def join(self, own: int, names: int, _: int) -> None:
        if len(self.workers) >= 4:
            self.workers.pop(0)  # it is never heard of again
        worker = Worker(f"w{next(self.numbers)}")
        for side in self.sides:
            side.listen(worker.id)
        self.call("join", Joiner(worker.id, "host", 1 + own % 2, 10, NAMES if names % 4 else ("job",)))
        self.workers.append(worker)
        if own % 3:
            self.call("claim", worker.id, tuple(range(SLOTS)), {}, None, 0, 0)

    def renew(self, who: int, leaving: int, _: int) -> None:
        worker = self.worker(who)
        beat: PoolState | None = self.call("renew", worker.id, leaving % 8 == 7)
        if beat is None:
            self.workers.remove(worker)

    def leave(self, who: int, really: int, _: int) -> None:
        worker = self.worker(who)
        if really % 3 == 0:
            self.call("leave", worker.id)
            self.workers.remove(worker)
            self.calls.append((self.now, Verb("leave", (worker.id,))))

    def give(self, who: int, slot: int, to: int) -> None:
        worker, taker = self.worker(who), self.worker(to).id if to % 5 else ""
        moves = [(slot % SLOTS, taker)] + [((slot + 1) % SLOTS, taker)] * (to % 2)
        self.call("give", worker.id, moves, "share")
        self.calls.append((self.now, Verb("give", (worker.id, moves, "share"))))

    def look(self, _a: int, _b: int, _c: int) -> None:
        """Note the ends of leases, as everybody would."""
        self.seen.append({one.id: one.lease_end for one in self.call("beat").members})

    def claim(self, who: int, seen: int, known: int) -> None:
        worker = self.worker(who)
        dead = self.seen[-1 - seen % min(3, len(self.seen))]
        tokens = tuple(sorted({take.token for take in worker.takes})) if known % 2 else None
        slots = tuple(range(SLOTS)) if known % 3 else (known % SLOTS,)
        arguments = (worker.id, slots, {one: end for one, end in dead.items() if one != worker.id}, tokens)
        call = max(0, worker.calls - (known % 5 == 4))  # or late
        self.call("claim", *arguments, call, worker.heard)
        self.calls.append((self.now, Verb("claim", (*arguments, call, worker.heard))))

    def pass_time(self, steps: int, back: int, _: int) -> None:
        many = (1, 1, 2, 3, 7, 13)[steps % 6] * STEP
        # What was over is not again when a clock goes back, or is: stores may differ, so that they are not compared.
        self.skip(-many if back % 12 == 11 and not self.sides else many)

    def skip(self, microseconds: int) -> None:
        self.now += microseconds
        self.latest = max(self.latest, self.now)
        for side in self.sides:
            side.store.skew += microseconds

    def die(self, who: int, heir: int, _: int) -> None:
        """End all leases, and bury the others for one worker, as it would."""
        self.worker(who)
        survivor = self.workers[heir % len(self.workers)]
        self.look(0, 0, 0)
        self.skip(3 * STEP)
        if self.call("renew", survivor.id, False) is None:
            return
        spared = {one.id for one in self.workers[: who % 2]}
        for one in [each.id for each in self.workers if who % 3]:
            if one != survivor.id and one not in spared:
                self.call("apply", do.Gone(one))
        for other in spared:
            self.call("renew", other, False)
        self.claim(heir % len(self.workers), 0, 1)

    def resident(self, key: int, what: int, payload: int) -> None:
        name = KEYS[key % 2]
        slot, mailbox = slot_of(name), f"r:watch:{name}"
        body = encode(Envelope(f"r{next(self.numbers)}", "watch", "", 0, b"%d" % (payload % 2)))
        number = b"%d" % next(self.numbers)
        commands = (do.Start(slot, mailbox, body), do.Stop(slot, mailbox), do.Notify(slot, mailbox, number))
        self.call("apply", commands[(0, 0, 1, 2, 2)[what % 5]])

    def command(self, what: int, key: int, more: int) -> None:
        name = KEYS[key % len(KEYS)]
        slot, mailbox = slot_of(name), f"j:{name}"
        if what % 8 < 3:
            if not self.jobs:
                return
            name, job = self.jobs[-1 - more % min(9, len(self.jobs))]
            self.call("apply", do.Cancel(slot_of(name), f"j:{name}", job))
            return
        letters = tuple(self.tables.dead.rows)[: 1 + more % 3]
        if letters:
            self.read()  # so that their numbers are known
        command = (
            do.Purge(slot, mailbox),
            do.Pause(slot, name, "somebody", f"because {more}") if more % 5 else do.Pause(),
            do.Resume(slot, name) if more % 3 else do.Resume(),
            do.Replay((99, *letters)) if more % 2 else do.Drop(letters),
            self._configure(more) if more % 3 == 1 else do.Resume() if more % 4 else do.Shut(),
            do.Retry(slot, mailbox),
            do.Log("ann", "cancel", name, f"reason {more}"),
        )[what % 10 - 3]
        self.call("apply", command)

    def _configure(self, more: int) -> do.Configure:
        now = self.tables.settings
        changes = {
            "max_jobs": (0, 5, 9)[more % 3],
            "max_per_key": (0, 2, 4)[more // 3 % 3],
            "max_dead": more // 9 % 3,
            "max_losses": 1 + more // 5 % 3,
            "drain": now.drain + SECOND if more % 7 == 0 else now.drain,
        }
        return do.Configure(tuple(changes.items()))


def _all(store: Store, question: Any, order: Callable[[Any], Any]) -> list[Any]:
    """Return all that there is, page by page, in an order that does not depend on the store."""
    found: list[Any] = []
    while True:
        page = store.ask(question)
        if len(page) > question.limit or len(page.marks) != len(page):
            raise Differs(f"{question} was answered with {len(page)} items and {len(page.marks)} marks")
        found += page
        if not page.next:
            return sorted(found, key=order)
        question = replace(question, after=page.next)


def _mailbox(view: KeyView) -> str:
    return view.mailbox


def _body(one: Delayed) -> str:
    return opened(b"0" * STAMP + one.body).id


def _key(one: Paused) -> str:
    return one.key


def _number(letter: DeadLetter) -> int:
    return letter.number


def _raws(found: Sequence[Sequence[bytes] | None]) -> list[list[bytes]]:
    """Return jobs without the times at which they came."""
    return [[bytes(raw[STAMP:]) for raw in jobs or ()] for jobs in found]


def _by_job(letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Sort dead letters by their jobs: those that one verb adds are in no order."""
    return sorted(letters, key=lambda letter: bytes(letter.job[STAMP:]))


def slot_of(key: str) -> int:
    """Return the slot of a key: two keys share one."""
    return (0, 0, 1, 2)[KEYS.index(key)]


_WEIGHTS: tuple[tuple[Callable[..., None], int], ...] = (
    (Stage.dispatch, 6),
    (Stage.special, 5),
    (Stage.again, 2),
    (Stage.take, 6),
    (Stage.settle, 9),
    (Stage.late, 2),
    (Stage.join, 2),
    (Stage.renew, 3),
    (Stage.leave, 1),
    (Stage.give, 2),
    (Stage.look, 1),
    (Stage.claim, 3),
    (Stage.pass_time, 4),
    (Stage.die, 2),
    (Stage.resident, 5),
    (Stage.command, 6),
)
ACTIONS = tuple(action for action, weight in _WEIGHTS for _ in range(weight))


def moves_of(seed: int, length: int) -> list[Move]:
    """Return the script of a seed."""
    source = random.Random(seed)
    return [tuple(source.randrange(MOST) for _ in range(4)) for _ in range(length)]  # type: ignore[misc]


def run(moves: Iterable[Move], settings: Settings, stores: dict[str, Store] | None = None) -> Stage:
    """Play a script on a fresh stage."""
    stage = Stage(settings, stores)
    stage.play(moves)
    return stage
