"""What happens when a bounded `AsyncPool` is full: the policies of `_rejection.py`, awaited.

A pool is full when it holds `max_workers + max_queued` tasks that have not ended. A submitter that waits stands in a
line of its own, and its task is put in the pool's line by whoever makes room, so nobody is overtaken. A task that
submits to its own full pool never waits there, since it may hold the place it waits for: it runs the task itself.
To "run it oneself" is to start it beside the limit and to wait for its end before `submit` returns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from millpond._events import emit
from millpond.errors import PoolFull
from millpond.local._queues import Line
from millpond.local._statistics import Statistics
from millpond.local._when_full import WORDS, Block, Verdict, Word
from millpond.local.coroutines._task import IN_LINE, NEW, AsyncTask, cancel_future
from millpond.local.coroutines._waiting import until_ended

if TYPE_CHECKING:
    from millpond.local.coroutines._limiter import Limiter

AsyncPolicy: TypeAlias = Callable[[Statistics, AsyncTask[Any]], Verdict]
AsyncWhenFull: TypeAlias = Word | Block | AsyncPolicy


class Room:
    """The bound of a limiter: who may come in, and who waits for it."""

    def __init__(self, limiter: Limiter, max_queued: int, when_full: AsyncWhenFull) -> None:
        self._limiter = limiter
        self._max_queued = max_queued
        self._when_full = when_full
        self._waiting: deque[tuple[asyncio.Future[None], AsyncTask[Any]]] = deque()

    @property
    def waiting(self) -> int:
        """How many submitters wait."""
        return len(self._waiting)

    def _has_room(self) -> bool:
        limiter = self._limiter
        workers = limiter.running if limiter.is_paused else limiter.limit
        return limiter.unfinished < workers + self._max_queued

    def try_enter(self, task: AsyncTask[Any]) -> bool:
        """Put a task in line if there is room and nobody waits for it."""
        if self._waiting or not self._has_room():
            return False
        self._limiter.place(task)
        return True

    async def enter(self, task: AsyncTask[Any]) -> None:
        """Put a task in line, or do with it what the policy says."""
        if self.try_enter(task):
            return
        limiter = self._limiter
        policy = self._when_full
        verdict: Verdict
        if isinstance(policy, Block):
            verdict = "block"
        else:
            verdict = policy(limiter.statistics("asyncio"), task) if callable(policy) else policy
        if verdict == "block" and not limiter.is_inside():
            await self._wait(task, policy if isinstance(policy, Block) else Block())
        elif verdict in ("block", "caller_runs"):
            limiter.place_beside(task)
            await until_ended([task])
        elif verdict == "accept":
            limiter.place(task)
        elif verdict == "raise":
            self.reject()
            raise self._full("")
        elif verdict == "drop" or (verdict == "drop_oldest" and not self._drop_oldest(limiter.line)):
            self.reject()
            cancel_future(task)
            limiter.count_cancelled()
        elif verdict == "drop_oldest":
            limiter.place(task)
        else:
            raise ValueError(f"when_full returned {verdict!r}; it must return one of {(*WORDS, 'accept')}")

    def _drop_oldest(self, line: Line) -> bool:
        """Cancel the task that has waited longest; False when none waits."""
        kept = []
        victim: Any = None
        while victim is None:
            try:
                oldest: Any = line.oldest()
            except IndexError:
                break
            if isinstance(oldest, AsyncTask):
                self._limiter._ghosts -= 1  # it is out of the line, where a cancelled task usually stays
                victim = oldest if oldest._stage == IN_LINE else None
            else:
                kept.append(oldest)
        for driver in reversed(kept):
            line.put_back(driver)
        if victim is None:
            return False
        self.reject()
        victim.cancel()
        return True

    def reject(self) -> None:
        """Count a task that was turned away."""
        self._limiter.rejected += 1
        emit(self._limiter.observer, "task_rejected", self._limiter.name)

    def _full(self, more: str) -> PoolFull:
        limiter = self._limiter
        return PoolFull(
            f"pool {limiter.name!r} is full: {limiter.limit} workers and {self._max_queued} queued tasks{more}; "
            "submit less, raise max_queued, or choose another when_full"
        )

    async def _wait(self, task: AsyncTask[Any], block: Block) -> None:
        if block.max_waiting is not None and len(self._waiting) >= block.max_waiting:
            self.reject()
            raise self._full(f", and {block.max_waiting} submitters wait already")
        gate: asyncio.Future[None] = task.get_loop().create_future()
        self._waiting.append((gate, task))
        alarm = None
        if block.timeout is not None:
            alarm = task.get_loop().call_later(block.timeout, self._give_up, gate, block.timeout)
        try:
            await gate
        except BaseException:
            if task._stage != NEW:  # room came at the same moment, but nobody is left to take the task
                task.cancel()
            self._strike(gate)
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    def _give_up(self, gate: asyncio.Future[None], timeout: float) -> None:
        if not gate.done():
            self.reject()
            gate.set_exception(self._full(f", and no room came within {timeout} s"))

    def _strike(self, gate: asyncio.Future[None]) -> None:
        self._waiting = deque(each for each in self._waiting if each[0] is not gate)

    def let_in(self) -> None:
        """Put the tasks of waiting submitters in line while there is room."""
        while self._waiting and self._has_room():
            gate, task = self._waiting.popleft()
            if not gate.done():
                self._limiter.place(task)
                gate.set_result(None)

    def forget(self, task: AsyncTask[Any]) -> None:
        """Let the submitter of a task go that was cancelled while it waited for room."""
        for gate, each in self._waiting:
            if each is task and not gate.done():
                self._limiter.count_cancelled()
                gate.set_result(None)
                self._strike(gate)
                return

    def close(self) -> None:
        """Refuse those who wait."""
        waiting, self._waiting = self._waiting, deque()
        for gate, _ in waiting:
            if not gate.done():
                gate.set_exception(self._limiter.refusal())
