"""The rules of resource pools: who is next."""

from __future__ import annotations

import pytest

from millpond.resources._rules import commands as do
from millpond.resources._rules.records import Settings, Want
from millpond_conformance._stage import Stage


def serve_all(pool: Stage) -> list[str]:
    """Release again and again; return who was served, in order."""
    served = []
    while pool.state.index.tokens:
        token = min(pool.state.index.tokens)
        pool.tell(do.Release("s", token))
        served += pool.served()
    return served


def test_a_free_resource_is_held_at_once():
    pool = Stage("a")
    reply = pool.ask("1")
    assert (reply.kind, reply.shares) == ("held", (("a", 1),))
    assert reply.token >= pool.now


def test_waiters_are_served_in_the_order_of_asking():
    pool = Stage("a")
    for name in "1234":
        pool.ask(name)
    assert serve_all(pool) == ["2", "3", "4"]


def test_those_who_leave_the_line_are_passed_over():
    pool = Stage("a")
    for name in "123456":
        pool.ask(name)
    pool.withdraw("3")
    pool.withdraw("2")
    pool.withdraw("5")
    assert serve_all(pool) == ["4", "6"]


def test_a_release_hands_over_in_the_same_step():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2")
    pool.release("1")
    assert pool.of("2") == "held a"
    assert pool.request("2").token > pool.now


def test_a_newcomer_does_not_overtake():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t")
    pool.release("1")
    assert pool.ask("3").kind == "waiting"
    assert pool.of("2") == "offered a"


def test_higher_priority_is_served_first():
    pool = Stage("a")
    pool.ask("0")
    for name, priority in (("low", -1), ("normal", 0), ("high", 5), ("high too", 5)):
        pool.ask(name, priority=priority)
    assert serve_all(pool) == ["high", "high too", "normal", "low"]


def test_waiting_weighs_as_much_as_priority_when_the_pool_ages():
    pool = Stage("a", settings=Settings(ageing=100))
    pool.ask("0")
    pool.ask("old")
    pool.now += 199
    pool.ask("young, but important", priority=2)
    pool.now += 1
    pool.ask("too young", priority=2)
    assert serve_all(pool) == ["young, but important", "old", "too young"]


def test_ageing_can_be_switched_on_for_those_who_wait_already():
    pool = Stage("a")
    pool.ask("0")
    pool.ask("old")
    pool.now += 1000
    pool.ask("young", priority=1)
    pool.configure(ageing=100)
    assert serve_all(pool) == ["old", "young"]


def test_priority_counts_across_selectors():
    pool = Stage()
    pool.add("a", model="x")
    pool.ask("0")
    pool.ask("any")
    pool.ask("x", "model=x", priority=1)
    pool.ask("named", "@a", priority=2)
    pool.ask("other", "model=y | model=x", priority=3)
    assert serve_all(pool) == ["other", "named", "x", "any"]


def test_a_waiter_whose_resource_is_busy_holds_up_nobody_else():
    pool = Stage("a", "b")
    pool.ask("1", "@a")
    pool.ask("2", "@b")
    pool.ask("3", "@a")
    pool.ask("4", "@b")
    pool.release("2")
    assert pool.all() == {"1": "held a", "3": "waiting", "4": "held b"}


def test_groups_take_turns():
    pool = Stage("a")
    pool.ask("0", group="x")
    for name in ("x1", "x2", "x3", "y1", "y2"):
        pool.ask(name, group=name[0])
    assert serve_all(pool) == ["y1", "x1", "y2", "x2", "x3"]


def test_a_group_of_twice_the_weight_is_served_twice_as_often():
    pool = Stage("a")
    pool.tell(do.SetGroup("x", 2))
    pool.ask("0", group="z")
    for index in range(6):
        pool.ask(f"x{index}", group="x")
        pool.ask(f"y{index}", group="y")
    assert [name[0] for name in serve_all(pool)][:6].count("x") == 4


def test_a_group_that_was_idle_has_no_credit():
    pool = Stage("a")
    pool.ask("0", group="x")
    for index in range(20):
        pool.ask(f"x{index}", group="x")
    for _ in range(10):
        pool.tell(do.Release("s", min(pool.state.index.tokens)))
    for index in range(4):
        pool.ask(f"y{index}", group="y")
    assert [name[0] for name in serve_all(pool)][:6] == ["y", "x", "y", "x", "y", "x"]


def test_priority_counts_within_a_group_only():
    pool = Stage("a")
    pool.ask("0", group="x")
    pool.ask("x", group="x", priority=9)
    pool.ask("y", group="y")
    pool.ask("y, but important", group="y", priority=1)
    assert serve_all(pool) == ["y, but important", "x", "y"]


def test_a_quota_holds_up_its_group_only():
    pool = Stage("a", "b", "c")
    pool.tell(do.SetGroup("x", quota=1))
    assert pool.ask("1", group="x").kind == "held"
    assert pool.ask("2", group="x").kind == "waiting"
    assert pool.ask("3", group="y").kind == "held"
    assert pool.ask("4").kind == "held"
    pool.release("1")
    assert pool.served() == ["2"]


def test_room_in_a_quota_is_used_wherever_there_is_something_free():
    pool = Stage("a", "b")
    pool.tell(do.SetGroup("x", quota=1))
    pool.ask("1", "@a", group="x")
    pool.ask("2", "@b", group="x")
    pool.release("1")
    assert pool.of("2") == "held b"


def test_all_units_that_were_given_back_count_for_the_quota():
    pool = Stage()
    pool.add("a", 4)
    pool.tell(do.SetGroup("x", quota=3))
    pool.ask("1", Want("*", 1, 3), group="x")
    pool.release("1")
    assert pool.ask("2", Want("*", 1, 3), group="x").kind == "held"


def test_an_offer_counts_for_the_quota():
    pool = Stage("a", "b")
    pool.tell(do.SetGroup("x", quota=1))
    pool.ask("0")
    pool.ask("1")
    pool.ask("2", group="x", session="t")
    pool.ask("3", group="x", session="t")
    pool.release("0")
    pool.release("1")
    assert pool.all() == {"2": "offered a", "3": "waiting"}
    pool.later(pool.state.settings.claim)
    assert pool.all() == {"2": "away", "3": "offered a"}


def test_a_quota_below_what_is_held_takes_nothing_away():
    pool = Stage("a", "b", "c")
    for name in "123":
        pool.ask(name, group="x")
    pool.tell(do.SetGroup("x", quota=1))
    assert pool.ask("4", group="x").kind == "waiting"
    pool.release("1")
    pool.release("2")
    assert pool.all() == {"3": "held c", "4": "waiting"}
    pool.release("3")
    assert pool.served() == ["4"]


def test_a_higher_quota_serves_those_it_held_up():
    pool = Stage("a", "b")
    pool.tell(do.SetGroup("x", quota=1))
    pool.ask("1", group="x")
    pool.ask("2", group="x")
    pool.tell(do.SetGroup("x", quota=2))
    assert pool.of("2") == "offered b"


def test_the_group_of_those_without_one_has_no_quota():
    pool = Stage("a", "b")
    pool.tell(do.SetGroup("", quota=1))
    pool.ask("1")
    assert pool.ask("2").kind == "held"


def test_a_paused_pool_gives_nothing_and_takes_back():
    pool = Stage("a", "b")
    pool.ask("1")
    pool.ask("2", lease=100)
    pool.ask("3")
    pool.configure(paused="repairs")
    pool.release("1")
    pool.later(100)
    assert pool.ask("4").kind == "waiting"
    assert pool.ask("5", wait=False).kind == "busy"
    assert pool.all() == {"3": "waiting", "4": "waiting"}
    pool.configure(paused="")
    assert pool.served() == ["3", "4"]


def test_who_will_not_wait_is_told_that_it_is_busy():
    pool = Stage("a")
    pool.ask("1")
    assert pool.ask("2", wait=False).kind == "busy"
    assert "2" not in pool.state.requests


def test_a_wait_ends_by_its_timeout():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", timeout=100)
    pool.later(99)
    assert pool.of("2") == "waiting"
    pool.later(1)
    assert pool.of("2") == "timed out"


def test_a_timeout_does_not_touch_what_was_granted():
    pool = Stage("a")
    pool.ask("1", timeout=100)
    pool.later(1000)
    assert pool.of("1") == "held a"


def test_withdrawing_tells_what_it_ended():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2")
    pool.ask("3", session="t")
    assert pool.withdraw("2").kind == "withdrawn"
    assert pool.withdraw("1").kind == "released"
    assert pool.of("3") == "offered a"
    assert pool.withdraw("3").kind == "released"
    assert pool.withdraw("3").kind == "unknown"
    assert pool.tell(do.Withdraw("s", "never")).kind == "unknown"


def test_a_chosen_id_that_was_withdrawn_had_no_effect_and_may_ask_again():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", chosen=True)
    pool.withdraw("2")
    assert pool.withdraw("2").kind == "unknown"
    assert pool.ask("2", chosen=True).kind == "waiting"


def test_only_its_session_or_an_operator_withdraws_a_request():
    pool = Stage("a")
    pool.ask("1")
    assert pool.tell(do.Withdraw("t", "1")).kind == "taken"
    assert pool.tell(do.Withdraw("t", "1", by="op", reason="maintenance")).kind == "released"
    assert pool.of("1") == "revoked"


def test_what_nothing_can_satisfy_is_told_so_at_once():
    pool = Stage("a", "b")
    pool.add("c", 4, model="x")
    assert pool.ask("1", "model=y").kind == "unsatisfiable"
    assert pool.ask("2", "@d").kind == "unsatisfiable"
    assert pool.ask("3", Want("*", 4)).kind == "unsatisfiable"
    assert pool.ask("4", Want("*", 1, 5)).kind == "unsatisfiable"
    assert pool.ask("5", Want("model=x", 1, 4), Want("model=x")).kind == "unsatisfiable"
    assert pool.ask("6", "@a", refused=("a",)).kind == "unsatisfiable"
    assert not pool.state.requests


def test_a_cordoned_resource_may_satisfy_a_request_later():
    pool = Stage("a")
    pool.mark("a", "cordoned")
    assert pool.ask("1").kind == "waiting"


def test_the_patient_wait_for_what_is_not_there_yet():
    pool = Stage()
    assert pool.ask("1", "model=y", patient=True).kind == "waiting"
    pool.add("a", model="y")
    assert pool.of("1") == "offered a"


@pytest.mark.parametrize(
    "command",
    [
        do.Remove("a"),
        do.Relabel("a", {}),
        do.Resize("a", 1),
        do.SetGroup("g", quota=1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_those_who_wait_in_vain_from_now_on_are_told(command):
    pool = Stage()
    pool.add("a", 2, model="x")
    pool.ask("1", group="h")
    pool.ask("2", Want("model=x", 1, 2), group="g")
    pool.ask("patient", Want("model=x", 1, 2), group="g", patient=True)
    assert pool.tell(command).kind == "ok"
    assert pool.of("2") == "unsatisfiable"
    assert pool.of("patient") == "waiting"


def test_whole_resources_count_for_a_quota_as_they_are():
    pool = Stage()
    pool.add("big", 8)
    pool.tell(do.SetGroup("g", quota=2))
    assert pool.ask("1", Want("*", 1, 0), group="g").kind == "unsatisfiable"
    pool.add("small", 2)
    assert pool.ask("2", Want("*", 1, 0), group="g").shares == (("small", 2),)
