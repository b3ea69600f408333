"""A worker of a storm: jobs that are coroutines and plain functions, and residents; each writes down when it runs.

`python keyed_worker.py URL LOG OPTIONS` with options as JSON: `pool` (as for KeyedPool), `worker` (as for `run`), `seed`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from keyed_log import Log

from millpond import KeyedPool
from millpond._events import Event
from millpond.errors import EngineUnavailable, LeaseLost
from millpond.keyed import Job, Resident
from millpond.keyed.rules import commands
from millpond.keyed.stores.redis import RedisStore
from millpond.keyed.stores.sqlite import SqliteStore

POOL = "storm"
FOR_EVER = 3600.0
WHEN_TOLD = 2 * FOR_EVER
"""What runs so long ends when there is a file of its name beside the log."""
STILL = 0.1
"""Seconds without time for this process that are worth a line."""


def word_for(log: Path | str, key: str) -> Path:
    """Return the file that tells the job of a key to end."""
    return Path(f"{log}.{key}")


async def be_told(key: str) -> None:
    while not word_for(sys.argv[2], key).exists():
        await asyncio.sleep(0.02)


def watch(log: Log) -> None:
    """Write down when this process got no time: stopped, or on a busy machine."""
    seen = time.monotonic()
    while True:
        time.sleep(STILL / 4)
        now = time.monotonic()
        if now - seen > STILL:
            log.write("I", f"{seen:.6f}", at=now)
        seen = now


def note_reports(log: Log) -> None:
    """Write down which ends of jobs a store has confirmed."""
    for kind in (RedisStore, SqliteStore):

        def do(self: Any, command: Any, plain: Callable[..., Any] = kind.do) -> Any:
            answer = plain(self, command)
            if isinstance(command, commands.Work):
                fresh = (one for index, one in enumerate(command.reports) if index not in answer.stale)
                lines = [log.line("R", one.mailbox[2:], one.token, one.done) for one in fresh if one.mailbox[0] == "j"]
                log.write_lines(lines)
            return answer

        kind.do = do  # type: ignore[method-assign]


def make(url: str, log: Log, options: dict[str, Any]) -> KeyedPool:
    chance = random.Random(options.get("seed", 0))
    said = ("worker_joined", "worker_lost", "worker_left")

    def tell(event: Event) -> None:
        if event.name in said:
            log.write("W", event.name.removeprefix("worker_"))

    pool = KeyedPool(POOL, url, on_event=tell, **options.get("pool", {}))

    def pause(job: Job, seconds: float) -> float:
        """Less than none: up to so many. For ever: the first time only."""
        if seconds >= FOR_EVER and job.attempt > 1:
            return 0.0
        return seconds if seconds >= 0 else chance.random() * -seconds

    @pool.job(keep_result=0)
    async def flow(job: Job, number: int, seconds: float) -> None:
        log.write("S", "j", job.key, number, job.token, job.attempt)
        how = "stopped"
        try:
            await (be_told(job.key) if seconds == WHEN_TOLD else asyncio.sleep(pause(job, seconds)))
            how = "ok"
        finally:
            log.write("E", "j", job.key, number, job.token, how)

    @pool.job(keep_result=0)
    def call(job: Job, number: int, seconds: float) -> None:
        log.write("S", "j", job.key, number, job.token, job.attempt)
        how = "stopped"
        try:
            if job.lost.wait(pause(job, seconds)):
                job.check()
            how = "ok"
        finally:
            log.write("E", "j", job.key, number, job.token, how)

    @pool.resident
    async def stay(resident: Resident) -> None:
        log.write("S", "r", resident.key, 0, resident.token, resident.attempt)
        how = "stopped"
        try:
            async for message in resident:
                log.write("M", resident.key, message, resident.token)
                if message < 0:
                    how = "failed"
                    raise RuntimeError("told to fail")
        finally:
            log.write("E", "r", resident.key, 0, resident.token, how)

    @pool.resident
    def abide(resident: Resident) -> None:
        log.write("S", "r", resident.key, 0, resident.token, resident.attempt)
        try:
            while True:
                message = resident.receive()
                log.write("M", resident.key, message, resident.token)
        except LeaseLost:
            pass
        finally:
            log.write("E", "r", resident.key, 0, resident.token, "stopped")

    return pool


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s worker %(process)d %(name)s: %(message)s")
    options = json.loads(sys.argv[3])
    log = Log(sys.argv[2])
    threading.Thread(target=watch, args=(log,), daemon=True).start()
    note_reports(log)
    for attempt in range(600):
        pool = make(sys.argv[1], log, options)
        try:
            pool.run(**options.get("worker", {}))
            break
        except EngineUnavailable:  # it could not join: one that has joined bears with a store that is away
            if attempt == 599 or f" {os.getpid()} joined\n" in Path(sys.argv[2]).read_text():
                raise
            time.sleep(0.1)
        finally:
            pool.close()
