"""How evenly slots are spread over workers, and how little moves: the figures that K4 promises."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.keyed.rules.placement import LOAD, SLOTS, Jump, Member, Rendezvous, moves, slot_of

MEMBERS = st.lists(
    st.builds(Member, st.text(min_size=1, max_size=8), st.integers(1, 4)),
    min_size=1,
    max_size=12,
    unique_by=lambda member: member.id,
)


def crew(size: int, seed: int = 0) -> list[Member]:
    source = random.Random(seed * 1000 + size)
    return [Member(f"{source.getrandbits(64):016x}") for _ in range(size)]


def moved(before: Sequence[str], after: Sequence[str]) -> float:
    return sum(one != other for one, other in zip(before, after, strict=True)) / len(before)


@given(MEMBERS, st.integers(1, 200), st.randoms())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_order_of_members_does_not_matter(members, slots, source):
    owners = Rendezvous()(members, slots)
    shuffled = list(members)
    source.shuffle(shuffled)
    assert Rendezvous()(shuffled, slots) == owners
    assert set(owners) <= {member.id for member in members}


@given(MEMBERS, st.integers(1, 200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_load_is_bounded_by_weight(members, slots):
    got = Counter(Rendezvous()(members, slots))
    total = sum(one.weight for one in members)
    for one in members:
        assert got[one.id] <= -(-slots * one.weight * round(LOAD * 1000) // (total * 1000))


@given(MEMBERS, st.integers(1, 100), st.integers(0, 60))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rounds_of_moves_arrive_at_the_placement(members, slots, limit):
    wanted = Rendezvous()(members, slots)
    owners = [""] * slots
    for one in range(0, slots, 3):
        owners[one] = "somebody"
    for _ in range(slots + 2):
        step = moves(owners, wanted, limit + 1)
        assert sum(move.giver != "" for move in step) <= limit + 1
        if not step:
            break
        for move in step:
            assert owners[move.slot] == move.giver and wanted[move.slot] == move.taker
            owners[move.slot] = move.taker
    assert owners == wanted


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16, 32, 64])
def test_slots_are_spread_evenly(size):
    got = Counter(Rendezvous()(crew(size), SLOTS))
    fair = SLOTS / size
    assert max(got.values()) <= LOAD * fair + 1
    assert min(got.values()) >= 0.6 * fair, f"the least has {min(got.values())} of {fair:.0f}"


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 16, 24, 32, 48, 64])
def test_a_join_moves_about_its_share(size):
    for seed in range(3):
        *members, joiner = crew(size + 1, seed)
        place = Rendezvous()
        before, after = place(members, SLOTS), place([*members, joiner], SLOTS)
        share = moved(before, after)
        assert share <= 1.3 / (size + 1), f"a join moved {share * (size + 1):.2f} times its share"
        assert Counter(after)[joiner.id] >= 0.6 * SLOTS / (size + 1)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 16, 32, 64])
def test_a_leave_at_any_position_moves_about_its_share(size):
    members = crew(size)
    place = Rendezvous()
    before = place(members, SLOTS)
    for position in sorted({0, 1, size // 3, size // 2, size - 2, size - 1}):
        after = place(members[:position] + members[position + 1 :], SLOTS)
        share = moved(before, after)
        assert share <= 1.3 / size, f"leaving at {position} of {size} moved {share * size:.2f} times its share"
        place(members, SLOTS)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_a_rolling_restart_moves_a_slot_about_twice(size):
    everybody = crew(2 * size)
    old, new = everybody[:size], everybody[size:]
    place = Rendezvous()
    owners, total = place(old, SLOTS), 0.0
    for step in range(size):
        for members in (old[step + 1 :] + new[:step], old[step + 1 :] + new[: step + 1]):
            following = place(members, SLOTS)
            total += moved(owners, following)
            owners = following
    assert total <= 2.6, f"a slot moved {total:.2f} times"
    jump, jumped = Jump(), 0.0
    owners = jump(old, SLOTS)
    for step in range(size):
        for members in (old[step + 1 :] + new[:step], old[step + 1 :] + new[: step + 1]):
            following = jump(members, SLOTS)
            jumped += moved(owners, following)
            owners = following
    assert jumped > 2 * total, "this is why rendezvous is the default"


@pytest.mark.parametrize("size", [2, 5, 16, 64])
def test_jump_moves_its_share_at_the_end_only(size):
    members = crew(size + 1)
    place = Jump()
    before, after = place(members[:-1], SLOTS), place(members, SLOTS)
    share = moved(before, after)
    assert 0.5 / (size + 1) <= share <= 1.5 / (size + 1)
    assert {owner for one, owner in zip(before, after, strict=True) if one != owner} == {members[-1].id}


def test_weights_count():
    members = [Member("one"), Member("two", 2), Member("five", 5)]
    got = Counter(Rendezvous()(members, SLOTS))
    for one in members:
        fair = SLOTS * one.weight / 8
        assert 0.9 * fair <= got[one.id] <= LOAD * fair + 1, f"{one.id} got {got[one.id]}, fair is {fair:.0f}"
    heavier = Counter(Rendezvous()([members[0], Member("two", 3), members[2]], SLOTS))
    assert heavier["two"] > got["two"]


def test_keys_are_spread_evenly_over_slots():
    got = Counter(slot_of(f"tenant-{number}", 64) for number in range(64_000))
    assert len(got) == 64 and min(got.values()) > 850 and max(got.values()) < 1150


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [16, 32, 64])
def test_no_crew_of_many_moves_much_more(size):
    worst = 0.0
    for seed in range(40):
        *members, joiner = crew(size + 1, seed)
        place = Rendezvous()
        before = place(members, SLOTS)
        worst = max(worst, moved(before, place([*members, joiner], SLOTS)) * (size + 1))
        for position in range(0, size, 5):
            worst = max(worst, moved(before, place(members[:position] + members[position + 1 :], SLOTS)) * size)
    assert worst <= 1.5, f"{worst:.2f} times the share"
