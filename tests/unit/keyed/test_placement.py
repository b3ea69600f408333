"""Which worker owns a key: known answers, which never change, and the small print of every rule."""

from __future__ import annotations

from collections import Counter

import pytest

from millpond.keyed.rules.placement import (
    LOAD,
    NOBODY,
    SLOTS,
    Jump,
    Member,
    Move,
    Rendezvous,
    jump,
    mix,
    moves,
    slot_of,
)

FIVE = [Member(name) for name in ("ann", "bob", "cid", "dee", "eve")]


@pytest.mark.parametrize(
    ("text", "number", "slot"),
    [
        ("", 0, 0),
        ("a", 3904355907, 3651),
        ("tenant-42", 1247496908, 2764),
        ("ä", 1890972035, 387),
    ],
)
def test_a_key_has_the_same_slot_for_ever(text, number, slot):
    assert slot_of(text) == slot == number % SLOTS
    assert slot_of(text, 7) == number % 7


def test_the_mixer_is_splitmix64():
    golden = 0x9E3779B97F4A7C15
    # the first numbers of the generator that is seeded with 0, from the reference implementation
    assert [mix(golden * step % (1 << 64)) for step in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@pytest.mark.parametrize(
    ("key", "buckets", "bucket"),
    [
        # as other implementations of the paper have it
        (1, 1, 0),
        (42, 57, 43),
        (256, 1024, 520),
        (0xDEAD10CC, 1, 0),
        (0xDEAD10CC, 666, 361),
        (16045690984833335023, 255, 237),
        (0, 60, 0),
        (1, 60, 55),
        (2, 60, 46),
        (10863919174838991, 11, 6),
        (2016238256797177309, 11, 3),
        (1673758223894951030, 11, 5),
    ],
)
def test_jump_gives_the_known_buckets(key, buckets, bucket):
    assert jump(key, buckets) == bucket


def test_jump_is_what_the_paper_says_in_floating_point():
    def paper(key: int, buckets: int) -> int:
        bucket, following = -1, 0
        while following < buckets:
            bucket = following
            key = (key * 2862933555777941757 + 1) % (1 << 64)
            following = int((bucket + 1) * (float(1 << 31) / float((key >> 33) + 1)))
        return bucket

    for number in range(5000):
        key = mix(number)
        assert jump(key, 1 + number % 300) == paper(key, 1 + number % 300)


def test_a_placement_is_the_same_for_ever():
    assert Rendezvous()(FIVE, 16) == RENDEZVOUS
    assert Jump()(FIVE, 16) == JUMP


RENDEZVOUS = [
    "bob",
    "cid",
    "bob",
    "cid",
    "dee",
    "dee",
    "bob",
    "ann",
    "cid",
    "dee",
    "cid",
    "ann",
    "eve",
    "ann",
    "eve",
    "ann",
]
JUMP = ["dee", "eve", "dee", "cid", "eve", "dee", "cid", "ann", "dee", "dee", "cid", "eve", "dee", "cid", "cid", "bob"]


@pytest.mark.parametrize("placement", [Rendezvous(), Jump()], ids=["rendezvous", "jump"])
def test_without_members_nobody_owns_anything(placement):
    assert placement([], 4) == [NOBODY] * 4


@pytest.mark.parametrize("placement", [Rendezvous(), Jump()], ids=["rendezvous", "jump"])
def test_one_member_owns_everything(placement):
    assert placement([Member("a")], 4) == ["a"] * 4


def test_more_members_than_slots_leave_some_without():
    owners = Rendezvous()(FIVE, 3)
    assert len(owners) == 3 and set(owners) <= {member.id for member in FIVE}
    assert max(Counter(owners).values()) <= 1


@pytest.mark.parametrize("load", [0.99, 0, -1, float("nan")])
def test_a_load_below_the_fair_share_is_refused(load):
    with pytest.raises(ValueError, match="at least 1"):
        Rendezvous(load)


@pytest.mark.parametrize("load", [1.0, 1.05, LOAD, 1.5, 5.0])
def test_nobody_gets_more_than_the_load_allows(load):
    for members in (FIVE, FIVE[:3], [*FIVE, Member("big", 3)]):
        total = sum(one.weight for one in members)
        got = Counter(Rendezvous(load)(members, 1000))
        assert sum(got.values()) == 1000
        for one in members:
            assert got[one.id] <= -(-1000 * one.weight * load // total), (one, got)


def test_what_is_remembered_of_members_does_not_change_the_answer():
    place = Rendezvous()
    for members in (FIVE, FIVE[1:], [Member("ann", 2), *FIVE[1:]], FIVE, FIVE[:1], FIVE):
        for slots in (64, 100):
            assert place(members, slots) == Rendezvous()(members, slots)
    assert len(place._scores) == len(FIVE), "only those who are there are remembered"


def test_moves_are_what_differs():
    owners, wanted = ["a", "a", "", "b", "", "c"], ["a", "b", "a", "b", "", ""]
    assert moves(owners, wanted, 10) == [Move(2, "", "a"), Move(1, "a", "b")], "nobody is given nothing"
    assert moves(owners, owners, 10) == []


def test_moves_are_limited_but_for_what_nobody_owns():
    owners = ["a"] * 6 + ["b"] * 6 + [""] * 3
    wanted = ["c"] * 15
    for limit in range(13):
        got = moves(owners, wanted, limit)
        assert [move.slot for move in got[:3]] == [12, 13, 14]
        rest = Counter(move.giver for move in got[3:])
        assert sum(rest.values()) == limit
        assert abs(rest["a"] - rest["b"]) <= 1, "everybody gives something"


def test_moves_of_lists_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="zip"):
        moves(["a"], ["a", "b"], 1)
