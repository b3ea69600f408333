"""Calls on their way to a SQLite file."""

from __future__ import annotations

import threading
from collections import deque

from millpond.errors import EngineUnavailable
from millpond.resources._rules import commands as do
from millpond.resources.engines.sqlite._queue import Call, CallQueue


def test_a_call_that_comes_while_others_fail_is_answered_too():
    """Whoever has a call appends it with no lock."""
    queue, heard = CallQueue(threading.RLock(), str), []

    def call(name: str) -> Call:
        return Call(queue, "pool", do.Tick(), lambda answer: heard.append((name, type(answer))))

    class Answers(deque[Call]):
        def append(self, call: Call) -> None:
            super().append(call)
            if len(self) == 2:
                queue.waiting.append(late)  # another thread

    late = call("late")
    queue.answers = Answers()
    queue.waiting.append(call("waiting"))
    queue.fail([call("taken")], EngineUnavailable("away"))
    queue.give_answers()
    assert heard == [(name, EngineUnavailable) for name in ("taken", "waiting", "late")] and not queue.waiting
