"""Every reachable state of small worlds, explored with the shipping rules, each step judged (`millpond_conformance._model`).

Two states are the same when they differ in nothing that a rule looks at: tokens and numbers count by rank, times by
their distance from now. Time moves only by going on to the moment at which something is over, or bundles are overdue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from millpond.resources._rules import commands as do
from millpond.resources._rules.records import ALL, AWAY, HELD, OFFERED, Holder, Settings, Want
from millpond.resources._rules.state import State
from millpond.resources._rules.step import step
from millpond_conformance._model import BrokenPromise, check_state, check_step, clone

NOW = 1000


@dataclass(frozen=True)
class World:
    """Who may ask for what, and what else may happen."""

    resources: tuple[do.Add, ...]
    asks: tuple[do.Acquire, ...]
    also: frozenset[str] = frozenset()
    settings: Settings = field(default_factory=lambda: Settings(claim=10, patience=10, retention=10))
    groups: tuple[do.SetGroup, ...] = ()
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)


def ask(name: str, *wants: Want, session: str = "", **more: object) -> do.Acquire:
    session = session or f"s{name}"
    return do.Acquire(name, session, 0, Holder(id=session), wants or (Want("*"),), **more)  # type: ignore[arg-type]


def add(name: str, capacity: int = 1, **labels: str) -> do.Add:
    return do.Add(name, labels, capacity)


def key_of(state: State, now: int) -> object:
    """Return what a rule can tell two states apart by."""
    seqs = {seq: rank for rank, seq in enumerate(sorted(one.seq for one in state.requests.values()))}
    tokens = {token: rank for rank, token in enumerate(sorted(state.index.tokens))}
    patience = state.settings.patience

    def distance(time: int) -> int | None:
        return time - now if time else None

    requests = tuple(
        sorted(
            (
                one.id,
                one.session,
                one.state,
                seqs[one.seq],
                tokens.get(one.token),
                one.shares,
                one.refused,
                distance(one.until),
                distance(one.deadline) if one.state != HELD else None,
                max(one.asked - now, -patience) if one.bundle else None,
            )
            for one in state.requests.values()
        )
    )
    resources = tuple(
        (one.name, one.capacity, one.state, tuple(one.labels.items()), distance(one.delayed))
        for one in state.index.slots
        if one is not None
    )
    groups = tuple(
        sorted((one.name, one.weight, one.quota, max(one.turn - state.turn, 0)) for one in state.groups.values())
    )
    return requests, resources, groups, tuple(sorted(state.used)), state.settings.paused


def commands(world: World, state: State) -> Iterator[do.Command]:
    """Everything that may happen next, apart from time."""
    also = world.also
    for one in world.asks:
        if one.id not in state.requests:
            yield one
        elif one.chosen and "rejoin" in also and state.requests[one.id].state == AWAY:
            yield replace(one, session="heir")
    for request in list(state.requests.values()):
        name, session, token = request.id, request.session, request.token
        yield do.Withdraw(session, name)
        if request.state in (OFFERED, AWAY):
            yield do.Claim(session, (name,))
        if request.state == OFFERED and "decline" in also:
            yield do.Decline(session, name, token)
        if request.state == HELD:
            yield do.Release(session, token)
            if request.lease and "renew" in also:
                yield do.Renew(session, token)
            if "adopt" in also:
                yield do.Adopt("heir", token, Holder(id="heir"), "stolen")
    yield do.Release("s", 1)
    if "bury" in also:
        for session in list(state.index.sessions):
            yield do.Bury(session)
    for name, resource in list(state.resources.items()):
        if "cordon" in also:
            yield do.Mark(name, "cordoned" if resource.state == "active" else "active")
        if "drain" in also and resource.state == "active":
            yield do.Mark(name, "draining")
        for size in world.sizes.get(name, ()):
            if size != resource.capacity:
                yield do.Resize(name, size)
        if "remove" in also:
            yield do.Remove(name)
        if "relabel" in also:
            yield do.Relabel(name, {} if resource.labels else {"k": "x"})
    if "remove" in also:
        yield from (one for one in world.resources if one.name not in state.resources)
    if "pause" in also:
        yield do.Configure(replace(state.settings, paused="" if state.settings.paused else "why not"))
    if "quota" in also:
        yield from (replace(one, quota=0 if state.groups[one.name].quota else one.quota) for one in world.groups)


def explore(world: World, most: int = 1_000_000) -> tuple[int, int]:
    """Visit every state; return how many there are, and how many steps lead from one to the next."""
    start = State()
    first: list[do.Command] = [do.Configure(world.settings), *world.groups, *world.resources]
    for command in first:
        step(start, command, NOW)
    seen = {key_of(start, NOW)}
    frontier = [(start, NOW)]
    steps = 0
    while frontier:
        reached = []
        for origin, now in frontier:
            moves = [(command, now) for command in commands(world, origin)]
            due = origin.due()
            if due is not None:
                moves.append((do.Tick(), due))
            fresh = [one.asked for one in origin.index.bundles.values() if one.asked > now - world.settings.patience]
            if fresh and (due is None or max(fresh) + world.settings.patience < due):
                moves.append((do.Tick(), max(fresh) + world.settings.patience))
            for command, then in moves:
                state = clone(origin)
                outcome = step(state, command, then)
                steps += 1
                try:
                    if outcome.changes:
                        check_step(clone(origin), state, command, outcome, then)
                    elif then == now:
                        continue
                    key = key_of(state, then)
                    if key not in seen:
                        check_state(state, then)
                        seen.add(key)
                        reached.append((state, then))
                except BrokenPromise as broken:
                    held = [(one.id, one.state, one.shares) for one in origin.requests.values()]
                    raise AssertionError(f"{broken}; in {held} at {now}, after {command} at {then}") from broken
                assert len(seen) <= most, f"more than {most} states"
        frontier = reached
    return len(seen), steps


A, B = Want("@a"), Want("@b")


def sure(name: str, *wants: Want, **more: object) -> do.Acquire:
    """One that needs no claim: no offers, so that there is room for more requests."""
    return ask(name, *wants, session="s", sure=True, **more)


HASTY = Settings(claim=10, patience=10, retention=10)
SMALL: dict[str, World] = {
    "overlapping selectors and priorities, with cordons": World(
        (add("a", k="x"), add("b", k="y")),
        (sure("1", Want("k=x")), sure("2"), sure("3", Want("k=x"), priority=1), sure("4", Want("k=y | *"))),
        frozenset({"cordon"}),
    ),
    "five requests, two of them equal": World(
        (add("a", k="x"), add("b", k="y")),
        (
            sure("1", Want("k=x")),
            sure("2"),
            sure("3", priority=1),
            sure("4", Want("k=y")),
            sure("5"),
        ),
    ),
    "offers that are claimed, declined, lapse, or whose session dies": World(
        (add("a"), add("b")),
        (ask("1", A, lease=10), ask("2", A, picky=True, chosen=True), ask("3")),
        frozenset({"decline", "bury", "rejoin"}),
    ),
    "offers of what is cordoned, drained or removed meanwhile": World(
        (add("a"),),
        (ask("1"), ask("2", timeout=10), ask("3", patient=True)),
        frozenset({"drain", "remove", "decline"}),
    ),
    "two bundles and singles, with cordons": World(
        (add("a"), add("b")),
        (sure("1", A), sure("2", B), sure("3", A, B), sure("4", Want("*", 2), priority=1)),
        frozenset({"cordon"}),
        HASTY,
    ),
    "readers and writers of a resource that shrinks and grows": World(
        (add("a", 2), add("b", 1)),
        (sure("1", A), sure("2", A), sure("3", Want("@a", 1, ALL)), sure("4", Want("*", 1, 2), patient=True)),
        frozenset(),
        HASTY,
        sizes={"a": (1, 2, 3)},
    ),
    "a reader and writers of two groups, with priorities": World(
        (add("a", 2),),
        (
            sure("1", A),
            sure("2", Want("@a", 1, ALL), group="g"),
            sure("3", Want("@a", 1, 2), group="h"),
            sure("4", Want("@a", 1, ALL), group="g", priority=1),
        ),
        settings=HASTY,
    ),
    "readers that wait for a writer, with cordons and sizes": World(
        (add("a", 2),),
        (sure("1", A), sure("2", Want("@a", 1, 2), patient=True), sure("3"), sure("4", A, priority=1)),
        frozenset({"cordon"}),
        HASTY,
        sizes={"a": (1, 2)},
    ),
    "a writer whose group has a quota": World(
        (add("a", 2), add("b")),
        (sure("1", A), sure("2", Want("@a", 1, ALL), group="g"), sure("3", A), sure("4", B, group="g")),
        frozenset({"quota"}),
        HASTY,
        (do.SetGroup("g", 1, 2),),
    ),
    "groups with shares and a quota": World(
        (add("a", 2), add("b")),
        (sure("1", group="g"), sure("2", group="g"), sure("3", Want("*", 1, 2), group="g"), sure("4", group="h")),
        frozenset({"quota"}),
        HASTY,
        (do.SetGroup("g", 1, 2), do.SetGroup("h", 2)),
    ),
    "resources that come, go and change, and adoptions": World(
        (add("a", k="x"), add("b")),
        (sure("1", Want("k=x")), sure("2", A, B, patient=True)),
        frozenset({"remove", "relabel", "adopt", "drain"}),
        HASTY,
    ),
    "leases that end, delays and pauses": World(
        (add("a"), add("b")),
        (sure("1", A, lease=10), sure("2", Want("*", 2), lease=10), sure("3")),
        frozenset({"pause", "renew"}),
        Settings(claim=10, patience=10, retention=10, delay=10),
    ),
}

LARGE: dict[str, World] = {
    "a reader and writers of two groups, with priorities and a quota": World(
        (add("a", 2), add("b")),
        (
            sure("1", A),
            sure("2", Want("@a", 1, ALL), group="g"),
            sure("3", Want("@a", 1, 2), group="h"),
            sure("4", Want("@a", 1, ALL), group="g", priority=1),
            sure("5", group="g"),
        ),
        frozenset({"quota"}),
        HASTY,
        (do.SetGroup("g", 1, 2), do.SetGroup("h")),
    ),
    "readers that wait for a writer, with offers, cordons and sizes": World(
        (add("a", 2),),
        (ask("1", A), ask("2", Want("@a", 1, 2), patient=True), ask("3"), ask("4", A, priority=1)),
        frozenset({"cordon"}),
        HASTY,
        sizes={"a": (1, 2)},
    ),
    "offers of all kinds": World(
        (add("a"), add("b")),
        (ask("1", A, lease=20), ask("2", A, picky=True, chosen=True), ask("3"), ask("4", B, session="s3")),
        frozenset({"decline", "bury", "rejoin"}),
    ),
    "overlapping selectors and priorities, with offers and cordons": World(
        (add("a", k="x"), add("b", k="y")),
        (ask("1", Want("k=x")), ask("2"), ask("3", Want("k=x"), priority=1), ask("4", Want("k=y | *"))),
        frozenset({"cordon"}),
    ),
    "two bundles and singles, with offers and cordons": World(
        (add("a"), add("b")),
        (ask("1", A), ask("2", B), ask("3", A, B), ask("4", Want("*", 2), priority=1)),
        frozenset({"cordon"}),
        HASTY,
    ),
    "groups, a bundle and offers": World(
        (add("a", 2), add("b")),
        (ask("1", group="g"), ask("2", group="g"), ask("3", Want("*", 1, 2), group="g"), ask("4", group="h")),
        frozenset({"quota"}),
        HASTY,
        (do.SetGroup("g", 1, 2), do.SetGroup("h", 2)),
    ),
    "three resources, bundles that overlap": World(
        (add("a", k="x"), add("b", k="x"), add("c", k="y")),
        (sure("1", Want("k=x", 2)), sure("2", Want("k=x"), Want("*")), sure("3"), sure("4", Want("k=y")), sure("5")),
        frozenset({"cordon"}),
        HASTY,
    ),
    "leases, deaths, declined offers and removals": World(
        (add("a"), add("b")),
        (ask("1", A, lease=10), ask("2", A, picky=True, chosen=True), ask("3", timeout=10)),
        frozenset({"decline", "bury", "rejoin", "remove", "renew"}),
        Settings(claim=10, patience=10, retention=10, delay=10),
    ),
}


@pytest.mark.parametrize("world", SMALL.values(), ids=SMALL.keys())
def test_every_state_of_a_small_world_keeps_every_promise(world):
    states, steps = explore(world)
    print(f"{states} states, {steps} steps")
    assert states > 100


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", LARGE.values(), ids=LARGE.keys())
def test_every_state_of_a_larger_world_keeps_every_promise(world):
    states, steps = explore(world)
    print(f"{states} states, {steps} steps")
    assert states > 1_000
