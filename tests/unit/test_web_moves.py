"""What the page tells of keys that moved, from what it saw of the pool."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from millpond.web._moves import Moves


def statistics(recovered: int) -> Any:
    counters = {"recovered_total": recovered, "dispatched_total": 10, "done_total": 4, "dead": 0}
    return SimpleNamespace(**counters, jobs=6, delayed=0)


def worker(name: str) -> Any:
    return SimpleNamespace(id=name, label=name, lease_left=9.0)


def slot(number: int, owner: str, before: str, why: str, since: float) -> Any:
    return SimpleNamespace(number=number, owner=owner, before=before, why=why, since=since)


def test_what_was_begun_again_after_two_deaths_at_once_is_told_as_that_of_both():
    moves, now = Moves(lease=10.0), time.time()
    before = [slot(number, name, "", "free", now) for number, name in enumerate("abc")]
    moves.look([worker(name) for name in "abc"], before, statistics(0))
    after = [slot(0, "c", "a", "died", now + 5), slot(1, "c", "b", "died", now + 5), slot(2, "c", "", "free", now)]
    told = {row["worker"]: row for row in moves.look([worker("c")], after, statistics(5))}
    assert (told["a"]["rerun"], told["a"]["with"]) == (5, ["b"])
    assert (told["b"]["rerun"], told["b"]["with"]) == (5, ["a"])


def test_one_death_is_told_as_its_own():
    moves, now = Moves(lease=10.0), time.time()
    moves.look([worker("a"), worker("c")], [slot(0, "a", "", "free", now)], statistics(0))
    (row,) = moves.look([worker("c")], [slot(0, "c", "a", "died", now + 5)], statistics(3))
    assert (row["rerun"], row["with"], row["unaccounted"]) == (3, [], 0)
