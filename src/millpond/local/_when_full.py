"""What to do with a task when a bounded pool is full.

`max_queued=n` means that at most n tasks wait while every worker is busy: a pool is full when it holds
`max_workers + n` tasks that have not ended. What happens then is `when_full`:

| policy          | what happens                                                                             |
|-----------------|------------------------------------------------------------------------------------------|
| `"block"`       | the submitter waits its turn (`Block(timeout=, max_waiting=)` bounds the wait and the waiters) |
| `"raise"`       | `PoolFull`                                                                               |
| `"drop"`        | the new task is cancelled                                                                |
| `"drop_oldest"` | the task that has waited longest is cancelled and the new one comes in                   |
| `"caller_runs"` | the submitter runs the task itself, which slows it down                                  |
| a callable      | gets the pool's statistics and the task, and returns one of these words or `"accept"`    |

A dropped task is a cancelled future. A worker that submits to its own full pool never blocks itself: where others
would wait, it runs the task. Whoever makes room puts the task of the first waiting submitter in line, so nobody is
overtaken. `await pool.run(...)` waits for room without holding up its event loop.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from millpond.errors import PoolFull
from millpond.local._task import CANCELLED, RAISED, here
from millpond.local._timer import timer

if TYPE_CHECKING:
    from millpond.local._statistics import Statistics
    from millpond.local._task import Task
    from millpond.local.threads._runner import Crew

Word: TypeAlias = Literal["block", "raise", "drop", "drop_oldest", "caller_runs"]
Verdict: TypeAlias = Literal["raise", "drop", "drop_oldest", "caller_runs", "accept", "block", "placed"]
WORDS = ("block", "raise", "drop", "drop_oldest", "caller_runs")


@dataclass(frozen=True, slots=True)
class Block:
    """Wait for room: at most `timeout` seconds, with at most `max_waiting` submitters; past either, `PoolFull`."""

    timeout: float | None = None
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not self.timeout >= 0:
            raise ValueError(f"timeout must be 0 or more seconds, not {self.timeout!r}")
        if self.max_waiting is not None and self.max_waiting < 0:
            raise ValueError(f"max_waiting must be 0 or more, not {self.max_waiting!r}")


Policy: TypeAlias = Callable[["Statistics", "Task[Any]"], Verdict]
WhenFull: TypeAlias = Word | Block | Policy


def check_when_full(when_full: WhenFull, max_queued: int | None = 0) -> None:
    """Refuse what is not a policy, and a policy that can never apply."""
    if not (
        when_full in WORDS or isinstance(when_full, Block) or (callable(when_full) and not isinstance(when_full, type))
    ):
        words = ", ".join(map(repr, WORDS))
        raise ValueError(f"when_full must be one of {words}, Block(...) or a callable, not {when_full!r}")
    if max_queued is None and when_full != "block":
        raise ValueError(
            f"when_full={when_full!r} has no meaning without a bound; say how many may wait by max_queued="
        )


class _Submitter:
    """A submitter that waits for room for its task."""

    __slots__ = ("is_aside", "is_in", "is_refused", "lock", "task")

    def __init__(self, task: Task[Any]) -> None:
        self.task = task
        self.is_in = False
        self.is_refused = False
        self.is_aside = False
        self.lock = _thread.allocate_lock()
        self.lock.acquire()


class Bound:
    """The bound of a crew: who may come in, and who waits for it."""

    def __init__(self, crew: Crew, max_queued: int, when_full: WhenFull) -> None:
        self._crew = crew
        self.max_queued = max_queued
        self.when_full = when_full
        self._accepted = 0
        self._ended = 0  # how many were known to have ended when last counted: never too high
        self._waiting: deque[_Submitter] = deque()

    def forget(self) -> None:
        """Start over in a forked child."""
        self._waiting = deque()
        self._accepted = self._count_ended()

    @property
    def waiting(self) -> int:
        """How many submitters wait."""
        return len(self._waiting)

    def _count_ended(self) -> int:
        crew = self._crew
        with crew.lock:
            return crew.past_done + sum(worker.done for worker in crew.workers) + crew.cancelled

    def _has_room(self) -> bool:
        """Tell whether one more fits (under the lock); counts only when it looks full."""
        crew = self._crew
        workers = crew.count - len(crew.parked) if crew.is_paused else crew.size
        if self._accepted - self._ended < workers + self.max_queued:
            return True
        self._ended = self._count_ended()
        return self._accepted - self._ended < workers + self.max_queued

    def try_enter(self) -> bool:
        """Atomically take a place if there is one and nobody waits for it."""
        with self._crew.lock:
            if self._waiting or not self._has_room():
                return False
            self._accepted += 1
            return True

    def enter(self, task: Task[Any]) -> Verdict:
        """Take a place for `task`, waiting for it if that is the policy; the verdict says what to do with the task."""
        if self.try_enter():
            return "accept"
        policy = self.when_full
        verdict: Verdict = (
            "block"
            if isinstance(policy, Block)
            else policy(self._crew.statistics("threads"), task)
            if callable(policy)
            else policy
        )
        worker = getattr(here, "worker", None)
        if verdict == "block" and worker is not None and worker.crew is self._crew.root:
            verdict = "caller_runs"
        if verdict == "block":
            block = policy if isinstance(policy, Block) else Block()
            if getattr(here, "is_awaiting", False):
                self._wait_aside(task, block)
            else:
                self._wait(task, block)
            return "placed"
        if verdict == "raise":
            raise self._refuse("")
        if verdict == "drop_oldest":
            if not self._swap():
                return "drop"
            self._crew.reject()
            return "accept"
        if verdict in ("accept", "caller_runs"):
            with self._crew.lock:
                self._accepted += 1
        elif verdict != "drop":
            raise ValueError(f"when_full returned {verdict!r}; it must return one of {(*WORDS, 'accept')}")
        return verdict

    def _swap(self) -> bool:
        """Cancel the oldest waiting task and take its place; False when none waits."""
        crew = self._crew
        with crew.lock:
            victim = crew.give_up_oldest()
            if victim is None:
                return False
            self._accepted += 1
        victim._settle(CANCELLED, None)
        return True

    def _refuse(self, more: str) -> PoolFull:
        """Count a refusal and return its error."""
        crew = self._crew
        crew.reject()
        return PoolFull(
            f"pool {crew.name!r} is full: {crew.size} workers and {self.max_queued} queued tasks{more}; submit less, "
            "raise max_queued, or choose another when_full"
        )

    def _wait(self, task: Task[Any], block: Block) -> None:
        """Wait until somebody has put `task` in line for us."""
        crew = self._crew
        me = _Submitter(task)
        with crew.lock:
            if block.max_waiting is not None and len(self._waiting) >= block.max_waiting:
                raise self._refuse(f", and {block.max_waiting} submitters wait already")
            self._waiting.append(me)
        self.let_in()
        try:
            me.lock.acquire(True, -1 if block.timeout is None else block.timeout)
        except BaseException:  # Ctrl-C: leave, and take the task along if it has not started
            if not self._step_back(me):
                task.cancel()
            raise
        if me.is_refused:
            raise crew.refusal()
        if self._step_back(me):
            raise self._refuse(f", and no room came within {block.timeout} s")

    def _wait_aside(self, task: Task[Any], block: Block) -> None:
        """Leave `task` to whoever makes room: its submitter is an event loop, which must not wait here."""
        me = _Submitter(task)
        me.is_aside = True
        with self._crew.lock:
            if block.max_waiting is not None and len(self._waiting) >= block.max_waiting:
                raise self._refuse(f", and {block.max_waiting} submitters wait already")
            self._waiting.append(me)
        self.let_in()
        if block.timeout is not None:
            timer.after(block.timeout, lambda: self._give_up(me, block))

    def _give_up(self, me: _Submitter, block: Block) -> None:
        if self._step_back(me):
            self._fail(me.task, self._refuse(f", and no room came within {block.timeout} s"))

    def _fail(self, task: Task[Any], error: Exception) -> None:
        """End a task that is in no line, unless it was cancelled."""
        with self._crew.lock:
            is_open = task._fn is not None
            task._fn = None
        if is_open:
            task._settle(RAISED, error)

    def _step_back(self, me: _Submitter) -> bool:
        """Leave the line of submitters; False when the task is in by now."""
        with self._crew.lock:
            if me.is_in:
                return False
            if not me.is_refused:
                self._waiting.remove(me)
            return True

    def let_in(self) -> None:
        """Put the tasks of waiting submitters in line while there is room; refuse them all when the pool is closed."""
        crew = self._crew
        with crew.lock:
            while self._waiting and (crew.is_closed or self._has_room()):
                submitter = self._waiting.popleft()
                if crew.is_closed:
                    submitter.is_refused = True
                    if submitter.is_aside:
                        self._fail(submitter.task, crew.refusal())
                else:
                    submitter.is_in = True
                    self._accepted += 1
                    crew.place(submitter.task)
                submitter.lock.release()

    def letting_in(self, take: Callable[[], Task[Any]]) -> Callable[[], Task[Any]]:
        """Wrap a worker's `take`, which it calls right after a task has ended: so let somebody in first."""

        def take_and_let_in() -> Task[Any]:
            if self._waiting:
                self.let_in()
            return take()

        return take_and_let_in
