"""Record the histories of pools that `test_replay.py` replays: `.venv/bin/python tests/replay/record.py`.

Histories in the repository stay as they are: they stand for pools that run somewhere. Record new ones, under new names,
when pools learn to do something new; give the name of a scenario to record only that one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from temporalio.client import Client

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
from temporal_pools import Desk, ask, engines, run, until

from millpond.resources import ResourcePool
from millpond.resources._rules import commands as do
from millpond.resources.engines.temporal import _messages as say
from millpond.testing._temporal import TUNED, temporal_server
from millpond.testing._temporal_host import hosted_pools

FOLDER = Path(__file__).parent / "histories"


def contend(url: str) -> None:
    """Use a pool from plain programs."""
    members = [ResourcePool("contended", one) for one in engines(url, 2)]
    members[0].add("gpu-0", labels={"model": "a100"})
    members[0].add("gpu-1", labels={"model": "h100"}, capacity=2)

    def work(pool: ResourcePool, number: int) -> None:
        for turn in range(2):
            with pool.acquire({"model": ["a100", "h100"][turn % 2]}, priority=number % 2, reason=f"turn {turn}"):
                time.sleep(0.005)

    threads = [threading.Thread(target=work, args=(members[number % 2], number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pool in members:
        pool.close()


async def contended(client: Client) -> None:
    url = f"temporal://{client.service_client.config.target_host}/default"
    await asyncio.to_thread(contend, url)
    desk = Desk(client, "contended")
    await desk.send(ask("leased", lease=300_000), ask("impatient", timeout=200_000))
    await until(lambda: desk.query("get_current_holders"), lambda found: found["gpu-0"] is None)


async def workflows(client: Client) -> None:
    """Lend to workflows: one is terminated while it holds, one while it waits, one has time for its work to end."""
    desk = Desk(client, "workflows")
    await desk.start("a", "b")
    names = ["first", "second", "third", "fourth"]
    flows = [await client.start_workflow("Nobody", id=f"flow-{name}", task_queue="nobody") for name in names]
    sessions = [f"w:{one.id}/{one.first_execution_run_id}" for one in flows]
    await desk.send(
        *(ask(name, session) for name, session in zip(names, sessions, strict=True)), graces={sessions[1]: 400_000}
    )
    await flows[2].terminate()
    await flows[0].terminate()
    await until(desk.held, lambda held: held["a"] is not None and "fourth" in str(held["a"]) + str(held))
    await flows[1].terminate()
    await until(lambda: desk.query("get_current_holders"), lambda found: found["b"] is None)
    await desk.send(do.Withdraw(sessions[3], "fourth", by="ann", reason="enough"))
    await flows[3].terminate()


async def continued(client: Client) -> None:
    """Continue as new twice, while requests hold and wait, and come with the same batch again."""
    desk = Desk(client, "continued")
    await desk.start("a")
    batch = say.Batch("sender", 1, [ask(f"#{number}") for number in range(10)])
    for _ in range(6):
        await desk.exchange(batch)
        held = (await desk.query("get_current_holders"))["a"]
        await desk.send(do.Release("p:test", held["token"]))
    await until(desk.runs, lambda runs: runs >= 2)


async def signals(client: Client) -> None:
    """Hear signals of all kinds."""
    desk = Desk(client, "signals")
    await desk.start("a")
    for name in ("user-1", "user-2"):
        await client.start_workflow("Nobody", id=name, task_queue="nobody")
        await desk.handle.signal("acquire_resource", {"workflow_id": name})
    await desk.handle.signal("release_resource", "nonsense")
    await desk.handle.signal("no such signal")
    held = await until(lambda: desk.query("get_current_holders"), lambda found: found["a"] is not None)
    await desk.handle.signal("release_resource", {"release_key": held["a"]["release_key"]})
    await until(desk.held, lambda found: found["a"] == "user-2")
    await desk.handle.signal("add_resources", ["b", "c"])
    await desk.handle.signal("release_resource", {"resource": "a", "workflow_id": "user-2"})
    await until(desk.held, lambda found: found == {"a": None, "b": None, "c": None})
    for name in ("user-1", "user-2"):
        await client.get_workflow_handle(name).terminate()


async def inherited(client: Client) -> None:
    """Take over from a run that was terminated."""
    desk = Desk(client, "inherited")
    await desk.start("a")
    await desk.send(ask("1", lease=60_000_000), ask("2"))
    await desk.handle.terminate()
    held = await until(lambda: _holders(desk), bool)
    await desk.send(do.Release("p:test", held["a"]["token"]))


async def _holders(desk: Desk) -> dict[str, dict[str, int]]:
    await desk.send()
    found: dict[str, dict[str, int]] = await desk.query("get_current_holders")
    return found


SCENARIOS: list[Callable[[Client], Awaitable[None]]] = [contended, workflows, continued, signals, inherited]


async def save(client: Client, name: str) -> None:
    """Write the histories of all runs of a pool."""
    await asyncio.sleep(1.0)  # visibility lags
    runs = [one async for one in client.list_workflows(f"WorkflowId = 'millpond:{name}'")]
    for number, one in enumerate(sorted(runs, key=lambda one: one.start_time), 1):
        history = await client.get_workflow_handle(one.id, run_id=one.run_id).fetch_history()
        text = history.to_json()
        text = json.dumps(json.loads(text), separators=(",", ":"))
        (FOLDER / f"{name}-{number}.json").write_text(text + "\n")
        print(f"{name}-{number}: {len(history.events)} events, {len(text):,} bytes")


def main() -> None:
    """Record all, or those that are named."""
    wanted = sys.argv[1:]
    for scenario in SCENARIOS:
        name = scenario.__name__
        if wanted and name not in wanted:
            continue
        soon = {"limit.historyCount.suggestContinueAsNew": 24} if name == "continued" else {}
        with temporal_server(dynamic_config={**TUNED, **soon}) as server, hosted_pools(server.url()):
            run(server.address, scenario)
            run(server.address, partial(save, name=name))


if __name__ == "__main__":
    main()
