"""The story: three workers, tenants that come and go, a worker that is killed. See the package's docstring."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter

from tenants.shared import add, pool, remove, say, tenants
from tenants.tenant import print_who_runs_what

NAMES = ("ann", "bob", "cid", "dan", "eve", "fay", "gil", "hal")


def main() -> None:
    for name in NAMES:
        add(name)
    workers = [subprocess.Popen([sys.executable, "-m", "tenants.worker"]) for _ in range(3)]
    try:
        asyncio.run(tell(workers))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


async def tell(workers: list[subprocess.Popen[bytes]]) -> None:
    """Play the story, one thing after another."""
    async with pool:
        await until_right(workers, "eight tenants on three workers")

        remove("bob")
        add("ivy")
        add("ann", plan="premium")
        await until_right(workers, "bob left, ivy came, ann has another plan")

        first, second, third = await busiest_first(workers)
        first.kill()
        first.wait()
        began = time.monotonic()
        await until_right([second, third], "a worker was killed, its tenants go on elsewhere")
        say(f"that took {time.monotonic() - began:.1f} s")

        second.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(second.wait, 60)
        await until_right([third], f"a worker was asked to leave, and did (exit code {code})")

        third.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(third.wait, 60)
        say(f"the last worker left (exit code {code}); the tenants wait for the next one")


async def busiest_first(workers: list[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    """Return the workers, the one with the most residents first."""
    labels = {one.id: one.label for one in await pool.workers()}
    counts = Counter(labels.get(one.worker, "").rpartition(":")[2] for one in await pool.residents())
    return sorted(workers, key=lambda worker: -counts[str(worker.pid)])


async def until_right(workers: list[subprocess.Popen[bytes]], what: str) -> None:
    """Wait until every tenant that is in the table runs, with its plan, on a worker that lives; then show it."""
    pids = {f":{worker.pid}" for worker in workers}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        living = {one.id for one in await pool.workers() if any(one.label.endswith(pid) for pid in pids)}
        found = [one for one in await pool.residents() if one.name == "look_after" and one.state == "running"]
        running = {one.key: one.arguments["plan"] for one in found if one.worker in living}
        if running == tenants() and len(running) == len(found) and len(living) == len(workers):
            break
        await asyncio.sleep(0.05)
    else:
        raise TimeoutError(f"not so after 60 s: {what}")
    say(what)
    await print_who_runs_what()


if __name__ == "__main__":
    main()
