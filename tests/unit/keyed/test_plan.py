"""Whom a worker takes for dead, and what it does about slots."""

from __future__ import annotations

from millpond.keyed.rules.placement import Rendezvous
from millpond.keyed.rules.plan import ROUND, Sightings, farewell, plan
from millpond.keyed.rules.records import SECOND, Member

NOW = 1_000 * SECOND


def member(name: str, end: float = 0.0, *, leaving: bool = False, dead: bool = False) -> Member:
    return Member(name, name, 1, 100, (), 0, NOW + round(end * SECOND), leaving, dead)


def test_who_renews_is_alive_whatever_the_clocks_say():
    seen = Sightings(5.0)
    for beat in range(10):
        assert not seen.look([member("a", end=-100 + beat)], NOW, 100.0 * beat)


def test_neither_clock_alone_makes_anybody_dead():
    seen = Sightings(5.0)
    assert not seen.look([member("a", end=-60)], NOW, 0.0)  # the clock of the store jumped
    assert not seen.look([member("a", end=-60)], NOW, 4.9)
    assert seen.look([member("a", end=-60)], NOW, 5.0) == {"a": NOW - 60 * SECOND}
    assert not Sightings(5.0).look([member("a", end=2)], NOW, 0.0)
    seen = Sightings(5.0)
    seen.look([member("a", end=2)], NOW, 0.0)
    assert not seen.look([member("a", end=2)], NOW, 60.0)  # the store has not seen so much time pass


def test_a_clock_that_went_back_does_not_keep_the_dead_alive():
    seen = Sightings(5.0)
    seen.look([member("a", end=3600)], NOW, 0.0)
    assert "a" in seen.look([member("a", end=3600)], NOW, 5.0)


def test_a_proof_of_death_is_enough():
    assert Sightings(5.0).look([member("a", end=5, dead=True)], NOW, 0.0)


def test_a_joiner_is_given_its_share_and_claims_what_nobody_owns():
    members = [member("a"), member("b")]
    owners = ["a"] * 64
    mine = plan("a", members, (), owners, Rendezvous())
    theirs = plan("b", members, (), owners, Rendezvous())
    assert not mine.claims and not theirs.claims and not theirs.gives
    assert {taker for _, taker in mine.gives} == {"b"} and 20 < len(mine.gives) < 44
    free = plan("b", members, (), [""] * 64, Rendezvous())
    assert sorted(free.claims) == sorted(slot for slot, _ in mine.gives)


def test_what_the_dead_and_the_gone_own_is_claimed_by_whom_it_falls_to():
    members = [member("a"), member("b"), member("dead")]
    owners = ["dead"] * 32 + ["gone"] * 32
    claims = [*plan("a", members, ["dead"], owners, Rendezvous()).claims]
    claims += plan("b", members, ["dead"], owners, Rendezvous()).claims
    assert sorted(claims) == list(range(64))


def test_nothing_is_given_to_one_that_leaves():
    members = [member("a"), member("b", leaving=True), member("c")]
    moves = farewell("a", members, ["a"] * 64, Rendezvous())
    assert len(moves) == 64 and {taker for _, taker in moves} == {"c"}
    assert farewell("a", [member("a")], ["a"] * 4, Rendezvous()) == [(0, ""), (1, ""), (2, ""), (3, "")]


def test_a_round_is_limited():
    members = [member("a"), member("b")]
    todo = plan("b", members, (), [""] * 4096, Rendezvous())
    assert len(todo.claims) == ROUND and todo.is_more


def test_a_placement_is_never_asked_to_place_on_nobody():
    """The last one leaves: who wrote the placement function need not think of it."""

    def spread(members, slots):
        return [members[slot % len(members)].id for slot in range(slots)]

    assert farewell("a", [member("a", leaving=True)], ["a", "a", "b"], spread) == [(0, ""), (1, "")]
    assert plan("a", [member("a", leaving=True)], (), ["a"], spread).gives == []
