"""How commands travel to a pool: in batches, one under way at a time, in order, each taking effect once.

Whatever is put in while a batch is under way goes with the next one: so a busy process needs few updates, and the
order of asking is kept. A batch whose fate is unknown is sent again under its number until it is answered; the pool
remembers the last one of each lane. When that takes too long its senders are told `EngineUnavailable`, and whatever
the batch may have asked for is taken back by the next one.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from temporalio.service import RPCError, RPCStatusCode

from millpond._clock import elapsed
from millpond._events import logger
from millpond.errors import EngineError
from millpond.resources._rules import commands
from millpond.resources._rules.commands import Command, Reply
from millpond.resources.engines.temporal import _messages
from millpond.resources.engines.temporal._pool_client import PoolClient, Refused

BATCH: Final = 1000
"""Commands of one batch."""
PATIENCE: Final = 30.0
"""Seconds after which a batch that nobody answers is given up."""
Done: TypeAlias = Callable[[Reply | Exception], None]


class Pending:
    """A command on its way: its ticket."""

    __slots__ = ("_sender", "command", "done", "grace")

    def __init__(self, sender: Sender, command: Command | _messages.Death, done: Done, grace: int = 0) -> None:
        self._sender = sender
        self.command = command
        self.done = done
        self.grace = grace

    def cancel(self) -> bool:
        """Take it back, if it is not under way."""
        return self._sender.take_back(self)

    def obstacle(self) -> str:
        """Return nothing: who does not answer is not known here."""
        return ""


class Sender:
    """One sender to one pool. `put` may be called from any thread, all else happens in the loop."""

    def __init__(
        self,
        pool_client: PoolClient,
        loop: asyncio.AbstractEventLoop,
        name: str = "",
        session: str = "",
        deliver: Callable[[Sequence[Pending], _messages.Answer, float], Awaitable[None]] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
        linger: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.pool_client = pool_client
        self.id = name or f"a:{uuid.uuid4().hex}"
        self.last = 0.0  # when a batch was answered
        self._made = elapsed()
        self._session = session
        self._loop = loop
        self._deliver = deliver or _deliver
        self._prepare = prepare
        self._linger = linger
        self._lock = threading.Lock()
        self._parcels: list[Pending] = []
        self._is_running = False
        self._task: asyncio.Task[None] | None = None
        self._number = 0
        self._owed: list[Command] = []
        self._delivery: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether a batch is under way."""
        return self._is_running

    def is_idle(self, seconds: float) -> bool:
        """Return whether nothing was sent for so long, and nothing is left to be sent."""
        latest = max(self.last, self._made)
        return not self._is_running and not self._owed and elapsed() - latest > seconds

    def put(self, command: Command | _messages.Death, done: Done, grace: int = 0) -> Pending:
        """Send a command with the next batch."""
        parcel = Pending(self, command, done, grace)
        with self._lock:
            self._parcels.append(parcel)
            wake, self._is_running = not self._is_running, True
        if wake:
            self._loop.call_soon_threadsafe(self._start)
        return parcel

    async def send(self, command: Command | _messages.Death, grace: int = 0) -> Reply:
        """Send a command and return its reply."""
        future: asyncio.Future[Reply] = self._loop.create_future()

        def done(answer: Reply | Exception) -> None:
            if future.done():
                return
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.put(command, done, grace)
        return await future

    def beat(self) -> None:
        """Notify the pool with an empty batch that the process lives."""
        with self._lock:
            if self._is_running:
                return
            self._is_running = True
        self._task = self._loop.create_task(self._run(beat=True))

    def take_back(self, parcel: Pending) -> bool:
        """Take a parcel out, if it is not under way."""
        with self._lock:
            try:
                self._parcels.remove(parcel)
            except ValueError:
                return False
            return True

    async def drained(self) -> None:
        """Wait until everything was answered."""
        await asyncio.sleep(0)  # let what was put in just now begin
        if self._is_running and self._task is not None:
            await asyncio.wait([self._task])
        if self._delivery is not None:
            await asyncio.wait([self._delivery])

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run())

    async def _run(self, *, beat: bool = False) -> None:
        while True:
            if delay := self._linger():
                await asyncio.sleep(delay)
            with self._lock:
                parcels, self._parcels = self._parcels[:BATCH], self._parcels[BATCH:]
                if not parcels and not beat:
                    self._is_running = False
                    return
            beat = False
            await self._carry(parcels)

    async def _carry(self, parcels: Sequence[Pending]) -> None:
        self._number += 1
        owed, self._owed = self._owed, []
        batch_commands = [*owed, *(one.command for one in parcels if not isinstance(one.command, _messages.Death))]
        batch = _messages.Batch(
            self.id,
            self._number,
            batch_commands,
            self._session,
            {_session(one.command): one.grace for one in parcels if one.grace},
            [one.command for one in parcels if isinstance(one.command, _messages.Death)],
        )
        try:
            if self._prepare is not None:
                await self._prepare()
            sent = elapsed()
            answer = await self._exchange(batch)
        except Exception as error:
            self._owed = owed + _undo(batch_commands[len(owed) :])
            failure = error if isinstance(error, EngineError) else self.pool_client.unavailable(error)
            for one in parcels:
                one.done(failure)
            return
        self.last = elapsed()
        delivery = self._hand_out(self._delivery, parcels, _without(answer, len(owed)), sent)
        self._delivery = self._loop.create_task(delivery)

    async def _exchange(self, batch: _messages.Batch) -> _messages.Answer:
        """Send a batch until it is answered."""
        message = _messages.write(batch)
        start = elapsed()
        delay = 0.005
        while True:
            try:
                return _messages.read(
                    await self.pool_client.update(f"{batch.lane}-{batch.number}", message), _messages.Answer
                )
            except Refused as error:
                if error.kind == _messages.BAD_REQUEST:
                    raise EngineError(f"pool {self.pool_client.workflow_id!r} refused a batch: {error}") from error
                failure: Exception = error
            except RPCError as error:
                failure = error
                if error.status == RPCStatusCode.NOT_FOUND:
                    failure = await self._revive() or error
                elif error.status in (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED):
                    raise self.pool_client.unavailable(error) from error
            if elapsed() - start > PATIENCE:
                raise self.pool_client.unavailable(failure) from failure
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.5)

    async def _revive(self) -> Exception | None:
        try:
            await self.pool_client.start()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise self.pool_client.unavailable(error) from error  # there is no such namespace
            return error
        return None

    async def _hand_out(
        self, before: asyncio.Task[None] | None, parcels: Sequence[Pending], answer: _messages.Answer, sent: float
    ) -> None:
        """Give replies to their senders, in order, while the next batch is under way."""
        if before is not None:
            await before
        try:
            await self._deliver(parcels, answer, sent)
        except Exception:
            logger.exception("answers were not taken", extra={"millpond": {"pool": self.pool_client.workflow_id}})


async def _deliver(parcels: Sequence[Pending], answer: _messages.Answer, sent: float) -> None:
    hand_out(parcels, answer)


def hand_out(parcels: Sequence[Pending], answer: _messages.Answer) -> None:
    """Give each sender its reply."""
    replies = iter(answer.replies)
    for one in parcels:
        reply = Reply("ok") if isinstance(one.command, _messages.Death) else next(replies)
        if reply.kind == "refused":
            one.done(EngineError(f"the pool refused it: {reply.detail}"))
        else:
            one.done(reply)


def _session(command: Command | _messages.Death) -> str:
    session: str = getattr(command, "session", "")
    return session


def _undo(sent: Sequence[Command]) -> list[Command]:
    """Return what takes back requests whose fate is unknown."""
    return [commands.Withdraw(one.session, one.id) for one in sent if isinstance(one, commands.Acquire)]


def _without(answer: _messages.Answer, count: int) -> _messages.Answer:
    if not count:
        return answer
    return _messages.Answer(
        answer.incarnation, answer.base, answer.version, answer.now, answer.replies[count:], answer.entries
    )
