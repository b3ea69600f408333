"""What tests of pools on Temporal share: a pool's workflow by hand, without the engine."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from millpond.resources import ResourcePool
from millpond.resources._rules import commands as do
from millpond.resources._rules.records import Holder, Want
from millpond.resources.engines.temporal import _messages as say
from millpond.resources.engines.temporal._orders import raw
from millpond.resources.engines.temporal._pool_client import PoolClient
from millpond.testing._temporal import TemporalServer
from waiting import HANG, Pace
from waiting import until as wait_until

T = TypeVar("T")


def run(address: str, main: Callable[[Client], Awaitable[T]]) -> T:
    """Run a coroutine function with a client of its own."""

    async def connected() -> T:
        return await main(await Client.connect(address))

    return asyncio.run(connected())


def cli(server: TemporalServer, *args: str) -> str:
    """Run Temporal's own tool as a person would."""
    command = [server.binary, *args, "--address", server.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_by_hand(server: TemporalServer, name: str, *given: str) -> None:
    """Start a pool as an operator would who has nothing else."""
    pool = ["--type", say.WORKFLOW, "-w", f"millpond:{name}", "--task-queue", "millpond"]
    cli(server, "workflow", "start", *pool, *given)


def ask(name: str, session: str = "p:test", **options: Any) -> do.Acquire:
    """Return a request; what it is given it has, without a claim."""
    holder = options.pop("holder", Holder("process", session, "here", 1))
    return do.Acquire(name, session, 0, holder, options.pop("wants", (Want(),)), sure=True, **options)


class Desk:
    """One sender to one pool, which sends each batch as it is told, and as often."""

    def __init__(self, client: Client, pool: str, queue: str = "millpond") -> None:
        self.client = client
        self.id = f"millpond:{pool}"
        self.place = PoolClient(client, self.id, queue)
        self.lane = f"test:{uuid.uuid4().hex}"
        self.number = 0

    @property
    def handle(self) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(self.id)

    async def start(self, *resources: str) -> None:
        await self.place.start()
        await self.send(*(do.Add(name, {}) for name in resources))

    async def send(self, *commands: do.Command, **options: Any) -> list[do.Reply]:
        self.number += 1
        return (await self.exchange(say.Batch(self.lane, self.number, list(commands), **options))).replies

    async def exchange(self, batch: say.Batch, update: str | None = None) -> say.Answer:
        """Send a batch until it is answered, as a lane does."""
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline:
            try:
                found = await self.handle.execute_update(
                    say.APPLY, raw(say.write(batch)), id=update, result_type=RawValue
                )
                return say.read(found.payload.data, say.Answer)
            except WorkflowUpdateFailedError as error:
                cause = error.cause
                if isinstance(cause, ApplicationError) and cause.type == say.BAD_REQUEST:
                    raise
            except RPCError:
                await self.place.start()
            await asyncio.sleep(0.01)
        raise AssertionError("the pool does not answer")

    async def held(self) -> dict[str, Any]:
        """Return the key of whoever holds each resource."""
        found: dict[str, Any] = await self.query("get_current_holders")
        return {name: one and one["holder"] for name, one in found.items()}

    async def query(self, name: str, *args: Any) -> Any:
        async def ask_once() -> Any:
            try:
                return await self.handle.query(name, args=args)
            except Exception as error:
                if "moving on" not in str(error) and not is_late(error):
                    raise
                return _NOT_YET

        return await until(ask_once, lambda found: found is not _NOT_YET)

    async def runs(self) -> int:
        """Return in which run the pool is."""
        return len([one async for one in self.run_ids()])

    async def run_ids(self) -> AsyncIterator[str]:
        """Follow the chain back, from the run that it is in; visibility would lag behind."""
        run_id = (await self.handle.describe()).run_id
        while run_id:
            yield run_id
            handle = self.client.get_workflow_handle(self.id, run_id=run_id)
            start = await anext(aiter(handle.fetch_history_events()))
            run_id = start.workflow_execution_started_event_attributes.continued_execution_run_id

    async def events(self, run_id: str | None = None) -> Counter[str]:
        """Return how many events of each type a run has."""
        handle = self.client.get_workflow_handle(self.id, run_id=run_id)
        names = [EventType.Name(event.event_type) async for event in handle.fetch_history_events()]
        return Counter(name.removeprefix("EVENT_TYPE_") for name in names)

    async def broken_tasks(self) -> list[str]:
        """Return why tasks of this run failed; that a busy machine let one take 2 s is no reason."""
        failed = [
            event.workflow_task_failed_event_attributes.failure.message
            async for event in self.handle.fetch_history_events()
            if event.HasField("workflow_task_failed_event_attributes")
        ]
        return [why for why in failed if "Potential deadlock" not in why]


class Ledger:
    """Who holds what, as the holders themselves see it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        self.problems: list[str] = []
        self.cycles = 0

    def enter(self, resource: str, token: int) -> None:
        with self.lock:
            if resource in self.inside:
                self.problems.append(f"{resource} has two holders: {self.inside[resource]}, {token}")
            if token <= self.tokens.get(resource, 0):
                self.problems.append(f"{resource} went from token {self.tokens[resource]} to {token}")
            self.inside[resource] = self.tokens[resource] = token

    def leave(self, resource: str) -> None:
        with self.lock:
            del self.inside[resource]
            self.cycles += 1

    def progress(self, cycles: int) -> None:
        """Wait for so many more cycles."""
        goal = self.cycles + cycles
        wait_until(lambda: self.cycles >= goal, f"{cycles} more cycles")


def engines(url: str, count: int) -> list[str]:
    """Return URLs that mean the same, each of which has an engine of its own, as another process would."""
    base, _, option = url.partition("?")
    return [f"{base}?{'&'.join([option or 'task_queue=millpond'] * number)}" for number in range(1, count + 1)]


@contextlib.contextmanager
def load(url: str, name: str, *, threads: int = 6, resources: int = 3, processes: int = 2) -> Iterator[Ledger]:
    """Use a pool, as several processes would, while the block does its worst; then ask whether all is well."""
    ledger, is_over = Ledger(), threading.Event()
    members = [ResourcePool(name, one) for one in engines(url, processes)]
    for number in range(resources):
        members[0].add(f"gpu-{number}", exist_ok=True)

    def work(pool: ResourcePool) -> None:
        while not is_over.is_set():
            with pool.acquire() as grant:
                ledger.enter(grant.resource, grant.token)
                ledger.leave(grant.resource)

    workers = [threading.Thread(target=work, args=(members[n % processes],), daemon=True) for n in range(threads)]
    for one in workers:
        one.start()
    try:
        yield ledger
        is_over.set()
        for one in workers:
            one.join(HANG)
        assert not any(one.is_alive() for one in workers)
        assert ledger.problems == []
        wait_until(lambda: members[0].holders() == [], "nothing is held")  # what could not be given back is sent again
        assert members[0].waiters() == []
    finally:
        is_over.set()
        for pool in members:
            pool.close()


def is_late(error: Exception) -> bool:
    """Return whether a call failed only because nobody answered in time."""
    late = (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.FAILED_PRECONDITION)
    return isinstance(error, RPCError) and error.status in late


_NOT_YET = object()


async def until(look: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
    """Look until it is good."""
    pace = Pace(HANG)
    while not good(found := await look()):
        pause = pace.pause()
        assert pause, f"it stays {found!r}"
        await asyncio.sleep(max(pause, 0.01))
    return found
