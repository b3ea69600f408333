"""Calls on their way: commands that wait for a batch, questions that wait for our thread, answers to be given.

A command leaves the queue when a batch takes it, and comes back if that batch is interrupted. Its answer is given when
the batch is committed, after its news were told; an answer that was begun and interrupted is given again, and is heard
once.

Locks. Whoever has a call appends it to `waiting` or `questions` with no lock: deques allow that. `cancel`,
`give_up_old` and `fail_all` take `_use` themselves; `take`, `put_back`, `fail` and `give_answers` expect it to be held.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from millpond._clock import elapsed
from millpond.resources._engine import Question
from millpond.resources._rules.commands import Command

STUCK = 30.0
"""Seconds after which a call that could not begin is given up."""


class Call:
    """A command on its way, or a question."""

    __slots__ = ("command", "done", "pool", "queue", "reply", "since")

    def __init__(
        self, queue: CallQueue, pool: str, command: Command | Question[Any], done: Callable[[Any], None]
    ) -> None:
        self.queue = queue
        self.pool = pool
        self.command = command
        self.done = done
        self.reply: Any = None
        self.since = elapsed()

    def cancel(self) -> bool:
        """Take it out of the queue, if it still stands there."""
        return self.queue.cancel(self)

    def obstacle(self) -> str:
        """Return what keeps it from being answered; "" if nothing does."""
        return self.queue.obstacle()


class CallQueue:
    """The calls of this process that are on their way."""

    def __init__(self, use: threading.RLock, obstacle: Callable[[], str]) -> None:
        self._use = use
        self.obstacle = obstacle
        """Return what keeps the oldest of those that wait from being carried out."""
        self.waiting: deque[Call] = deque()
        self.questions: deque[Call] = deque()
        self.answers: deque[Call] = deque()
        self.alone = 0
        """So many of those that wait are carried out one by one: a batch failed in which one of them is to blame."""

    def pools(self) -> list[str]:
        """Return the pools of the commands that wait."""
        return [call.pool for call in self.waiting.copy()]  # one step, also without the GIL

    def take(self, taken: list[Call]) -> Call:
        """Move the first command that waits to `taken`."""
        call = self.waiting[0]
        taken.append(call)  # before it leaves the queue: if Ctrl-C strikes here, the batch's undoing finds it
        self.waiting.popleft()
        return call

    def put_back(self, taken: list[Call]) -> None:
        """Put commands that were taken back, in their old place."""
        self.waiting.extendleft(call for call in reversed(taken) if call not in self.waiting)

    def cancel(self, call: Call) -> bool:
        """Take a command out of the queue, if it still stands there."""
        with self._use:
            if call not in self.waiting:
                return False
            self.waiting.remove(call)
            return True

    # --- answers -----------------------------------------------------------------------------------------------

    def give_answers(self) -> None:
        """Give the answers that there are."""
        while self.answers:
            call = self.answers[0]
            call.done(call.reply)
            self.answers.popleft()

    def fail_one(self, call: Call, error: Exception) -> None:
        """Answer a command with an error that is its own."""
        call.reply = error
        self.answers.append(call)

    def fail(self, taken: Iterable[Call], error: Exception) -> None:
        """Answer commands that were taken, and all that wait, with an error."""
        for call in taken:
            self.fail_one(call, error)
        self._fail_queue(self.waiting, error)

    def fail_all(self, error: Exception) -> None:
        """Answer all that wait, questions too, with an error."""
        with self._use:
            for queue in (self.waiting, self.questions):
                self._fail_queue(queue, error)

    def _fail_queue(self, queue: deque[Call], error: Exception) -> None:
        """Answer all of a queue; what is appended meanwhile is answered, too, and never dropped."""
        while queue:
            self.fail_one(queue.popleft(), error)

    def waited(self) -> float:
        """Return for how many seconds the oldest command waits. A look, with no lock."""
        try:
            return elapsed() - self.waiting[0].since
        except IndexError:
            return 0.0

    def give_up_old(self, error: Callable[[], Exception]) -> None:
        """Answer commands that could not begin for too long with an error."""
        with self._use:
            while self.waited() > STUCK:
                call = self.waiting.popleft()
                call.reply = error()
                self.answers.append(call)
