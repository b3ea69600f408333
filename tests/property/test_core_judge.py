"""The judge of the rules can fail: bugs that were put in on purpose are found by random scripts within seconds."""

from __future__ import annotations

import pytest

from millpond.resources._rules import changes, handover, step
from millpond.resources._rules.handover import Turn
from millpond.resources._rules.index import Index
from millpond.resources._rules.line import Line
from millpond_conformance import _script

BUGS = {
    "tokens do not grow": (Turn, "next_token", lambda turn, seen=0: max(turn.state.token, turn.now, seen + 1)),
    "priorities are reversed": (Index, "order", lambda index, request: request.priority),
    "nothing is kept for bundles": (Turn, "reservation", lambda turn: (None, 0, None)),
    "exclusive requests are overtaken": (Turn, "held_back", lambda turn, request, mask: 0),
    "exclusive requests hold up all others": (Turn, "_could_have", lambda turn, request, resource: True),
    "quotas are forgotten": (Turn, "room", lambda turn, request: None),
    "those in vain are not told": (step, "_end_the_impossible", lambda turn: None),
    "drains never end": (step, "_settle", lambda turn, shares: None),
    "a line counts wrong": (Line, "leave", lambda line, request: None),
    "nothing is handed over": (Turn, "hand_over", lambda turn: setattr(turn, "freed", 0)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_found(bug, monkeypatch):
    owner, name, wrong = BUGS[bug]
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(AssertionError, match="seed .* at its shortest"):
        _script.search(range(60), 100)


GIFTS = ["Ended", "Left", "Declined", "Returned", "Added", "Undelayed", "Marked", "Configured"]
"""Changes whose gifts nothing else gives soon: the others need more scripts than fit here to be missed."""


@pytest.mark.parametrize("change", GIFTS)
def test_a_change_whose_gifts_are_forgotten_is_found(change, monkeypatch):
    monkeypatch.delitem(handover._FREES, getattr(changes, change))
    with pytest.raises(AssertionError, match="seed .* at its shortest"):
        _script.search(range(60), 100)
