"""Placements of the user's own that raise, return nonsense or take a moment: no worker stands still for that."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keyed_play as play
import pytest

from millpond.keyed import KeyedPool
from millpond.keyed.rules.placement import Member, Rendezvous
from waiting import HANG, until


class Mute(Exception):
    def __str__(self) -> str:
        raise self

    __repr__ = __str__


class Base(BaseException):
    pass


class Unequal:
    """Cannot be looked for among the ids of members."""

    def __hash__(self) -> int:
        raise SystemExit(1)


def throwing(make_error: Callable[[], BaseException]) -> Callable[[Sequence[Member], int], Any]:
    def misplace(members: Sequence[Member], slots: int) -> Any:
        raise make_error()

    return misplace


def endless(members: Sequence[Member], slots: int) -> Iterator[str]:
    while True:
        yield members[0].id


def dies_midway(members: Sequence[Member], slots: int) -> Iterator[str]:
    yield members[0].id
    raise SystemExit(1)


def empties(members: Any, slots: int) -> list[str]:
    members.clear()
    return []


BROKEN: dict[str, tuple[Callable[[Any, int], Any], str]] = {
    "exception": (throwing(lambda: ValueError("not today")), "raised ValueError: not today"),
    "exit": (throwing(lambda: SystemExit(1)), "raised SystemExit"),
    "base": (throwing(Base), "raised .*Base"),
    "unprintable": (throwing(Mute), "raised .*Mute"),
    "nothing": (lambda members, slots: None, "returned a NoneType, not a list"),
    "number": (lambda members, slots: 5, "returned a int, not a list"),
    "text": (lambda members, slots: members[0].id[:1] * slots, "returned a str, not a list"),
    "short": (lambda members, slots: [members[0].id] * (slots - 1), "returned 4095 ids, not 4096"),
    "empty": (lambda members, slots: [], "returned 0 ids, not 4096"),
    "emptied": (empties, "returned 0 ids, not 4096"),
    "long": (lambda members, slots: [members[0].id] * (slots + 1), "returned more than 4096 ids"),
    "endless": (endless, "returned more than 4096 ids"),
    "midway": (dies_midway, "raised SystemExit"),
    "stranger": (lambda members, slots: ["stranger"] * slots, "slot 0 to 'stranger', who is no member"),
    "nobody": (lambda members, slots: [""] * slots, "slot 0 to '', who is no member"),
    "members": (lambda members, slots: [members[0]] * slots, "slot 0 to Member"),
    "lists": (lambda members, slots: [[members[0].id]] * slots, r"slot 0 to \["),
    "odd": (lambda members, slots: [Unequal()] * slots, "slot 0 to .*Unequal"),
    "one missing": (lambda members, slots: [members[0].id] * (slots - 1) + [None], "slot 4095 to None"),
}


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "placement" in one.getMessage() and one.levelname == "ERROR"]


def wanted_by_default(pool: KeyedPool) -> list[str]:
    return list(Rendezvous()([Member(one.id, one.weight) for one in pool.workers()], play.SLOTS))


@pytest.mark.parametrize("kind", BROKEN)
def test_keys_are_placed_by_the_default_then_and_the_worker_says_once_what_is_wrong(
    make: Callable[..., KeyedPool], kind: str, caplog: pytest.LogCaptureFixture
):
    function, what = BROKEN[kind]
    pool = make(lease=play.LONG, placement=("to the best", function))
    do = pool.job(name="do")(lambda job: job.key)
    with pool.worker() as first:
        until(lambda: play.slot_share(pool) == {first.id: play.SLOTS})
        assert do.dispatch("k").result(HANG) == "k"
        assert first.is_member
        (said,) = complaints(caplog)
        assert "'to the best'" in said and function.__qualname__ in said and "'p'" in said
    assert re.search(what, said), said
    assert pool.workers() == [] and {one.owner for one in pool.slots()} == {""}


def test_slots_stay_with_their_owners_and_what_a_leaver_had_is_placed_by_the_default(
    make: Callable[..., KeyedPool], caplog: pytest.LogCaptureFixture
):
    trouble = threading.Event()

    def fair(members: Sequence[Member], slots: int) -> list[str]:
        if trouble.is_set():
            raise ValueError("not today")
        return [members[slot % len(members)].id for slot in range(slots)]

    pool = make(lease=play.LONG, drain=play.LONG, placement=fair)
    do = pool.job(name="do")(lambda job: job.key)
    with pool.worker() as first, pool.worker() as second:
        until(lambda: play.settled(pool, 2, play.SLOTS))
        before = [one.owner for one in pool.slots()]
        trouble.set()
        with pool.worker() as third:
            play.beat_often(first)
            play.beat_often(second)
            until(lambda: len(complaints(caplog)) == 3, "each has seen that the third one has come")
            assert [one.owner for one in pool.slots()] == before
            keys = [play.key_of(pool, one.id) for one in (first, second)]
            assert [do.dispatch(key).result(HANG) for key in keys] == keys
            second.close()
            now = [one.owner for one in pool.slots()]
            default = wanted_by_default(pool)
            assert set(default) == {first.id, third.id}
            assert now == [owner if owner == first.id else default[slot] for slot, owner in enumerate(before)]
            assert do.dispatch(keys[1]).result(HANG) == keys[1]
    for said in complaints(caplog):
        assert "Slots stay with their owners" in said


def test_a_placement_that_takes_a_moment_costs_no_lease(make: Callable[..., KeyedPool]):
    asked, go_on = threading.Event(), threading.Event()

    def slow(members: Sequence[Member], slots: int) -> list[str]:
        asked.set()
        go_on.wait(HANG)
        return [members[0].id] * slots

    pool = make(lease=play.LONG, placement=slow)
    do = pool.job(name="do")(lambda job: job.key)
    store = play.tamper(pool)
    with pool.worker() as worker:
        was = worker.id
        play.beat_often(worker)
        assert asked.wait(HANG)
        renewed = store.calls.count("renew")
        until(lambda: store.calls.count("renew") > renewed + 2, "it renews its lease meanwhile")
        go_on.set()
        assert do.dispatch("k").result(HANG) == "k"
        assert worker.id == was
