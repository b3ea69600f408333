"""What the page about Temporal says to type is typed here, into Temporal's own tool, and answers as printed.

`...` stands for anything. Keys and ids of runs differ from day to day: those that an answer shows are remembered, and put
into the commands that follow in the place of those on the page.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from millpond import AsyncResourcePool
    from millpond.resources import temporal as pools_in_workflows
    from waiting import HANG

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "temporal.md"
SECTION = re.search(r"^## See and release what is held\n(.*?)^## ", PAGE.read_text(), re.S | re.M)
CHANGES = re.compile(r"\b\d{16}\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


@workflow.defn
class Train:
    @workflow.run
    async def run(self) -> None:
        async with pools_in_workflows.acquire("gpus", name="gpu-0", reason="train v8") as grant:
            await grant.lost()


def typed() -> list[tuple[str, str]]:
    """Return the commands of the section, each with what it prints."""
    assert SECTION is not None
    blocks = re.findall(r"```console\n(.*?)```", SECTION[1], re.S)
    lines = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(blocks), re.M)
    return [(command, answer) for command, answer in lines]


def type_in(command: str, expected: str, known: dict[str, str], address: str, folder: str) -> None:
    for old, new in known.items():
        command = command.replace(old, new)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "TEMPORAL_ADDRESS": address, "PATH": path, "NO_COLOR": "1"}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    shown: list[str] = []
    pattern = ""
    for part in re.split(rf"({CHANGES.pattern}|\.\.\.)", expected.strip()):
        if part == "...":
            pattern += ".*"
        elif part in shown:
            pattern += f"(?P=x{shown.index(part)})"
        elif CHANGES.fullmatch(part):
            pattern += f"(?P<x{len(shown)}>{CHANGES.pattern})"
            shown.append(part)
        else:
            pattern += re.escape(part)
    found = re.fullmatch(pattern, done.stdout.strip(), re.S)
    assert found, f"{command}\nsays\n{done.stdout}\nand not\n{expected}"
    known |= {old: found[f"x{number}"] for number, old in enumerate(shown)}


async def is_visible(client: Client) -> bool:
    """Return whether Temporal's visibility, which lags, knows of the pool."""
    query = "WorkflowId = 'millpond:gpus' AND ExecutionStatus = 'Running'"
    return bool([one async for one in client.list_workflows(query)])


def test_an_operator_types_what_the_page_says(pools):
    commands = typed()
    assert len(commands) == 7

    async def main() -> None:
        client = await Client.connect(pools.address)
        users = Worker(client, task_queue="operators", workflows=[Train], plugins=[pools_in_workflows.Plugin()])
        async with AsyncResourcePool("gpus", pools.url(), holder="ann") as gpus, users:
            for one in await gpus.resources():
                await gpus.admin.remove(one.name)
            await gpus.add("gpu-0", labels={"model": "a100"})
            trained = await client.start_workflow(Train.run, id="train-v8", task_queue="operators")
            while not await gpus.holders():
                await asyncio.sleep(0.01)
            waiting = asyncio.ensure_future(gpus.acquire({"model": "a100"}, reason="look again"))
            while not await gpus.waiters():
                await asyncio.sleep(0.01)
            known: dict[str, str] = {}
            for number, (command, expected) in enumerate(commands):
                if "workflow list" in command:
                    while not await is_visible(client):
                        await asyncio.sleep(0.01)
                await asyncio.to_thread(type_in, command, expected, known, pools.address, os.path.dirname(pools.binary))
                if number == 2:  # the release by key: the next in line has it
                    await (await asyncio.wait_for(waiting, HANG)).release()
            with pytest.raises(Exception, match="failed"):
                await trained.result()
            assert [one.name for one in await gpus.resources()] == ["gpu-0", "gpu-8", "gpu-9"]
            for name in ("gpu-8", "gpu-9"):
                await gpus.admin.remove(name)

    asyncio.run(main())
