"""The rules of keyed pools: random scripts, and every order of events in small worlds, each step judged.

`millpond_conformance._keyed_model` is the judge. A small world has two workers, two slots and a few jobs; whatever any of
them may do next is tried in every order, to a depth. Two states are the same when they differ in nothing that a rule
looks at: tokens count by rank, times by their distance from now.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.keyed.rules import commands as do
from millpond.keyed.rules.envelope import Envelope, encode, opened
from millpond.keyed.rules.records import Batch, Joiner, Order, OrderOptions, Report, Settings, Signal, Take
from millpond.keyed.rules.tables import PARKED, PAUSED, RETRY, RUNNING
from millpond_conformance import _keyed_script
from millpond_conformance._keyed_model import NAMES, Judge, Reference, clone, finish, make_rules, tables_of
from millpond_conformance._keyed_script import MOST, SETTINGS, Move, moves_of

NUMBER = st.integers(0, MOST - 1)
MOVE: st.SearchStrategy[Move] = st.tuples(NUMBER, NUMBER, NUMBER, NUMBER)

# --- random scripts --------------------------------------------------------------------------------------------------


def fresh_seeds(count: int) -> range:
    """Return seeds that no run had before, or those from `MILLPOND_SEED` on. A failure tells its seed."""
    start = int(os.environ.get("MILLPOND_SEED", random.SystemRandom().randrange(1 << 40)))
    return range(start, start + count)


def search(seeds: range, length: int) -> None:
    for seed in seeds:
        try:
            _keyed_script.run(moves_of(seed, length), SETTINGS[seed % len(SETTINGS)])
        except Exception as problem:
            problem.add_note(f"seed {seed}, length {length}: MILLPOND_SEED={seed} repeats it")
            raise


def test_known_scripts_keep_every_promise():
    search(range(200), 60)


def test_fresh_scripts_keep_every_promise():
    search(fresh_seeds(200), 60)


def test_long_scripts_keep_every_promise():
    search(fresh_seeds(4), 600)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
@given(st.lists(MOVE, max_size=40), st.integers(0, len(SETTINGS) - 1))
def test_scripts_that_hypothesis_writes_keep_every_promise(moves, variant):
    _keyed_script.run(moves, SETTINGS[variant])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_million_verbs_keep_every_promise():
    search(fresh_seeds(15000), 60)
    search(fresh_seeds(300), 600)


# --- small worlds ----------------------------------------------------------------------------------------------------

LEASE, DRAIN = 10, 20
NOW = 1000


@dataclass
class State:
    """The rules of a pool, what its workers know, and what may still happen."""

    rules: Reference
    judge: Judge
    now: int
    left: tuple[str, ...]
    """Jobs that are yet to be dispatched, in order: `<key><number>`."""
    takes: dict[str, tuple[Take, ...]]
    """What each worker knows."""
    calls: dict[str, int]
    old: tuple[Report, ...] = ()
    """Reports that may come again."""
    ends: dict[str, int] = field(default_factory=dict)
    """Ends of leases that everybody has seen for so long."""
    commands: tuple[str, ...] = ()
    """Commands that are yet to be given, in any order."""
    lost: int = 1
    """Answers that may yet be lost."""
    spare: int = 0
    """Keys that may be handed to a worker."""
    heard: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    """The last signal that each worker has acted upon."""

    def hear(self, worker: str, signals: Iterable[Signal]) -> None:
        """Hand a worker what was sent to it, once and in order."""
        for one in signals:
            if one.number > self.heard[worker]:
                self.heard[worker] = one.number
                if one.kind == "take" and one.data:
                    self.takes[worker] += (Take(one.slot, one.mailbox, one.note, (one.data,)),)

    def on_their_way(self, worker: str) -> list[Signal]:
        signals = tables_of(self.rules).signals.rows.get(worker, ())
        return [one for one in signals if one.number > self.heard[worker] and one.kind == "take"]

    def copy(self) -> State:
        rules = clone(self.rules)
        judge = Judge(rules, dict(self.judge.tokens))
        return replace(self, rules=rules, judge=judge, takes=dict(self.takes), calls=dict(self.calls), heard=dict(self.heard))  # fmt: skip

    def call(self, verb: str, *arguments: Any) -> Any:
        before = self.judge.look(self.now, verb, arguments)
        answer = getattr(self.rules, "do" if verb == "apply" else verb)(self.now, *arguments)
        self.judge.after(before, self.now, verb, arguments, answer)
        return answer

    def key(self) -> object:
        """Return what tells two states apart."""
        tables, now = tables_of(self.rules), self.now
        boxes = sorted(tables.mailboxes.all.values(), key=lambda box: box.name)
        runs = [box for box in boxes if box.state == RUNNING]
        used = {box.token for box in runs}
        used |= {take.token for takes in self.takes.values() for take in takes} | {one.token for one in self.old}
        rank = {token: number for number, token in enumerate(sorted(used))}
        unknown = tables.settings.unknown
        return (
            self.left,
            self.commands,
            self.lost,
            tuple((box.name, tuple(raw[16:] for raw in box.jobs), box.failures, box.losses) for box in boxes),
            tuple(sorted((key, tuple(one)) for key, one in tables.mailboxes.ready_in.items())),
            tuple(sorted((name, tuple(slots)) for name, slots in tables.active.of.items() if slots)),
            tuple(
                (box.slot, box.name, rank[box.token], box.worker, box.taken, box.done, box.is_borrowed) for box in runs
            ),
            tuple((box.name, max(box.since - now, 0)) for box in boxes if box.state == RETRY),
            tuple(sorted((name, max(one.due - now, 0)) for name, one in tables.delayed.rows.items())),
            tuple((box.unknown, box.name, max(box.since + unknown - now, 0)) for box in boxes if box.state == PARKED),
            tuple(box.name for box in boxes if box.state == PAUSED),
            (tuple(sorted(tables.pauses.rows)), tuple(sorted(tables.cancelled)), tuple(tables.messages.rows)),
            tuple(opened(letter.job).id for letter in tables.dead.rows.values()),
            tuple((one.id, max(one.lease_end - now, 0), one.is_leaving) for one in tables.members.all()),
            tuple((slot.owner, min(now - slot.since, DRAIN)) for slot in tables.slots.rows),
            tuple(
                sorted(
                    (name, tuple((take.mailbox, rank[take.token]) for take in takes))
                    for name, takes in self.takes.items()
                )
            ),
            tuple((one.mailbox, rank[one.token], one.done, one.how) for one in self.old),
            tuple(sorted((name, end - now) for name, end in self.ends.items() if name in tables.members)),
            tuple(sorted(tables.members.spares.items())),
            tuple(
                (name, one.mailbox, one.note in rank and rank[one.note])
                for name in "ab"
                for one in self.on_their_way(name)
            ),
        )


BASE = Settings(slots=2, lease=LEASE, drain=DRAIN, max_losses=9, unknown=15)


@dataclass(frozen=True)
class World:
    jobs: tuple[str, ...]
    hows: tuple[str, ...] = ("end",)
    commands: tuple[str, ...] = ()
    per: int = 2
    lost: int = 1
    depth: int = 8
    resident: bool = False
    spare: int = 0
    names: tuple[tuple[str, ...], ...] = (NAMES, NAMES)
    settings: Settings = BASE


def slot_of(key: str) -> int:
    return 0 if key in "kl" else 1


def order(job: str, **special: Any) -> Order:
    name = "odd" if job.endswith("o") else "job"
    body = encode(Envelope(job, name, "", 0, b""))
    return Order(slot_of(job[0]), f"j:{job[0]}", body, OrderOptions(job, name, **special) if special else None)


def begin(world: World) -> State:
    rules = make_rules(world.settings, lambda worker, before, signal: True)
    state = State(rules, Judge(rules), NOW, world.jobs, {"a": (), "b": ()}, {"a": 0, "b": 0}, commands=world.commands, lost=world.lost, spare=world.spare)  # fmt: skip
    for worker, names in zip("ab", world.names, strict=True):
        state.call("join", Joiner(worker, worker, names=names))
    state.call("claim", "a", (0, 1), {}, None, 0)
    if world.resident:
        state.call("apply", do.Start(0, "r:watch:k", encode(Envelope("r1", "watch", "", 0, b"1"))))
    return state


def _work(state: State, worker: str, settles: tuple[Report, ...], want: int, per: int, *, hears: bool = True) -> None:
    state.calls[worker] += 1
    answer = state.call("work", worker, state.calls[worker], settles, want, per, want, state.heard[worker], state.spare)
    over = {(one.mailbox, one.token) for one in settles if one.how != "keep"}
    state.takes[worker] = tuple(one for one in state.takes[worker] if (one.mailbox, one.token) not in over)
    state.old = (state.old + settles)[-2:]
    if hears:
        state.takes[worker] += answer.takes
        state.hear(worker, answer.signals)
    else:
        state.lost -= 1


def _claim(state: State, worker: str, slots: tuple[int, ...], dead: dict[str, int]) -> None:
    known = tuple(take.token for take in state.takes[worker])
    state.call("claim", worker, slots, dead, known, state.calls[worker], state.heard[worker])


def _late(state: State, settle: Report, worker: str) -> None:
    state.call("work", worker, 0, (settle,), 0, 0)


def _dispatch(state: State) -> None:
    job, state.left = state.left[0], state.left[1:]
    state.call("dispatch", Batch(f"batch-{job}", 1), [order(job)])


def _pass(state: State) -> None:
    """A lease goes by: those who renew did, the others have been seen to be silent."""
    state.ends = {one.id: one.lease_end for one in tables_of(state.rules).members.all()}
    state.now += LEASE


def _command(state: State, command: str) -> None:
    state.commands = tuple(one for one in state.commands if one != command)
    verb, _, job = command.partition(" ")
    slot, mailbox = slot_of(job[:1] or "k"), f"j:{job[:1]}"
    resident = "r:watch:k"
    if verb == "replace":
        state.call("dispatch", Batch(f"batch-{command}", 1), [order(f"{job[0]}9", on_busy="replace")])
    elif verb == "delay":
        state.call("dispatch", Batch(f"batch-{command}", 1), [order(f"{job[0]}8", delay=5)])
    else:
        commands: dict[str, do.Command[str]] = {
            "cancel": do.Cancel(slot, mailbox, job),
            "purge": do.Purge(slot, mailbox),
            "pause": do.Pause(slot, mailbox),
            "resume": do.Resume(slot, mailbox),
            "start": do.Start(0, resident, encode(Envelope("r2", "watch", "", 0, b"2"))),
            "stop": do.Stop(0, resident),
            "notify": do.Notify(0, resident, b"hello"),
        }
        state.call("apply", commands[verb])


def choices(state: State, world: World) -> Iterator[tuple[str, Callable[[State], None]]]:
    """Yield all that may happen next."""
    if state.left:
        yield "dispatch", _dispatch
    yield "time", _pass
    for command in state.commands:
        yield command, lambda state, command=command: _command(state, command)  # type: ignore[misc]
    for settle, worker in itertools.product(state.old, "a"):
        yield f"late {settle}", lambda state, settle=settle, worker=worker: _late(state, settle, worker)  # type: ignore[misc]
    for worker, other in (("a", "b"), ("b", "a")):
        yield f"{worker} renews", lambda state, worker=worker: state.call("renew", worker)  # type: ignore[misc]
        yield f"{worker} takes", lambda state, worker=worker: _work(state, worker, (), 1, world.per)  # type: ignore[misc]
        if state.lost:
            yield f"{worker} takes in vain", lambda state, worker=worker: _work(state, worker, (), 1, world.per, hears=False)  # type: ignore[misc]  # fmt: skip
        if state.on_their_way(worker):
            yield f"{worker} hears", lambda state, worker=worker: state.hear(worker, state.on_their_way(worker))  # type: ignore[misc]  # fmt: skip
        for take in state.takes[worker]:
            for how in world.hows:
                for done in {0, len(take.jobs)} if how == "end" else {0, 1} if how == "keep" else {0}:
                    settle = Report(take.slot, take.mailbox, take.token, done, how, 5, 1, b"odd")
                    yield f"{worker} {how} {done} {take.mailbox}", lambda state, worker=worker, settle=settle: _work(state, worker, (settle,), 0, 1)  # type: ignore[misc]  # fmt: skip
        owned = [slot for slot, one in enumerate(tables_of(state.rules).slots.rows) if one.owner == worker]
        if owned:
            yield f"{worker} gives", lambda state, worker=worker, other=other, slot=owned[0]: state.call("give", worker, [(slot, other)], "why")  # type: ignore[misc]  # fmt: skip
        dead = {other: state.ends[other]} if other in state.ends else {}
        yield f"{worker} claims", lambda state, worker=worker, dead=dead: _claim(state, worker, (0, 1), dead)  # type: ignore[misc]  # fmt: skip


def explore(world: World, most: int = 0) -> tuple[int, int]:
    """Try everything, to the depth of a world; return how many states were met, and how deep."""
    start = begin(world)
    seen = {start.key()}
    edge: list[tuple[State, tuple[str, ...]]] = [(start, ())]
    for depth in range(world.depth):
        following = []
        for state, path in edge:
            for name, step in choices(state, world):
                after = state.copy()
                try:
                    step(after)
                    key = after.key()
                    if key in seen:
                        continue
                    seen.add(key)
                    if len(seen) % 7 == 0:
                        finish(clone(after.rules), after.now)
                except Exception as problem:
                    problem.add_note("by: " + " | ".join((*path, name)))
                    raise
                following.append((after, (*path, name)))
        edge = following
        if most and len(seen) > most:
            return len(seen), depth + 1
    return len(seen), world.depth


WORLDS = {
    "two jobs of a key": World(("k1", "k2"), ("end", "keep"), depth=6),
    "three keys": World(("k1", "l1", "m1"), depth=6, lost=0),
    "retries and burials": World(("k1", "k2"), ("end", "retry", "to_dead_letters"), depth=6, lost=0),
    "cancel and purge": World(("k1", "k2"), ("end", "retry"), ("cancel k1", "cancel k2", "purge k"), depth=5),
    "replace and delay": World(("k1", "k2"), ("end",), ("replace k", "delay k"), per=1, depth=5, lost=0),
    "pause": World(("k1", "k2"), ("end", "retry"), ("pause k", "resume k"), per=1, depth=5, lost=0),
    "a job that one does not know": World(("k1o", "k2"), ("end", "park"), names=(("job",), NAMES), depth=6),
    "a resident": World((), ("end", "retry", "keep"), ("start", "stop", "notify"), resident=True, depth=5),
    "handed over": World(("k1", "l1"), spare=1, depth=6),
    "handed over, cancelled, paused": World(
        ("k1", "k2"), ("end", "retry"), ("cancel k1", "pause k", "resume k"), spare=1, depth=4, lost=0
    ),
    "poison": World(("k1", "k2"), ("end",), settings=BASE._replace(max_losses=1), depth=6),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_order_of_events_keeps_every_promise(name):
    states, _ = explore(WORLDS[name])
    assert states > 500


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", WORLDS)
def test_every_long_order_of_events_keeps_every_promise(name):
    explore(replace(WORLDS[name], depth=WORLDS[name].depth + 2), 300_000)
