"""What the programs of all peers share: how a job is noted, and how jobs are put.

`keyed_peers.py` calls a program in the environment of its peer, which has nothing of Millpond, with this folder as the
current one:

    PROGRAM enqueue PLAN    put jobs as the plan (JSON) says, then print a line of JSON
    PROGRAM worker          work until killed, in the one process or tree of processes that this becomes

and tells it by its surroundings where things are: KEYED_URL is the Redis server, KEYED_NOTES a folder, KEYED_WORKER the
name of this worker; KEYED_ALONE is set where no two jobs of a key may run at once, for those who need to be told. A job
is four integers: its number, its key, when it was put (CLOCK_MONOTONIC, which the processes of a machine share, in ns),
and how many milliseconds it takes. It appends a record of 33 bytes to the file of its process when it ends, and, unless
it takes no time at all, one when it begins. All figures come from these.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import functools
import json
import os
import struct
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, NamedTuple

URL = os.environ.get("KEYED_URL", "redis://127.0.0.1:1/0")
"""A worker and an enqueuer have it; the default is for imports only, nobody listens there."""
RECORD = struct.Struct("<cIIqqq")
"""b"b" began or b"e" ended; number, key; put, began, ended, in ns."""


class Job(NamedTuple):
    number: int
    key: int
    put: int
    ms: int


class Program:
    """A peer: how it puts jobs, and what its worker is."""

    packages: ClassVar[tuple[str, ...]] = ()
    """What it was measured with, for the conditions."""
    settings: ClassVar[dict[str, Any]] = {}
    """How it was set up, for the conditions."""
    chunk: ClassVar[int] = 1000
    """How many jobs `many` gets at most."""

    def session(self) -> AbstractAsyncContextManager[None]:
        """Connect for as long as the block lasts."""
        return _nothing()

    async def one(self, job: Job) -> None:
        """Put a job; it is in Redis when this returns."""
        raise NotImplementedError

    async def many(self, jobs: list[Job]) -> None:
        """Put jobs by the quickest call there is; all are in Redis when this returns."""
        for job in jobs:
            await self.one(job)

    def work(self) -> None:
        """Work until killed."""
        raise NotImplementedError


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


# --- the job ----------------------------------------------------------------------------------------------------------


@functools.cache
def _file() -> int:
    """Open the notes of this process; by the first job, which is after every fork."""
    name = f"{os.environ['KEYED_WORKER']}.{os.getpid()}"
    return os.open(os.path.join(os.environ["KEYED_NOTES"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def do(number: int, key: int, put: int, ms: int) -> None:
    """Do a job in a thread."""
    began = time.monotonic_ns()
    if ms:
        os.write(_file(), RECORD.pack(b"b", number, key, put, began, 0))
        time.sleep(ms / 1000)
    os.write(_file(), RECORD.pack(b"e", number, key, put, began, time.monotonic_ns()))


async def do_async(number: int, key: int, put: int, ms: int) -> None:
    """Do a job in an event loop."""
    began = time.monotonic_ns()
    if ms:
        os.write(_file(), RECORD.pack(b"b", number, key, put, began, 0))
        await asyncio.sleep(ms / 1000)
    os.write(_file(), RECORD.pack(b"e", number, key, put, began, time.monotonic_ns()))


# --- the enqueuer -----------------------------------------------------------------------------------------------------


async def _enqueue(program: Program, plan: dict[str, Any]) -> dict[str, Any]:
    """Put jobs of `ms`, `run` of a key in a row over `keys` keys: one `every` so many seconds, or all at once."""
    first, jobs, keys, run, ms = (plan[name] for name in ("first", "jobs", "keys", "run", "ms"))

    def job(number: int) -> Job:
        return Job(first + number, number // run % keys, time.monotonic_ns(), ms)

    async with program.session():
        await program.one(job(0))  # connects, loads scripts: not timed
        began = time.monotonic()
        late = 0.0
        if every := plan.get("every"):
            for number in range(1, jobs):
                pause = began + number * every - time.monotonic()
                late = max(late, -pause)
                await asyncio.sleep(max(0.0, pause))
                await program.one(job(number))
        else:
            for start in range(1, jobs, program.chunk):
                await program.many([job(number) for number in range(start, min(start + program.chunk, jobs))])
        took = time.monotonic() - began
    return {"timed": jobs - 1, "seconds": took, "late_ms": round(late * 1e3, 3)}


def _run(program: Program, plan: dict[str, Any]) -> dict[str, Any]:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(_enqueue(program, plan))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_enqueue(program, plan))


def _versions(program: Program) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # here: 2 MB, which no worker that is measured needs

    found = {}
    for package in program.packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def main(program: Program) -> None:
    if sys.argv[1] == "worker":
        program.work()
    else:
        said = _run(program, json.loads(sys.argv[2]))
        print(json.dumps({**said, "versions": _versions(program), "settings": program.settings}))


def become(*arguments: str) -> None:
    """Become the command line tool of a peer."""
    os.execv(sys.executable, [sys.executable, "-m", *arguments])
