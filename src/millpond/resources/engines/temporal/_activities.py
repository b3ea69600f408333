"""What has to be done outside of workflows: commands to pools, an eye on their holders, what a closed pool left."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec
from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from millpond._clock import elapsed
from millpond._events import logger
from millpond.errors import EngineError
from millpond.resources._rules import commands
from millpond.resources.engines.temporal import _messages
from millpond.resources.engines.temporal._orders import Order, raw
from millpond.resources.engines.temporal._pool_client import PoolClient, Refused
from millpond.resources.engines.temporal._recovery import recover_state
from millpond.resources.engines.temporal._sender import Sender
from millpond.resources.engines.temporal._url import PREFIX, TASK_QUEUE
from millpond.resources.engines.temporal._watch import Watch

ATTEMPT: Final = 4.0
"""Seconds after which a command of a workflow is tried again; until then it hears of nothing else."""
ROUND: Final = 0.7
"""Seconds between two looks at the workflows that hold."""
EARLIER: Final = "an earlier run of its workflow left it"
UNUSED: Final = 600.0
"""Seconds after which the way to a pool that nobody used is forgotten."""
IDLE: Final = 30.0
"""Seconds without workflows after which nobody looks any more."""


class UserActivities:
    """Carries commands of workflows, those of one worker together."""

    def __init__(self, task_queue: str = TASK_QUEUE, prefix: str = PREFIX) -> None:
        self._task_queue = task_queue
        self._prefix = prefix
        self._senders: dict[str, Sender] = {}

    @activity.defn(name=_messages.COMMAND)
    async def apply(self, order: RawValue) -> RawValue:
        """Run one command in a pool, which is started if it is not there."""
        wanted = msgspec.json.decode(order.payload.data, type=Order)
        sender = self._sender(wanted.pool, activity.client())
        if wanted.at and isinstance(wanted.command, commands.Acquire):
            sender.put(_messages.Death(wanted.command.session, wanted.at, EARLIER, wanted.but), lambda _: None)
        try:
            async with asyncio.timeout(ATTEMPT):
                reply = await sender.send(wanted.command, wanted.grace)
        except TimeoutError:
            raise _failure(sender.pool_client.unavailable("in time")) from None
        except EngineError as error:
            raise _failure(error) from None
        return raw(msgspec.json.encode(reply))

    def _sender(self, pool: str, client: Client) -> Sender:
        """Return the sender to a pool; those of pools that nobody has asked for lately are dropped."""
        sender = self._senders.get(pool)
        if sender is None or sender.pool_client.client is not client:
            self._senders = {name: one for name, one in self._senders.items() if not one.is_idle(UNUSED)}
            pool_client = PoolClient(client, self._prefix + pool, self._task_queue)
            sender = self._senders[pool] = Sender(pool_client, asyncio.get_running_loop())
        return sender

    @property
    def activities(self) -> list[Callable[..., Any]]:
        """All of them, for a worker."""
        return [self.apply]


def _failure(error: Exception) -> ApplicationError:
    """Return what Temporal tries again after; it is told in one line, not with a traceback for each attempt."""
    logger.warning("a pool did not answer a workflow: %s", error, extra={"millpond": {"error": str(error)}})
    return ApplicationError(str(error), type=type(error).__name__, category=ApplicationErrorCategory.BENIGN)


class PoolActivities:
    """What pools need done for themselves."""

    def __init__(self, task_queue: str = TASK_QUEUE) -> None:
        self._task_queue = task_queue

    @property
    def activities(self) -> list[Callable[..., Any]]:
        """All of them, for a worker."""
        return [self.watch, self.recover, self.knock]

    @activity.defn(name=_messages.WATCH)
    async def watch(self, workflow_id: str) -> None:
        """Notify a pool which of its workflows are closed, until it has none for a while."""
        try:
            await self._watch(workflow_id)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.cancel_requested:
                raise
            # The pool was ended, or this worker stops: no trouble, and another worker goes on if there is a pool.
            raise ApplicationError(
                f"the watch of {workflow_id!r} ends with its pool or worker", category=ApplicationErrorCategory.BENIGN
            ) from None

    async def _watch(self, workflow_id: str) -> None:
        pool_client = PoolClient(activity.client(), workflow_id, self._task_queue)
        sender = Sender(pool_client, asyncio.get_running_loop())
        watch = Watch(pool_client)
        busy = elapsed()
        while elapsed() - busy < IDLE:
            activity.heartbeat()
            try:
                sessions = await pool_client.handle().query(_messages.CHAINS, result_type=list[str])
                await asyncio.gather(*(sender.send(death) for death in await watch.look(sessions)))
                if sessions:
                    busy = elapsed()
            except (RPCError, WorkflowQueryFailedError, EngineError) as error:
                logger.warning("a look at workflows failed", extra={"millpond": {"error": str(error)}})
            await asyncio.sleep(ROUND)

    @activity.defn(name=_messages.KNOCK)
    async def knock(self, workflow_id: str) -> None:
        """Send a pool an empty batch, in which it does what is due and what signals ask for."""
        pool_client = PoolClient(activity.client(), workflow_id, self._task_queue)
        batch = _messages.write(_messages.Batch("knock", 0))  # without a number: nobody need remember it
        deadline = elapsed() + ATTEMPT
        while True:
            try:
                await pool_client.update(str(uuid.uuid4()), batch)
                return
            except (Refused, RPCError) as error:
                if elapsed() > deadline:
                    raise _failure(pool_client.unavailable(error)) from None
            await asyncio.sleep(0.01)

    @activity.defn(name=_messages.RECOVER)
    async def recover(self, workflow_id: str, run_id: str, previous: str | None) -> RawValue:
        """Return what a closed run of a pool left."""
        return raw(await recover_state(activity.client(), workflow_id, run_id, previous))
