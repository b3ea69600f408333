"""The judge of the rules can fail: bugs that were put in on purpose are found by random scripts within seconds."""

from __future__ import annotations

import pytest

from millpond.resources._rules.line import Line
from millpond.resources._rules.state import State
from millpond.resources._rules.step import _Turn
from millpond_conformance import _script

BUGS = {
    "tokens do not grow": (_Turn, "next_token", lambda turn, seen=0: max(turn.state.token, turn.now, seen + 1)),
    "priorities are reversed": (State, "order", lambda state, request: request.priority),
    "nothing is kept for bundles": (_Turn, "camp", lambda turn: (None, 0, None)),
    "exclusive requests are overtaken": (_Turn, "reserved", lambda turn, request, mask: 0),
    "exclusive requests hold up all others": (_Turn, "_could_have", lambda turn, request, resource: True),
    "quotas are forgotten": (_Turn, "room", lambda turn, request: None),
    "those in vain are not told": (_Turn, "end_the_impossible", lambda turn: None),
    "drains never end": (_Turn, "_settle", lambda turn, shares: None),
    "a line counts wrong": (Line, "leave", lambda line, request: None),
    "nothing is handed over": (_Turn, "hand_over", lambda turn: setattr(turn, "freed", 0)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_found(bug, monkeypatch):
    owner, name, wrong = BUGS[bug]
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(AssertionError, match="seed .* at its shortest"):
        _script.search(range(60), 100)
