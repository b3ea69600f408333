"""The rules of resource pools: several resources at once, all or nothing, and not starved."""

from __future__ import annotations

import time

from millpond.resources._rules import commands as do
from millpond.resources._rules.records import Holder, Settings, Want
from millpond.resources._rules.state import State
from millpond.resources._rules.step import step
from millpond_conformance._stage import Stage

HASTY = Settings(patience=100)


def names(shares: tuple[tuple[str, int], ...]) -> list[str]:
    return [name for name, _ in shares]


def test_a_bundle_is_all_or_nothing():
    pool = Stage("a", "b")
    pool.ask("1", "@a")
    assert pool.ask("2", "@a", "@b").kind == "waiting"
    assert pool.state.resources["b"].used == 0
    pool.release("1")
    assert pool.of("2") == "held a b"


def test_a_count_is_of_different_resources():
    pool = Stage("a")
    pool.add("b", 5)
    assert names(pool.ask("1", Want("*", 2)).shares) == ["a", "b"]
    assert pool.ask("2", Want("*", 2)).kind == "waiting"


def test_overlapping_selectors_are_matched():
    pool = Stage()
    pool.add("both", x="", y="")
    pool.add("only x", x="")
    assert names(pool.ask("1", "x", "y").shares) == ["only x", "both"]


def test_a_long_chain_of_overlaps_is_matched():
    pool = Stage()
    for index in range(6):
        pool.tell(do.Add(f"r{index}", {f"k{index}": "", f"k{index + 1}": ""}))
    wants = [*(f"k{index}" for index in range(1, 6)), "k1"]  # each takes the lower one, the last shifts all of them
    reply = pool.ask("1", *wants)
    assert sorted(names(reply.shares)) == [f"r{index}" for index in range(6)]


def test_two_bundles_that_want_the_same_do_not_deadlock():
    pool = Stage("a", "b")
    pool.ask("1", "@a", "@b")
    pool.ask("2", "@b", "@a")
    pool.release("1")
    assert pool.of("2") == "held b a"


def test_others_overtake_a_bundle_until_it_is_overdue():
    pool = Stage("a", "b", settings=HASTY)
    pool.ask("1", "@a")
    pool.ask("bundle", Want("*", 2))
    pool.now += 99
    assert pool.ask("2", "@b").kind == "held"
    pool.release("2")
    pool.now += 1
    assert pool.ask("3", "@b").kind == "waiting", "what it can use is kept for it"
    pool.release("1")
    assert pool.of("bundle") == "held a b"
    pool.release("bundle")
    assert pool.of("3") == "held b"


def test_eight_at_once_are_had_against_a_stream_of_singles():
    pool = Stage(*"abcdefgh", settings=HASTY)
    singles = [str(index) for index in range(12)]
    for name in singles:
        pool.ask(name)
    pool.ask("bundle", Want("*", 8))
    overtaken = 0
    while pool.of("bundle") == "waiting":
        pool.now += 10
        pool.release(next(one.id for one in pool.state.requests.values() if one.shares))
        pool.ask(f"more {pool.now}")
        overtaken += 1
        assert overtaken < 25
    assert overtaken >= 15, "as long as it is not overdue, others have them"


def test_a_bundle_is_served_although_a_younger_one_of_higher_priority_is_before_it_in_line():
    pool = Stage("a", "b", settings=HASTY)
    pool.ask("1", "@a")
    pool.ask("2", "@b")
    pool.ask("old", Want("*", 2))
    pool.now += 50
    pool.ask("young", Want("*", 2), priority=5)
    pool.now += 50
    pool.release("1")
    pool.release("2")
    assert pool.of("old") == "held a b"
    assert pool.of("young") == "waiting"


def test_the_oldest_bundle_comes_first_also_after_it_was_away():
    pool = Stage("a", "b", settings=HASTY)
    pool.ask("1", "@a")
    pool.ask("2", "@b")
    pool.ask("old", "@a", "@b", session="t")
    pool.ask("young", "@b", "@a", session="u")
    pool.tell(do.Withdraw("s", "1"))
    pool.tell(do.Withdraw("s", "2"))
    pool.later(Settings().claim)
    assert pool.all() == {"old": "away", "young": "offered b a"}
    pool.later(Settings().claim)
    pool.claim("young")
    pool.ask("3", "@a")
    pool.claim("old")
    pool.release("young")
    assert pool.of("old") == "offered a b"


def test_units_are_kept_for_the_oldest_bundle_also_after_it_was_away():
    pool = Stage("a", "b", "c", settings=HASTY)
    for name in "abc":
        pool.ask(name, f"@{name}")
    pool.ask("old", "@a", "@b", session="t", chosen=True)
    pool.ask("young", "@c", "@a", session="u")
    pool.tell(do.Bury("t"))
    pool.ask("old", session="t again", chosen=True)
    pool.later(100)
    pool.release("a")
    pool.release("c")
    assert pool.of("young") == "waiting", "a is kept for the old one"
    pool.release("b")
    assert pool.of("old") == "offered a b"


def test_what_one_overdue_bundle_leaves_others_may_have():
    pool = Stage("a", "b", "c", settings=HASTY)
    for name in "abc":
        pool.ask(name, f"@{name}")
    pool.ask("bundle", "@a", "@b")
    pool.later(100)
    pool.ask("1", "@c")
    pool.ask("2", "@a")
    pool.release("c")
    assert pool.of("1") == "held c"
    pool.release("a")
    assert pool.of("2") == "waiting"


def test_what_was_kept_is_lent_when_the_bundle_is_withdrawn():
    pool = Stage("a", "b", settings=HASTY)
    pool.ask("1", "@a")
    pool.ask("bundle", "@a", "@b")
    pool.later(100)
    pool.ask("2", "@b")
    assert pool.of("2") == "waiting"
    pool.withdraw("bundle")
    assert pool.of("2") == "held b"


def test_what_was_kept_is_lent_while_the_rest_is_cordoned_or_gone():
    for command in (do.Mark("a", "cordoned"), do.Remove("a"), do.Relabel("a", {})):
        pool = Stage("b", settings=HASTY)
        pool.add("a", k="x")
        pool.ask("1", "@a")
        pool.ask("bundle", "k=x", "@b", patient=True)
        pool.later(100)
        pool.ask("2", "@b")
        assert pool.of("2") == "waiting"
        pool.tell(command)
        assert pool.of("2") == "offered b"


def test_what_is_kept_may_move_and_then_the_former_is_lent_at_once():
    pool = Stage(settings=HASTY)
    pool.add("a", 4)
    pool.add("b", 4)
    for name in ("a1", "a2", "b1"):
        pool.ask(name, Want(f"@{name[0]}", 1, 2))
    pool.ask("b2", Want("@b", 1, 1))
    pool.ask("b3", Want("@b", 1, 1))
    pool.ask("whole", Want("*", 1, 4))
    pool.later(100)
    pool.release("b2")
    pool.ask("1", "@b")
    assert pool.of("1") == "waiting", "a unit of b is kept"
    pool.release("a1")
    assert pool.of("1") == "held b", "two units of a are closer to four"
    assert pool.ask("2", "@a").kind == "waiting"


def test_nothing_is_kept_that_can_never_be_enough():
    pool = Stage(settings=HASTY)
    pool.add("small", 2)
    pool.add("large", 8)
    pool.ask("1", Want("@large", 1, 8))
    pool.ask("bundle", Want("*", 1, 4))
    pool.later(100)
    assert pool.ask("2").kind == "held"
    pool.release("1")
    assert pool.of("bundle") == "held large"


def test_a_bundle_is_not_starved_by_the_singles_of_its_own_group():
    pool = Stage(*"abcd", settings=HASTY)
    pool.tell(do.SetGroup("g", quota=2))
    pool.ask("1", group="g")
    pool.ask("2", group="g")
    pool.ask("bundle", Want("*", 2), group="g")
    pool.ask("3", group="g")
    pool.later(100)
    pool.release("1")
    assert pool.of("3") == "waiting", "the quota is kept for the bundle"
    assert pool.ask("4", group="h").kind == "held", "but not the resources"
    pool.release("2")
    assert pool.of("bundle").startswith("held")


def test_a_bundle_that_its_quota_cannot_pay_now_keeps_no_resources():
    pool = Stage("a", "b", "c", settings=HASTY)
    pool.tell(do.SetGroup("g", quota=2))
    pool.ask("1", "@c", group="g")
    pool.ask("bundle", "@a", "@b", group="g")
    pool.later(100)
    assert pool.ask("2", "@a").kind == "held"


def test_an_absurd_count_is_answered_at_once():
    pool = Stage("a")
    assert pool.ask("1", Want("*", 10**12)).kind == "unsatisfiable"
    assert pool.ask("2", Want("*", 10**12), patient=True).kind == "waiting"
    assert pool.ask("3", Want("*", 1, 10**12), patient=True).kind == "waiting"
    pool.later(Settings().patience)
    assert pool.ask("4").kind == "held"


def test_a_bundle_of_a_thousand_among_overlapping_selectors_is_planned_without_recursion():
    state = State()
    for index in range(1200):
        step(state, do.Add(f"r{index}", {"k": "x"} if index % 2 else {}), 1)
    wants = (Want("*", 600), Want("k=x", 600))
    began = time.thread_time()
    reply = step(state, do.Acquire("1", "s", 1, Holder(), wants), 2).reply
    assert len(set(names(reply.shares))) == 1200
    state = State()
    for index in range(1200):
        step(state, do.Add(f"r{index}", {"k": "x"} if index % 2 else {}), 1)
    wants = (Want("*", 601), Want("k=x", 600))
    assert step(state, do.Acquire("1", "s", 1, Holder(), wants), 2).reply.kind == "unsatisfiable"
    assert time.thread_time() - began < 5


def test_a_bundle_is_adopted_and_given_back_as_a_whole():
    pool = Stage("a", "b")
    token = pool.ask("1", "@a", "@b").token
    pool.pass_on("1")
    reply = pool.tell(do.Adopt("t", token, Holder(id="t"), "transferred"))
    assert names(reply.shares) == ["a", "b"]
    pool.release("1")
    assert pool.state.index.free == 0b11
