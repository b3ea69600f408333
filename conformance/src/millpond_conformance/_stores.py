# ruff: noqa: D401  (a check says what is so, not what to do)
"""What every store of keyed pools owes, as plain functions that any store can be put to.

A store is described by a `StoreBench`: how to make one for a fresh pool and, where it can be shared, how to make
another object of the same pool, as another process would. Every check takes a fresh bench, uses it and leaves it to be
closed by the caller:

    for check in STORE_CHECKS:
        with closing(StoreBench(lambda: open(url, pool), lambda: open(url, pool))) as bench:
            check(bench)

or `check_store(make_bench)` for all of them. A check raises AssertionError with a sentence that says what is owed.
Checks named `verb_…` are about one verb, `k1_…` to `k7_…` about the promises of DESIGN.md, `hole_1_…` to `hole_18_…`
about what a hostile reading of them found. Time is moved by `store.skew`. After every verb the invariants of
`keyed.rules.mailboxes` are looked at: from inside where the store keeps its tables in memory, else as far as its
readings tell.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from millpond.keyed.rules import placement
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.commands import (
    Cancel,
    Configure,
    Drop,
    Gone,
    Notify,
    Pause,
    Purge,
    Replay,
    Resume,
    Shut,
    Start,
    Stop,
)
from millpond.keyed.rules.envelope import Envelope, encode, opened
from millpond.keyed.rules.records import (
    BATCH_RETENTION,
    DEAD_RETRY,
    DUE_PER_CALL,
    HANDED,
    HANDED_BYTES,
    SECOND,
    STAMP,
    TAKE_BYTES,
    Batch,
    Claimed,
    Joiner,
    KeyView,
    Order,
    OrderOptions,
    Outcome,
    PoolState,
    Report,
    Settings,
    Signal,
    Take,
    Verdicts,
    Work,
    key_of,
)
from millpond.keyed.rules.tables import PARKED, PAUSED, READY, RUNNING, STATES, SUSPECTS
from millpond.keyed.stores.base import PoolGone, Store, Subscription
from millpond.keyed.stores.memory import MemoryTables
from millpond.keyed.stores.memory._mailboxes import MemoryMailbox, MemoryMailboxes
from millpond_conformance._verbs import Verbs

PATIENCE: Final = 60.0
"""Seconds after which something that should come is taken for lost."""
SLOTS: Final = 8
LEASE: Final = 60 * SECOND
DRAIN: Final = 300 * SECOND
UNKNOWN: Final = 3600 * SECOND
KEEP: Final = 600 * SECOND
NAME: Final = "job"
_VERBS: Final = frozenset(("dispatch", "apply", "join", "renew", "leave", "give", "claim", "work"))


# --- invariants ------------------------------------------------------------------------------------------------------


def check_tables(tables: MemoryTables) -> None:
    """Look at the tables from inside: I1, I2, and that nothing is left of what is gone."""
    boxes = tables.mailboxes
    _check_places(boxes)
    for (lane, slot), place in boxes.ready_in.items():
        owner = tables.slots.get(slot).owner
        active = tables.active.of.get((lane, owner))
        is_known = owner not in tables.members or (active is not None and slot in active)
        assert is_known, f"I2: {owner} does not know of {slot}, with {list(place)}"
    for _, worker in tables.active.of:
        assert worker in tables.members, f"{worker} is gone, but its active slots are not"
    for box in boxes.all.values():
        left = box.taken - box.done
        assert box.state != RUNNING or 0 < left <= box.depth, f"I4: a take of {left} jobs of {box.name} is not there"
        assert box.state != PAUSED or key_of(box.name) in tables.pauses, f"{box.name} waits as if paused"
    jobs = sum(box.depth for box in boxes.all.values() if box.lane == "j")
    assert tables.numbers.jobs == jobs, f"jobs are {jobs}, counted were {tables.numbers.jobs}"
    assert tables.numbers.delayed == len(tables.delayed.rows), "the count of delayed jobs is off"
    assert tables.numbers.dead == len(tables.dead.rows), "the count of dead letters is off"
    ids = {opened(raw).id for box in boxes.all.values() for raw in box.jobs}
    assert tables.cancelled <= ids, f"the cancelled {tables.cancelled - ids} are not there any more"
    left_over = set(tables.messages.rows) - set(boxes.all)
    assert not left_over, f"messages are left of {left_over}"
    assert set(tables.signals.rows) <= set(tables.members), "signals are kept for others than members"


def _check_places(boxes: MemoryMailboxes) -> None:
    """I1: every mailbox that is not empty stands in one place, once, as it says; an empty one nowhere."""
    standing: list[tuple[tuple[int, object], MemoryMailbox]] = []
    places: Mapping[Any, Mapping[str, MemoryMailbox]]
    for state, places in (
        (READY, boxes.ready_in),
        (RUNNING, boxes.running_in),
        (PARKED, boxes.parked_for),
        (PAUSED, boxes.paused_of),
    ):
        for key, place in places.items():
            assert place, "an empty place is kept"
            standing += [((state, key), box) for box in place.values()]
    for here, box in standing:
        there: dict[int, object]
        there = {READY: (box.queue, box.slot), RUNNING: box.slot, PARKED: (box.lane, box.unknown)}
        there[PAUSED] = key_of(box.name)
        assert boxes.all.get(box.name) is box, f"I1: {box.name} stands at {here} and is empty, or another"
        assert here == (box.state, there.get(box.state)), f"I1: {box.name} stands at {here}, and says {box.state}"
    names = Counter(box.name for _, box in standing)
    for box in boxes.all.values():
        assert box.depth == len(box.jobs) > 0, f"I1: {box.name} has {len(box.jobs)} jobs and says {box.depth}"
        assert box.state in range(len(STATES)), f"I1: {box.name} stands nowhere"
        is_listed = box.state in (READY, RUNNING, PARKED, PAUSED)
        assert names[box.name] == is_listed, f"I1: {box.name} stands in {names[box.name]} places"
    lanes = Counter(box.lane for box in boxes.all.values())
    assert boxes.counts == {"j": lanes["j"], "r": lanes["r"]}, f"{lanes} are there, {boxes.counts} were counted"
    suspects = Counter(box.worker for _, box in standing if box.state == RUNNING and box.queue == SUSPECTS)
    assert boxes.suspects == suspects, f"{suspects} run suspects, {boxes.suspects} were counted"
    assert all(count == 1 for count in suspects.values()), f"somebody runs several suspects: {suspects}"
    borrowed = {box.name for _, box in standing if box.state == RUNNING and box.is_borrowed}
    assert set(boxes.borrowed_by_name) == borrowed, f"{set(boxes.borrowed_by_name) ^ borrowed} are borrowed, or not"


def check_readings(store: Verbs) -> None:
    """Look at a store from outside, while nobody else uses it: its readings agree with one another."""
    keys, residents = store.ask(about.Keys("j")), store.ask(about.Keys("r"))
    counts, slots = store.ask(about.Counts()), store.ask(about.Slots())
    views = [*keys, *residents]
    running = [view for view in views if view.state == "running"]
    seen = [*store.ask(about.Keys("j", is_running=True)), *store.ask(about.Keys("r", is_running=True))]
    assert sorted(seen) == sorted(running), f"{running} run, {seen} are said to"
    names = [view.mailbox for view in views]
    assert len(names) == len(set(names)), f"I1: a mailbox is seen twice in {sorted(names)}"
    for view in views:
        assert view.depth > 0 and view.state in STATES, f"I1: {view}"
        assert (view.token > 0) == (view.state == "running"), f"a token belongs to a run: {view}"
        assert view.state == "running" or view.worker == slots[view.slot].owner, f"whose is it: {view}"
    assert all(view.mailbox[0] == "j" for view in keys) and all(view.mailbox[0] == "r" for view in residents)
    assert counts.jobs == sum(view.depth for view in keys), f"jobs are {counts.jobs}, keys tell {keys}"
    states = Counter(view.state for view in keys)
    assert (counts.keys_ready, counts.keys_running) == (states["ready"], states["running"]), f"{counts}, {states}"
    assert counts.oldest == min((view.oldest for view in keys if view.state == "ready"), default=0), "oldest is off"
    assert counts.residents == len(residents), f"residents are {counts.residents}, keys tell {residents}"
    assert counts.dead == len(store.ask(about.DeadLetters())), "dead letters do not agree with counts"
    numbers = [letter.number for letter in store.ask(about.DeadLetters())]
    assert numbers == sorted(set(numbers)), f"dead letters are not in order: {numbers}"
    backwards = [letter.number for letter in store.ask(about.DeadLetters(is_newest_first=True))]
    assert backwards == numbers[::-1], f"dead letters are not in reverse order: {backwards}"
    assert all(view.last for view in residents), f"a resident has no job: {residents}"
    version, owners = store.ask(about.Owners())
    assert owners == [slot.owner for slot in slots], "owners() and slots() differ"
    assert version == store.ask(about.Members()).version, "owners() and beat() differ in version"


def jobs_in(tables: MemoryTables) -> dict[str, str]:
    """Return where every job is: its id, and the mailbox, `delayed` or `dead`."""
    found = {opened(raw).id: box.name for box in tables.mailboxes.all.values() for raw in box.jobs}
    found.update(dict.fromkeys(tables.delayed.rows, "delayed"))
    found.update((opened(letter.job).id, "dead") for letter in tables.dead.rows.values())
    return found


def check_removals(
    verb: str, arguments: Sequence[Any], before: dict[str, str], after: dict[str, str], cancelled: Iterable[str]
) -> None:
    """I4: only a settle that names a running take, or a recorded command, removes a job."""
    gone = set(before) - set(after)
    if not gone or verb == "apply":
        return
    if verb == "work":
        settled = {one.mailbox for one in arguments[2]}
        gone = {job for job in gone if before[job] not in settled} - set(cancelled)
    elif verb == "dispatch":
        swaps = {order.mailbox for order in arguments[1] if order.options and order.options.on_busy == "replace"}
        gone = {job for job in gone if before[job] not in swaps}
    assert not gone, f"I4: {verb} removed {gone}"


class _Watched:
    """A store that is looked at after every verb."""

    def __init__(self, store: Verbs) -> None:
        self.__dict__["_inner"] = store

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["_inner"], name)
        if name not in _VERBS:
            return value

        def verb(*args: Any, **named: Any) -> Any:
            tables = getattr(self._inner, "tables", None)
            if not isinstance(tables, MemoryTables):
                answer = value(*args, **named)
                check_readings(self._inner)
                return answer
            before, cancelled = jobs_in(tables), set(tables.cancelled)
            answer = value(*args, **named)
            check_tables(tables)
            check_removals(name, args, before, jobs_in(tables), cancelled)
            check_readings(self._inner)
            return answer

        return verb


# --- the bench -------------------------------------------------------------------------------------------------------


class StoreBench:
    """One store under test: `store` and, where it can be shared, `other`, another object of the same pool."""

    def __init__(self, first: Callable[[], Store], second: Callable[[], Store] | None = None) -> None:
        self.make = second or first
        self.bare = Verbs(first())
        self.store = cast(Verbs, _Watched(self.bare))
        self.is_shared = second is not None
        self.bare_other = Verbs(second()) if second is not None else self.bare
        self.other = cast(Verbs, _Watched(self.bare_other)) if second is not None else self.store
        self.settings = Settings()
        self.subscriptions: list[Subscription] = []
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Close what is open."""
        for subscription in self.subscriptions:
            subscription.close()
        self.bare.close()
        if self.is_shared:
            self.bare_other.close()

    def open(self, **settings: Any) -> StoreBench:
        """Make the pool, small, with slow clocks, and these settings."""
        base = Settings(slots=SLOTS, lease=LEASE, drain=DRAIN, unknown=UNKNOWN)
        self.settings = base._replace(**settings)
        for store in (self.store, self.other):
            assert store.open(self.settings).settings == self.settings, "a pool is not made as it was asked for"
        return self

    def skip(self, microseconds: int) -> None:
        """Advance the time."""
        self.bare.skew += microseconds
        if self.is_shared:
            self.bare_other.skew += microseconds

    def number(self) -> int:
        """Return a number that was not used yet."""
        return next(self._numbers)

    def slot(self, key: str) -> int:
        """Return the slot of a key."""
        return placement.slot_of(key, self.settings.slots)

    def neighbours(self, count: int, slot: int = 0) -> list[str]:
        """Return keys that share a slot."""
        names = (f"n{number}" for number in itertools.count())
        return list(itertools.islice((name for name in names if self.slot(name) == slot), count))

    def order(self, key: str, job: str, *, name: str = NAME, keep: int = KEEP, **special: Any) -> Order:
        """Return a job for a key."""
        body = encode(Envelope(job, name, "producer", keep, special.pop("payload", b"")))
        extra = OrderOptions(job, name, **special) if special else None
        return Order(self.slot(key), f"j:{key}", body, extra)

    def send(self, *orders: Order, batch: str = "") -> Verdicts:
        """Dispatch orders in one batch."""
        return dict(self.store.dispatch(Batch(batch or f"batch-{self.number()}", 1), orders))

    def put(self, key: str, *ids: str, **options: Any) -> Verdicts:
        """Dispatch jobs for a key, in one batch."""
        return self.send(*(self.order(key, job, **options) for job in ids))

    def hand(self, name: str, *, store: Verbs | None = None, own: bool = True, **joiner: Any) -> Hand:
        """Join as a worker and, with `own`, claim all slots that are free."""
        store = store or (self.store if name == "a" else self.other)
        hand = Hand(self, store, Joiner(name, f"host:{name}", **{"names": (NAME, "watch"), **joiner}))
        if own:
            hand.claim()
        return hand

    def ends(self) -> dict[str, int]:
        """Return when each lease ends."""
        return {member.id: member.lease_end for member in self.store.ask(about.Members()).members}

    def recover(self, survivor: Hand, *dead: Hand, is_proven: bool = True) -> Claimed:
        """End the leases of some, and take over for a survivor all that they had."""
        ends = self.ends()
        for one in dead if is_proven else ():
            assert self.store.apply(Gone(one.id)) == "noted"
        self.skip(self.settings.lease + 1)
        survivor.renew()
        return survivor.claim(dead={one.id: ends[one.id] for one in dead})

    def take_is_empty(self, hand: Hand) -> bool:
        """Return whether there is nothing for a worker, running or ready."""
        work = hand.work()
        return not work.takes and not work.signals

    def view(self, mailbox: str) -> KeyView | None:
        """Return how a mailbox stands."""
        return next((view for view in self.store.ask(about.Keys(mailbox[0])) if view.mailbox == mailbox), None)

    def state(self, mailbox: str) -> str:
        """Return where a mailbox stands."""
        view = self.view(mailbox)
        return view.state if view is not None else ""

    def where(self, key: str, job: str) -> str:
        """Return where a job is."""
        return self.store.ask(about.Where(self.slot(key), f"j:{key}", job))

    def outcome(self, job: str) -> str:
        """Return how a job ended."""
        (found,) = self.store.ask(about.Outcomes((job,)))
        return found[0] if found is not None else ""

    def cancel(self, key: str, job: str) -> str:
        """Take a job back."""
        return self.store.apply(Cancel(self.slot(key), f"j:{key}", job))

    def purge(self, key: str) -> str:
        """Drop what waits for a key."""
        return self.store.apply(Purge(self.slot(key), f"j:{key}"))

    def start(self, key: str, payload: bytes = b"", name: str = "watch") -> str:
        """Start a resident."""
        body = encode(Envelope(f"resident-{self.number()}", name, "", 0, payload))
        return self.store.apply(Start(self.slot(key), f"r:{name}:{key}", body))

    def stop(self, key: str, name: str = "watch") -> str:
        """Stop a resident."""
        return self.store.apply(Stop(self.slot(key), f"r:{name}:{key}"))

    def notify(self, key: str, data: bytes, name: str = "watch") -> str:
        """Send a resident a message."""
        return self.store.apply(Notify(self.slot(key), f"r:{name}:{key}", data))

    def until(self, question: Callable[[], bool], owed: str) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + PATIENCE
        while not question():
            assert time.monotonic() < deadline, f"{owed}: not so after {PATIENCE:g} s"
            time.sleep(0.002)


class Hand:
    """A worker that does exactly what it is told."""

    def __init__(self, bench: StoreBench, store: Verbs, joiner: Joiner) -> None:
        self.bench, self.store, self.id, self.calls = bench, store, joiner.id, 0
        self.beat: PoolState = store.join(joiner)

    def claim(self, slots: Iterable[int] | None = None, dead: dict[str, int] | None = None, **more: Any) -> Claimed:
        """Claim slots, all when none are named."""
        slots = list(range(self.bench.settings.slots)) if slots is None else list(slots)
        return self.store.claim(self.id, slots, dead or {}, **more)

    def renew(self, *, leaving: bool = False) -> PoolState | None:
        """Prolong the lease."""
        return self.store.renew(self.id, leaving=leaving)

    def work(
        self,
        *settles: Report,
        want: int = 50,
        per: int = 50,
        residents: int = 0,
        heard: int = 0,
        spare: int = 0,
    ) -> Work:
        """Report and take."""
        self.calls += 1
        return self.store.work(self.id, self.calls, settles, want, per, residents, heard, spare)

    def take(self, want: int = 50, per: int = 50, residents: int = 0) -> dict[str, Take]:
        """Take, by mailbox."""
        return {take.mailbox: take for take in self.work(want=want, per=per, residents=residents).takes}

    def one(self, key: str, per: int = 50) -> Take:
        """Take a key, and nothing else must be there to take."""
        takes = self.take(per=per)
        assert list(takes) == [f"j:{key}"], f"{self.id} should get {key}, got {list(takes)}"
        return takes[f"j:{key}"]

    def listen(self) -> list[tuple[int, Signal]]:
        """Listen, and return what is handed over from now on. Returns when hints arrive."""
        handed: list[tuple[int, Signal]] = []
        self.bench.subscriptions.append(self.store.listen(self.id, lambda: None, lambda *one: handed.append(one)))
        heard, job = 0, ""
        deadline = time.monotonic() + PATIENCE
        while not any(opened(signal.data).id == job for _, signal in list(handed)):  # then none is on its way any more
            assert time.monotonic() < deadline, "a worker that listens is never handed anything"
            self.work(heard=heard, spare=1)
            job = f"warm-{self.bench.number()}"
            self.bench.put("warm", job)
            work = self.work(heard=heard)
            takes = [*work.takes, *(taken(one) for one in work.signals)]
            heard = max((one.number for one in work.signals), default=heard)
            self.work(*(end(take) for take in takes), heard=heard, want=0)
            time.sleep(0.01)
        handed.clear()
        return handed

    def settle(self, *settles: Report) -> Work:
        """Report and take nothing."""
        return self.work(*settles, want=0)


def taken(signal: Signal) -> Take:
    """Return the take that a signal tells of."""
    return Take(signal.slot, signal.mailbox, signal.note, (signal.data,))


def end(take: Take, done: int | None = None, how: str = "end", **more: Any) -> Report:
    """Return what a worker says of a take that it has run, with the outcomes of the jobs that are done."""
    done = len(take.jobs) if done is None else done
    if take.mailbox[0] == "j" and "outcomes" not in more:
        some = [opened(raw) for raw in take.jobs[:done]]
        more["outcomes"] = tuple(Outcome(one.id, "done", b"", one.keep, one.reply) for one in some)
    return Report(take.slot, take.mailbox, take.token, done, how, **more)


def ids(take: Take) -> list[str]:
    """Return the jobs of a take."""
    return [opened(raw).id for raw in take.jobs]


def snapshot(store: Verbs) -> tuple[Any, ...]:
    """Return all that a store tells of its pool, but not the time."""
    return (
        store.ask(about.Members())._replace(now=0),
        store.ask(about.Slots()),
        store.ask(about.Keys("j")),
        store.ask(about.Keys("r")),
        store.ask(about.DeadLetters()),
        store.ask(about.Counts())._replace(now=0),
    )


@contextlib.contextmanager
def unchanged(bench: StoreBench, owed: str) -> Iterator[None]:
    """See that nothing changes."""
    before = snapshot(bench.store)
    yield
    after = snapshot(bench.store)
    assert before == after, f"{owed}: {before} became {after}"


# --- the verbs -------------------------------------------------------------------------------------------------------


def verb_open_finds_what_was_made(bench: StoreBench) -> None:
    """The settings of a pool are those that it was made with, whoever opens it."""
    first = bench.bare.open(Settings(slots=16, max_jobs=7, placement="jump", max_losses=2))
    again = bench.bare_other.open(Settings(slots=4))
    assert first.incarnation and again == first, f"the pool was made as {first}, and found as {again}"
    assert bench.store.ask(about.Members()).incarnation == first.incarnation
    assert len(bench.store.ask(about.Slots())) == 16
    check_readings(bench.store)
    counts = bench.store.ask(about.Counts())
    assert counts[1:-2] == (0,) * len(counts[1:-2]) and not counts.is_paused and not counts.is_shut


def verb_drop_forgets_the_pool(bench: StoreBench) -> None:
    """After `drop` everybody is told `PoolGone`, and a pool that is opened again is another."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1")
    take = a.one("k")
    was = bench.store.open(bench.settings).incarnation
    bench.bare.drop()
    calls: list[Callable[[Verbs], object]] = [
        lambda store: store.dispatch(Batch("x", 1), [bench.order("k", "2")]),
        lambda store: store.apply(Pause()),
        lambda store: store.renew("a"),
        lambda store: store.join(Joiner("b", "b")),
        lambda store: store.work("a", 9, [end(take)], 1, 1),
        lambda store: store.claim("a", [0], {}),
        lambda store: store.give("a", [(0, "")], "why"),
        lambda store: store.leave("a"),
        lambda store: store.ask(about.Members()),
        lambda store: store.ask(about.Owners()),
        lambda store: store.ask(about.Counts()),
        lambda store: store.ask(about.Keys()),
    ]
    for number, call in enumerate(calls):
        for store in (bench.bare, bench.bare_other):
            try:
                answer = call(store)
            except PoolGone:
                continue
            raise AssertionError(f"call {number} on a pool that was dropped answered {answer!r}")
    again = bench.bare.open(bench.settings)
    assert again.incarnation != was, "a pool that was made anew has the old incarnation"
    assert bench.store.renew("a") is None and not bench.store.ask(about.Keys())
    assert not bench.store.ask(about.Members()).members
    assert a.work(end(take)).is_gone
    check_readings(bench.store)


def verb_close_leaves_the_pool(bench: StoreBench) -> None:
    """What one object lets go of stays for the others."""
    if not bench.is_shared:
        return
    bench.open()
    bench.put("k", "1", "2")
    third = Verbs(bench.make())
    opened_ = third.open(bench.settings)
    third.dispatch(Batch("by-third", 1), [bench.order("k", "3")])
    third.close()
    third.close()
    assert bench.other.open(bench.settings) == opened_
    assert ids(bench.hand("b").one("k")) == ["1", "2", "3"]


def verb_dispatch_keeps_the_order(bench: StoreBench) -> None:
    """Jobs of a key come out in the order in which they went in, over batches, for any number of keys."""
    bench.open()
    a = bench.hand("a")
    sent: dict[str, list[str]] = {}
    orders = []
    for number in range(60):
        key = f"k{number % 7}"
        sent.setdefault(f"j:{key}", []).append(str(number))
        orders.append(bench.order(key, str(number)))
    for first in range(0, 60, 13):
        assert bench.send(*orders[first : first + 13]) == {}
    takes = a.take()
    assert {mailbox: ids(take) for mailbox, take in takes.items()} == sent
    assert bench.store.ask(about.Counts()).dispatched == 60


def verb_dispatch_takes_any_key_and_payload(bench: StoreBench) -> None:
    """Names and bodies are any text and any bytes."""
    bench.open()
    a = bench.hand("a")
    keys = ["", " ", "a|b", "a:b", "{a}", "ä\n😀", "a\0b", "'\"%s*?[x]", "x" * 500]
    payload = bytes(range(256)) * 3
    for number, key in enumerate(keys):
        assert bench.put(key, f"id {number} ü|:{{}}", payload=payload) == {}
    takes = a.take()
    assert set(takes) == {f"j:{key}" for key in keys}, f"{takes.keys()}"
    for take in takes.values():
        assert opened(take.jobs[0]).payload == payload
    assert bench.where("a|b", "id 2 ü|:{}") == "running"
    assert a.settle(*map(end, takes.values())).stale == ()
    assert not bench.store.ask(about.Keys())


def verb_dispatch_says_what_is_full(bench: StoreBench) -> None:
    """Over the limit of a key or the pool an order is refused, with those behind it of its key; others are in."""
    bench.open(max_per_key=3, max_jobs=6)
    orders = [bench.order("k", str(number)) for number in range(5)]
    assert bench.send(*orders[:2], bench.order("m", "m"), *orders[2:]) == {4: "full", 5: "full"}
    assert bench.put("n", "n1", delay=UNKNOWN) == {}
    answer = bench.send(bench.order("n", "n2"), bench.order("n", "n3"), bench.order("o", "o1"))
    assert answer == {1: "pool", 2: "pool"}, f"delayed jobs count as the rest: {answer}"
    assert bench.store.ask(about.Counts()).jobs == 5 and bench.store.ask(about.Counts()).dispatched == 6
    assert bench.where("k", "2") == "waiting" and bench.where("k", "3") == "gone"
    a = bench.hand("a")
    takes = a.take()
    a.settle(end(takes["j:k"], 1))
    assert bench.put("k", "9") == {}, "there is room again when a job is done"
    assert ids(a.one("k")) == ["1", "2", "9"]


def verb_dispatch_refuses_the_rest_of_a_refused_key(bench: StoreBench) -> None:
    """What stands behind a refused order of its key is refused too, though there were room: order is kept."""
    bench.open(max_jobs=1)
    bench.put("k", "1")
    orders = [
        bench.order("m", "m1"),
        bench.order("k", "2", on_busy="replace"),
        bench.order("m", "m2", on_busy="replace"),
    ]
    assert bench.send(*orders) == {0: "pool", 2: "full"}
    assert [bench.where("k", one) for one in "12"] == ["gone", "waiting"]


def verb_dispatch_lets_a_replacement_in_though_it_is_full(bench: StoreBench) -> None:
    """Who replaces a job takes its room."""
    bench.open(max_jobs=2, max_per_key=1, unknown=LEASE)
    bench.put("k", "1")
    bench.put("m", "m1")
    assert bench.put("k", "2", on_busy="replace") == {}
    assert bench.outcome("1") == "replaced" and bench.where("k", "2") == "waiting"
    a = bench.hand("a")
    takes = a.take()
    a.settle(end(takes["j:m"], 0, "to_dead_letters", reason=b"broken"), end(takes["j:k"], 0))
    assert bench.put("m", "m2") == {}
    assert bench.store.apply(Replay((1,))) == "1", "what is replayed is let in"
    assert bench.store.ask(about.Counts()).jobs == 3
    assert bench.put("k", "3", on_busy="replace") == {}, "a replacement never adds"
    assert bench.put("k", "4") == {0: "pool"}


def verb_configure_changes_what_holds(bench: StoreBench) -> None:
    """Other limits hold at once, for everybody; lease and drain change while no worker goes by them only."""
    bench.open(max_jobs=1)
    store, was = bench.store, bench.settings

    def configure(**changes: int) -> str:
        return store.apply(Configure(tuple(changes.items())))

    assert bench.put("k", "1") == {} and bench.put("m", "2") == {0: "pool"}
    assert configure(max_jobs=3, max_per_key=1, drain=DRAIN + SECOND) == "done"
    more = was._replace(max_jobs=3, max_per_key=1, drain=DRAIN + SECOND)
    assert bench.other.open(was).settings == more, "a pool that exists is found as it is"
    assert bench.put("m", "2") == {} and bench.put("m", "3") == {0: "full"}
    a = bench.hand("a")
    assert configure(max_jobs=0, lease=2 * LEASE) == configure(drain=DRAIN) == "busy"
    assert store.open(was).settings == more, "all or nothing"
    assert configure(max_per_key=0, max_losses=1, drain=DRAIN + SECOND) == "done"
    assert bench.put("m", "3") == {} and bench.put("n", "4") == {0: "pool"}
    assert set(a.take()) == {"j:k", "j:m"}
    b = bench.hand("b", own=False)
    bench.recover(b, a)
    assert bench.outcome("1") == bench.outcome("2") == "lost", "one loss is enough now"
    store.leave("b")
    assert configure(lease=2 * LEASE, max_jobs=1 << 40, payload_limit=512 << 20) == "done"
    changed = more._replace(max_per_key=0, max_losses=1, lease=2 * LEASE, max_jobs=1 << 40, payload_limit=512 << 20)
    assert store.open(was).settings == bench.other.open(was).settings == changed
    before = store.ask(about.Members()).now
    c = bench.hand("c", own=False)
    assert bench.ends()[c.id] >= before + 2 * LEASE


def verb_configure_moves_no_suspect_out_of_its_place(bench: StoreBench) -> None:
    """A mailbox that is a suspect by one limit and none by the next stands in one place, and is taken once."""
    for before, after in ((3, 10), (5, 2), (2, 9)):
        bench.open(max_losses=before) if before == 3 else bench.store.apply(Configure((("max_losses", before),)))
        for way in ("cancel", "purge", "replace"):
            key = f"{way}{before}"
            mailbox = f"j:{key}"
            bench.put(key, f"{key}-1")
            survivor = bench.hand(f"s{bench.number()}")
            for _ in range(before - 1 if before < 5 else 2):
                assert mailbox in survivor.take()
                heir = bench.hand(f"s{bench.number()}", own=False)
                bench.recover(heir, survivor)
                survivor = heir
            bench.store.apply(Configure((("max_losses", after),)))
            slot = bench.slot(key)
            if way == "cancel":
                assert bench.store.apply(Cancel(slot, mailbox, f"{key}-1")) == "cancelled"
            elif way == "purge":
                assert bench.store.apply(Purge(slot, mailbox)) == "1"
            bench.put(key, f"{key}-2", on_busy="replace")
            takes = [*survivor.work(want=9).takes, *survivor.work(want=9).takes]
            assert [take.mailbox for take in takes].count(mailbox) == 1, (before, after, way)
            for take in takes:
                survivor.settle(end(take))
            bench.store.leave(survivor.id)
            bench.store.apply(Configure((("max_losses", before),)))


def verb_dispatch_of_a_unique_id(bench: StoreBench) -> None:
    """An id is remembered for as long as was said, also when its job is done; refused ones are not."""
    bench.open(max_per_key=1)
    assert bench.put("k", "x", unique_for=LEASE) == {}
    assert bench.put("k", "x", unique_for=LEASE) == {0: "same"}
    assert bench.put("m", "x", unique_for=LEASE) == {0: "same"}, "an id is one of the pool, not of a key"
    assert bench.put("k", "y", unique_for=LEASE) == {0: "full"}
    a = bench.hand("a")
    a.settle(end(a.one("k")))
    assert bench.put("k", "x", unique_for=LEASE) == {0: "same"}
    assert bench.put("k", "y", unique_for=LEASE) == {}
    bench.skip(LEASE)
    a.renew()
    a.settle(end(a.one("k")))
    assert bench.put("k", "x", unique_for=LEASE) == {}, "the id was to be forgotten"


def verb_dispatch_on_a_busy_key(bench: StoreBench) -> None:
    """`reject`, `coalesce` and `replace` look at what is there: of their name, and not taken."""
    bench.open()
    a = bench.hand("a")
    for on_busy in ("reject", "coalesce", "replace"):
        assert bench.put(on_busy, f"{on_busy}-0", on_busy=on_busy) == {}, "an idle key takes anything"
    takes = a.take()
    assert bench.put("reject", "r1", on_busy="reject") == {0: "busy"}, "running is busy"
    assert bench.put("coalesce", "c1", on_busy="coalesce") == {}, "what runs does not do for it"
    assert bench.put("coalesce", "c2", on_busy="coalesce", name="other") == {}, "another name does not"
    assert bench.put("coalesce", "c3", on_busy="coalesce") == {0: "into:c1"}
    assert bench.put("replace", "p1", on_busy="replace") == {}
    assert bench.put("replace", "p2", name="other") == {}
    assert bench.put("replace", "p3", on_busy="replace") == {}
    assert [bench.outcome(one) for one in ("replace-0", "p1", "p2")] == ["", "replaced", ""]
    a.settle(*map(end, takes.values()))
    found = {mailbox: ids(take) for mailbox, take in a.take().items()}
    assert found == {"j:coalesce": ["c1", "c2"], "j:replace": ["p2", "p3"]}
    assert bench.where("coalesce", "c3") == "gone"


def verb_dispatch_coalesces_with_the_last_one(bench: StoreBench) -> None:
    """Of several that would do, the last is named; one that was cancelled does not do."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1", "2", "3")
    assert bench.put("k", "4", on_busy="coalesce") == {0: "into:3"}
    take = a.one("k")
    assert bench.cancel("k", "3") == "asked"
    a.settle(end(take, 2))
    assert bench.put("k", "5", on_busy="coalesce") == {}, "a job that will not run does not do for another"
    assert ids(a.one("k")) == ["5"]


def verb_dispatch_later(bench: StoreBench) -> None:
    """A delayed job enters when it is due, behind what is there, and those of one time in their order."""
    bench.open()
    a = bench.hand("a")
    names = ["z", "y", "a", "m", "b"]
    assert bench.send(*(bench.order("k", name, delay=LEASE // 4) for name in names)) == {}
    at = a.work().now + LEASE // 10
    bench.send(bench.order("k", "at", at=at), bench.order("k", "past", at=1), bench.order("k", "now", delay=0))
    counts = bench.store.ask(about.Counts())
    assert (counts.delayed, counts.jobs) == (6, 2)
    assert bench.where("k", "z") == "delayed"
    take = a.one("k")
    assert ids(take) == ["past", "now"]
    bench.put("k", "1")
    bench.skip(LEASE // 8)
    a.work(end(take, 1, "keep"), want=0)
    assert bench.store.ask(about.Counts()).delayed == 5
    bench.skip(LEASE // 6)
    a.work(want=0)
    assert bench.store.ask(about.Counts()).delayed == 0
    a.settle(end(take))
    assert ids(a.one("k")) == ["1", "at", *names], "the order of what was due at one time"


def verb_dispatch_of_a_delayed_id_again(bench: StoreBench) -> None:
    """A delayed job is not overwritten by another of its id."""
    bench.open()
    a = bench.hand("a")
    assert bench.put("k", "x", delay=LEASE // 4, payload=b"1") == {}
    assert bench.put("m", "x", delay=LEASE // 3, payload=b"2") == {0: "same"}
    bench.skip(LEASE // 2)
    take = a.one("k")
    assert opened(take.jobs[0]).payload == b"1"
    assert bench.store.ask(about.Counts()).dispatched == 1


def verb_dispatch_to_a_pool_that_is_shut(bench: StoreBench) -> None:
    """`Shut` refuses dispatches and takes, tells all workers, and is undone by `Resume`."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1")
    version = bench.store.ask(about.Members()).version
    assert bench.store.apply(Shut()) == ""
    beat = bench.store.ask(about.Members())
    assert beat.is_shut and beat.version > version and bench.store.ask(about.Counts()).is_shut
    assert bench.put("k", "2") == {0: "closed"}
    assert bench.start("k") == "closed"
    work = a.work()
    assert not work.takes and not work.is_more and not work.is_gone
    bench.store.apply(Resume())
    assert not bench.store.ask(about.Members()).is_shut
    assert ids(a.one("k")) == ["1"]
    assert bench.put("k", "3") == {}


def verb_outcomes_are_kept_for_as_long_as_was_said(bench: StoreBench) -> None:
    """Outcomes come back in the order asked for, until their time is over."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1", "2")
    take = a.one("k")
    some = (Outcome("1", "done", b"\0one", LEASE), Outcome("2", "failed", b"two", 3 * LEASE), Outcome("3", "x", b"", 0))
    assert bench.store.ask(
        about.Outcomes(
            (
                "1",
                "2",
            )
        )
    ) == [None, None]
    a.settle(end(take, outcomes=some))
    asked = bench.store.ask(
        about.Outcomes(
            (
                "2",
                "nobody",
                "3",
                "1",
                "2",
            )
        )
    )
    assert asked == [("failed", b"two"), None, None, ("done", b"\0one"), ("failed", b"two")], f"{asked}"
    bench.skip(LEASE)
    assert bench.store.ask(
        about.Outcomes(
            (
                "1",
                "2",
            )
        )
    ) == [None, ("failed", b"two")]
    bench.skip(2 * LEASE)
    assert bench.store.ask(
        about.Outcomes(
            (
                "1",
                "2",
            )
        )
    ) == [None, None]
    assert bench.store.ask(about.Outcomes(())) == []


def verb_outcomes_come_in_parts_when_they_are_large(bench: StoreBench) -> None:
    """One question is never answered with much more than `TAKE_BYTES` bytes; the rest can be asked for."""
    bench.open()
    a = bench.hand("a")
    ids = [f"{number}" for number in range(12)]
    bench.put("k", *ids)
    take = a.one("k")
    some = [Outcome(one, "done", one.encode() * (TAKE_BYTES // 4), LEASE) for one in ids[:9]]
    for number in range(0, 9, 3):
        part = tuple(some[number : number + 3])
        a.settle(end(take, number + 3, "keep", outcomes=part))
    found: list[tuple[str, bytes] | None] = []
    while len(found) < len(ids):
        answer = bench.store.ask(about.Outcomes(tuple(ids[len(found) :])))
        size = sum(len(one[1]) for one in answer if one is not None)
        assert answer and size <= TAKE_BYTES + TAKE_BYTES // 2, f"{len(answer)} outcomes of {size} bytes at once"
        found += answer
    assert found == [("done", one.data) for one in some] + [None] * 3


def verb_join_makes_a_member(bench: StoreBench) -> None:
    """A member is told what it said, and everybody that there is another."""
    bench.open()
    a = bench.hand("a", own=False, weight=3, concurrency=7, names=("x", "ü"))
    b = bench.hand("b", own=False)
    assert b.beat.version > a.beat.version and b.beat.incarnation == a.beat.incarnation
    one, two = b.beat.members
    assert one[:5] == ("a", "host:a", 3, 7, ("x", "ü")) and two.id == "b"
    assert one.lease_end == one.joined + LEASE and not one.is_leaving and not one.is_dead
    assert a.beat.now == one.joined
    assert bench.store.ask(about.Members())._replace(now=0) == b.beat._replace(now=0)


def verb_renew_prolongs_the_lease(bench: StoreBench) -> None:
    """A renewal counts from now; the pool's version stays, but for who begins to leave."""
    bench.open()
    a = bench.hand("a")
    version = bench.store.ask(about.Members()).version
    for microseconds in (10 * SECOND, -30 * SECOND, 5 * LEASE):
        bench.skip(microseconds)
        beat = a.renew()
        assert beat is not None and bench.ends() == {"a": beat.now + LEASE}, f"after {microseconds} µs"
    assert bench.store.ask(about.Members()).version == version, "a heartbeat changes nothing"
    first, second = a.renew(leaving=True), a.renew()
    assert first is not None and second is not None
    assert first.members[0].is_leaving and second.members[0].is_leaving and first.version == second.version > version
    assert bench.store.renew("stranger") is None


def verb_renew_tells_who_knows_the_members_only_what_changes(bench: StoreBench) -> None:
    """Else all workers would tell each other at each heartbeat which jobs they know."""
    bench.open()
    bench.hand("a")
    bench.hand("b", own=False)
    full = bench.store.renew("a")
    assert full is not None and not full.is_brief and [one.names for one in full.members] == [(NAME, "watch")] * 2
    bench.skip(SECOND)
    brief = bench.store.renew("a", version=full.version)
    assert brief is not None and brief.is_brief and brief.version == full.version
    assert [(one.id, one.label, one.names) for one in brief.members] == [("a", "", ()), ("b", "", ())]
    assert {one.id: one.lease_end for one in brief.members} == bench.ends()
    leaving = bench.store.renew("b", leaving=True, version=full.version)
    assert leaving is not None and not leaving.is_brief, "the members are not the same any more"
    told = bench.store.renew("a", version=full.version)
    assert told is not None and not told.is_brief and [one.is_leaving for one in told.members] == [False, True]
    brief = bench.store.renew("a", version=told.version)
    assert brief is not None and [one.is_leaving for one in brief.members] == [False, True]


def verb_leave_frees_all_slots(bench: StoreBench) -> None:
    """Who leaves is no member, and owns nothing; twice is as good as once."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    version = bench.store.ask(about.Members()).version
    for store in (bench.store, bench.other):
        store.leave("a")
        assert [member.id for member in store.ask(about.Members()).members] == ["b"]
        assert set(store.ask(about.Owners())[1]) == {""}
    assert bench.store.ask(about.Members()).version > version
    assert {(slot.why, slot.before) for slot in bench.store.ask(about.Slots())} == {("left", "a")}
    assert a.renew() is None and a.work().is_gone and a.claim([0]).is_gone
    assert b.claim().got == tuple(range(SLOTS))


def verb_leave_of_the_dead(bench: StoreBench) -> None:
    """Slots of somebody who was dismissed are freed by a late `leave`, and that is told."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    ends = bench.ends()
    bench.skip(LEASE)
    b.renew()
    b.claim([0], dead={"a": ends["a"]})
    version = bench.store.ask(about.Members()).version
    bench.store.leave(a.id)
    assert bench.store.ask(about.Owners())[1] == ["b"] + [""] * (SLOTS - 1)
    assert bench.store.ask(about.Members()).version > version, "owners changed, so the version grows"


def verb_give_passes_slots_on(bench: StoreBench) -> None:
    """Only what the caller owns moves, and only to a member that stays; else it is free."""
    bench.open()
    a, b, c = bench.hand("a"), bench.hand("b", own=False), bench.hand("c", own=False)
    c.renew(leaving=True)
    version = bench.store.ask(about.Members()).version
    before = bench.store.ask(about.Slots())
    assert bench.store.give("b", [(0, "b")], "greed") == 0
    assert bench.store.ask(about.Members()).version == version, "nothing moved, nothing is told"
    assert bench.store.give("a", [(0, "b"), (1, "c"), (2, "nobody"), (3, "")], "balance") == 4
    assert bench.store.give("a", [(0, "b"), (1, "c"), (2, "nobody"), (3, "")], "balance") == 0
    version_now, owners = bench.store.ask(about.Owners())
    assert owners == ["b", "", "", "", "a", "a", "a", "a"] and version_now > version
    slots = bench.store.ask(about.Slots())
    assert slots[0][:1] + slots[0][3:] == ("b", "balance", "a") and slots[0].since > before[0].since
    assert all(slots[number].epoch > before[number].epoch for number in range(4)), "epochs grow"
    assert slots[4:] == before[4:]
    assert bench.store.ask(about.Counts()).moved == SLOTS + 4
    assert b.claim().got == (1, 2, 3) and a.claim([0]).got == ()


def verb_claim_takes_what_nobody_owns(bench: StoreBench) -> None:
    """Free slots go to whoever claims first; those of the living do not."""
    bench.open()
    a, b = bench.hand("a", own=False), bench.hand("b", own=False)
    version = bench.store.ask(about.Members()).version
    assert a.claim([1, 2]) == Claimed((1, 2), (), 0, is_gone=False)
    slots = bench.store.ask(about.Slots())
    assert slots[1][:1] + slots[1][3:] == ("a", "free", "") and slots[0].epoch == 0
    assert bench.store.ask(about.Members()).version > version
    with unchanged(bench, "a claim of one's own is a check"):
        assert a.claim([1, 2]) == Claimed((), (), 0, is_gone=False)
    assert b.claim([2, 3]) == Claimed((3,), (), 0, is_gone=False)
    with unchanged(bench, "a stranger claims nothing"):
        assert bench.store.claim("stranger", [4], {}).is_gone


def verb_claim_brings_what_was_ready(bench: StoreBench) -> None:
    """What was dispatched while nobody owned its slot is there for the one who claims it."""
    bench.open()
    for key in "abcdef":
        bench.put(key, f"{key}1")
    bench.start("a")
    a = bench.hand("a", own=False)
    assert not a.take(residents=9), "a worker takes only what it owns"
    a.claim()
    assert set(a.take(residents=9)) == {f"j:{key}" for key in "abcdef"} | {"r:watch:a"}


def verb_work_takes_no_more_than_it_wants(bench: StoreBench) -> None:
    """`want` keys, `per` jobs of each; the rest is there for the next call, and that is told."""
    bench.open()
    a = bench.hand("a")
    keys = [f"k{number}" for number in range(30)]
    for key in keys:
        bench.put(key, "1", "2", "3")
    seen: Counter[str] = Counter()
    for want in (0, 1, 4, 9):
        work = a.work(want=want, per=2)
        assert len(work.takes) == want and work.is_more, f"wanted {want}, got {len(work.takes)}"
        assert all(len(take.jobs) == 2 for take in work.takes)
        seen.update(take.mailbox for take in work.takes)
    work = a.work(want=50, per=0)
    assert all(len(take.jobs) == 1 for take in work.takes), "a take has one job at least"
    seen.update(take.mailbox for take in work.takes)
    assert seen == Counter(f"j:{key}" for key in keys), "every key is taken once"
    assert not a.work().takes and not a.work().is_more


def verb_work_takes_large_jobs_in_small_numbers(bench: StoreBench) -> None:
    """A take ends when it is heavy: of one key, and of all."""
    bench.open(slots=64)
    a = bench.hand("a")
    big = bytes(TAKE_BYTES // 3)
    keys = [f"k{number}" for number in range(6)]
    keys = [key for number, key in enumerate(keys) if bench.slot(key) not in {bench.slot(one) for one in keys[:number]}]
    for key in keys:
        bench.put(key, "1", "2", "3", "4", payload=big)
    work = a.work()
    assert all(len(take.jobs) == 2 for take in work.takes), "three of a third and a bit are too heavy"
    assert len(work.takes) == 2 and work.is_more, f"a take ends when it is heavy: {len(work.takes)} keys"
    huge = bytes(TAKE_BYTES + 1)
    bench.put("huge", "1", "2", payload=huge)
    found: dict[str, Take] = {}
    while more := a.take():
        found.update(more)
    assert len(found["j:huge"].jobs) == 1, "one is always taken"


def verb_work_settles_in_every_way(bench: StoreBench) -> None:
    """`keep`, `end`, `retry`, `to_dead_letters`, `park`, each with what it leaves behind."""
    bench.open()
    a = bench.hand("a")
    for key in ("keep", "end", "retry", "to_dead_letters", "park"):
        bench.put(key, f"{key}1", f"{key}2", f"{key}3")
    takes = {mailbox[2:]: take for mailbox, take in a.take(per=2).items()}
    work = a.settle(
        end(takes["keep"], 1, "keep"),
        end(takes["end"], 1),
        end(takes["retry"], 1, "retry", delay=10 * SECOND, failures=4),
        end(takes["to_dead_letters"], 1, "to_dead_letters", reason=b"broken"),
        end(takes["park"], 1, "park", reason=b"job"),
    )
    assert work.stale == () and not work.takes
    views = bench.store.ask(about.Keys())
    states = {view.mailbox[2:]: (view.state, view.depth, view.failures) for view in views}
    assert states == {
        "keep": ("running", 2, 0),
        "end": ("ready", 2, 0),
        "retry": ("retry", 2, 4),
        "to_dead_letters": ("ready", 1, 0),
        "park": ("parked", 2, 0),
    }, f"{states}"
    (letter,) = bench.store.ask(about.DeadLetters())
    assert (letter.mailbox, letter.reason, opened(letter.job).id) == (
        "j:to_dead_letters",
        b"broken",
        "to_dead_letters2",
    )
    counts = bench.store.ask(about.Counts())
    assert (counts.done, counts.retried, counts.dead_total, counts.dead) == (5, 1, 1, 1)
    assert [bench.where(key, f"{key}1") for key in takes] == ["gone"] * 5
    assert bench.where("to_dead_letters", "to_dead_letters2") == "dead" and bench.where("keep", "keep2") == "running"
    again = {mailbox[2:]: ids(take) for mailbox, take in a.take().items()}
    assert again == {"end": ["end2", "end3"], "to_dead_letters": ["to_dead_letters3"], "park": ["park2"]}, f"{again}"


def verb_work_tells_when_something_is_due(bench: StoreBench) -> None:
    """`due` is never too late for a retry or a delayed job, and 0 when there is nothing."""
    bench.open()
    a = bench.hand("a")
    before = a.work()
    assert before.due == 0
    bench.put("k", "1", delay=20 * SECOND)
    work = a.work()
    assert before.now + 20 * SECOND <= work.due <= work.now + 20 * SECOND
    bench.put("m", "2")
    work = a.settle(end(a.one("m"), 0, "retry", delay=10 * SECOND))
    assert 0 < work.due <= work.now + 10 * SECOND
    bench.skip(30 * SECOND)
    assert set(a.take()) == {"j:k", "j:m"}
    assert a.work().due == 0, "an outcome that is to be forgotten is nothing to wake for"


def verb_work_lets_a_limited_number_become_due(bench: StoreBench) -> None:
    """Many that are due at once come over several calls, and `due` says so."""
    bench.open()
    a = bench.hand("a")
    bench.send(*(bench.order("k", f"{number:03}", delay=SECOND) for number in range(DUE_PER_CALL + 20)))
    bench.skip(2 * SECOND)
    work = a.work(per=1000)
    assert len(work.takes[0].jobs) == DUE_PER_CALL and 0 < work.due <= work.now
    a.settle(end(work.takes[0]))
    found = ids(a.one("k"))
    assert found == [f"{DUE_PER_CALL + number:03}" for number in range(20)]


def verb_work_repeats_signals_until_they_are_heard(bench: StoreBench) -> None:
    """A signal comes with every answer, in order, until the worker says that it has it."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    bench.put("k", "1", "2")
    a.one("k")
    assert bench.cancel("k", "2") == "asked" and bench.cancel("k", "1") == "asked"
    first = a.work().signals
    assert [(one.kind, one.mailbox, one.id) for one in first] == [("cancel", "j:k", "2"), ("cancel", "j:k", "1")]
    assert first[0].number < first[1].number
    assert a.work().signals == first and b.work().signals == ()
    assert a.work(heard=first[0].number).signals == first[1:]
    assert a.work(heard=first[1].number).signals == ()
    assert a.work().signals == ()


def verb_dispatch_hands_a_job_to_an_idle_worker(bench: StoreBench) -> None:
    """One that has room and listens gets it with the hint, as a take; others, and more than it has room for, wait."""
    bench.open()
    a = bench.hand("a", store=bench.store)
    bench.put("k", "0")
    a.settle(end(a.one("k")))
    assert not bench.store.hands_over or a.work(spare=1).signals == ()
    bench.put("k", "1")
    assert bench.state("j:k") == "ready", "nobody listens, so nobody is handed anything"
    a.settle(end(a.one("k")))
    if not bench.store.hands_over:
        return
    handed = a.listen()
    bench.put("k", "2")
    assert bench.state("j:k") == "ready", "it has said nothing of room"
    a.work(end(a.one("k")), spare=2, want=1)
    bench.put("k", "3", "4")
    bench.put("l", "5")
    assert (bench.state("j:k"), bench.state("j:l")) == ("running", "ready"), "it wanted one"
    bench.until(lambda: bool(handed), "a worker hears of what it was handed")
    ((before, signal),) = handed
    take = taken(signal)
    assert (before, signal.kind, signal.mailbox, signal.slot) == (0, "take", "j:k", bench.slot("k"))
    assert ids(take) == ["3"] and take.token > 0
    work = a.work(end(take), heard=signal.number)
    assert work.stale == () and work.signals == () and bench.outcome("3") == "done"
    assert sorted((one.mailbox, *ids(one)) for one in work.takes) == [("j:k", "4"), ("j:l", "5")]
    a.settle(*map(end, work.takes))
    a.work(spare=9)
    bench.put("k", *(f"many-{number}" for number in range(HANDED + 1)))
    assert bench.state("j:k") == "ready", "many are taken in bulk"
    a.settle(end(a.one("k")))
    a.work(spare=9)
    bench.put("k", "large", payload=b"x" * HANDED_BYTES)
    assert bench.state("j:k") == "ready", "a large one is not sent with a hint"
    a.settle(end(a.one("k")))
    a.work(spare=9)
    bench.store.apply(Pause(bench.slot("k"), "k", "somebody", "why"))
    bench.put("k", "paused")
    assert bench.take_is_empty(a), "a paused key stays"
    bench.store.apply(Resume(bench.slot("k"), "k"))
    bench.store.apply(Pause())
    a.work(spare=9)
    bench.put("l", "all paused")
    assert bench.state("j:l") == "ready", "a paused pool hands out nothing"
    bench.store.apply(Resume())
    assert sorted(a.take()) == ["j:k", "j:l"]


def verb_work_brings_what_was_handed_over_until_it_is_heard(bench: StoreBench) -> None:
    """A lost hint loses nothing; neither does a claim that was on its way when the job was handed over."""
    bench.open()
    a = bench.hand("a", store=bench.store)
    if not bench.store.hands_over:
        return
    a.listen()
    a.work(spare=2)
    bench.put("k", "1")
    bench.put("l", "2")
    assert a.claim(known=[], call=a.calls).recovered == 0, "it may be on its way"
    work = a.work(want=3, spare=3)
    first, second = work.signals
    assert [ids(taken(one)) for one in work.signals] == [["1"], ["2"]] and first.number < second.number
    bench.put("m", "3")
    bench.put("n", "4")
    assert (bench.state("j:m"), bench.state("j:n")) == ("running", "ready"), "two of the three places are taken"
    assert a.work(heard=first.number, want=0).signals[0] == second
    claimed = a.claim(known=[second.note], call=a.calls, heard=second.number)
    assert claimed.recovered == 1, "it has heard of the first, and does not have it any more"
    third = a.work(heard=first.number, want=0).signals[-1]
    assert a.claim(known=[], call=a.calls, heard=second.number).recovered == 1 and third.data
    again = {one.number: one.data for one in a.work(want=0, heard=first.number).signals}
    assert again == {second.number: b"", third.number: third.data}, "a take that is over is not brought again"
    assert sorted(a.take()) == ["j:k", "j:l", "j:n"]
    assert a.settle(end(taken(second))).stale == (0,) and a.settle(end(taken(third))).stale == ()


def verb_give_and_death_leave_what_was_handed_over_whole(bench: StoreBench) -> None:
    """Who gave its slot away keeps what it was handed until it reports; what the dead were handed runs elsewhere."""
    bench.open(max_losses=9)
    a, b = bench.hand("a", store=bench.store), bench.hand("b", own=False)
    if not bench.store.hands_over:
        return
    a.listen()
    a.work(spare=2)
    bench.put("k", "1", "2")
    bench.put("l", "3")
    bench.store.give("a", [(number, "b") for number in range(SLOTS)], "over")
    assert not b.take(), "both run with the giver"
    bench.put("m", "4")
    assert ids(b.one("m")) == ["4"], "nothing is handed to who gave its slot away"
    assert bench.state("j:k") == "running"
    first, second = a.work().signals
    a.settle(end(taken(first), 0))
    assert ids(b.one("k")) == ["1", "2"], "it was not begun, and follows its slot"
    bench.recover(b, a)
    assert ids(b.one("l")) == ["3"] and a.settle(end(taken(second))).stale == (0,)


def verb_apply_cancel(bench: StoreBench) -> None:
    """A job that waits is cancelled, one that a worker has is asked for, and nothing of it runs again."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1", "2", "3", "4")
    bench.put("k", "later", delay=UNKNOWN)
    take = a.one("k", per=2)
    answers = [bench.cancel("k", one) for one in ("3", "2", "later", "none", "3")]
    assert answers == ["cancelled", "asked", "cancelled", "gone", "gone"], f"{answers}"
    assert [bench.outcome(one) for one in ("2", "3", "later")] == ["", "cancelled", "cancelled"]
    a.settle(end(take, 1))
    assert bench.where("k", "2") == "waiting"
    assert ids(a.one("k")) == ["4"], "a cancelled job does not run again"
    assert bench.outcome("2") == "cancelled"
    assert bench.store.ask(about.Counts()).jobs == 1 and bench.store.ask(about.Counts()).done == 1


def verb_apply_cancel_in_the_middle(bench: StoreBench) -> None:
    """A job that was cancelled in a take that was lost is not in the next take, wherever it stands."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1", "2", "3")
    take = a.one("k")
    assert bench.cancel("k", "2") == "asked"
    a.settle(end(take, 0))
    take = a.one("k")
    assert ids(take) == ["1"], "a take ends before a cancelled job"
    a.settle(end(take))
    assert ids(a.one("k")) == ["3"]
    assert bench.outcome("2") == "cancelled"


def verb_apply_cancel_of_what_the_dead_run(bench: StoreBench) -> None:
    """A job that a dead worker had does not run again when it was cancelled; nothing is kept for the dead."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    bench.put("k", "1", "2")
    bench.start("k")
    a.take(residents=1)
    ends = bench.ends()
    bench.skip(LEASE)
    b.renew()
    b.claim([(bench.slot("k") + 1) % SLOTS], dead={"a": ends["a"]})
    assert bench.cancel("k", "1") == "asked" and bench.notify("k", b"1") == "sent" and bench.stop("k") == "stopping"
    b.claim()
    assert {mailbox: ids(take) for mailbox, take in b.take(residents=1).items()} == {"j:k": ["2"]}
    assert bench.outcome("1") == "cancelled" and not bench.store.ask(about.Keys("r"))


def verb_apply_cancel_is_for_once(bench: StoreBench) -> None:
    """A job of an id that was asked for and then cancelled, or purged, runs when it is dispatched anew."""
    bench.open()
    a = bench.hand("a")
    ways: list[Callable[[], str]] = [lambda: bench.cancel("k", "1"), lambda: bench.purge("k")]
    for end_it in ways:
        bench.put("k", "1")
        take = a.one("k")
        assert bench.cancel("k", "1") == "asked"
        a.settle(end(take, 0))
        assert end_it() in ("cancelled", "1")
        bench.put("k", "1")
        take = a.one("k")
        assert ids(take) == ["1"], "the new job was dropped for the old one"
        a.settle(end(take))


def verb_apply_cancel_frees_a_key_that_waits(bench: StoreBench) -> None:
    """When the job is cancelled for which its key waits, the rest waits no more, and is not blamed."""
    bench.open()
    a = bench.hand("a")
    for key in ("retry", "parked", "run"):
        bench.put(key, f"{key}1", f"{key}2")
    takes = a.take(per=1)
    assert bench.cancel("run", "run1") == "asked"
    a.settle(
        end(takes["j:retry"], 0, "retry", delay=UNKNOWN, failures=3),
        end(takes["j:parked"], 0, "park", reason=b"nobody's"),
        end(takes["j:run"], 0, "retry", delay=UNKNOWN, failures=1),
    )
    assert bench.cancel("retry", "retry1") == "cancelled" and bench.cancel("parked", "parked1") == "cancelled"
    takes = a.take()
    found = {mailbox: (ids(take), take.failures) for mailbox, take in takes.items()}
    assert found == {f"j:{key}": ([f"{key}2"], 0) for key in ("retry", "parked", "run")}, f"{found}"
    bench.skip(2 * UNKNOWN)
    a.renew()
    a.work()
    assert not bench.store.ask(about.DeadLetters()) and bench.store.ask(about.Counts()).keys_running == 3


def verb_apply_purge(bench: StoreBench) -> None:
    """What no worker has goes, delayed jobs too; what runs stays and ends as if nothing had been."""
    bench.open()
    a = bench.hand("a")
    assert bench.purge("k") == "0"
    bench.put("k", "1", "2", "3")
    bench.put("k", "later", delay=UNKNOWN)
    bench.put("m", "m1", delay=UNKNOWN)
    take = a.one("k", per=1)
    assert bench.purge("k") == "3"
    assert [bench.outcome(one) for one in ("1", "2", "3", "later")] == ["", "purged", "purged", "purged"]
    assert bench.store.ask(about.Counts()).delayed == 1 and bench.view("j:k") is not None
    bench.put("k", "4")
    assert a.settle(end(take)).stale == ()
    assert ids(a.one("k")) == ["4"]
    bench.put("n", "n1", "n2")
    assert bench.purge("n") == "2" and not bench.state("j:n")
    bench.put("n", "n3")
    assert ids(a.one("n")) == ["n3"]


def verb_apply_purge_goes_in_parts(bench: StoreBench) -> None:
    """No call drops more than it is told to, so that a deep mailbox holds nobody up; the rest is still there."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", *(str(number) for number in range(6)))
    for number in range(3):
        bench.put("k", f"later{number}", delay=UNKNOWN)
    take = a.one("k", per=1)
    purge = Purge(bench.slot("k"), "j:k", 2)
    assert bench.store.apply(purge) == "2"
    assert [bench.where("k", str(number)) for number in range(6)] == ["running", *["waiting"] * 3, *["gone"] * 2]
    assert [bench.store.apply(purge) for _ in range(4)] == ["2", "2", "2", "0"]
    assert [bench.outcome(f"later{number}") for number in range(3)] == ["purged"] * 3
    counts = bench.store.ask(about.Counts())
    assert (counts.jobs, counts.delayed) == (1, 0) and bench.where("k", "0") == "running"
    a.settle(end(take))
    bench.put("k", "6", "7")
    assert [bench.store.apply(purge) for _ in range(2)] == ["2", "0"] and not bench.state("j:k")


def verb_ask_dead_letters_of_a_key(bench: StoreBench) -> None:
    """The dead letters of one key are found among those of others, in both directions and page by page."""
    bench.open()
    a = bench.hand("a")
    for key in ("k", "l", "k", "l", "k"):
        bench.put(key, f"{key}{bench.number()}")
        a.settle(end(a.one(key), 0, "to_dead_letters"))
    a.settle(*(end(take, 0, "park", reason=b"watch") for take in _start_one(bench, a, "k")))
    bench.skip(UNKNOWN + SECOND)
    a.renew()
    a.work()

    def pages(key: str, *, is_newest_first: bool = False) -> list[list[int]]:
        found, after = [], ""
        while True:
            page = bench.store.ask(about.DeadLetters(after, 2, is_newest_first, key))
            found.append([letter.number for letter in page])
            after = page.next
            if not after:
                return found

    assert pages("k") == [[1, 3], [5, 6]], "the last one is of a resident"
    assert pages("k", is_newest_first=True) == [[6, 5], [3, 1]]
    assert pages("l") == [[2, 4]] and pages("nobody") == [[]]
    assert bench.store.apply(Drop((3,))) == "1" and bench.store.apply(Replay((1,))) == "1"
    assert [letter.number for letter in bench.store.ask(about.DeadLetters(key="k"))] == [5, 6]


def _start_one(bench: StoreBench, hand: Hand, key: str) -> list[Take]:
    bench.start(key)
    return list(hand.take(residents=1).values())


def verb_apply_pause(bench: StoreBench) -> None:
    """A paused key begins nothing, whatever happens to it; others flow; `Resume` lets it go on."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    key, other = bench.neighbours(2)
    slot = bench.slot(key)
    assert bench.store.apply(Pause(slot, key)) == ""
    bench.put(key, "1")
    bench.put(other, "o")
    assert list(a.take()) == [f"j:{other}"]
    assert bench.state(f"j:{key}") == "paused"
    bench.put(key, "2")
    bench.store.give("a", [(slot, "b")], "while it is held")
    assert not b.take()
    assert bench.store.apply(Resume(slot, key)) == ""
    assert not a.take()
    take = b.one(key)
    assert ids(take) == ["1", "2"]
    bench.store.apply(Pause(slot, key))
    b.settle(end(take, 1))
    assert not b.take() and bench.state(f"j:{key}") == "paused"
    assert bench.purge(key) == "1" and not bench.state(f"j:{key}")
    bench.store.apply(Resume(slot, key))
    assert not b.take()


def verb_apply_pause_of_the_pool(bench: StoreBench) -> None:
    """A paused pool begins nothing, and says that there is nothing more."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1", "2")
    take = a.one("k", per=1)
    bench.store.apply(Pause())
    assert bench.store.ask(about.Counts()).is_paused
    bench.put("m", "m1")
    work = a.work(end(take))
    assert not work.takes and not work.is_more and not work.is_gone
    version = bench.store.ask(about.Members()).version
    bench.store.apply(Resume())
    assert bench.store.ask(about.Members()).version > version, "workers look again"
    assert set(a.take()) == {"j:k", "j:m"} and not bench.store.ask(about.Counts()).is_paused


def verb_apply_replay_and_drop(bench: StoreBench) -> None:
    """Dead letters enter their mailboxes again in their order, at the end; or are forgotten."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1", "2", "3", "4")
    for _ in range(3):
        a.settle(end(a.one("k"), 0, "to_dead_letters", reason=b"no"))
    numbers = [letter.number for letter in bench.store.ask(about.DeadLetters())]
    assert numbers == [1, 2, 3]
    assert bench.store.apply(Drop((2, 9))) == "1" and bench.store.apply(Drop((2,))) == "0"
    assert bench.store.apply(Replay((3, 1, 1, 2))) == "2" and bench.store.apply(Replay((3, 1))) == "0"
    assert not bench.store.ask(about.DeadLetters())
    assert ids(a.one("k")) == ["4", "1", "3"]
    a.settle(Report(bench.slot("k"), "j:k", 1, 0))
    assert bench.store.ask(about.Counts()).dead_total == 3
    bench.put("m", "m1")
    a.settle(end(a.one("m"), 0, "to_dead_letters"))
    assert [letter.number for letter in bench.store.ask(about.DeadLetters())] == [4], "a number is not given twice"


def verb_apply_replay_forgets_the_outcome(bench: StoreBench) -> None:
    """Who asks for a job that is tried again is not told how it ended before."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1")
    a.settle(end(a.one("k"), 0, "to_dead_letters", outcomes=(Outcome("1", "dead", b"", KEEP),)))
    assert bench.outcome("1") == "dead"
    bench.store.apply(Replay((1,)))
    assert bench.outcome("1") == "" and bench.where("k", "1") == "waiting"
    a.settle(end(a.one("k")))
    assert bench.outcome("1") == "done"


def verb_apply_start_and_stop(bench: StoreBench) -> None:
    """A resident runs once, with its latest arguments, until it is stopped."""
    bench.open()
    a = bench.hand("a")
    assert [bench.start("k", b"1"), bench.start("k", b"1"), bench.start("k", b"2")] == ["started", "same", "replaced"]
    assert bench.stop("none") == "gone"
    assert not a.take(), "residents are asked for by themselves"
    take = a.take(residents=5)["r:watch:k"]
    assert opened(take.jobs[0]).payload == b"2" and bench.start("k", b"2") == "same"
    assert bench.start("k", b"3") == "replaced" and bench.start("k", b"3") == "same"
    assert [one.kind for one in a.work().signals] == ["cancel"]
    assert not a.take(residents=5), "the old one has not ended"
    (view,) = bench.store.ask(about.Keys("r"))
    assert view.state == "running" and opened(view.last).payload == b"3"
    assert a.settle(end(take)).stale == ()
    take = a.take(residents=5)["r:watch:k"]
    assert opened(take.jobs[0]).payload == b"3"
    assert bench.stop("k") == "stopping" and bench.stop("k") == "stopping"
    assert bench.start("k", b"3") == "replaced", "a resident that is about to end is none"
    assert bench.stop("k") == "stopping"
    a.settle(end(take))
    assert not a.take(residents=5) and not bench.store.ask(about.Keys("r"))
    bench.start("k", b"4")
    assert bench.stop("k") == "stopped" and bench.stop("k") == "gone"
    assert bench.store.ask(about.Counts()).residents == 0 and bench.store.ask(about.Counts()).jobs == 0


def verb_apply_stop_of_what_does_not_run(bench: StoreBench) -> None:
    """A resident ends or is replaced at once where it waits: for its retry, parked, paused, or after a death."""
    bench.open()
    a = bench.hand("a")
    for key in ("retry", "parked", "paused", "fresh"):
        bench.start(key, b"1")
    takes = a.take(residents=9)
    bench.store.apply(Pause(bench.slot("paused"), "paused"))
    a.settle(
        end(takes["r:watch:retry"], 0, "retry", delay=UNKNOWN, failures=2),
        end(takes["r:watch:parked"], 0, "park", reason=b"nobody's"),
        end(takes["r:watch:paused"], 0),
    )
    a.work(residents=9)
    states = {view.mailbox[8:]: view.state for view in bench.store.ask(about.Keys("r"))}
    assert states == {"retry": "retry", "parked": "parked", "paused": "paused", "fresh": "running"}
    assert [bench.start(key, b"1") for key in states] == ["same"] * 4
    assert bench.start("retry", b"2") == "replaced" and bench.start("parked", b"2") == "replaced"
    assert bench.stop("paused") == "stopped"
    again = a.take(residents=9)
    assert {mailbox: take.failures for mailbox, take in again.items()} == {"r:watch:retry": 0, "r:watch:parked": 0}
    assert bench.stop("fresh") == "stopping"
    b = bench.hand("b", own=False)
    bench.recover(b, a)
    assert bench.state("r:watch:fresh") == "ready" and bench.start("fresh", b"1") == "replaced"
    found = b.take(residents=9)
    assert set(found) == {"r:watch:fresh", "r:watch:retry", "r:watch:parked"}
    assert len(found["r:watch:fresh"].jobs) == 1


def verb_apply_notify(bench: StoreBench) -> None:
    """A message is kept for its resident until that has handled it, over deaths too."""
    bench.open()
    a = bench.hand("a")
    assert bench.notify("k", b"0") == "gone"
    bench.start("k")
    assert bench.notify("k", b"1") == "sent"
    take = a.take(residents=1)["r:watch:k"]
    assert [data for _, data in take.notes] == [b"1"]
    assert bench.notify("k", b"2") == "sent" and bench.notify("k", b"3\0") == "sent"
    signals = a.work().signals
    assert [(one.kind, one.mailbox, one.data) for one in signals] == [
        ("note", "r:watch:k", b"2"),
        ("note", "r:watch:k", b"3\0"),
    ]
    numbers = [take.notes[0][0], *(one.note for one in signals)]
    assert numbers == sorted(set(numbers)), f"notes are numbered in their order: {numbers}"
    a.settle(end(take, 0, "keep", notes=numbers[1]))
    b = bench.hand("b", own=False)
    bench.recover(b, a)
    take = b.take(residents=1)["r:watch:k"]
    assert take.notes == ((numbers[2], b"3\0"),), f"what was not handled comes again: {take.notes}"
    bench.stop("k")
    assert bench.notify("k", b"4") == "gone", "a resident that is about to end is told nothing more"
    bench.start("k", b"new")
    assert bench.notify("k", b"5") == "sent"
    assert {one.kind for one in b.work().signals} == {"cancel"}, "what is for the new one is not told the old one"
    b.settle(end(take, notes=numbers[2]))
    take = b.take(residents=1)["r:watch:k"]
    assert [data for _, data in take.notes] == [b"5"] and take.notes[0][0] > numbers[2]
    b.settle(end(take))
    bench.start("k")
    assert b.take(residents=1)["r:watch:k"].notes == (), "notes end with their resident"


def verb_where_tells_where_a_job_is(bench: StoreBench) -> None:
    """`delayed`, `waiting`, `running`, `dead`, `gone`."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1", "2", "3")
    bench.put("k", "later", delay=UNKNOWN)
    take = a.one("k", per=2)
    assert [bench.where("k", one) for one in ("1", "2", "3", "later", "x")] == [
        *("running", "running", "waiting"),
        *("delayed", "gone"),
    ]
    a.settle(end(take, 1, "to_dead_letters"))
    assert [bench.where("k", one) for one in ("1", "2", "3")] == ["gone", "dead", "waiting"]


def verb_keys_and_counts_tell_how_it_stands(bench: StoreBench) -> None:
    """Every mailbox with its depth, age, state and worker."""
    bench.open()
    a = bench.hand("a")
    start = bench.store.ask(about.Counts()).now
    bench.put("old", "1", "2")
    bench.skip(SECOND)
    bench.put("new", "3")
    old, new = sorted(bench.store.ask(about.Keys()), key=lambda view: view.oldest)
    assert (old.mailbox, old.depth, old.state, old.worker, old.slot) == ("j:old", 2, "ready", "a", bench.slot("old"))
    assert start <= old.oldest <= new.oldest - SECOND and bench.store.ask(about.Counts()).oldest == old.oldest
    take = a.take(want=1)
    (mailbox,) = take
    view = bench.view(mailbox)
    assert view is not None and (view.state, view.token) == ("running", take[mailbox].token)
    counts = bench.store.ask(about.Counts())
    assert (counts.jobs, counts.keys_ready, counts.keys_running) == (3, 1, 1)


def verb_listen_hints(bench: StoreBench) -> None:
    """A worker hears of jobs, signals and changes, a producer of outcomes; nobody after `close`."""
    bench.open()
    heard: Counter[str] = Counter()
    listeners = [bench.other.listen(name, lambda name=name: heard.update([name])) for name in ("a", "producer", "b")]  # type: ignore[misc]
    a = bench.hand("a", store=bench.store)
    bench.until(lambda: heard["a"] > 0, "a worker hears of members")
    b = bench.hand("b", own=False)
    bench.until(lambda: heard["b"] > 0, "a worker hears of members")
    time.sleep(0.05)
    heard.clear()
    bench.put("k", "1")
    bench.until(lambda: heard["a"] > 0, "a worker hears of a job")
    take = a.one("k")
    heard.clear()
    bench.cancel("k", "1")
    bench.until(lambda: heard["a"] > 0, "a worker hears of a signal")
    a.settle(end(take))
    bench.until(lambda: heard["producer"] > 0, "a producer hears of an outcome")
    heard.clear()
    bench.put("k", "2")
    bench.until(lambda: heard["a"] > 0, "a worker hears of the next job")
    take = a.one("k", per=1)
    heard.clear()
    bench.store.give("a", [(number, "b") for number in range(SLOTS)], "over")
    bench.until(lambda: heard["b"] > 0, "a worker hears of slots")
    time.sleep(0.05)
    heard.clear()
    bench.put("k", "3")
    a.settle(end(take))
    bench.until(lambda: heard["b"] > 0, "the new owner hears of a key that was settled elsewhere")
    b.settle(end(b.one("k"), 0, "retry", delay=SECOND))
    bench.store.apply(Shut())
    bench.until(lambda: heard["a"] > 0 and heard["b"] > 0, "everybody hears of the end")
    for subscription in listeners:
        subscription.close()
        subscription.close()
    late: list[bool] = []
    subscription = bench.other.listen("a", lambda: late.append(True))

    def is_heard_by_the_new_one_only() -> bool:  # but for what was on its way
        heard.clear()
        late.clear()
        bench.store.apply(Shut())
        bench.store.apply(Resume())
        bench.until(lambda: bool(late), "a new listener hears")
        return not heard

    bench.until(is_heard_by_the_new_one_only, "nobody hears something after close")
    subscription.close()


def verb_calls_from_many_threads(bench: StoreBench) -> None:
    """Verbs from several threads at once do not mix: everything is in, once, each producer's in its order."""
    bench.open()
    problems: list[BaseException] = []

    def produce(number: int, store: Verbs) -> None:
        try:
            for count in range(30):
                orders = [bench.order("k", f"{number}-{count:02}"), bench.order(f"k{count}", f"x{number}-{count}")]
                store.dispatch(Batch(f"{number}-{count}", 1), orders)
        except BaseException as problem:
            problems.append(problem)

    stores = itertools.cycle((bench.bare, bench.bare_other))
    threads = [threading.Thread(target=produce, args=(number, next(stores))) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, f"{problems}"
    takes = bench.hand("a").take(per=1000)
    everything = ids(takes["j:k"])
    assert len(everything) == len(set(everything)) == 180
    for number in range(6):
        own = [one for one in everything if one.startswith(f"{number}-")]
        assert own == sorted(own), f"the order of a producer was {own}"
    assert sum(len(take.jobs) for take in takes.values()) == 360


# --- the promises ----------------------------------------------------------------------------------------------------


def k1_one_take_at_a_time(bench: StoreBench) -> None:
    """A key that runs is taken by nobody, whatever is dispatched, given, claimed or resumed meanwhile."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    key, slot = "k", bench.slot("k")
    bench.put(key, "1", "2", "3")
    take = a.one(key, per=1)
    everything: list[Callable[[], object]] = [
        lambda: bench.put(key, "4"),
        lambda: bench.put(key, "5", on_busy="replace"),
        lambda: bench.cancel(key, "4"),
        lambda: bench.purge(key),
        lambda: bench.put(key, "6"),
        lambda: bench.store.apply(Pause(slot, key)),
        lambda: bench.store.apply(Resume(slot, key)),
        lambda: bench.store.give("a", [(slot, "b")], "over"),
        lambda: b.claim([slot]),
        lambda: bench.store.give("b", [(slot, "a")], "and back"),
        lambda: a.claim([slot], known=[take.token], call=a.calls),
        lambda: a.settle(end(take, 0, "keep")),
        lambda: bench.store.apply(Replay((1,))),
        lambda: bench.skip(DRAIN),
        lambda: (a.renew(), b.renew()),
    ]
    for number, step in enumerate(everything):
        step()
        found = [*a.take(), *b.take()]
        assert not found, f"K1: after step {number} {key} runs twice"
    assert a.settle(end(take)).stale == ()
    assert ids(a.one(key)) == ["6"]


def k1_a_key_that_kept_nothing_is_not_taken_twice(bench: StoreBench) -> None:
    """Progress up to the last job ends a take: what comes next is taken once, and the old take is over."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    bench.put("k", "1")
    take = a.one("k")
    assert a.settle(end(take, 1, "keep")).stale == ()
    assert not bench.state("j:k"), "I1: an empty mailbox stands nowhere"
    bench.put("k", "2")
    again = a.one("k")
    with unchanged(bench, "K1: an old take changes nothing"):
        assert a.settle(end(take, 1)).stale == (0,)
    assert not a.take() and not b.take()
    assert a.settle(end(again)).stale == ()


def k1_an_old_take_changes_nothing(bench: StoreBench) -> None:
    """After a take has ended, in whatever way, its settles are stale and touch nothing."""
    bench.open()
    for how in ("end", "keep", "retry", "to_dead_letters", "park"):
        name = f"a-{how}"
        a = bench.hand(name)
        bench.put("k", f"{how}1", f"{how}2", f"{how}3")
        old = a.one("k", per=2)
        a.settle(end(old, 1))
        with unchanged(bench, f"K1: an old {how} of a key that is ready"):
            assert a.settle(end(old, 2, how, reason=b"job", outcomes=())).stale == (0,)
        new = a.one("k", per=2)
        assert new.token > old.token
        late = end(old, 2, how, reason=b"job", notes=9, outcomes=(Outcome(f"{how}2", "done", b"", KEEP),))
        with unchanged(bench, f"K1: an old {how} of a key that runs again"):
            assert a.settle(late, end(old, 1, "keep", outcomes=())).stale == (0, 1)
        assert bench.outcome(f"{how}2") == "", "an outcome by an old take is not written"
        wrong = new._replace(slot=(new.slot + 1) % SLOTS)
        assert a.settle(end(wrong), end(new._replace(mailbox="j:other")), end(new)).stale == (0, 1)
        if bench.state("j:k"):
            a.settle(end(a.one("k")))
        bench.store.leave(name)


def k1_a_settle_never_removes_more_than_was_taken(bench: StoreBench) -> None:
    """A count beyond the take is cut, a lower one than before is no step back."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1", "2", "3", "4", "5")
    take = a.one("k", per=3)
    a.settle(end(take, 2, "keep"))
    a.settle(end(take, 1, "keep"))
    a.settle(end(take, 0, "keep"), end(take, 2, "keep"))
    assert [bench.where("k", one) for one in "12345"] == ["gone", "gone", "running", "waiting", "waiting"]
    a.settle(end(take, 9))
    assert ids(a.one("k")) == ["4", "5"] and bench.store.ask(about.Counts()).done == 3


def k1_what_was_never_tried_is_not_blamed(bench: StoreBench) -> None:
    """`to_dead_letters`, `retry` and `park` after the last job of a take do not touch the job behind it."""
    bench.open()
    a = bench.hand("a")
    for how in ("to_dead_letters", "retry", "park"):
        bench.put("k", "1", "2")
        a.settle(end(a.one("k", per=1), 1, how, delay=UNKNOWN, failures=7, reason=b"nobody's"))
        take = a.one("k")
        assert (ids(take), take.failures) == (["2"], 0), f"after {how}"
        a.settle(end(take))
    assert not bench.store.ask(about.DeadLetters())


def k1_tokens_grow(bench: StoreBench) -> None:
    """Every take of a key has a higher token than the one before, over workers, deaths and jumps of the clock."""
    bench.open()
    last = 0
    a = bench.hand("a")
    bench.put("k", *map(str, range(40)))
    for number in range(12):
        take = a.one("k", per=1)
        assert take.token > last, f"K1: token {take.token} after {last}, in round {number}"
        last = take.token
        if number % 4 == 3:
            b = bench.hand(f"b{number}", own=False)
            bench.recover(b, a)
            a = b
        elif number % 4 == 1:
            bench.skip(-7 * SECOND)
            a.renew()
            a.settle(end(take))
        else:
            a.settle(end(take))


def k1_the_living_keep_what_they_have(bench: StoreBench) -> None:
    """No claim takes from a member whose lease holds, or who was not seen to be silent."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    bench.put("k", "1")
    take = a.one("k")
    seen = bench.ends()["a"]
    for dead in ({}, {"a": seen}, {"a": seen - 1}, {"a": 0}, {"b": bench.ends()["b"]}):
        with unchanged(bench, f"K1: a claim against the living, naming {dead}"):
            assert b.claim(dead=dead) == Claimed((), (), 0, is_gone=False)
    bench.skip(LEASE)
    a.renew()
    b.renew()
    with unchanged(bench, "K1: a lease that was renewed since"):
        assert b.claim(dead={"a": seen}).got == ()
    assert a.settle(end(take)).stale == ()


def k2_nothing_is_lost_with_a_worker(bench: StoreBench) -> None:
    """Wherever a worker dies, its unsettled jobs run again, first of all, in their order."""
    bench.open(max_losses=99)
    worker = bench.hand("a")
    bench.put("k", "1", "2", "3", "4")
    bench.put("k", "late", delay=SECOND)
    for number, (per, done) in enumerate([(3, 1), (3, 0), (1, 0)]):
        take = worker.one("k", per=per)
        if done:
            worker.settle(end(take, done, "keep"))
        heir = bench.hand(f"b{number}", own=False)
        claimed = bench.recover(heir, worker)
        assert len(claimed.got) == SLOTS and claimed.recovered == 1
        assert worker.settle(end(take)).stale == (0,), "K1: the dead settle nothing"
        worker = heir
    take = worker.one("k")
    assert ids(take) == ["2"], f"after a loss one job at a time: {ids(take)}"
    worker.settle(end(take))
    assert ids(worker.one("k")) == ["3", "4", "late"]
    assert bench.store.ask(about.Counts()).recovered == 3


def k2_what_was_running_comes_first(bench: StoreBench) -> None:
    """A key that was running when its worker died is taken before those that only waited."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    first, *others = bench.neighbours(4)
    bench.put(first, "1")
    a.one(first)
    for key in others:
        bench.put(key, f"{key}-1")
    bench.recover(b, a)
    assert list(b.take(want=1)) == [f"j:{first}"]


def k2_a_poison_job_becomes_a_dead_letter(bench: StoreBench) -> None:
    """A job that was running when its worker died, so many times, is a dead letter; those behind it go on."""
    bench.open(max_losses=3)
    worker = bench.hand("a")
    bench.put("k", "poison", "2", "3")
    for number in range(3):
        take = worker.one("k")
        assert (ids(take)[0], take.losses) == ("poison", number)
        heir = bench.hand(f"b{number}", own=False)
        bench.recover(heir, worker)
        worker = heir
    assert ids(worker.one("k")) == ["2", "3"]
    (letter,) = bench.store.ask(about.DeadLetters())
    assert opened(letter.job).id == "poison" and b"3 times" in letter.reason
    assert bench.outcome("poison") == "lost"


def k2_a_lost_lease_is_no_death(bench: StoreBench) -> None:
    """A worker that is lost without a proof of its death counts for less; but not for ever."""
    bench.open(max_losses=2)
    worker = bench.hand("a")
    bench.put("k", "slow", "2")
    for number in range(10):
        take = worker.one("k")
        assert (ids(take), take.losses) == (["slow"] if number else ["slow", "2"], number)
        heir = bench.hand(f"b{number}", own=False)
        bench.recover(heir, worker, is_proven=False)
        worker = heir
    assert ids(worker.one("k")) == ["2"]
    (letter,) = bench.store.ask(about.DeadLetters())
    assert letter.attempts == 10 and b"lost 10 times" in letter.reason and b"0 proven deaths" in letter.reason


def k2_lost_leases_and_deaths_add_up(bench: StoreBench) -> None:
    """Deaths count as deaths, whatever else happened to a job."""
    bench.open(max_losses=2)
    worker = bench.hand("a")
    bench.put("k", "odd")
    for number, is_proven in enumerate((False, True, False, True)):
        assert worker.one("k").losses == number
        heir = bench.hand(f"b{number}", own=False)
        bench.recover(heir, worker, is_proven=is_proven)
        worker = heir
    (letter,) = bench.store.ask(about.DeadLetters())
    assert letter.attempts == 4 and letter.reason == b"its worker died 2 times while running it"
    assert bench.store.apply(Gone("a")) == bench.store.apply(Gone("nobody")) == "unknown"


def k2_a_resident_survives_its_worker(bench: StoreBench) -> None:
    """A resident runs elsewhere however often its workers die: it is not poison."""
    bench.open(max_losses=1)
    worker = bench.hand("a")
    bench.start("k", b"args")
    for number in range(3):
        (take,) = worker.take(residents=5).values()
        assert opened(take.jobs[0]).payload == b"args"
        heir = bench.hand(f"b{number}", own=False)
        bench.recover(heir, worker)
        worker = heir
    assert not bench.store.ask(about.DeadLetters()) and worker.take(residents=5)


_UNREADABLE: Final = {
    "empty": b"",
    "no message": b"\xc1\xc1\xc1",
    "too short": encode(["x", NAME]),
    "a number for an id": encode([5, NAME, "", 0, b""]),
    "a list for an id": encode([["x"], NAME, "", 0, b""]),
    "bytes for an id": encode([b"x", NAME, "", 0, b""]),
    "a map for a name": encode(["x", {}, "", 0, b""]),
    "text for a time": encode(["x", NAME, "", "long", b""]),
    "an array of four billion": b"\xdd\xff\xff\xff\xff",
}


def k2_what_cannot_be_read_harms_no_other(bench: StoreBench) -> None:
    """A job whose envelope is nonsense is taken, settled, lost, replayed and forgotten as others are, beside them."""
    bench.open(max_losses=1)
    a, many = bench.hand("a"), len(_UNREADABLE)
    bodies = list(_UNREADABLE.values())
    keys = [f"k{number}" for number in range(many)]
    bench.send(*(Order(bench.slot(key), f"j:{key}", body) for key, body in zip(keys, bodies, strict=True)))
    bench.send(*(bench.order(key, f"{key}-2") for key in keys))
    assert all(bench.where(key, f"{key}-2") == "waiting" and bench.where(key, "x") != "running" for key in keys)
    takes = a.take()
    a.settle(*(end(take, 0, "to_dead_letters", reason=b"misfit") for take in takes.values()))
    letters = bench.store.ask(about.DeadLetters())
    assert sorted(letter.job[STAMP:] for letter in letters) == sorted(bodies), "dead letters are as they came"
    assert bench.store.apply(Replay(tuple(letter.number for letter in letters))) == str(many)
    takes = a.take()
    assert [len(takes[f"j:{key}"].jobs) for key in keys] == [2] * many
    a.settle(*(end(take, 1, "keep") for take in takes.values()))
    b = bench.hand("b", own=False)
    bench.recover(b, a)
    assert len(bench.store.ask(about.DeadLetters())) == many, "whose worker died is dead, readable or not"
    assert bench.store.apply(Drop(tuple(letter.number for letter in bench.store.ask(about.DeadLetters())))) == str(many)
    bench.send(*(Order(bench.slot(key), f"j:{key}", body) for key, body in zip(keys, bodies, strict=True)))
    bench.send(*(bench.order(key, f"{key}-3") for key in keys))
    assert [bench.cancel(key, f"{key}-3") for key in keys] == ["cancelled"] * many
    assert [bench.cancel(key, "x") for key in keys[:2]] == ["gone"] * 2
    assert [bench.purge(key) for key in keys] == ["1"] * many
    for key, body in zip(keys, bodies, strict=True):
        bench.store.apply(Start(bench.slot(key), f"r:watch:{key}", body))
        assert bench.start(key, b"args") == "replaced" and bench.notify(key, b"hello") == "sent"
    takes = b.take(residents=many)
    assert [opened(takes[f"r:watch:{key}"].jobs[0]).payload for key in keys] == [b"args"] * many


def k3_a_retry_holds_its_key_only(bench: StoreBench) -> None:
    """A job that is tried again later is first of its key; others of its slot flow."""
    bench.open()
    a = bench.hand("a")
    key, other = bench.neighbours(2)
    bench.put(key, "1", "2")
    a.settle(end(a.one(key), 0, "retry", delay=LEASE // 4, failures=1))
    bench.put(other, "o")
    bench.put(key, "3")
    assert list(a.take()) == [f"j:{other}"]
    bench.skip(LEASE // 8)
    assert not a.take()
    bench.skip(LEASE // 6)
    take = a.one(key)
    assert ids(take) == ["1", "2", "3"] and take.failures == 1
    a.settle(end(take, 1, "retry", delay=SECOND, failures=5))
    bench.skip(2 * SECOND)
    take = a.one(key)
    assert (ids(take), take.failures) == (["2", "3"], 5), "failures are those of the job that failed"
    a.settle(end(take, 1))
    assert a.one(key).failures == 0


def k3_first_completions_are_in_order(bench: StoreBench) -> None:
    """Through partial settles, retries, deaths and hand-overs, jobs end first in the order in which they entered."""
    bench.open(max_losses=99)
    names = [f"{number:02}" for number in range(24)]
    bench.put("k", *names)
    workers = [bench.hand("a")]
    ended: list[str] = []
    for number in range(200):
        worker = workers[-1]
        takes = worker.take(per=1 + number % 4)
        if not takes:
            if not bench.state("j:k"):
                break
            bench.skip(SECOND)
            continue
        take = takes["j:k"]
        done = number % (len(take.jobs) + 1)
        ended += ids(take)[:done]
        if number % 5 == 4:
            heir = bench.hand(f"b{number}", own=False)
            worker.settle(end(take, done, "keep"))
            bench.recover(heir, worker)
            workers.append(heir)
        elif number % 5 == 2:
            worker.settle(end(take, done, "retry", delay=SECOND // 2, failures=1))
        elif number % 5 == 1:
            heir = bench.hand(f"c{number}", own=False)
            bench.store.give(worker.id, [(slot, heir.id) for slot in range(SLOTS)], "over")
            worker.settle(end(take, done))
            workers.append(heir)
        else:
            worker.settle(end(take, done))
    assert ended == names, f"K3: they ended as {ended}"


def k3_a_deep_key_leaves_room_for_others(bench: StoreBench) -> None:
    """A key with many jobs stands behind the others of its slot after each turn."""
    bench.open()
    a = bench.hand("a")
    deep, *others = bench.neighbours(4)
    bench.put(deep, *map(str, range(50)))
    for other in others:
        bench.put(other, f"{other}-1")
    seen = []
    for _ in range(5):
        (take,) = a.take(want=1, per=1).values()
        seen.append(take.mailbox[2:])
        a.settle(end(take))
    assert sorted(seen[:4]) == sorted([deep, *others]) and seen[4] == deep, f"K3: the turns were {seen}"


def k3_slots_take_turns(bench: StoreBench) -> None:
    """A slot with many keys does not hold up another slot of the same worker."""
    bench.open()
    a = bench.hand("a")
    for key in bench.neighbours(40, slot=3):
        bench.put(key, f"{key}-1")
    (lonely,) = bench.neighbours(1, slot=5)
    bench.put(lonely, "x")
    takes = a.take(want=20)
    assert len(takes) == 20 and f"j:{lonely}" in takes, "K3: a slot waits for another"


def k4_a_move_moves_what_it_names(bench: StoreBench) -> None:
    """A join moves nothing by itself; `give` and `claim` move their slots, and every move is counted."""
    bench.open()
    a = bench.hand("a")
    before = bench.store.ask(about.Slots())
    b = bench.hand("b", own=False)
    assert bench.store.ask(about.Slots()) == before
    bench.store.give("a", [(2, "b"), (5, "b")], "share")
    slots = bench.store.ask(about.Slots())
    assert [number for number in range(SLOTS) if slots[number] != before[number]] == [2, 5]
    bench.recover(b, a)
    assert bench.store.ask(about.Counts()).moved == SLOTS + 2 + SLOTS - 2
    assert {slot.why for slot in bench.store.ask(about.Slots())} == {"share", "died"}


def k5_a_hand_over_waits_for_running_keys_only(bench: StoreBench) -> None:
    """The new owner has what is ready at once, and each running key when it is settled."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    busy, idle = bench.neighbours(2)
    slot = bench.slot(busy)
    bench.put(busy, "1", "2", "3")
    take = a.one(busy, per=1)
    bench.put(idle, "i")
    assert bench.store.give("a", [(slot, "b")], "share") == 1
    assert not a.take(), "K5: who gave a slot takes nothing from it"
    assert b.claim([slot]) == Claimed((), (slot,), 0, is_gone=False), "K5: what runs elsewhere is told"
    found = b.one(idle)
    assert ids(found) == ["i"]
    a.settle(end(take, 0, "keep"))
    assert not b.take()
    a.settle(end(take))
    assert not a.take()
    assert ids(b.one(busy)) == ["2", "3"]
    assert b.claim([slot]).contested == ()


def k5_a_graceful_leave_has_no_gap(bench: StoreBench) -> None:
    """Who gives all, settles and leaves has lost nothing and blamed nobody."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    bench.put("k", "1", "2")
    take = a.one("k")
    a.renew(leaving=True)
    assert bench.store.give("a", [(slot, "b") for slot in range(SLOTS)], "leaves") == SLOTS
    a.settle(end(take, 1))
    bench.store.leave("a")
    take = b.one("k")
    assert (ids(take), take.losses) == (["2"], 0)
    assert bench.store.ask(about.Counts()).recovered == 0
    assert [slot.owner for slot in bench.store.ask(about.Slots())] == ["b"] * SLOTS


def k5_a_drain_ends(bench: StoreBench) -> None:
    """What the giver still runs after the drain time is ready for the owner; nobody is blamed."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    bench.put("k", "1", "2")
    slot = bench.slot("k")
    take = a.one("k")
    bench.store.give("a", [(slot, "b")], "share")
    for _ in range(5):
        bench.skip(DRAIN // 10)
        a.renew()
        b.renew()
        assert b.claim([slot]) == Claimed((), (slot,), 0, is_gone=False) and not b.take()
    bench.skip(DRAIN // 2)
    a.renew()
    b.renew()
    assert b.claim([slot]) == Claimed((), (), 1, is_gone=False)
    new = b.one("k")
    assert (ids(new), new.losses) == (["1", "2"], 0)
    assert a.settle(end(take)).stale == (0,)


def k6_the_cost_of_a_turn_does_not_grow(bench: StoreBench) -> None:
    """To dispatch, take and settle one job costs about the same, however much waits."""
    bench.open(slots=64)
    store = bench.bare
    a = bench.hand("a", store=store)

    def turn() -> float:
        took = []
        for _ in range(30):
            start = time.perf_counter()
            store.dispatch(Batch(f"batch-{bench.number()}", 1), [bench.order("probe", f"p{bench.number()}")])
            a.calls += 1
            work = store.work("a", a.calls, [], 1, 1)
            a.calls += 1
            store.work("a", a.calls, [end(work.takes[0])], 0, 1)
            took.append(time.perf_counter() - start)
        return min(took)  # what else the machine does only adds to it

    small = turn()
    for number in range(20):
        orders = [bench.order(f"k{number}-{each}", f"{number}-{each}") for each in range(200)]
        store.dispatch(Batch(f"load-{number}", 1), orders)
        later = [bench.order("deep", f"d{number}-{each}", delay=UNKNOWN) for each in range(50)]
        store.dispatch(
            Batch(f"later-{number}", 1), [bench.order("deep", f"deep{number}-{each}") for each in range(150)] + later
        )
    allowed = 8 * small + 0.002
    large = turn()
    for _ in range(9):
        large = large if large < allowed else min(large, turn())
    assert large < allowed, f"K6: a turn took {small * 1e6:.0f} µs, with a backlog {large * 1e6:.0f} µs"


def k7_dead_letters_are_bounded_by_waiting(bench: StoreBench) -> None:
    """With dead letters full a job waits in its place, is not said to be dead, and joins them when there is room."""
    bench.open(max_dead=1)
    a = bench.hand("a")
    bench.put("k", "k1")
    bench.put("m", "m1", "m2")
    bench.put("s", "s1")
    takes = a.take()
    dead = [Outcome(one, "dead", b"", KEEP) for one in ("k1", "m1")]
    a.settle(end(takes["j:k"], 0, "to_dead_letters", outcomes=(dead[0],)))
    a.settle(
        end(takes["j:m"], 0, "to_dead_letters", failures=3, outcomes=(dead[1],)),
        end(takes["j:s"], 0, "park", reason=b"x"),
    )
    assert bench.state("j:m") == "retry" and len(bench.store.ask(about.DeadLetters())) == 1
    assert (bench.outcome("k1"), bench.outcome("m1")) == ("dead", "")
    bench.skip(DEAD_RETRY // 2)
    assert not a.take()
    bench.skip(DEAD_RETRY // 2 + SECOND)
    take = a.one("m")
    assert (ids(take), take.failures) == (["m1", "m2"], 3)
    bench.skip(UNKNOWN)
    a.renew()
    a.work(want=0)
    assert bench.state("j:s") == "parked", "K7: what nobody knows waits too"
    assert bench.store.apply(Drop((1,))) == "1"
    bench.skip(DEAD_RETRY + SECOND)
    a.work(want=0)
    (letter,) = bench.store.ask(about.DeadLetters())
    assert opened(letter.job).id == "s1" and not bench.state("j:s")
    bench.store.apply(Drop((letter.number,)))
    a.settle(end(take, 0, "to_dead_letters", outcomes=(dead[1],)))
    assert bench.outcome("m1") == "dead" and ids(a.one("m")) == ["m2"]


def k7_a_lost_job_waits_for_room_among_the_dead(bench: StoreBench) -> None:
    """A job that lost too many workers passes no limit: it does not run, and is dead as soon as there is room."""
    bench.open(max_dead=1, max_losses=1)
    a = bench.hand("a")
    bench.put("k", "k1")
    bench.put("m", "m1", "m2")
    a.settle(end(a.take()["j:k"], 0, "to_dead_letters"))
    b = bench.hand("b", own=False)
    assert bench.recover(b, a).recovered == 1
    assert bench.state("j:m") == "retry" and len(bench.store.ask(about.DeadLetters())) == 1, "K7: max_dead was passed"
    assert bench.outcome("m1") == "" and bench.where("m", "m1") == "waiting"
    bench.skip(DEAD_RETRY + SECOND)
    assert not b.take() and bench.state("j:m") == "retry", "a job that killed its workers ran again"
    bench.store.apply(Drop((bench.store.ask(about.DeadLetters())[0].number,)))
    bench.skip(DEAD_RETRY + SECOND)
    assert ids(b.one("m")) == ["m2"] and bench.outcome("m1") == "lost"
    (letter,) = bench.store.ask(about.DeadLetters())
    assert opened(letter.job).id == "m1"


def k7_a_job_on_its_last_chance_runs_beside_no_other_such(bench: StoreBench) -> None:
    """A job that kills its worker becomes a dead letter, and none that ran beside it."""
    bench.open(max_losses=2)
    a = bench.hand("a")
    for key in ("k", "l", "m"):
        bench.put(key, f"{key}1", f"{key}2")
    assert len(a.take()) == 3
    b = bench.hand("b", own=False)
    assert bench.recover(b, a).recovered == 3
    bench.put("n", "n1")
    work = b.work(want=9)
    first = [take for take in work.takes if take.losses]
    assert len(first) == 1 and len(work.takes) == 2, f"one suspect, and what is not suspect: {work.takes}"
    assert not work.is_more, "there is nothing more for who runs a suspect already"
    c = bench.hand("c", own=False)
    bench.recover(c, b)
    assert [opened(one.job).id for one in bench.store.ask(about.DeadLetters())] == [opened(first[0].jobs[0]).id]
    left = {"k", "l", "m", "n"}
    done = []
    for _ in range(9):
        takes = c.work(want=9).takes
        assert sum(take.losses > 0 for take in takes) <= 1
        for take in takes:
            done += ids(take)
            c.settle(end(take))
    assert len(done) == 6 and {job[0] for job in done} == left, f"all others ran: {done}"
    assert len(bench.store.ask(about.DeadLetters())) == 1 and not bench.store.ask(about.Keys())


def k7_a_suspect_whose_job_is_cancelled_is_none(bench: StoreBench) -> None:
    """What is behind a job that lost its workers is not blamed for it, wherever its mailbox stands."""
    bench.open(max_losses=2)
    a = bench.hand("a")
    bench.put("k", "k1", "k2")
    bench.put("l", "l1", "l2")
    bench.put("m", "m1")
    assert len(a.take()) == 3
    b = bench.hand("b", own=False)
    bench.recover(b, a)
    assert bench.cancel("k", "k1") == "cancelled" and bench.purge("m") == "1"
    takes = b.take()
    assert {name: (ids(take)[:1], take.losses) for name, take in takes.items()} == {
        "j:k": (["k2"], 0),
        "j:l": (["l1"], 1),
    }


def k7_messages_to_a_resident_are_bounded(bench: StoreBench) -> None:
    """No more messages wait for a resident than jobs for a key."""
    bench.open(max_per_key=2)
    a = bench.hand("a")
    bench.start("k")
    assert [bench.notify("k", b"%d" % number) for number in range(3)] == ["sent", "sent", "full"]
    take = a.take(residents=1)["r:watch:k"]
    assert [data for _, data in take.notes] == [b"0", b"1"] and bench.notify("k", b"3") == "full"
    a.settle(end(take, 0, "keep", notes=take.notes[0][0]))
    assert [bench.notify("k", b"4"), bench.notify("k", b"5")] == ["sent", "full"]
    assert [one.data for one in a.work().signals] == [b"4"]


def k7_a_job_that_nobody_knows_waits_for_somebody(bench: StoreBench) -> None:
    """A parked key runs with any member that knows it, one job, then goes back to its owner."""
    bench.open()
    a, b = bench.hand("a", names=()), bench.hand("b", own=False, names=("new",))
    bench.put("k", "1", "2", name="new")
    bench.put("m", "m1", name="ghost")
    takes = a.take()
    a.settle(*(end(take, 0, "park", reason=opened(take.jobs[0]).name.encode()) for take in takes.values()))
    assert not a.take() and bench.state("j:k") == "parked"
    take = b.one("k")
    assert ids(take) == ["1"]
    assert a.claim() == Claimed((), (), 0, is_gone=False), "what was borrowed is not contested"
    b.settle(end(take))
    assert not b.take() and ids(a.one("k")) == ["2"]
    bench.skip(UNKNOWN)
    a.renew()
    a.work()
    (letter,) = bench.store.ask(about.DeadLetters())
    assert letter.mailbox == "j:m" and b"ghost" in letter.reason and bench.outcome("m1") == "dead"


# --- what a hostile reading found ------------------------------------------------------------------------------------


def hole_1_no_take_after_the_lease(bench: StoreBench) -> None:
    """Who lets its lease end takes nothing, though nobody has claimed its slots yet; what it settles counts."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1", "2")
    take = a.one("k", per=1)
    bench.put("m", "m1")
    bench.skip(LEASE)
    work = a.work(end(take))
    assert work.is_gone and not work.takes and work.stale == (), f"{work}"
    assert a.claim().is_gone
    assert a.renew() is not None
    assert set(a.take()) == {"j:k", "j:m"}


def hole_2_a_call_that_comes_twice_takes_once(bench: StoreBench) -> None:
    """The same `work` again, or an older one, settles what is left to settle and takes nothing."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1", "2")
    bench.put("m", "m1")
    first = a.work(want=1, per=1)
    (take,) = first.takes
    again = bench.store.work("a", a.calls, [], 5, 5)
    assert not again.takes and not again.is_gone and again.is_more
    bench.store.work("a", a.calls + 5, [end(take)], 0, 1)
    late = bench.store.work("a", a.calls + 1, [end(take)], 5, 5)
    assert late.stale == (0,) and not late.takes, "a call that was overtaken takes nothing"
    assert bench.store.work("a", a.calls + 6, [], 5, 5).takes


def hole_2_a_take_whose_answer_was_lost_is_given_back(bench: StoreBench) -> None:
    """`claim` with `known` makes ready what the caller does not know, without blame, and leaves what it knows."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1")
    known = a.one("k")
    bench.put("m", "m1", "m2")
    bench.start("m")
    lost = a.work(residents=3).takes
    assert len(lost) == 2
    assert a.claim().recovered == 0, "without `known` nothing is given back"
    assert a.claim(known=[known.token], call=a.calls).recovered == 2
    assert a.claim(known=[known.token], call=a.calls).recovered == 0
    takes = a.take(residents=3)
    assert set(takes) == {"j:m", "r:watch:m"} and takes["j:m"].losses == 0 and len(takes["j:m"].jobs) == 2
    assert a.settle(*map(end, lost)).stale == (0, 1) and a.settle(end(known)).stale == ()


def hole_3_a_call_that_was_given_up_takes_nothing(bench: StoreBench) -> None:
    """A `work` that arrives after the `claim` that gave up on it takes nothing."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "1")
    a.claim(known=[], call=7)
    for call in (1, 7):
        assert not bench.store.work("a", call, [], 5, 5).takes, f"call {call} was given up"
    assert bench.store.work("a", 8, [], 5, 5).takes
    a.claim(known=[], call=3)
    assert not bench.store.work("a", 8, [], 5, 5).takes, "a floor does not sink"


def hole_3_a_recovery_that_comes_late_recovers_nothing(bench: StoreBench) -> None:
    """A `claim` that was overtaken by a take does not give it back, though its caller did not know of it."""
    bench.open()
    a, b = bench.hand("a", names=()), bench.hand("b", own=False, names=("new",))
    bench.put("k", "1", name="new")
    a.settle(end(a.one("k"), 0, "park", reason=b"new"))
    bench.put("m", "m1")
    take, borrowed = a.one("m"), b.one("k")
    for hand in (a, b):
        assert hand.claim(known=[], call=hand.calls - 1) == Claimed((), (), 0, is_gone=False), "it came late"
    assert not a.take(want=5)
    assert a.settle(end(take)).stale == () and b.settle(end(borrowed)).stale == ()


def hole_4_epochs_and_tokens_begin_at_the_time(bench: StoreBench) -> None:
    """They are at least the time in microseconds: a store that lost its data hands out none that was seen before."""
    bench.open()
    before = bench.store.ask(about.Members()).now
    a = bench.hand("a")
    bench.put("k", "1")
    take = a.one("k")
    assert take.token >= before and min(slot.epoch for slot in bench.store.ask(about.Slots())) >= before
    was = bench.store.ask(about.Members()).incarnation
    bench.bare.drop()
    for store in (bench.bare, bench.bare_other):
        store.open(bench.settings)
    assert bench.store.ask(about.Members()).incarnation != was
    a = bench.hand("a")
    bench.put("k", "1")
    assert a.one("k").token > take.token


def hole_5_a_claim_does_not_renew(bench: StoreBench) -> None:
    """A claim leaves the lease as it is, and is refused when it is over."""
    bench.open()
    a = bench.hand("a")
    ends = bench.ends()
    bench.skip(LEASE - 5 * SECOND)
    assert not a.claim().is_gone and bench.ends() == ends
    bench.skip(5 * SECOND)
    assert a.claim().is_gone and bench.ends() == ends


def hole_6_a_giver_that_dies_holds_up_nothing(bench: StoreBench) -> None:
    """What a giver ran when it died is ready as soon as it is known to be dead, not after the drain."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    bench.put("k", "1")
    slot = bench.slot("k")
    a.one("k")
    bench.store.give("a", [(slot, "b")], "share")
    assert b.claim([slot]).contested == (slot,)
    ends = bench.ends()
    bench.skip(LEASE)
    b.renew()
    assert b.claim([slot]).contested == (slot,), "it was not said to be dead"
    assert b.claim([slot], dead={"a": ends["a"]}) == Claimed((), (), 1, is_gone=False)
    assert b.one("k").losses == 1


def hole_7_a_slot_is_not_held_up_by_one_key(bench: StoreBench) -> None:
    """While one key of a moved slot runs on with its old owner, its neighbours go on with the new one."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    slow, *quick = bench.neighbours(4)
    slot = bench.slot(slow)
    bench.put(slow, "1")
    take = a.one(slow)
    bench.store.give("a", [(slot, "b")], "share")
    for number in range(3):
        for key in quick:
            bench.put(key, f"{key}-{number}")
        found = b.take()
        assert set(found) == {f"j:{key}" for key in quick}
        b.settle(*map(end, found.values()))
    assert a.settle(end(take)).stale == ()


def hole_8_residents_move_like_jobs(bench: StoreBench) -> None:
    """A resident that runs is contested, waits for its end or the drain, and never runs twice."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    bench.start("k", b"args")
    slot = bench.slot("k")
    take = a.take(residents=1)["r:watch:k"]
    bench.put("k", "1")
    assert bench.store.give("a", [(slot, "b")], "share") == 1
    assert b.claim([slot]).contested == (slot,)
    assert set(b.take(residents=5)) == {"j:k"}, "the jobs of its key go on"
    a.settle(end(take, 0))
    assert set(b.take(residents=5)) == {"r:watch:k"}
    assert not a.take(residents=5)


def hole_9_commands_never_double_a_key(bench: StoreBench) -> None:
    """Purge, cancel and replace, on a key in any state, leave it in one place: it is taken once."""
    bench.open()
    a = bench.hand("a", names=(NAME,))
    commands: dict[str, Callable[[str], object]] = {
        "purge": bench.purge,
        "cancel": lambda key: bench.cancel(key, f"{key}1"),
        "cancel2": lambda key: bench.cancel(key, f"{key}2"),
        "replace": lambda key: bench.put(key, f"{key}r", on_busy="replace"),
    }
    places: dict[str, Callable[[str, Take], object]] = {
        "ready": lambda key, take: a.settle(end(take, 0)),
        "running": lambda key, take: None,
        "retry": lambda key, take: a.settle(end(take, 0, "retry", delay=SECOND)),
        "parked": lambda key, take: a.settle(end(take, 0, "park", reason=b"ghost")),
        "paused": lambda key, take: (
            bench.store.apply(Pause(bench.slot(key), key)),
            a.work(end(take, 0)),
        ),
    }
    for (command, apply), (place, bring) in itertools.product(commands.items(), places.items()):
        key = f"{command}-{place}-"
        bench.put(key, f"{key}1", f"{key}2")
        take = a.one(key, per=1)
        bring(key, take)
        assert bench.state(f"j:{key}") == place
        apply(key)
        apply(key)
        bench.put(key, f"{key}3")
        if place == "running":
            assert not a.take(), f"{command} of a running key doubled it"
            a.settle(end(take))
        bench.store.apply(Resume(bench.slot(key), key))
        bench.skip(2 * SECOND)
        takes = a.take()
        if place == "parked" and not takes:
            assert bench.state(f"j:{key}") == "parked"
            bench.purge(key)
            continue
        assert list(takes) == [f"j:{key}"] and not a.take(), f"{command} on {place}: {takes}"
        a.settle(end(takes[f"j:{key}"]))
        for _ in range(3):
            rest = a.take()
            a.settle(*map(end, rest.values()))
        assert not bench.state(f"j:{key}"), f"{command} on {place} leaves {bench.view(f'j:{key}')}"
        a.renew()


def hole_9_equal_jobs_are_told_apart(bench: StoreBench) -> None:
    """Of two equal jobs, the one that a worker has stays when the other is removed."""
    bench.open()
    a = bench.hand("a")
    twin = bench.order("k", "x")
    bench.send(twin, bench.order("k", "y", name="other"), twin)
    take = a.one("k", per=1)
    bench.put("k", "z", on_busy="replace")
    assert a.settle(end(take)).stale == ()
    assert ids(a.one("k")) == ["y", "z"], "a job was lost in the place of its twin"


def hole_10_a_delayed_job_holds_up_nothing(bench: StoreBench) -> None:
    """`at=tomorrow` is no matter for the rest of its key."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "tomorrow", delay=24 * 3600 * SECOND)
    bench.put("k", "1")
    a.settle(end(a.one("k")))
    assert not bench.state("j:k") and bench.where("k", "tomorrow") == "delayed"


def hole_11_a_batch_that_comes_twice_is_answered_alike(bench: StoreBench) -> None:
    """The same batch again adds nothing, and is told what was refused the first time, though there is room now."""
    bench.open(max_per_key=2)
    orders = [bench.order("k", str(number)) for number in range(3)]
    delayed = bench.order("k", "late", delay=SECOND)
    unique = bench.order("m", "u", unique_for=SECOND)
    assert bench.send(*orders, delayed, unique, batch="b") == {2: "full", 3: "full"}
    a = bench.hand("a")
    takes = a.take()
    a.settle(*map(end, takes.values()))
    with unchanged(bench, "a batch that comes twice"):
        for store in (bench.store, bench.other):
            assert dict(store.dispatch(Batch("b", 1), [*orders, delayed, unique])) == {2: "full", 3: "full"}
    bench.send(bench.order("n", "n"), batch="c")
    assert bench.store.ask(about.Counts()).jobs == 1


def hole_11_a_batch_that_comes_late_is_ignored(bench: StoreBench) -> None:
    """What a producer gave up and was under way all the same does not come after what it sent since."""
    bench.open()
    assert bench.store.dispatch(Batch("p", 5), [bench.order("k", "new")]) == {}
    with unchanged(bench, "a batch that comes late"):
        for store in (bench.store, bench.other):
            assert store.dispatch(Batch("p", 4), [bench.order("k", "old")]) == {}
            assert store.dispatch(Batch("p", 4), [bench.order("k", "old", delay=SECOND)]) == {}
    assert bench.store.dispatch(Batch("q", 4), [bench.order("k", "another's")]) == {}
    bench.skip(BATCH_RETENTION + SECOND)
    assert bench.store.dispatch(Batch("p", 1), [bench.order("k", "anew")]) == {}
    assert bench.store.ask(about.Counts()).jobs == 3


def hole_11_a_delayed_job_comes_at_its_own_time(bench: StoreBench) -> None:
    """One that was taken back and dispatched again by the same id does not come at the time of the first."""
    bench.open()
    a = bench.hand("a")
    bench.put("k", "again", delay=SECOND)
    assert bench.cancel("k", "again") == "cancelled"
    bench.put("k", "first", delay=2 * SECOND)
    bench.put("k", "again", delay=3 * SECOND)
    bench.skip(4 * SECOND)
    a.work(want=0)
    assert ids(a.one("k")) == ["first", "again"]


def hole_12_only_what_ran_is_blamed(bench: StoreBench) -> None:
    """A loss counts for the first unsettled job of each key, and for no other; a settle of it forgets."""
    bench.open(max_losses=2)
    worker = bench.hand("a")
    bench.put("k", "1", "2", "3")
    take = worker.one("k")
    worker.settle(end(take, 1, "keep"))
    bench.put("m", "m1")
    heir = bench.hand("b1", own=False)
    bench.recover(heir, worker)
    takes = heir.take()
    assert (ids(takes["j:k"]), takes["j:k"].losses) == (["2"], 1)
    assert takes["j:m"].losses == 0, "what waited is not blamed"
    heir.settle(end(takes["j:k"]), end(takes["j:m"]))
    take = heir.one("k")
    assert (ids(take), take.losses) == (["3"], 0)
    last = bench.hand("b2", own=False)
    bench.recover(last, heir)
    assert not bench.store.ask(about.DeadLetters()) and last.one("k").losses == 1


def hole_13_an_outage_kills_nobody(bench: StoreBench) -> None:
    """When all leases are over at once, who comes back first takes nothing from who comes back too."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    bench.store.give("a", [(slot, "b") for slot in range(4)], "share")
    bench.put("k", "1")
    owner = a if bench.store.ask(about.Owners())[1][bench.slot("k")] == "a" else b
    take = owner.one("k")
    bench.skip(3 * LEASE)
    seen = bench.ends()
    assert a.work().is_gone and b.work().is_gone
    a.renew()
    assert a.claim() == Claimed((), (), 0, is_gone=False), "it names nobody that it has seen for so long"
    assert b.renew() is not None, "a member that nobody buried is one still"
    assert a.claim(dead={"b": seen["b"]}).got == (), "b has renewed since"
    assert owner.settle(end(take)).stale == ()
    assert bench.store.ask(about.Owners())[1] == ["b"] * 4 + ["a"] * 4


def hole_13_the_stores_clock_alone_kills_nobody(bench: StoreBench) -> None:
    """A lease that is over on the store's clock, but is not the one that the claimer saw for so long, is no death."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    seen = bench.ends()["a"]
    bench.skip(SECOND)
    a.renew()
    bench.skip(2 * LEASE)
    b.renew()
    for end_seen in (seen, 0, bench.ends()["a"] + 1):
        assert b.claim(dead={"a": end_seen}) == Claimed((), (), 0, is_gone=False), "it saw another end"
    assert len(b.claim(dead={"a": bench.ends()["a"]}).got) == SLOTS


def hole_13_a_clock_that_went_back_keeps_no_dead_alive(bench: StoreBench) -> None:
    """A lease that ends further away than a lease lasts is none, once it was seen for so long."""
    bench.open()
    a, b = bench.hand("a"), bench.hand("b", own=False)
    seen = bench.ends()["a"]
    bench.skip(-3600 * SECOND)
    b.renew()
    assert len(b.claim(dead={"a": seen}).got) == SLOTS
    assert a.renew() is None
    with unchanged(bench, "the living are not dead by the same rule"):
        c = bench.ends()["b"]
        assert b.claim(dead={"b": c}).got == ()


def hole_15_every_end_has_an_outcome(bench: StoreBench) -> None:
    """Dead, lost, cancelled, replaced and purged jobs tell so, with what is to be told; `keep=0` tells nothing."""
    bench.open(max_losses=1)
    a = bench.hand("a")
    for key in ("lost", "cancelled", "replaced", "purged", "parked"):
        bench.put(key, f"{key}-1", f"{key}-2")
    bench.put("mute", "mute-1", "mute-2", keep=0)
    takes = a.take(per=1)
    a.settle(end(takes.pop("j:parked"), 0, "park", reason=b"ghost"))
    a.settle(*(end(take) for mailbox, take in takes.items() if mailbox not in ("j:lost",)))
    bench.cancel("cancelled", "cancelled-2")
    bench.put("replaced", "new", on_busy="replace")
    bench.purge("purged")
    bench.purge("mute")
    b = bench.hand("b", own=False)
    bench.recover(b, a)
    bench.skip(UNKNOWN)
    b.renew()
    b.work(want=0)
    found = {one: bench.outcome(one) for one in ("cancelled-2", "replaced-2", "purged-2", "mute-2")}
    assert found == dict.fromkeys(found, ""), "outcomes are kept for ten minutes, an hour went by"
    assert [bench.outcome(f"{key}-1") for key in ("parked", "mute", "lost")] == ["dead", "", ""]
    reasons = {letter.mailbox: letter.reason for letter in bench.store.ask(about.DeadLetters())}
    assert set(reasons) == {"j:lost", "j:parked"}


def hole_15_outcomes_by_command(bench: StoreBench) -> None:
    """What a command ended has its outcome at once."""
    bench.open(max_losses=1)
    a = bench.hand("a")
    for key in ("cancelled", "replaced", "purged", "lost"):
        bench.put(key, f"{key}-1", f"{key}-2")
    a.take(per=1)
    bench.cancel("cancelled", "cancelled-2")
    bench.put("replaced", "new", on_busy="replace")
    bench.purge("purged")
    b = bench.hand("b", own=False)
    bench.recover(b, a)
    for key, one in (("cancelled", 2), ("replaced", 2), ("purged", 2), ("lost", 1)):
        assert bench.outcome(f"{key}-{one}") == key, f"{key} is told as {bench.outcome(f'{key}-{one}')!r}"


def hole_18_every_verb_may_come_twice(bench: StoreBench) -> None:
    """What may be sent again is as good once as twice: the second time changes nothing."""
    bench.open()
    a, b, c = bench.hand("a"), bench.hand("b", own=False), bench.hand("c", own=False)
    bench.put("k", "1", "2", "3")
    bench.start("k", b"1")
    bench.put("m", "m1")
    takes = a.take(want=1, per=2, residents=1)
    take = next(take for mailbox, take in takes.items() if mailbox[0] == "j")
    others = [opened(raw).id for raw in take.jobs]
    slot = take.slot
    ends = bench.ends()
    twice: list[tuple[str, Callable[[], object]]] = [
        ("dispatch", lambda: bench.send(bench.order("k", "9"), bench.order("z", "z", delay=UNKNOWN), batch="same")),
        ("work", lambda: bench.store.work("a", a.calls + 1, [end(take, 1, "keep")], 3, 3)),
        ("cancel", lambda: bench.cancel(take.mailbox[2:], others[-1])),
        ("start", lambda: bench.start("k", b"2")),
        ("stop", lambda: bench.stop("k")),
        ("purge", lambda: bench.purge("m")),
        ("pause", lambda: bench.store.apply(Pause(slot, key_of(take.mailbox)))),
        ("give", lambda: bench.store.give("a", [(slot, "b")], "share")),
        ("claim", lambda: b.claim([slot])),
        ("resume", lambda: bench.store.apply(Resume(slot, key_of(take.mailbox)))),
        ("end", lambda: bench.store.work("a", a.calls + 2, [end(take)], 0, 1)),
        ("floor", lambda: a.claim(known=[], call=a.calls + 2)),
        ("leaving", lambda: bench.store.claim("c", [], {})),
        ("leave", lambda: bench.store.leave("c")),
        ("dead", lambda: b.claim(dead={"a": ends["a"]})),
    ]
    for name, verb in twice:
        if name == "dead":
            bench.skip(LEASE)
            b.renew()
        verb()
        before = snapshot(bench.store)
        verb()
        assert snapshot(bench.store) == before, f"the second {name} changed something"
    assert c.renew() is None


def hole_18_what_was_lent_is_not_lost(bench: StoreBench) -> None:
    """A take of a parked mailbox whose answer was lost, or whose worker died, is found though nobody owns it."""
    bench.open()
    a = bench.hand("a", names=())
    b, c = bench.hand("b", own=False, names=("new",)), bench.hand("c", own=False, names=("new",))
    bench.put("k", "1", "2", name="new")
    a.settle(end(a.one("k"), 0, "park", reason=b"new"))
    lost = b.one("k")
    assert a.claim().recovered == 0 and c.claim([]).recovered == 0
    claimed = b.claim([], known=[lost.token], call=b.calls)
    assert claimed.recovered == 0, "it is known"
    claimed = b.claim([], known=[], call=b.calls)
    assert claimed.recovered == 1, "the answer was lost, so it is ready for its owner"
    take = a.one("k")
    assert take.losses == 0
    a.settle(end(take, 0, "park", reason=b"new"))
    lost = c.one("k")
    ends = bench.ends()
    bench.skip(LEASE)
    for hand in (a, b):
        hand.renew()
    claimed = b.claim([], dead={"c": ends["c"]})
    assert claimed.recovered == 1, "its worker died"
    assert a.one("k").losses == 1 and c.settle(end(lost)).stale == (0,)


_PREFIXES: Final = ("verb_", "hole_", *(f"k{number}_" for number in range(1, 8)))

STORE_CHECKS: Final[tuple[Callable[[StoreBench], None], ...]] = tuple(
    value for name, value in list(globals().items()) if callable(value) and name.startswith(_PREFIXES)
)
"""All checks, in the order of this file."""


def check_store(make: Callable[[], StoreBench]) -> None:
    """Put a store to all checks, each on a bench of its own."""
    for check in STORE_CHECKS:
        bench = make()
        try:
            check(bench)
        finally:
            bench.close()
