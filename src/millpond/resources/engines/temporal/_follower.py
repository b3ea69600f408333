"""One process's copy of a pool that lives in a workflow, and how it keeps up.

A pool's history is its log: the outcome of every batch holds what it decided. So there are three ways to hear of
something, and each fills the gaps of the others:

- the answer to one's own batch;
- the *tail*: a long poll at the end of the pool's history, which the server answers as soon as there is more. It costs
  the pool nothing, and any number of processes can do it. It runs while somebody has an interest: a request of one's
  own is open, or the pool is watched;
- *news*, a query: all that happened since a version. It is asked for what signals and timers did (it stands in the
  next outcome, but there may be none for long), when something is missing, and whenever a question about the pool must
  be answered as of now.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, HistoryEventFilterType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import WorkflowExecutionStatus, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.common import QueryRejectCondition, RawValue
from temporalio.service import RPCError, RPCStatusCode

from millpond._clock import elapsed
from millpond._events import logger
from millpond.errors import EngineError
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.state import State
from millpond.resources._rules.wire import Entry
from millpond.resources.engines.temporal import _messages
from millpond.resources.engines.temporal._orders import raw
from millpond.resources.engines.temporal._pool_client import PoolClient
from millpond.resources.engines.temporal._sender import PATIENCE

GAP: Final = 0.03
"""Seconds in which the tail usually brings what is missing."""
ALONE: Final = 2.0
"""Seconds without a gap after which own answers are enough, for as long as they come."""
REST: Final = 0.005
"""Seconds between two polls, in which a busy pool does several things."""
LINGER: Final = 5.0
"""Seconds that the tail goes on without interest."""
_POLL: Final = timedelta(seconds=90)
_ATTEMPT: Final = timedelta(seconds=10)
_SILENT_CAUSES: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        EventType.EVENT_TYPE_TIMER_FIRED,
        EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
        EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED,
    }
)
"""Events after which a pool may decide something that no outcome tells."""
_ENDS: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    }
)


class Follower:
    """The copy, and its three sources. Everything happens in the engine's loop."""

    def __init__(
        self,
        pool_client: PoolClient,
        own: str,
        tell: Callable[[Sequence[Entry]], None],
        has_interest: Callable[[], bool],
        is_busy: Callable[[], bool],
        on_jump: Callable[[State], None],
        on_new_life: Callable[[], None],
    ) -> None:
        self.pool_client = pool_client
        self._own = own
        self.replica = Replica()
        self._tell = tell
        self._has_interest = has_interest
        self._is_busy = is_busy
        self._on_jump = on_jump  # when it came to a state without having heard what led there
        self._on_new_life = on_new_life
        self._incarnation = ""
        self._is_loaded = False
        self._has_told = False  # anything at all: before, nobody can have missed something
        self._moved = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._asked: asyncio.Future[None] | None = None
        self._tail: asyncio.Task[None] | None = None
        self._events = 0
        self._gap = -ALONE  # when somebody else was found to have done something
        self._catching_up: asyncio.Task[None] | None = None
        self._offset = 0  # the engine's clock is at most this much ahead of `elapsed()`
        self._spread = float("inf")

    # --- time --------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Return the engine's time, or a little more: a lease is never thought to be longer than it is.

        A program that has only asked so far knows the time of the pool's last step, which may be long ago: it goes by
        the clock of this machine, if that is later.
        """
        known = int(elapsed() * 1_000_000) + self._offset
        return known if self._spread < float("inf") else max(known, int(time.time() * 1_000_000))

    def _tell_time(self, now: int, sent: float, *, is_old: bool = False) -> None:
        """Take note of the engine's time, told between `sent` and now; `is_old`: of its last step."""
        if is_old:
            ahead = now - int(sent * 1_000_000)
            if ahead > self._offset:
                self._offset = ahead
                if self._spread < float("inf"):
                    self._spread = max(self._spread, elapsed() - sent)  # it is no better known than that
            return
        spread = elapsed() - sent
        self._spread *= 1.01  # clocks drift: a newer reading is worth more
        if spread <= self._spread or now - int(sent * 1_000_000) > self._offset:
            self._spread = spread
            self._offset = now - int(sent * 1_000_000)

    # --- hearing -----------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Know the pool as it is, once."""
        if not self._is_loaded:
            await self.sync()

    async def hear(self, answer: _messages.Answer, sent: float) -> None:
        """Take what an own batch decided; returns when everything up to it is known."""
        self._tell_time(answer.now, sent)
        if answer.incarnation == self._incarnation and answer.base > self.replica.version:
            self._gap = elapsed()
            self.follow_on()
            await self._wait_for(answer.base)
        if not self._take(answer):
            await self.sync()

    def _take(self, answer: _messages.Answer) -> bool:
        """Follow an answer; False if something before it is missing."""
        if not self._incarnation and not self.replica.version:
            self._incarnation = answer.incarnation  # the pool began with this
        if answer.incarnation != self._incarnation or answer.base > self.replica.version:
            return False
        self._follow(answer.entries, answer.base)
        return True

    def _follow(self, entries: Sequence[Entry], base: int) -> None:
        new = entries[self.replica.version - base :]
        if not new:
            return
        try:
            for entry in new:
                self.replica.follow(entry)
        except BaseException:  # half of it is done: it is read anew
            self._void()
            raise
        self._moved.set()
        self._moved.clear()
        self._tell(new)

    async def _wait_for(self, version: int) -> None:
        """Wait until a version is known: the tail brings it soon, or else a query, which is slow in a busy pool."""
        query: asyncio.Future[None] | None = None
        start = elapsed()
        while self.replica.version < version and (query is None or not query.done()):
            if query is None and elapsed() - start > GAP:
                query = self.sync()
                query.add_done_callback(_look_at)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GAP):
                    await self._moved.wait()

    # --- news --------------------------------------------------------------------------------------------------

    def sync(self) -> asyncio.Future[None]:
        """Know the pool as of now: whoever asks while a query is under way shares the next one."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
        return asyncio.shield(self._asked)

    async def _ask(self) -> None:
        while self._asked is not None:
            asked, self._asked = self._asked, None
            try:
                await self._ask_once()
            except Exception as error:
                asked.set_exception(error)
                asked.exception()  # nobody may be waiting any more
            else:
                asked.set_result(None)
        self._asking = None

    async def _ask_once(self) -> None:
        start = elapsed()
        delay = 0.01
        while True:
            sent = elapsed()
            try:
                news = await self._query()
                if news is None:
                    self._forget()
                else:
                    self._learn(news, sent)
                return
            except RPCError as error:
                if error.status == RPCStatusCode.NOT_FOUND:
                    self._forget()
                    return
                failure: Exception = error
            except WorkflowQueryFailedError as error:  # it is moving
                failure = error
            if elapsed() - start > PATIENCE:
                raise self.pool_client.unavailable(failure) from failure
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.5)

    async def _query(self) -> _messages.News | None:
        """Ask for what is new; None if the pool was dropped. One that was ended against its will is as it was left."""
        since = raw(_messages.write(_messages.Since(self._incarnation, self.replica.version)))
        condition: QueryRejectCondition | None = QueryRejectCondition.NOT_OPEN
        while True:
            try:
                found = await self.pool_client.handle().query(
                    _messages.NEWS, since, result_type=RawValue, reject_condition=condition, rpc_timeout=_ATTEMPT
                )
                return _messages.read(found.payload.data, _messages.News)
            except WorkflowQueryRejectedError as error:
                if error.status == WorkflowExecutionStatus.COMPLETED:
                    return None
                condition = None

    def _learn(self, news: _messages.News, sent: float) -> None:
        self._tell_time(news.now, sent, is_old=True)
        is_other = news.incarnation != self._incarnation
        was_known, self._incarnation = bool(self._incarnation), news.incarnation
        self._events = news.events
        self._is_loaded = True
        if news.image is None:
            self._follow(news.entries, news.version - len(news.entries))
        elif is_other or news.version > self.replica.version:
            if is_other:
                self.replica.history.clear()
            self.replica.state = State.load(news.image)
            self.replica.version = news.version
            self.replica.history.extend(news.entries)
            if not is_other:
                self._on_jump(self.replica.state)
            self._moved.set()
            self._moved.clear()
            if self._has_told:
                self._tell([])  # something may have been missed
        self._has_told = True
        if is_other and was_known:
            self._on_new_life()

    def _void(self) -> None:
        """Know nothing, so that the next question brings the whole pool."""
        self.replica = Replica()
        self._incarnation = ""
        self._is_loaded = False

    def _forget(self) -> None:
        """There is no such pool (any more)."""
        if self._incarnation or not self._is_loaded:
            self.replica = Replica()
            self._incarnation = ""
            self._is_loaded = True

    # --- the tail ----------------------------------------------------------------------------------------------

    def follow_on(self) -> None:
        """Listen at the end of the history, from now on."""
        if self._tail is None:
            self._tail = asyncio.create_task(self._listen())

    def stop(self) -> None:
        """Listen no more."""
        for task in (self._tail, self._asking, self._catching_up):
            if task is not None:
                task.cancel()

    async def _listen(self) -> None:
        run_id, token = "", b""
        interest = elapsed()
        try:
            while self._has_interest() or elapsed() - interest < LINGER:
                if self._has_interest():
                    interest = elapsed()
                await self._rest()
                try:
                    if not run_id:
                        run_id, token = (await self.pool_client.handle().describe()).run_id, b""
                    run_id, token = await self._poll(run_id, token)
                except RPCError as error:
                    if error.status == RPCStatusCode.NOT_FOUND:
                        run_id = ""
                    await asyncio.sleep(0.5)
        except Exception:
            logger.exception("the tail of a pool broke", extra={"millpond": {"pool": self.pool_client.workflow_id}})
        finally:
            self._tail = None

    async def _rest(self) -> None:
        """Pause, so that several tasks of a busy pool come with one poll; none is needed while only we are busy."""
        await asyncio.sleep(REST)
        while self._is_busy() and self.is_alone:  # noqa: ASYNC110  (it costs nothing, and is rare)
            await asyncio.sleep(0.01)

    @property
    def is_alone(self) -> bool:
        """Whether nobody else did anything for a while."""
        return elapsed() - self._gap > ALONE

    async def _poll(self, run_id: str, token: bytes) -> tuple[str, bytes]:
        """Wait for more of the history; return where to go on."""
        client = self.pool_client.client
        found = await client.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=client.namespace,
                execution=WorkflowExecution(workflow_id=self.pool_client.workflow_id, run_id=run_id),
                wait_new_event=True,
                next_page_token=token,
                history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT,
            ),
            retry=True,
            timeout=_POLL,
        )
        is_behind = False
        for event in found.history.events:
            kind = event.event_type
            if event.event_id > self._events:
                if kind in _SILENT_CAUSES:
                    is_behind = True
                elif kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
                    is_behind |= not await self._read(event)
            if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                self._events = 0
                self._catch_up()
                return event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id, b""
            if kind in _ENDS:
                self._events = 0
                self._on_new_life()
                await asyncio.sleep(0.2)
                return "", b""
        if is_behind:
            self._catch_up()
        return run_id, found.next_page_token

    def _catch_up(self) -> None:
        """Ask for what no answer told, unless one does so soon."""
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._ask_soon(self.replica.version))

    async def _ask_soon(self, version: int) -> None:
        await asyncio.sleep(GAP)
        if self.replica.version == version:
            try:
                await self.sync()
            except EngineError as error:
                logger.warning("a pool cannot be read", extra={"millpond": {"error": str(error)}})

    async def _read(self, event: HistoryEvent) -> bool:
        """Follow the outcome of a batch; False if something before it is missing."""
        found = event.workflow_execution_update_completed_event_attributes
        outcome = found.outcome
        if not outcome.success.payloads or found.meta.update_id.startswith(self._own):
            return True  # own answers come by themselves
        [value] = await self.pool_client.client.data_converter.decode(outcome.success.payloads, [RawValue])
        try:
            answer = _messages.read(value.payload.data, _messages.Answer)
        except ValueError:  # the outcome of something else
            return True
        try:
            return self._take(answer)
        except Exception:
            logger.exception("a pool could not be followed", extra={"millpond": {"pool": self.pool_client.workflow_id}})
            return False


def _look_at(future: asyncio.Future[None]) -> None:
    """Take note of an error that nobody waits for."""
    if not future.cancelled():
        future.exception()
