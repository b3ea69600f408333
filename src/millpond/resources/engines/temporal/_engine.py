"""`temporal://host:port/namespace`: pools that live in workflows, for plain programs and activities.

One thread per process and URL runs an event loop, since Temporal's client needs one; threads and tasks hand it their
commands and are answered by callback. A pool has a `Sender` for what goes out and a `Follower` for what is heard.

A small process, the `Witness`, tells the pools when this one has ended. If both are gone at once, as with a machine,
nobody can: so while a process has anything open it is heard of every `BEAT` seconds, and a silent one is suspect.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from temporalio.client import Client
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode

from millpond._clock import elapsed
from millpond._events import logger
from millpond._urls import shown
from millpond.errors import EngineUnavailable, PoolClosed
from millpond.resources._engine import DONE, Question, Ticket, Watcher
from millpond.resources._rules import changes, commands
from millpond.resources._rules.commands import Command, Reply
from millpond.resources._rules.records import HELD, OFFERED, WAITING, Holder
from millpond.resources._rules.state import State
from millpond.resources._rules.wire import Entry
from millpond.resources.engines.temporal import _messages
from millpond.resources.engines.temporal._follower import Follower
from millpond.resources.engines.temporal._pool_client import PoolClient
from millpond.resources.engines.temporal._sender import PATIENCE, Pending, Sender, hand_out
from millpond.resources.engines.temporal._url import Address, parse
from millpond.resources.engines.temporal._witness import Witness

T = TypeVar("T")
BEAT: Final = 20.0
"""Seconds between two signs of life, while the process has anything open."""
GATHER: Final = 0.003
"""Seconds in which the commands of a process that has several requests open come together."""
AUDIT: Final = 15.0
"""Seconds after which a process asks how its waiters stand. A query costs the pool's worker 5 ms, and the tail of the
history tells all the same; so 100 waiting programs cost it 3 % of a core, and not half of one."""
LEAVE: Final = 5.0
"""Seconds for a pool to take back what a process held that is closed; else it is left to silence."""
FAREWELL: Final = 0.05
"""Seconds for the threads of Temporal's client to let go: one that calls into an interpreter that ends may hang it."""
ROUND: Final = 0.25
"""Seconds between two looks at which pools need attention."""


class _Pool:
    """One pool, as this process sees it. Everything but `apply` happens in the loop."""

    def __init__(self, engine: TemporalEngine, name: str, client: Client) -> None:
        loop = asyncio.get_running_loop()
        pool_client = PoolClient(client, engine.address.prefix + name, engine.address.task_queue)
        self._session = engine.session
        self.watchers: list[tuple[Watcher, bool]] = []
        self.open: dict[
            str, commands.Acquire | None
        ] = {}  # requests of ours that are not over; the command while it waits
        own = engine.session
        self.follower = Follower(
            pool_client, own, self._tell, self._has_interest, self._is_busy, self._jump, self._ask_again
        )
        self.sender = Sender(pool_client, loop, own, own, self._deliver, self.follower.load, self._linger)

    def _has_interest(self) -> bool:
        return bool(self.open) or any(not own for _, own in self.watchers)

    def _linger(self) -> float:
        """Return how long a batch waits for company: many batches cost more than the wait."""
        return GATHER if len(self.open) > 1 else 0.0

    def _is_busy(self) -> bool:
        return self.sender.is_running

    async def _deliver(self, parcels: Sequence[Pending], answer: _messages.Answer, sent: float) -> None:
        """Notify watchers of what a batch did, then answer those who sent it."""
        for one, reply in zip(parcels, answer.replies, strict=True):
            self._note(one.command, reply)
        await self.follower.hear(answer, sent)
        if any(command is not None for command in self.open.values()):
            self.follower.follow_on()
        hand_out(parcels, answer)

    def _note(self, command: Command | _messages.Death, reply: Reply) -> None:
        """Keep count of what is open."""
        if isinstance(command, commands.Acquire):
            if reply.kind in (WAITING, OFFERED, "away"):
                self.open[command.id] = command
            elif reply.kind == HELD:
                self.open[command.id] = None
        elif isinstance(command, commands.Adopt):
            if reply.kind == HELD and command.session:
                self.open[reply.id] = None
        elif isinstance(command, commands.Bury):
            self.open.clear()

    def _tell(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            for change in entry.changes:
                if isinstance(change, changes.Ended) or (
                    isinstance(change, changes.Adopted) and change.session != self._session
                ):
                    self.open.pop(change.id, None)
                elif isinstance(change, changes.Held | changes.Claimed) and change.id in self.open:
                    self.open[change.id] = None
        for watcher, _ in self.watchers:
            try:
                watcher(entries)
            except Exception:
                logger.exception("a watcher failed")

    def _jump(self, state: State) -> None:
        """Forget what of ours ended unheard: else it would be asked for again some day."""
        self.open = {one: command for one, command in self.open.items() if one in state.requests}

    def _ask_again(self) -> None:
        """Ask once more for what waits, under the same ids, since the pool began anew or was ended."""
        for command in list(self.open.values()):
            if command is not None:
                self.sender.put(command, _nobody)

    def attend(self) -> None:
        """Do what is due."""
        if self._has_interest():
            self.follower.follow_on()
            if self.open and elapsed() - self.sender.last > BEAT:
                self.sender.beat()


class TemporalEngine:
    """An engine whose pools are workflows."""

    is_shared = True
    audit_every = AUDIT

    def __init__(self, url: str, address: Address) -> None:
        self.url = url
        self.address = address
        self.users = 0
        self.session = f"p:{uuid.uuid4().hex[:16]}"
        self.holder = Holder("process", "", socket.gethostname(), os.getpid())
        self.witness = Witness(url, self.session)
        self._pools: dict[str, _Pool] = {}
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None
        started: threading.Event = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="millpond-temporal", daemon=True)
        self._thread.start()
        started.wait()
        try:
            self._client = self._call(self.address.connect(lazy=True, runtime=_registry.runtime()))
        except BaseException:
            self._stop()
            raise

    # --- verbs -------------------------------------------------------------------------------------------------

    def apply(self, pool: str, command: Command, done: Callable[[Reply | Exception], None], *, block: bool) -> Ticket:
        """Send a command with the next batch."""
        here = self._pool(pool)
        if pool not in self.witness.pools and isinstance(command, commands.Acquire | commands.Adopt):
            self.witness.mention(pool)
        return here.sender.put(command, done)

    def ask(self, pool: str, question: Question[T], done: Callable[[T | Exception], None], *, block: bool) -> Ticket:
        """Ask a question about the pool as of now."""
        here = self._pool(pool)

        async def ask() -> None:
            try:
                await here.follower.sync()
                answer: T | Exception = question.answer(here.follower.replica, here.follower.now())
            except Exception as error:
                answer = error
            done(answer)

        asyncio.run_coroutine_threadsafe(ask(), self._loop)
        return DONE

    def watch(self, pool: str, watcher: Watcher, *, own: bool = False) -> Callable[[], None]:
        """Notify of every entry of the pool from now on."""
        here = self._pool(pool)
        item = (watcher, own)
        here.watchers = [*here.watchers, item]
        if not own:
            self._call(_from_now_on(here.follower))

        def stop() -> None:
            here.watchers = [one for one in here.watchers if one is not item]

        return stop

    def accept(self, pool: str, request: str, token: int, until: int) -> bool:
        """Leave it to a claim: only the pool can make sure of anything."""
        return False

    def pools(self) -> list[str]:
        """Return the names of the pools that run, as far as Temporal's visibility knows (a second late, maybe)."""
        return self._call(self._list())

    def drop(self, pool: str) -> None:
        """Forget a pool."""
        self._call(self._drop(pool))

    def close(self) -> None:
        """Give up one use; with the last one, what the process holds is released."""
        if _registry.give_back(self):
            self.shut_down()

    def shut_down(self) -> None:
        """Release what is held, and stop."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._call(self._leave(), timeout=LEAVE)
        except Exception as error:
            logger.warning(
                "an engine was closed uncleanly", extra={"millpond": {"url": shown(self.url), "error": str(error)}}
            )
            self.witness.leave_behind()  # it tells the pools what we could not
        else:
            self.witness.close()
        self._stop()

    # --- the loop ----------------------------------------------------------------------------------------------

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(started.set)
        self._loop.create_task(self._attend())
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(FAREWELL))
        self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def _call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run something in the loop, and wait for it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this would wait for itself: do not call it from within an engine's callback")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    async def _attend(self) -> None:
        while True:
            await asyncio.sleep(ROUND)
            self.witness.attend()
            for pool in list(self._pools.values()):
                pool.attend()

    def _pool(self, name: str) -> _Pool:
        if self._is_closed:
            raise PoolClosed(f"the engine of {shown(self.url)} is closed: open the pool again")
        found = self._pools.get(name)
        if found is not None:
            return found
        if threading.current_thread() is self._thread:
            return self._make(name)
        return self._call(self._make_here(name))

    async def _make_here(self, name: str) -> _Pool:
        return self._make(name)

    def _make(self, name: str) -> _Pool:
        assert self._client is not None
        if name not in self._pools:
            self._pools[name] = _Pool(self, name, self._client)
        return self._pools[name]

    async def _list(self) -> list[str]:
        assert self._client is not None
        prefix = self.address.prefix
        query = f"WorkflowType = '{_messages.WORKFLOW}' AND ExecutionStatus = 'Running'"
        try:
            found = [one.id async for one in self._client.list_workflows(query)]
        except RPCError as error:
            raise EngineUnavailable(f"Temporal at {self.address.target} does not answer: {error}") from error
        return sorted(one.removeprefix(prefix) for one in found if one.startswith(prefix))

    async def _drop(self, pool: str) -> None:
        here = self._make(pool)
        deadline = elapsed() + PATIENCE
        while True:
            try:
                await here.sender.pool_client.handle().execute_update("drop")
                await here.sender.pool_client.handle().result(rpc_timeout=None)
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND:
                    raise here.sender.pool_client.unavailable(error) from error
                return
            except Exception as error:  # it is moving
                if elapsed() > deadline:
                    raise here.sender.pool_client.unavailable(error) from error
                await asyncio.sleep(0.02)
            else:
                return

    async def _leave(self) -> None:
        """Give back everything, everywhere."""
        for pool in self._pools.values():
            if pool.open:
                pool.sender.put(commands.Bury(self.session, "its engine was closed"), _nobody)
        for pool in self._pools.values():
            await pool.sender.drained()
            pool.follower.stop()


def _nobody(answer: Reply | Exception) -> None:
    """Notify nobody: the entries do, or the next look."""


async def _from_now_on(follower: Follower) -> None:
    await follower.load()
    follower.follow_on()


class _Registry:
    """The engines that this process has open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.engines: dict[str, TemporalEngine] = {}
        self._runtime: Runtime | None = None
        self._inherited: list[object] = []

    def open(self, url: str, address: Address) -> TemporalEngine:
        if self._inherited:
            raise RuntimeError(
                "Temporal's client does not survive a fork, and this is the forked child of a process that used it: "
                "start processes with multiprocessing's 'spawn', or fork before the first temporal: pool is opened"
            )
        with self.lock:
            engine = self.engines.get(url)
            if engine is None:
                engine = self.engines[url] = TemporalEngine(url, address)
            engine.users += 1
            return engine

    def give_back(self, engine: TemporalEngine) -> bool:
        """Take note of one use less; True when it was the last, and then nobody is given this engine any more."""
        with self.lock:
            engine.users -= 1
            if engine.users > 0:
                return False
            if self.engines.get(engine.url) is engine:
                del self.engines[engine.url]
            return True

    def close_all(self) -> None:
        for engine in list(self.engines.values()):
            engine.shut_down()

    def runtime(self) -> Runtime:
        """Return what runs the clients of this process: quiet about outages, which we tell ourselves."""
        if self._runtime is None:
            quiet = LoggingConfig(TelemetryFilter(core_level="ERROR", other_level="ERROR"))
            self._runtime = Runtime(telemetry=TelemetryConfig(logging=quiet))
        return self._runtime

    def start_over(self) -> None:
        """Take note in a forked child that the threads are the parent's; to drop what is theirs would wait for them."""
        inherited = [*self._inherited, *self.engines.values(), *filter(None, [self._runtime])]
        self.__init__()  # type: ignore[misc]
        self._inherited = inherited


_registry = _Registry()
atexit.register(_registry.close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_registry.start_over)


def open(url: str) -> TemporalEngine:  # noqa: A001
    """Open the engine of a URL, or share the one that this process has open already."""
    return _registry.open(url, parse(url))
