"""Real processes on a real Temporal server, killed at random: hosts of pools, workers of workflows, plain programs.

Workflows meanwhile end in every way: done, failed, continued as new with their grant, cancelled, terminated. What must
hold: no two use a resource at once (the kernel says so, see `temporal_worker.py`), tokens grow with every use of a
resource, and in the end nothing is held and nobody waits. An operator releases the locks of plain programs that were
killed: there is no proof of death for them here. Seeds are printed; `CHAOS_SEED` repeats one.
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
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from millpond.errors import NotFound, PoolError, StaleToken
from millpond.resources import ResourcePool
from millpond.testing._temporal import TUNED, temporal_server

WORKER = Path(__file__).with_name("temporal_worker.py")
RESOURCES = 4


class Crew:
    """The processes: each is replaced when it is killed."""

    def __init__(self, url: str, folder: Path, dice: random.Random) -> None:
        self.url = url
        self.folder = folder
        self.dice = dice
        self.killed: set[int] = set()
        self.kills = 0
        self._members: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, role: str) -> None:
        if role == "host":
            command = [sys.executable, "-m", "millpond.resources.temporal", self.url]
        else:
            seed = str(self.dice.randrange(10**6))
            command = [sys.executable, str(WORKER), role, self.url, "chaos", str(self.folder), seed]
        errors = (self.folder / "stderr").open("ab")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        errors.close()
        self._members.append((role, process))

    def kill_one(self) -> None:
        role, process = self._members.pop(self.dice.randrange(len(self._members)))
        self._kill(process)
        self.kills += 1
        self.start(role)

    def kill(self, role: str) -> None:
        for member in [one for one in self._members if one[0] == role]:
            self._members.remove(member)
            self._kill(member[1])

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self.killed.add(process.pid)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        for _, process in self._members:
            process.kill()
            process.wait()


def operate(pool: ResourcePool, crew: Crew, stop: threading.Event) -> None:
    """Release what killed programs held under a lock, as an operator does who sees their process gone."""
    while not stop.wait(0.5):
        with contextlib.suppress(PoolError):
            for one in pool.holders():
                if one.kind == "process" and one.pid in crew.killed and one.expires_in is None:
                    with contextlib.suppress(StaleToken, NotFound):
                        pool.admin.release(one.resources[0], token=one.token, reason="its process was killed")


async def storm(client: Client, crew: Crew, kills: int, pause: float) -> list[str]:
    """Start workflows, end some of them, kill processes; return the ids of all workflows."""
    dice, ids = crew.dice, []
    for number in range(10**9):
        if crew.kills >= kills:
            break
        if number % 2 == 0:
            ids.append(f"cycle-{number}")
            await client.start_workflow(
                "Cycle",
                args=["chaos", str(crew.folder), number // 2, dice.randint(1, 3)],
                id=ids[-1],
                task_queue="chaos",
            )
        elif number % 4 == 1:
            handle = client.get_workflow_handle(dice.choice(ids[-3:]))
            with contextlib.suppress(RPCError):
                await (handle.cancel() if dice.random() < 0.5 else handle.terminate(reason="chaos"))
        await asyncio.to_thread(crew.kill_one)
        await asyncio.sleep(pause * dice.random())
    return ids


async def closed(client: Client, ids: list[str], limit: float) -> dict[str, int]:
    """Wait until all workflows are closed; return how they ended."""
    deadline = time.monotonic() + limit
    ends: dict[str, int] = {}
    for one in ids:
        while True:
            status = (await client.get_workflow_handle(one).describe()).status
            if status not in (WorkflowExecutionStatus.RUNNING, None):
                ends[status.name] = ends.get(status.name, 0) + 1
                break
            if time.monotonic() > deadline:
                pytest.fail(f"{one} still runs: {await story(client, one)}")
            await asyncio.sleep(0.1)
    return ends


async def story(client: Client, workflow_id: str) -> str:
    """Tell the last events of a workflow, and how its pool stands."""
    events = (await client.get_workflow_handle(workflow_id).fetch_history()).events
    pool = client.get_workflow_handle("millpond:chaos")
    parts = [
        *(str(event)[:600] for event in events[-6:]),
        await pool.query("get_current_holders"),
        await pool.query("get_waiters"),
        await pool.query("get_refusals"),
    ]
    return "\n".join(map(str, parts))


def chaos(folder: Path, kills: int, pause: float) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(10**6))
    print(f"CHAOS_SEED={seed}")
    stop = threading.Event()
    with temporal_server(dynamic_config=TUNED) as server, Crew(server.url(), folder, random.Random(seed)) as crew:
        crew.start("host")
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
                    ids = await storm(client, crew, kills, pause)
                    crew.kill("plain")
                    return await closed(client, ids, 30 + kills / 10)

                ends = asyncio.run(main())
                deadline = time.monotonic() + 20
                while (left := [*pool.holders(), *(one for one in pool.waiters() if one.pid not in crew.killed)]) and (
                    time.monotonic() < deadline
                ):
                    time.sleep(0.2)
                assert not left, f"leaked: {left}"
            finally:
                stop.set()
                operator.join()
            statistics = pool.statistics()
        print(f"{crew.kills} kills, {statistics.grants_total} grants, workflows: {ends}")
        assert crew.kills >= kills and statistics.grants_total > kills
        assert ends.get("COMPLETED") and (ends.keys() & {"FAILED", "CANCELED", "TERMINATED"})
    faults = folder / "faults"
    assert not faults.exists(), faults.read_text()
    last: dict[str, int] = {}
    for line in (folder / "uses").read_text().splitlines():
        resource, token = line.split()
        assert int(token) >= last.get(resource, 0), f"{resource} was used under {token} after {last[resource]}"
        last[resource] = int(token)
    assert len(last) > 1  # the first free one is taken: the last ones are reached only in a crowd


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("temporal")
def test_a_storm_of_kills_leaks_nothing(tmp_path):
    chaos(tmp_path, kills=15, pause=1.6)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("temporal")
def test_a_long_storm_of_kills_leaks_nothing(tmp_path):
    chaos(tmp_path, kills=1000, pause=1.2)
