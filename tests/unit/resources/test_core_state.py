"""The state of a resource pool: images, replicas, and what stays bounded."""

from __future__ import annotations

import msgspec
import pytest

from millpond.resources._rules import commands as do
from millpond.resources._rules import index as indexes
from millpond.resources._rules import state as states
from millpond.resources._rules.records import Holder, Settings, Want
from millpond.resources._rules.state import State
from millpond.resources._rules.step import step
from millpond_conformance._model import check_state, clone, picture
from millpond_conformance._stage import Stage

ME = Holder(id="me")


def ask(state: State, name: str, now: int, *wants: Want, **more: object) -> do.Reply:
    command = do.Acquire(name, "s", 0, ME, wants or (Want(),), **more)  # type: ignore[arg-type]
    return step(state, command, now).reply


def test_an_image_is_the_whole_pool():
    pool = Stage("a", "b", settings=Settings(delay=50))
    pool.add("c", 3, model="x")
    pool.tell(do.SetGroup("g", 3, 2))
    pool.ask("1", "model=x", group="g", lease=100)
    pool.ask("2", Want("*", 3), timeout=1000)
    pool.ask("3", chosen=True)
    pool.release("3")
    pool.later(100)
    again = clone(pool.state)
    assert picture(again) == picture(pool.state)
    check_state(again, pool.now)
    assert again.due() == pool.state.due()


def test_an_image_of_an_older_version_can_be_read():
    """Records grow at their end only: an image without its newest fields is one of an older version."""
    pool = Stage("a")
    raw = msgspec.msgpack.decode(picture(pool.state))
    shorter = msgspec.msgpack.encode(raw[:-1])
    image = msgspec.msgpack.decode(shorter, type=type(pool.state.image()))
    assert image.used == []


def test_endings_are_remembered_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(states, "REMEMBERED", 3)
    pool = Stage("a")
    tokens = []
    for index in range(5):
        tokens.append(pool.ask(f"c{index}", chosen=True).token)
        pool.release(f"c{index}")
    assert list(pool.state.past) == tokens[2:]
    assert pool.tell(do.Release("s", tokens[0])).detail == "it was never granted, or ended long ago"
    assert pool.tell(do.Release("s", tokens[2])).kind == "ended"
    assert pool.ask("c1", chosen=True).kind == "held", "forgotten"
    pool.release("c1")
    assert pool.ask("c4", chosen=True).kind == "used"


def test_a_loaded_pool_forgets_in_the_same_order(monkeypatch):
    monkeypatch.setattr(states, "REMEMBERED", 3)
    pool = Stage("a")
    pool.ask("0")
    for name in ("w1", "w2"):
        pool.ask(name, chosen=True)
        pool.withdraw(name)
    pool.release("0")
    for name in ("g1", "g2", "g3"):
        pool.judge.reload()
        pool.ask(name, chosen=True)
        pool.release(name)
    assert list(pool.state.used) == ["g1", "g2", "g3"]


def test_groups_are_forgotten_when_they_are_idle(monkeypatch):
    monkeypatch.setattr(states, "GROUPS", 3)
    pool = Stage("a", "b")
    pool.tell(do.SetGroup("kept", weight=2))
    pool.ask("holder", group="holder")
    for index in range(20):
        pool.ask(str(index), group=f"g{index}")
        pool.release(str(index))
    assert {"kept", "holder"} <= set(pool.state.groups)
    assert len(pool.state.groups) <= 4
    pool.release("holder")


def test_matchers_are_forgotten_but_never_one_that_somebody_waits_for(monkeypatch):
    monkeypatch.setattr(indexes, "MATCHERS", 2)
    pool = Stage("a")
    pool.state.index._most = 2
    pool.judge.twin.index._most = 2
    pool.ask("0")
    pool.ask("1", "k0", "k1", "k2", patient=True)
    for index in range(10):
        pool.ask(f"w{index}", f"w{index} | *")
    for index in range(30):
        assert pool.ask("try", f"t{index}", wait=False).kind == "unsatisfiable"
    assert len(pool.state.index.matchers) < 35
    for index in range(3):
        pool.tell(do.Add(f"k{index}", {f"k{index}": ""}))
    assert [pool.of(f"w{index}") for index in range(4)] == ["offered k0", "offered k1", "offered k2", "waiting"]
    for index in range(3):
        pool.withdraw(f"w{index}")
        pool.tell(do.Withdraw("s", f"w{index + 3}"))
    for index in range(6, 10):
        pool.tell(do.Withdraw("s", f"w{index}"))
    assert pool.of("1") == "held k0 k1 k2"


def test_lines_and_their_entries_do_not_pile_up():
    state = State()
    step(state, do.Add("a", {}), 1)
    ask(state, "holder", 1)
    for index in range(500):
        ask(state, f"x{index}", 2 + index, Want(f"k{index} | *"))
        step(state, do.Withdraw("s", f"x{index}"), 2 + index)
    assert not state.index.lines
    ask(state, "first", 1000)
    for index in range(500):
        ask(state, f"y{index}", 1000)
        step(state, do.Withdraw("s", f"y{index}"), 1000)
    [line] = state.index.lines.values()
    assert line.size == 1 and len(line.heap) < 70


def test_a_replica_that_only_follows_does_not_pile_up():
    state, replica = State(), State()

    def both(command: do.Command, now: int) -> None:
        for change in step(state, command, now).changes:
            replica.evolve(change, now)

    both(do.Add("a", {}), 1)
    both(do.Acquire("0", "s", 0, ME, (Want(),)), 1)
    both(do.Acquire("always", "s", 0, ME, (Want(),), priority=-1), 1)
    for index in range(1, 300):
        both(do.Acquire(str(index), "s", 0, ME, (Want(),), lease=5), index)
        both(do.Release("s", next(iter(state.index.tokens))), index)
    [line] = replica.index.lines.values()
    assert len(line.heap) < 70
    assert len(replica.index._due) < 300
    check_state(replica, 299)


def test_times_that_no_longer_count_do_not_pile_up():
    pool = State()
    step(pool, do.Add("a", {}), 1)
    token = ask(pool, "1", 1, lease=1000).token
    for now in range(2, 2000):
        step(pool, do.Renew("s", token), now)
    assert len(pool.index._due) <= 257
    assert pool.due() == 1999 + 1000


def test_a_change_that_was_decided_is_not_touched_by_what_follows():
    pool = Stage("a")
    reply = pool.ask("1", lease=10)
    [asked] = pool.changes
    before = msgspec.msgpack.encode(asked)
    pool.renew("1")
    pool.release("1")
    assert msgspec.msgpack.encode(asked) == before
    assert reply.kind == "held"


@pytest.mark.parametrize("claim", [0, 1])
def test_no_step_runs_for_ever_however_short_the_claim(claim):
    state = State()
    step(state, do.Configure(Settings(claim=claim)), 1)
    step(state, do.Add("a", {}), 1)
    step(state, do.Acquire("0", "s", 0, ME, (Want(),)), 1)
    for index in range(5):
        step(state, do.Acquire(f"w{index}", f"t{index}", 0, ME, (Want(),)), 2)
    step(state, do.Withdraw("s", "0"), 3)
    for now in range(4, 20):
        step(state, do.Tick(), now)
    assert all(one.state == "away" for one in state.requests.values())
    assert state.index.free == 1
