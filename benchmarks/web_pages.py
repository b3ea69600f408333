"""How long a page of `millpond web` takes to answer with 200,000 keys behind it, through its server, as a browser asks.

Ours only. A place has one keyed pool with a job of each key waiting, a worker that runs a hundred more, and a thousand
dead letters. Each page is asked for over HTTP, so late after another that what they could share is too old.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import statistics
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import harness
import uvicorn
from harness import Question, scale

from millpond.keyed import Job, KeyedPool
from millpond.testing._redis import redis_server
from millpond.web import _pools, app
from millpond.web._serve import Impatient, listen

KEYS = 200_000
RUNNING = 100
DEAD = 1_000
ROUNDS = 9
MUST = 200
STORES = ("Redis", "SQLite")
PATIENCE = 120.0


@contextmanager
def place(store: str) -> Iterator[str]:
    """Yield the URL of a place with a large pool."""
    logging.getLogger("millpond").setLevel(logging.CRITICAL)  # jobs fail on purpose
    with ExitStack() as ends:
        if store == "Redis":
            url = ends.enter_context(redis_server()).url
        else:
            url = f"sqlite:///{ends.enter_context(tempfile.TemporaryDirectory())}/pools.db"
        pool = KeyedPool("tenants", url)

        @pool.job(keep_result=0)
        async def hold(job: Job) -> None:
            await asyncio.sleep(3600)

        @pool.job(keep_result=0)
        async def fail(job: Job) -> None:
            raise RuntimeError("on purpose")

        ends.enter_context(pool)
        fail.dispatch_many([(f"dead-{number}",) for number in range(scale(DEAD))])
        ends.enter_context(pool.worker(concurrency=scale(RUNNING) + 20, grace=0.0))
        _wait(lambda: pool.statistics().dead == scale(DEAD))
        hold.dispatch_many([(f"busy-{number}",) for number in range(scale(RUNNING))])
        _wait(lambda: pool.statistics().keys_running == scale(RUNNING))
        pool.admin.pause(reason="so that the rest waits")
        for start in range(0, scale(KEYS), 1000):
            hold.dispatch_many([(f"key-{number:06}",) for number in range(start, start + 1000)])
        yield url


def _wait(question: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not question():
        if time.monotonic() > deadline:
            raise RuntimeError("the scene is not set in time")
        time.sleep(0.05)


@contextmanager
def served(url: str) -> Iterator[Callable[..., Any]]:
    """Serve the page, and yield what asks it."""
    with listen("127.0.0.1", 0) as found:
        page = app(url)
        server = uvicorn.Server(uvicorn.Config(page, http=Impatient, ws="none", log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [found]})
        thread.start()
        line = http.client.HTTPConnection("127.0.0.1", found.getsockname()[1], timeout=PATIENCE)

        def ask(word: str, **given: str) -> Any:
            line.request("GET", f"/api/{word}?{urllib.parse.urlencode(given)}")
            answer = line.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise RuntimeError(body.decode())
            return json.loads(body)

        try:
            _wait(lambda: server.started)
            yield ask
        finally:
            line.close()
            server.should_exit = True
            thread.join()


def pages(store: str) -> dict[str, float]:
    """Return the milliseconds of each page."""

    def measure() -> dict[str, float]:
        with place(store) as url, served(url) as ask:
            keys = ask("keys", pool="tenants", limit="1000")["next"]
            jobs = ask("jobs", pool="tenants", limit="1000")["next"]
            calls: dict[str, Callable[[], Any]] = {
                "overview": lambda: ask("pools"),
                "keys": lambda: ask("keys", pool="tenants", after=keys),
                "jobs": lambda: ask("jobs", pool="tenants", after=jobs),
                "running": lambda: ask("jobs", pool="tenants", state="running"),
                "dead": lambda: ask("dead", pool="tenants"),
                "key": lambda: ask("key", pool="tenants", key="key-000042"),
                "live": lambda: ask("moves", pool="tenants"),
            }
            rounds = 1 if harness.is_smoke() else ROUNDS
            return {name: statistics.median(_milliseconds(call) for _ in range(rounds)) for name, call in calls.items()}

    return harness.shared(f"web-{store}", measure)


def _milliseconds(call: Callable[[], object]) -> float:
    time.sleep(_pools.FRESH + 0.01)  # what tabs share has become too old
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


TITLES = {
    "overview": "the overview",
    "keys": "a page of 50 keys, behind the first thousand",
    "jobs": "a page of 50 jobs, behind the first thousand",
    "running": "the jobs that run now",
    "dead": "the newest 50 dead letters",
    "key": "why is this key here",
    "live": "a look of the live picture: workers, all slots, what runs, what moved",
}
QUESTIONS = [
    Question(
        f"web_{name}",
        f"millpond web, {KEYS:,} keys with a job each: {title}",
        {"millpond": lambda store, name=name: pages(store)[name]},
        "ms",
        reference="",
        params=[{"store": store} for store in STORES],
        score="value",
        must=MUST,
        take="median",
        rounds=1,
        note=f"over HTTP, one page at a time; {RUNNING} more jobs run, {DEAD:,} are dead; median of {ROUNDS}; "
        "Redis without persistence, all on one machine",
    )
    for name, title in TITLES.items()
]
