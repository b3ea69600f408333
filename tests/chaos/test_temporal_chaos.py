"""Real processes on a real Temporal server, killed at random: hosts of pools, workers of workflows, plain programs.

Workflows meanwhile end in every way: done, failed, continued as new with their grant, cancelled, terminated. What must
hold: no two use a resource at once (the kernel says so, see `temporal_worker.py`), tokens grow with every use of a
resource, and in the end nothing is held and nobody waits. An operator releases the locks of plain programs that were
killed: there is no proof of death for them here. A process is killed only once it has used a resource, or hosts pools,
so that a busy machine has as many deaths in the middle of things as a quiet one. Seeds are printed; `CHAOS_SEED`
repeats one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError

from millpond.errors import NotFound, PoolError, StaleToken
from millpond.resources import ResourcePool
from millpond.resources.engines.temporal import _follower, _sender
from millpond.resources.engines.temporal import _messages as say
from millpond.testing._temporal import TUNED, temporal_server
from waiting import HANG, becomes

sys.path.insert(0, str(Path(__file__).parent))
import temporal_worker

WORKER = Path(temporal_worker.__file__)
RESOURCES = 4
SOON = timedelta(seconds=2)
"""After which the server gives a task that was with a dead worker to another; the usual 10 s would be the whole storm."""


class Member(NamedTuple):
    role: str
    process: subprocess.Popen[bytes]
    said: Path


class Crew:
    """The processes: each is replaced when it is killed."""

    def __init__(self, url: str, folder: Path, dice: random.Random) -> None:
        self.url = url
        self.folder = folder
        self.dice = dice
        self.killed: set[int] = set()
        self.cancelled: set[str] = set()  # workflows
        self.kills = 0
        self._started = 0
        self._members: list[Member] = []

    def start(self, role: str) -> None:
        if role == "host":
            command = [sys.executable, "-m", "millpond.resources.temporal", self.url]
        else:
            seed = str(self.dice.randrange(10**6))
            command = [sys.executable, str(WORKER), role, self.url, "chaos", str(self.folder), seed]
        self._started += 1
        said = self.folder / f"said-{self._started}"
        environment = {**os.environ, "TEMPORAL_DEBUG": "1"}  # else the SDK takes a stall of 2 s for a deadlock
        with (self.folder / "stderr").open("ab") as errors, said.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        self._members.append(Member(role, process, said))

    def uses(self) -> int:
        """Return how many uses of resources there were."""
        return len(self._users())

    def _users(self) -> list[str]:
        path = self.folder / "users"
        return path.read_text().splitlines() if path.exists() else []

    def choose(self) -> Member:
        return self.dice.choice(self._members)

    def has_begun(self, one: Member) -> bool:
        """Return whether a process hosts pools, or has used a resource."""
        assert one.process.poll() is None, f"a process ended by itself: {one.role}"
        return one.said.stat().st_size > 0 if one.role == "host" else str(one.process.pid) in self._users()

    def replace(self, one: Member) -> None:
        self._members.remove(one)
        self._kill(one.process)
        self.kills += 1
        self.start(one.role)

    def kill(self, role: str) -> None:
        for one in [one for one in self._members if one.role == role]:
            self._members.remove(one)
            self._kill(one.process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self.killed.add(process.pid)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._members:
            one.process.kill()
            one.process.wait()


def operate(pool: ResourcePool, crew: Crew, stop: threading.Event) -> None:
    """Release what killed programs held under a lock, as an operator does who sees their process gone."""
    while not stop.wait(0.5):
        with contextlib.suppress(PoolError):
            for one in pool.holders():
                if one.kind == "process" and one.pid in crew.killed and one.expires_in is None:
                    with contextlib.suppress(StaleToken, NotFound):
                        pool.admin.release(one.resources[0], token=one.token, reason="its process was killed")


async def storm(client: Client, crew: Crew, kills: int) -> list[str]:
    """Start workflows, end some of them, kill processes; return the ids of all workflows."""
    ids: list[str] = []
    for _ in range(kills):
        victim, before = crew.choose(), crew.uses()
        deadline = time.monotonic() + 2 * HANG
        while not crew.has_begun(victim) or crew.uses() < before + 3:
            if time.monotonic() > deadline:
                pytest.fail(f"nothing goes on: {crew.uses() - before} uses, {victim}; {await story(client, ids[-1])}")
            if len(ids) < 5 or await is_over(client, ids[-5]):
                await start_or_end(client, crew, ids)
            await asyncio.sleep(0.05 * crew.dice.random())
        await asyncio.to_thread(crew.replace, victim)
    return ids


async def start_pool(address: str) -> None:
    client = await Client.connect(address)
    opening = {"previous": ""}
    await client.start_workflow(say.WORKFLOW, opening, id="millpond:chaos", task_queue="millpond", task_timeout=SOON)


async def start_or_end(client: Client, crew: Crew, ids: list[str]) -> None:
    """Start a workflow, and now and then end one of the last."""
    number = len(ids)
    ids.append(f"cycle-{number}")
    args = ["chaos", str(crew.folder), number, crew.dice.randint(1, 3)]
    await client.start_workflow("Cycle", args=args, id=ids[-1], task_queue="chaos", task_timeout=SOON)
    if number % 4 == 1:
        handle = client.get_workflow_handle(crew.dice.choice(ids[-3:]))
        with contextlib.suppress(RPCError):
            if crew.dice.random() < 0.5:
                crew.cancelled.add(handle.id)
                await handle.cancel()
            else:
                await handle.terminate(reason="chaos")


async def is_over(client: Client, workflow_id: str) -> bool:
    return (await client.get_workflow_handle(workflow_id).describe()).close_time is not None


async def closed(client: Client, crew: Crew, ids: list[str], limit: float) -> dict[str, int]:
    """Wait until all workflows are closed; return how they ended.

    Only those fail that were told to; and those that were cancelled while their activity was on a process that was
    killed: Temporal does not try it again, and fails the workflow for its time limit.
    """
    deadline = time.monotonic() + limit
    ends: dict[str, int] = {}
    for one in ids:
        while True:
            status = (await client.get_workflow_handle(one).describe()).status
            if status not in (WorkflowExecutionStatus.RUNNING, None):
                ends[status.name] = ends.get(status.name, 0) + 1
                if status == WorkflowExecutionStatus.FAILED:
                    why = await failure(client, one)
                    may = {temporal_worker.FAILURE} | ({"Activity task timed out"} if one in crew.cancelled else set())
                    assert why in may, f"{one} failed: {why}"
                break
            if time.monotonic() > deadline:
                pytest.fail(f"{one} still runs: {await story(client, one)}")
            await asyncio.sleep(0.1)
    return ends


async def failure(client: Client, workflow_id: str) -> str:
    """Tell why a workflow has failed."""
    try:
        await client.get_workflow_handle(workflow_id).result()
    except WorkflowFailureError as error:
        return str(error.cause)
    raise AssertionError(f"{workflow_id} has not failed")


async def story(client: Client, workflow_id: str) -> str:
    """Return the last events of a workflow, and how its pool stands."""
    events = (await client.get_workflow_handle(workflow_id).fetch_history()).events
    pool = client.get_workflow_handle("millpond:chaos")
    parts: list[object] = [str(event)[:600] for event in events[-6:]]
    for question in ("get_current_holders", "get_waiters", "get_refusals"):
        try:
            parts.append(await pool.query(question))
        except RPCError as error:  # its workflow task fails: its last events tell why
            parts.append(error)
            parts += [str(event)[:600] for event in (await pool.fetch_history()).events[-3:]]
    return "\n".join(map(str, parts))


def left_over(pool: ResourcePool, crew: Crew) -> list[object]:
    """Return who holds, and who waits, but for the dead, whose places in line are forgotten later."""
    return [*pool.holders(), *(one for one in pool.waiters() if one.pid not in crew.killed)]


def chaos(folder: Path, kills: int) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(10**6))
    print(f"CHAOS_SEED={seed}")
    stop = threading.Event()
    with temporal_server(dynamic_config=TUNED) as server, Crew(server.url(), folder, random.Random(seed)) as crew:
        crew.start("host")
        asyncio.run(start_pool(server.address))
        with ResourcePool("chaos", server.url()) as pool:
            for number in range(RESOURCES):
                pool.add(f"r{number}")
            for role in ("host", "workflows", "workflows", "plain", "plain"):
                crew.start(role)
            operator = threading.Thread(target=operate, args=(pool, crew, stop))
            operator.start()
            try:

                async def main() -> dict[str, int]:
                    client = await Client.connect(server.address)
                    ids = await storm(client, crew, kills)
                    crew.kill("plain")
                    return await closed(client, crew, ids, 2 * HANG + kills)

                ends = asyncio.run(main())
                becomes(lambda: left_over(pool, crew), [], 2 * HANG)
            finally:
                stop.set()
                operator.join()
            statistics = pool.statistics()
        print(f"{crew.kills} kills, {statistics.grants_total} grants, workflows: {ends}")
        assert crew.kills == kills and statistics.grants_total > kills
        assert ends.get("COMPLETED") and (ends.keys() & {"FAILED", "CANCELED", "TERMINATED"})
    faults = folder / "faults"
    assert not faults.exists(), faults.read_text()
    broken = [path.name for path in folder.glob("said-*") if b"Nondeterminism" in path.read_bytes()]
    assert not broken, f"a replay decided otherwise: {broken}"
    last: dict[str, int] = {}
    for line in (folder / "uses").read_text().splitlines():
        resource, token = line.split()
        assert int(token) >= last.get(resource, 0), f"{resource} was used under {token} after {last[resource]}"
        last[resource] = int(token)
    assert len(last) > 1  # the first free one is taken: the last ones are reached only in a crowd


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give hosts all the time that a busy machine needs to start them."""
    monkeypatch.setattr(_sender, "PATIENCE", 600.0)
    monkeypatch.setattr(_follower, "PATIENCE", 600.0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("temporal", "patient")
def test_a_storm_of_kills_leaks_nothing(tmp_path):
    chaos(tmp_path, kills=15)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("temporal", "patient")
def test_a_long_storm_of_kills_leaks_nothing(tmp_path):
    chaos(tmp_path, kills=1000)
