"""The rules of resource pools: resources that change while they are wanted, their units, and which one is taken."""

from __future__ import annotations

import time
from typing import Any

import pytest

from millpond.resources._rules import commands as do
from millpond.resources._rules.records import ALL, Holder, Settings, Want
from millpond.resources._rules.state import State
from millpond.resources._rules.step import step
from millpond_conformance._stage import Stage

CLAIM = Settings().claim


def test_a_resource_is_added_once():
    pool = Stage("a")
    assert pool.add("a", model="x").kind == "exists"
    assert pool.state.resources["a"].labels == {}


def test_what_is_not_there_is_unknown():
    pool = Stage()
    for command in (do.Remove("a"), do.Relabel("a", {}), do.Resize("a", 2), do.Mark("a", "active")):
        assert pool.tell(command).kind == "unknown"
        assert not pool.changes


def test_a_new_resource_serves_those_who_wait():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2")
    pool.add("b")
    assert pool.of("2") == "offered b"


@pytest.mark.parametrize("state", ["cordoned", "quarantined"])
def test_what_is_not_active_is_not_lent_but_stays_held(state):
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2")
    pool.mark("a", state)
    assert pool.of("1") == "held a"
    pool.release("1")
    assert pool.of("2") == "waiting"
    pool.mark("a", "active")
    assert pool.of("2") == "offered a"


def test_a_drained_resource_is_cordoned_when_the_last_holder_is_gone():
    pool = Stage()
    pool.add("a", 2)
    pool.ask("1")
    pool.ask("2")
    assert pool.mark("a", "draining").detail == "draining"
    pool.release("1")
    assert pool.state.resources["a"].state == "draining"
    pool.release("2")
    assert pool.state.resources["a"].state == "cordoned"
    assert pool.mark("a", "draining").detail == "cordoned", "nobody is on it"


@pytest.mark.parametrize("state", ["cordoned", "draining"])
@pytest.mark.parametrize("is_held", [False, True])
def test_a_quarantined_resource_stays_quarantined_and_keeps_the_reason_when_it_is_cordoned_or_drained(state, is_held):
    pool = Stage("a")
    if is_held:
        pool.ask("1")
    pool.tell(do.Mark("a", "quarantined", "ann", "smoke"))
    assert pool.tell(do.Mark("a", state, "ben", "firmware")).detail == "quarantined"
    assert not pool.changes
    if is_held:
        pool.release("1")
    found = pool.state.resources["a"]
    assert (found.state, found.note) == ("quarantined", "smoke")
    assert pool.mark("a", "active").detail == "active"


def test_a_removed_resource_goes_when_the_last_holder_is_gone():
    pool = Stage("a", "b")
    pool.ask("1", "@a")
    pool.ask("2", "*")
    pool.ask("3", "*")
    assert pool.tell(do.Remove("a")).detail == "removing"
    assert pool.ask("4", "@a").kind == "unsatisfiable"
    pool.release("1")
    assert set(pool.state.resources) == {"b"}
    assert pool.of("3") == "waiting"
    assert pool.tell(do.Remove("b")).detail == "removing"
    assert pool.of("3") == "unsatisfiable"


def test_a_free_resource_is_removed_at_once():
    pool = Stage("a")
    assert pool.tell(do.Remove("a")).detail == "removed"
    assert not pool.state.resources


@pytest.mark.parametrize("state", ["draining", "removing"])
def test_an_offer_that_lapses_lets_a_drain_or_a_removal_end(state):
    pool = Stage("a", "b")
    pool.ask("1", "@a")
    pool.ask("2", "@b")
    pool.ask("3", session="t")
    pool.release("1")
    pool.tell(do.Remove("a") if state == "removing" else do.Mark("a", state))
    assert pool.of("3") == "offered a"
    pool.later(CLAIM)
    assert pool.of("3") == "away"
    assert ("a" in pool.state.resources) == (state == "draining")


def test_an_offer_of_a_resource_on_its_way_out_can_be_claimed():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t")
    pool.release("1")
    pool.tell(do.Remove("a"))
    pool.claim("2")
    assert pool.of("2") == "held a"
    pool.release("2")
    assert not pool.state.resources


def test_a_declined_offer_of_a_removed_resource_removes_it():
    pool = Stage("a", "b")
    pool.ask("1", "@a")
    pool.ask("2", "@b")
    pool.ask("3", session="t", picky=True)
    pool.release("1")
    pool.tell(do.Remove("a"))
    pool.decline("3")
    assert set(pool.state.resources) == {"b"}
    assert pool.of("3") == "waiting"


def test_only_making_it_active_calls_a_resource_back_that_is_being_removed():
    pool = Stage("a")
    pool.ask("1")
    pool.tell(do.Remove("a"))
    for state in ("cordoned", "draining", "quarantined"):
        assert pool.mark("a", state).detail == "removing"
        assert not pool.changes
    pool.mark("a", "active")
    pool.release("1")
    assert pool.ask("2").kind == "held"


def test_other_labels_wake_those_who_want_them_and_leave_the_holder_alone():
    pool = Stage("a")
    pool.add("b", model="x")
    pool.ask("1", "@a")
    pool.ask("2", "model=x")
    pool.ask("3", "model=x")
    pool.tell(do.Relabel("a", {"model": "x"}))
    assert pool.of("1") == "held a"
    assert pool.of("3") == "waiting"
    pool.release("1")
    assert pool.of("3") == "held a"


def test_other_labels_count_from_the_next_hand_over_on():
    pool = Stage()
    pool.add("a", model="x")
    pool.add("b", model="y")
    pool.ask("1", "model=x")
    pool.ask("2", "model=x")
    pool.ask("3", "model=y")
    pool.ask("4", "model=y")
    pool.release("1")
    assert pool.of("2") == "held a"
    pool.tell(do.Relabel("a", {"model": "y"}))
    pool.release("2")
    assert pool.of("4") == "held a"


def test_other_labels_of_a_free_resource_serve_at_once():
    pool = Stage("a")
    pool.add("b", model="x")
    pool.ask("1", "model=x")
    pool.ask("2", "model=x")
    pool.tell(do.Relabel("a", {"model": "x"}))
    assert pool.of("2") == "offered a"


def test_a_slot_is_used_again_and_its_new_resource_serves_its_own_waiters_only():
    pool = Stage()
    pool.add("a", model="x")
    pool.add("b", model="y")
    pool.ask("1", "model=y")
    pool.ask("x", "model=x | model=y", refused=("a",))
    pool.ask("y", "model=y")
    pool.tell(do.Remove("a"))
    pool.add("c", model="y")
    assert pool.state.resources["c"].slot == 0
    assert pool.all() == {"1": "held b", "x": "offered c", "y": "waiting"}


def test_units_of_a_resource_are_lent_up_to_its_capacity():
    pool = Stage()
    pool.add("a", 3)
    assert pool.ask("1", Want("*", 1, 2)).shares == (("a", 2),)
    assert pool.ask("2").kind == "held"
    assert pool.ask("3").kind == "waiting"
    pool.release("1")
    assert pool.of("3") == "held a"


def test_shrinking_takes_nothing_away_and_gives_nothing_more():
    pool = Stage()
    pool.add("a", 3)
    for name in "1234":
        pool.ask(name)
    pool.tell(do.Resize("a", 1))
    assert pool.state.resources["a"].used == 3
    pool.release("1")
    pool.release("2")
    assert pool.all() == {"3": "held a", "4": "waiting"}
    pool.release("3")
    assert pool.of("4") == "held a"


def test_growing_serves_those_who_wait():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2")
    pool.tell(do.Resize("a", 2))
    assert pool.of("2") == "offered a"


def test_all_units_are_the_whole_of_whatever_resource_it_is():
    pool = Stage()
    pool.add("a", 2)
    pool.add("b", 5)
    pool.ask("1", "@a")
    assert pool.ask("2", Want("*", 1, ALL)).shares == (("b", 5),)


def test_readers_share_and_a_writer_is_alone():
    pool = Stage()
    pool.add("a", 4)
    pool.ask("r1")
    pool.ask("r2")
    assert pool.ask("w", Want("*", 1, ALL)).kind == "waiting"
    pool.release("r1")
    assert pool.of("w") == "waiting"
    pool.release("r2")
    assert pool.of("w") == "held a"
    assert pool.ask("r3").kind == "waiting"


def readers_and_a_writer() -> Stage:
    pool = Stage("other")
    pool.add("db", 3)
    pool.ask("r1", "@db")
    pool.ask("r2", "@db")
    pool.ask("w", Want("@db", 1, ALL))
    return pool


def test_a_reader_who_comes_later_waits_behind_the_writer():
    pool = readers_and_a_writer()
    assert pool.ask("r3", "@db").kind == "waiting"
    assert pool.ask("now", "@db", wait=False).kind == "busy"
    pool.release("r1")
    pool.release("r2")
    assert pool.all() == {"w": "held db", "r3": "waiting"}
    pool.release("w")
    assert pool.of("r3") == "held db"


def test_a_writer_holds_up_its_own_resource_only():
    pool = readers_and_a_writer()
    assert pool.ask("any").shares == (("other", 1),)
    assert pool.ask("any more").kind == "waiting"
    assert pool.ask("bundle", Want("*", 2)).kind == "waiting"
    pool.withdraw("w")
    assert pool.of("any more") == "held db"


def test_writers_and_readers_are_served_in_the_order_of_asking():
    pool = readers_and_a_writer()
    pool.ask("r3", "@db")
    pool.ask("w2", Want("@db", 1, 2))
    pool.ask("r4", "@db")
    pool.release("r1")
    pool.release("r2")
    pool.release("w")
    assert pool.served() == ["r3", "w2"], "what they leave is for those behind them"
    pool.release("r3")
    assert pool.of("r4") == "held db"


def test_priority_goes_before_a_writer_of_the_same_group_only():
    pool = readers_and_a_writer()
    assert pool.ask("other", "@db", priority=5, group="g").kind == "waiting"
    assert pool.ask("mine", "@db", priority=5).kind == "held"


def test_who_asked_before_the_writer_is_not_held_up_by_it_also_behind_one_who_is():
    pool = Stage()
    pool.add("db", 3)
    pool.ask("all", Want("@db", 1, ALL))
    pool.ask("before", "@db")
    pool.ask("w", Want("@db", 1, ALL), group="g")
    pool.ask("after", "@db", priority=1)
    pool.release("all")
    assert pool.all() == {"before": "held db", "w": "waiting", "after": "waiting"}


def test_a_writer_without_room_in_the_quota_of_its_group_holds_nobody_up():
    pool = Stage("other")
    pool.add("db", 3)
    pool.tell(do.SetGroup("g", quota=3))
    pool.ask("r1", "@db")
    pool.ask("w", Want("@db", 1, ALL), group="g")
    assert pool.ask("r2", "@db").kind == "waiting"
    pool.ask("one", "@other", group="g")
    assert pool.of("r2") == "held db"
    pool.release("one")
    assert pool.ask("r3", "@db").kind == "waiting"


def test_a_writer_that_is_away_holds_nobody_up_and_finds_its_place_again():
    pool = Stage()
    pool.add("db", 3)
    pool.ask("r1", "@db")
    pool.ask("w", Want("@db", 1, ALL), session="t", chosen=True)
    pool.ask("r2", "@db")
    pool.tell(do.Bury("t"))
    assert pool.of("r2") == "offered db"
    pool.ask("w", session="t again", chosen=True)
    assert pool.ask("r3", "@db").kind == "waiting"


def test_a_writer_that_is_impossible_holds_nobody_up():
    pool = readers_and_a_writer()
    pool.ask("two", Want("@db", 1, 2))
    pool.ask("patient", Want("@db", 1, 3), patient=True)
    pool.ask("r3", "@db")
    pool.withdraw("w")
    pool.release("r1")
    assert pool.all() == {"r2": "held db", "two": "held db", "patient": "waiting", "r3": "waiting"}
    pool.tell(do.Resize("db", 1))
    pool.release("two")
    pool.release("r2")
    assert pool.all() == {"patient": "waiting", "r3": "held db"}


def test_a_writer_waits_for_a_cordoned_resource_and_has_it_first():
    pool = readers_and_a_writer()
    pool.ask("r3", "@db")
    pool.mark("db", "cordoned")
    pool.release("r1")
    pool.release("r2")
    pool.mark("db", "active")
    assert pool.all() == {"w": "offered db", "r3": "waiting"}


def test_a_writer_comes_first_also_on_a_resource_that_is_new():
    pool = Stage("other")
    pool.ask("w", Want("@db", 1, ALL), patient=True)
    pool.ask("r", "@db", patient=True)
    pool.add("db", 2)
    assert pool.all() == {"w": "offered db", "r": "waiting"}


def test_a_bundle_does_not_overtake_a_writer_nor_a_writer_an_overdue_bundle():
    pool = Stage("other", settings=Settings(patience=100))
    pool.add("db", 2)
    pool.ask("r1", "@db")
    pool.ask("o", "@other")
    pool.ask("w1", Want("@db", 1, ALL))
    pool.ask("bundle", "@db", "@other")
    pool.ask("w2", Want("@db", 1, ALL))
    pool.later(100)
    pool.release("o")
    assert pool.of("bundle") == "waiting", "the writer before it is not overtaken"
    pool.release("r1")
    assert pool.of("w1") == "held db"
    pool.release("w1")
    assert pool.all() == {"bundle": "held db other", "w2": "waiting"}


def cost_of_writers(count: int) -> float:
    """Queue so many writers, each for its own resource; return the seconds of CPU per writer, once all are overdue."""
    state = State()
    for index in range(count):
        step(state, do.Add(f"r{index}", {}, 3), 1)
        step(state, do.Acquire(f"a{index}", "s", 0, Holder(), (Want(f"@r{index}"),)), 1)
        step(state, do.Acquire(f"w{index}", "s", 0, Holder(), (Want(f"@r{index}", 1, ALL),)), 1)
    late = Settings().patience + 2
    began = time.thread_time()
    for index in range(count):
        reader = do.Acquire(f"b{index}", "s", 0, Holder(), (Want(f"@r{index}"),))
        assert step(state, reader, late).reply.kind == "waiting"
    for index in range(count):
        step(state, do.Release("s", state.requests[f"a{index}"].token), late)
        assert state.requests[f"w{index}"].state == "held"
    return (time.thread_time() - began) / count


def test_thousands_of_writers_each_wait_for_their_own_resource():
    alone = min(cost_of_writers(100) for _ in range(5))
    assert any(cost_of_writers(2000) < 4 * alone for _ in range(5)), "none costs the others anything, overdue or not"


def test_a_writer_is_not_starved_by_readers():
    pool = Stage(settings=Settings(patience=100))
    pool.add("a", 4)
    pool.ask("r0")
    pool.ask("w", Want("*", 1, ALL))
    for index in range(1, 5):
        pool.now += 30
        assert pool.ask(f"r{index}").kind == ("held" if index < 4 else "waiting")
        pool.release(f"r{index - 1}")
    assert pool.of("w") == "held a"


def test_who_has_the_whole_keeps_the_whole_when_it_grows_or_shrinks():
    pool = Stage()
    pool.add("a", 2)
    pool.ask("w", Want("*", 1, ALL), group="g")
    pool.ask("r")
    pool.tell(do.Resize("a", 4))
    assert pool.request("w").shares == (("a", 4),)
    assert pool.of("r") == "waiting"
    pool.tell(do.Resize("a", 1))
    assert pool.request("w").shares == (("a", 1),)
    assert pool.state.groups["g"].held == 1
    pool.release("w")
    assert pool.of("r") == "held a"


def test_a_group_holds_units_not_grants():
    pool = Stage()
    pool.add("a", 4)
    pool.tell(do.SetGroup("g", quota=3))
    pool.ask("1", Want("*", 1, 2), group="g")
    assert pool.ask("2", Want("*", 1, 2), group="g").kind == "waiting"
    assert pool.ask("3", group="g").kind == "held"


# --- which one -------------------------------------------------------------------------------------------------------


def take(pool: Stage, name: str, *wants: Want | str, **more: Any) -> str:
    return pool.ask(name, *wants, **more).shares[0][0]


def test_the_first_is_the_first_in_the_pools_order():
    pool = Stage("b", "a", "c")
    assert [take(pool, name) for name in "123"] == ["b", "a", "c"]


def test_alternatives_are_taken_in_the_order_of_preference():
    pool = Stage()
    pool.add("a", model="old")
    pool.add("b", model="new")
    assert take(pool, "1", "model=new | model=old") == "b"
    assert take(pool, "2", "model=new | model=old") == "a"


def test_a_rank_comes_before_the_policy_and_after_the_alternatives():
    pool = Stage("a", "b", "c")
    pool.add("d", model="x")
    assert take(pool, "1", rank=("never", "c", "b")) == "c"
    assert take(pool, "2", "model=x | *", rank=("b",)) == "d"


def test_what_is_refused_is_not_given():
    pool = Stage("a", "b")
    assert take(pool, "1", refused=("a",)) == "b"
    assert pool.ask("2", refused=("a",)).kind == "waiting"


def test_lru_takes_the_one_that_rested_longest():
    pool = Stage("a", "b", "c")
    for name in "bac":
        pool.ask(name, f"@{name}")
    for name in "bac":
        pool.now += 1
        pool.release(name)
    assert [take(pool, name, placement="lru") for name in "123"] == ["b", "a", "c"]


def test_mru_takes_ones_own_last_one_else_the_warmest():
    pool = Stage("a", "b", "c")
    for name in "abc":
        pool.ask(name, f"@{name}", session=name)
    for name in "abc":
        pool.now += 1
        pool.release(name)
    assert take(pool, "1", session="b", placement="mru") == "b"
    assert take(pool, "2", session="x", placement="mru") == "c"


def test_pack_fills_and_spread_levels():
    pool = Stage()
    for name in "abc":
        pool.add(name, 4)
    pool.ask("1", Want("@b", 1, 2))
    pool.ask("2", Want("@c", 1, 1))
    assert take(pool, "3", placement="pack") == "b"
    assert take(pool, "4", placement="spread") == "a"
    assert take(pool, "5", Want("*", 1, 3), placement="pack") == "a", "b is fuller, but too full"


def test_random_is_the_same_on_every_replica_and_takes_all_in_the_end():
    chosen = []
    for _ in range(2):
        pool = Stage(*"abcdefgh")
        chosen.append([take(pool, str(index), placement="random") for index in range(8)])
    assert chosen[0] == chosen[1]
    assert sorted(chosen[0]) == list("abcdefgh") != chosen[0]


def test_random_spreads_evenly():
    pool = Stage(*"abcd")
    count = dict.fromkeys("abcd", 0)
    for index in range(80):
        count[take(pool, str(index), placement="random")] += 1
        pool.release(str(index))
    assert min(count.values()) >= 10


def test_a_policy_of_a_newer_version_is_the_first():
    pool = Stage("a", "b")
    assert take(pool, "1", placement="astrology") == "a"


def test_who_had_it_last_is_who_held_it_not_who_was_offered_it():
    pool = Stage("a")
    pool.tell(do.Acquire("1", "s", 0, Holder(id="s"), (Want(),)))
    pool.ask("2", session="t")
    pool.release("1")
    pool.later(CLAIM)
    assert pool.state.resources["a"].last == "s"
