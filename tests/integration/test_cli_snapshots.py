"""What each command prints, as a table and as JSON, kept in `snapshots/`.

What differs from run to run (times, processes, ids, tokens) is written as a word. When a change is wanted, run the tests
with MILLPOND_SNAPSHOTS=write, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from millpond import Job, KeyedPool, Resident, ResourcePool
from millpond._person import user_and_host
from millpond.cli import main
from waiting import HANG, until

FOLDER = Path(__file__).parent / "snapshots"

COMMANDS = {
    "who": ["who"],
    "who-pool": ["who", "lab/board-1"],
    "ls": ["ls"],
    "show": ["show", "lab/board-1"],
    "events": ["events", "lab"],
    "events-keyed": ["events", "tenants"],
    "pools": ["pools"],
    "workers": ["workers", "tenants"],
    "keys": ["keys", "tenants"],
    "jobs": ["jobs", "tenants"],
    "jobs-dead": ["jobs", "tenants", "--state", "dead"],
    "dead": ["dead", "tenants"],
    "paused": ["paused", "tenants"],
    "residents": ["residents", "tenants"],
    "top": ["top"],
}
AS_JSON = sorted(set(COMMANDS) - {"top"})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A place with a lab and tenants, in which nothing moves."""
    where = f"sqlite:///{tmp_path_factory.mktemp('place')}/pools.db"
    release = threading.Event()
    with ResourcePool("lab", where, holder="ann") as lab, KeyedPool("tenants", where) as pool:
        lab.add("board-1", labels={"chip": "esp32"})
        lab.add("board-2", labels={"chip": "rp2040"}, capacity=2)
        lab.add("board-3")
        lab.admin.quarantine("board-3", reason="it smokes")

        @pool.job
        def sync(job: Job) -> None:
            release.wait(HANG)

        @pool.job
        def fail(job: Job, number: int) -> None:
            raise ValueError(f"no tenant {number}")

        @pool.resident
        def listen(resident: Resident) -> None:
            resident.lost.wait(HANG)

        with lab.acquire(name="board-1", reason="soak test"), pool.worker(concurrency=1):
            waiter = threading.Thread(target=lambda: lab.acquire(name="board-1", reason="release test").release())
            waiter.start()
            until(lab.waiters)
            fail.dispatch("acme", 7)
            until(lambda: pool.statistics().dead == 1)
            sync.dispatch("busy")
            until(lambda: pool.statistics().keys_running == 1)
            listen.start("room")
            until(lambda: [one.state for one in pool.residents()] == ["running"])
            sync.dispatch("busy")
            pool.admin.pause("flood", reason="it floods us", by="ann")
            sync.dispatch("flood")
            sync.options(delay=3600).dispatch("later")
            until(lambda: [one.state for one in lab.holders()] == ["held"])  # it may be shown as offered for a moment
            until(lambda: [one.slots for one in pool.workers()] == [4096])
            yield where
            release.set()
        waiter.join(HANG)


HOST = re.escape(socket.gethostname())
ODD = [
    (rf"\(pid {os.getpid()} on {HOST}\)", "(pid PID on HOST)"),
    (rf"\b{re.escape(user_and_host())}:{os.getpid()}\b", "USER@HOST:PID"),
    (rf"\b{HOST}:{os.getpid()}\b", "HOST:PID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "DATE AND TIME"),
    (r"\d\d-\d\d \d\d:\d\d:\d\d", "TIME"),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"\b\d+(\.\d)? s\b", "SECONDS"),
    (r"sqlite:///\S*pools\.db", "URL"),
    (r"\b[0-9a-f]{10}\b", "WORKER"),
    (r"\b(?=[a-z]*[0-9A-Z])[0-9A-Za-z]{16}\b", "ID"),
    (r"token=\d+", "token=NUMBER"),
    (r"#\S+-\d+", "REQUEST"),
]


def steady(text: str) -> str:
    """Return what a command prints, without what differs from run to run; columns are one blank apart."""
    for odd, word in ODD:
        text = re.sub(odd, word, text)
    return "\n".join(re.sub(r" {2,}", "  ", line.rstrip()) for line in text.splitlines()) + "\n"


ITS_NAME: dict[str, Callable[[Any], Any]] = {  # a process may have any number, and a host the name of anything
    "pid": lambda value: "a large number" if value == os.getpid() else value,
    "host": lambda value: "HOST" if value == socket.gethostname() else value,
}


def shape(value: Any) -> Any:
    """Return JSON with the values that differ as the names of their types; of a text the first line."""
    if isinstance(value, dict):
        return {key: ITS_NAME[key](one) if key in ITS_NAME else shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value]
    if isinstance(value, float):
        return "a number"
    if isinstance(value, int) and not isinstance(value, bool) and value > 1000:
        return "a large number"
    return steady(value.partition("\n")[0]).rstrip("\n") if isinstance(value, str) else value


def compare(name: str, text: str) -> None:
    file = FOLDER / name
    if os.environ.get("MILLPOND_SNAPSHOTS") == "write":
        file.write_text(text)
    assert text == file.read_text(), f"{name} is another: see the docstring of this module"


def run(url: str, *arguments: str) -> str:
    done = CliRunner().invoke(main, [*arguments, "--url", url], env={"COLUMNS": "150", "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_prints_its_table(url: str, name: str):
    compare(f"{name}.txt", steady(run(url, *COMMANDS[name])))


@pytest.mark.parametrize("name", AS_JSON)
def test_a_command_prints_json(url: str, name: str):
    found = json.loads(run(url, *COMMANDS[name], "-o", "json"))
    compare(f"{name}.json", json.dumps(shape(found), indent=2) + "\n")
