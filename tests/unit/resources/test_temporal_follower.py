"""A program's copy of a pool on Temporal, without Temporal: what it tells when it could not follow every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millpond.resources._rules import changes, commands
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.wire import Entry
from millpond.resources.engines.temporal import _messages as say
from millpond.resources.engines.temporal._follower import Follower

pytestmark = pytest.mark.asyncio


class Program:
    """A follower, and what it told."""

    def __init__(self) -> None:
        self.told: list[Sequence[Entry]] = []
        place: Any = None
        self.follower = Follower(
            place, "own", self.told.append, lambda: False, lambda: False, lambda state: None, lambda: None
        )


def pool(*resources: str) -> Replica:
    replica = Replica()
    for name in resources:
        replica.decide(commands.Add(name, {}), 1)
    return replica


def image(replica: Replica, incarnation: str = "life") -> say.News:
    return say.News(incarnation, replica.version, 1, list(replica.history), replica.state.image())


async def test_who_was_too_far_behind_is_told_that_something_may_have_been_missed():
    program = Program()
    program.follower._learn(image(pool("a")), 0.0)
    assert program.told == [], "nobody can have missed anything before the first look"
    program.follower._learn(image(pool("a", "b", "c")), 0.0)
    assert program.told == [[]]
    assert set(program.follower.replica.state.resources) == {"a", "b", "c"}


async def test_a_pool_that_was_made_anew_is_told_of_as_well():
    program = Program()
    program.follower._learn(image(pool("a")), 0.0)
    program.follower._learn(image(pool("b"), "another life"), 0.0)
    assert program.told == [[]]
    assert [entry.changes[0].resource.name for entry in program.follower.replica.history] == ["b"]  # type: ignore[union-attr]


async def test_a_step_that_cannot_be_followed_leaves_no_half_of_it():
    program = Program()
    program.follower._learn(image(pool("a")), 0.0)
    bad = Entry(2, "", [changes.Removed("a"), changes.Removed("nobody")])
    with pytest.raises(KeyError):
        program.follower._follow([bad], 1)
    assert (program.follower.replica.version, program.follower._incarnation) == (0, "")
    program.follower._learn(image(pool("a")), 0.0)
    assert set(program.follower.replica.state.resources) == {"a"}
