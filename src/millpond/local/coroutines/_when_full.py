"""What happens when a bounded `AsyncPool` is full: the policies of `millpond.local._when_full`, awaited.

A pool is full when it holds `max_workers + max_queued` tasks that have not ended. Submitters that wait are a queue of
their own, and whoever makes room queues the task of the first of them, so nobody is overtaken. A task that submits to
its own full pool never waits there, since it may hold the place it waits for: it runs the task itself. To "run it
oneself" is to start it beside the limit and to wait for its end before `submit` returns.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

from millpond._events import emit
from millpond.errors import PoolFull
from millpond.local._statistics import Statistics
from millpond.local._when_full import Block, Verdict, Word, decide
from millpond.local.coroutines._limiter import Limiter
from millpond.local.coroutines._task import NEW, AsyncTask, cancel_future
from millpond.local.coroutines._waiting import until_all_done

AsyncPolicy: TypeAlias = Callable[[Statistics, AsyncTask[Any]], Verdict]
AsyncWhenFull: TypeAlias = Word | Block | AsyncPolicy


class AsyncAdmission:
    """Decides which tasks come into a bounded pool, and keeps the submitters that wait."""

    def __init__(self, limiter: Limiter, max_queued: int, when_full: AsyncWhenFull) -> None:
        self._limiter = limiter
        self._max_queued = max_queued
        self._when_full = when_full
        self.waiting: OrderedDict[AsyncTask[Any], asyncio.Future[None]] = OrderedDict()

    def _has_room(self) -> bool:
        limiter = self._limiter
        workers = limiter.running if limiter.is_paused else limiter.max_workers
        return limiter.unfinished < workers + self._max_queued

    def try_admit(self, task: AsyncTask[Any]) -> bool:
        """Queue a task if there is room; False when the pool is full."""
        if self._enter(task):
            return True
        self._reject()
        return False

    def _enter(self, task: AsyncTask[Any]) -> bool:
        if self.waiting or not self._has_room():
            return False
        self._limiter.add(task)
        return True

    async def admit(self, task: AsyncTask[Any]) -> None:
        """Queue a task, or do with it what the policy says."""
        if self._enter(task):
            return
        limiter = self._limiter
        verdict = decide(self._when_full, limiter.statistics, task)  # type: ignore[arg-type]
        if verdict == "block" and not limiter.is_inside():
            await self._wait(task, self._when_full if isinstance(self._when_full, Block) else Block())
        elif verdict in ("block", "caller_runs"):
            limiter.add_beside(task)
            await until_all_done([task])
        elif verdict == "raise":
            raise self._full("")
        elif verdict == "accept" or (verdict == "drop_oldest" and self._drop_oldest()):
            limiter.add(task)
        else:
            self._reject()
            cancel_future(task)
            limiter.count_cancelled()

    def _drop_oldest(self) -> bool:
        """Cancel the oldest waiting task to make room; False when none waits."""
        oldest = self._limiter.backlog.take_oldest()
        if oldest is not None:
            self._reject()
            oldest.cancel()
        return oldest is not None

    def _reject(self) -> None:
        self._limiter.rejected += 1
        emit(self._limiter.on_event, "task_rejected", self._limiter.name)

    def _full(self, more: str) -> PoolFull:
        self._reject()
        limiter = self._limiter
        return PoolFull(
            f"pool {limiter.name!r} is full: {limiter.max_workers} workers and {self._max_queued} queued tasks{more}; "
            "submit less, raise max_queued, or choose another when_full"
        )

    async def _wait(self, task: AsyncTask[Any], block: Block) -> None:
        if block.max_waiting is not None and len(self.waiting) >= block.max_waiting:
            raise self._full(f", and {block.max_waiting} submitters wait already")
        loop = task.get_loop()
        admitted = self.waiting[task] = loop.create_future()
        alarm = None
        if block.timeout is not None:
            alarm = loop.call_later(block.timeout, self._expire, admitted, block.timeout)
        try:
            await admitted
        except BaseException:
            if task._stage != NEW:  # room came at the same moment, but nobody is left to take the task
                task.cancel()
            self.waiting.pop(task, None)
            raise
        finally:
            if alarm is not None:
                alarm.cancel()

    def _expire(self, admitted: asyncio.Future[None], timeout: float) -> None:
        if not admitted.done():
            admitted.set_exception(self._full(f", and no room came within {timeout} s"))

    def let_in(self) -> None:
        while self.waiting and self._has_room():
            task, admitted = self.waiting.popitem(last=False)
            if not admitted.done():
                self._limiter.add(task)
                admitted.set_result(None)

    def forget(self, task: AsyncTask[Any]) -> None:
        """End the wait of a submitter whose task was cancelled meanwhile."""
        admitted = self.waiting.pop(task, None)
        if admitted is not None and not admitted.done():
            self._limiter.count_cancelled()
            admitted.set_result(None)

    def close(self) -> None:
        while self.waiting:
            _, admitted = self.waiting.popitem(last=False)
            if not admitted.done():
                admitted.set_exception(self._limiter.refusal())
