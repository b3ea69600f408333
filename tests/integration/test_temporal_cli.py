"""The commands on Temporal: the same verbs as on a file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from typing import Any

import pytest
from click.testing import CliRunner

from millpond import ResourcePool
from millpond.cli import main
from millpond.errors import LeaseLost
from millpond.testing._temporal import TemporalServer
from waiting import HANG


class Shell:
    """Runs `millpond` on a server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def says(self, *arguments: str) -> str:
        done = CliRunner().invoke(main, [*arguments, "--url", self.url])
        assert done.exit_code == 0, done.output
        return done.stdout

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.says(*arguments, "-o", "json"))
        return found


@pytest.fixture
def shell(pools: TemporalServer) -> Shell:
    return Shell(pools.url())


def test_a_pool_on_temporal_is_seen_and_operated(shell: Shell):
    name = f"boards-{uuid.uuid4().hex[:8]}"
    assert shell.says("add", name, "a", "b", "--label", "chip=rp2040") == f"added {name}/a\nadded {name}/b\n"
    ann = ResourcePool(name, shell.url, holder="ann")
    with ann as pool, pytest.raises(LeaseLost, match="urgent"), pool.acquire(name="a", reason="soak test"):
        (held,) = shell.json("who", name)
        assert (held["id"], held["resources"], held["reason"]) == ("ann", ["a"], "soak test")
        assert "soak test" in shell.says("who", f"{name}/a") and "ann" in shell.says("show", f"{name}/a")
        assert name in shell.says("pools") and name in shell.says("top")
        shell.says("steal", f"{name}/a", "-y", "--for", "bob", "--reason", "urgent")
        assert shell.json("who", name)[0]["id"] == "bob"
        shell.says("release", f"{name}/a", "-y", "--reason", "over")
    shell.says("cordon", f"{name}/b", "-y", "--reason", "loud")
    assert [(one["name"], one["state"], one["note"]) for one in shell.json("ls", name)] == [
        ("a", "active", ""),
        ("b", "cordoned", "loud"),
    ]
    shell.says("uncordon", f"{name}/b", "-y")
    shell.says("reserve", f"{name}/b", "-y", "--for", "cid", "--reason", "demo")
    shell.says("release", f"{name}/b", "-y")
    shell.says("quarantine", f"{name}/b", "-y", "--reason", "smoke")
    shell.says("pause", name, "-y", "--reason", "move")
    assert "paused: move" in shell.says("pools")
    shell.says("resume", name, "-y")
    shell.says("configure", name, "lock_delay=2", "-y", "--reason", "they are hot")
    shell.says("drain", f"{name}/a", "-y", "--timeout", "50")
    shell.says("remove", f"{name}/a", "-y")
    assert [one["name"] for one in shell.json("ls", name)] == ["b"]
    assert {one["what"]: one["state"] for one in shell.json("doctor")}["place"] == "good"


def test_a_command_holds_what_is_on_temporal(shell: Shell, tmp_path):
    name = f"boards-{uuid.uuid4().hex[:8]}"
    shell.says("add", name)
    file = tmp_path / "seen"
    done = CliRunner().invoke(
        main, ["run", "--url", shell.url, "--hold", name, "--", "sh", "-c", f"echo $MILLPOND_RESOURCE > {file}"]
    )
    assert done.exit_code == 0 and file.read_text() == f"{name}\n"
    with ResourcePool(name, shell.url) as pool:
        assert not pool.holders()


def test_a_program_that_has_just_started_knows_what_happened_before(shell: Shell):
    name = f"boards-{uuid.uuid4().hex[:8]}"
    with ResourcePool(name, shell.url, holder="ann") as pool:
        pool.add("a")
        pool.acquire(reason="soak test").release()
        pool.admin.cordon("a", reason="loud")
        command = [sys.executable, "-m", "millpond", "events", name, "-o", "json", "--url", shell.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=True)
        told = [(one["event"], one.get("holder"), one.get("reason")) for one in json.loads(done.stdout)]
        assert [one[0] for one in told] == ["added", "granted", "released", "cordoned"], told
        assert ("granted", "ann", "soak test") in told and told[-1][2] == "loud"


def test_a_program_that_has_just_started_knows_since_when_something_is_held(shell: Shell):
    name = f"boards-{uuid.uuid4().hex[:8]}"
    with ResourcePool(name, shell.url) as pool:
        pool.add("a")
        began = time.monotonic()
        with pool.acquire(lease=3600):
            time.sleep(2.0)  # in which the pool has nothing to do, so that its own clock stands still
            command = [sys.executable, "-m", "millpond", "who", name, "-o", "json", "--url", shell.url]
            done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=True)
            (held,) = json.loads(done.stdout)
            assert 1.9 < held["held_for"] < time.monotonic() - began + 1.0
            assert held["held_for"] + held["expires_in"] <= 3600.5
