"""The commands that look and act, as people and programs see them."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from millpond import Job, KeyedPool, ResourcePool, keyed
from millpond.cli import main
from millpond.cli.place import Place
from millpond.cli.top import Sight
from millpond.errors import NotFound, PoolFull
from millpond.keyed.client._sync.search import STATES
from waiting import HANG, until

COMMAND = [sys.executable, "-c", "from millpond.cli import main; main()"]


class Shell:
    """Runs `millpond` at one place."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.environment = {**os.environ, "MILLPOND_URL": url, "XDG_STATE_HOME": str(folder)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it in this process: to start another one for each takes ten times as long."""
        done = CliRunner().invoke(main, arguments, env=self.environment)
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    def says(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(self.says(*arguments, "-o", "json"))
        lines = self.says(*arguments, "-o", "jsonl").splitlines()
        assert len(lines) == len(found) and all(json.loads(line) for line in lines)
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(f"sqlite:///{tmp_path}/pools.db", tmp_path)


@pytest.fixture
def lab(shell: Shell) -> Iterator[ResourcePool]:
    with ResourcePool("gpus", shell.url, holder="ann") as pool:
        pool.add("gpu-0", labels={"model": "a100"})
        pool.add("gpu-1", labels={"model": "a100"})
        yield pool


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# --- resources --------------------------------------------------------------------------------------------------------


def test_who_and_ls(shell: Shell, lab: ResourcePool):
    assert shell.says("who") == "nobody holds anything\n"
    with lab.acquire(name="gpu-0", reason="train \x1b[31mv7"), lab.acquire(name="gpu-1"):
        waiter = threading.Thread(target=lambda: lab.acquire(reason="eval").release())
        waiter.start()
        until(lambda: lab.waiters())
        title, *held = rows(shell.says("who"))
        assert title == ["pool", "what", "who", "since", "state", "why"]
        assert held[0][:3] == ["gpus", "gpu-0", "ann"] and held[2][-2:] == ["next", "eval"]
        assert "\x1b" not in shell.says("who", "gpus/gpu-0") and "gpu-1" not in shell.says("who", "gpus/gpu-0")
        found = shell.json("who")
        assert [one["resources"] for one in found] == [["gpu-0"], ["gpu-1"], ["*"]]
        assert found[0]["reason"] == "train \x1b[31mv7" and found[0]["pid"] == os.getpid()
        listed = shell.json("ls")
        assert [(one["name"], one["used"], one["labels"]) for one in listed] == [
            ("gpu-0", 1, {"model": "a100"}),
            ("gpu-1", 1, {"model": "a100"}),
        ]
    waiter.join(HANG)
    assert rows(shell.says("ls"))[1] == ["gpus", "gpu-0", "active", "0/1", "model=a100"]
    assert "granted" in shell.says("events", "gpus") and "ann" in shell.says("show", "gpus/gpu-0")
    assert "say which: gpus/gpu-0, gpus/gpu-1" in shell.run("show", "gpus").stderr


def test_acts_on_resources_are_asked_for_and_leave_a_reason(shell: Shell, lab: ResourcePool):
    assert shell.says("cordon", "gpus/gpu-0", "--dry-run") == "would cordon gpus/gpu-0\n"
    unsure = shell.run("cordon", "gpus/gpu-0")
    assert unsure.returncode == 2 and "--yes" in unsure.stderr
    assert shell.says("cordon", "gpus/gpu-0", "--yes", "--reason", "fan") == "done: cordon gpus/gpu-0\n"
    assert (shell.json("ls")[0]["state"], shell.json("ls")[0]["note"]) == ("cordoned", "fan")
    shell.says("uncordon", "gpus/gpu-0", "-y")
    shell.says("quarantine", "gpus/gpu-0", "-y", "--reason", "smoke")
    assert shell.json("ls")[0]["state"] == "quarantined"
    shell.says("uncordon", "gpus/gpu-0", "-y")
    shell.says("reserve", "gpus/gpu-0", "-y", "--for", "bob", "--reason", "demo")
    (held,) = shell.json("who")
    assert held["id"] == "bob" and str(held["reason"]).startswith("demo (reserved by ")
    wrong = shell.run("release", "gpus/gpu-0", "-y", "--if-token", "1")
    assert wrong.returncode == 1 and "under token 1" in wrong.stderr
    said = shell.says("steal", "gpus/gpu-0", "-y", "--for", "cid", "--reason", "urgent", "--lease", "7200")
    (held,) = shell.json("who")
    assert held["id"] == "cid" and said.endswith(f"(token {held['token']})\n") and held["state"] == "held"
    assert re.search(r"held until \d\d-\d\d \d\d:\d\d:\d\d  urgent", shell.says("who"))
    shell.says("release", "gpus/gpu-0", "-y", "--reason", "over")
    assert not shell.json("who")
    shell.says("drain", "gpus/gpu-1", "-y", "--timeout", "50")
    shell.says("remove", "gpus/gpu-1", "-y")
    assert [one["name"] for one in shell.json("ls")] == ["gpu-0"]
    reasons = {str(event.data.get("reason")) for event in lab.admin.history()}
    assert {"fan", "smoke", "urgent", "over"} <= reasons
    assert any(reason.startswith("demo (reserved by ") for reason in reasons)
    shell.says("pause", "gpus", "-y", "--reason", "move")
    assert lab.statistics().paused == "move"
    shell.says("resume", "gpus", "-y")
    assert not lab.statistics().paused


def test_pools_are_made_by_adding(shell: Shell):
    assert (
        shell.says("add", "boards", "a", "b", "--label", "chip=esp32", "--capacity", "2")
        == "added boards/a\nadded boards/b\n"
    )
    assert shell.says("add", "licence") == "added licence/licence\n"
    assert {one["pool"]: one["kind"] for one in shell.json("pools")} == {"boards": "resources", "licence": "resources"}
    assert "already" in shell.run("add", "licence").stderr


# --- keyed pools ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    if request.param == "sqlite":
        return Shell(f"sqlite:///{tmp_path}/pools.db", tmp_path)
    return Shell(f"{request.getfixturevalue('redis_url')}?prefix=cli-{tmp_path.name}:", tmp_path)


def test_a_keyed_pool_is_seen_and_operated(place: Shell):
    release = threading.Event()
    with KeyedPool("tenants", place.url) as pool:

        @pool.job
        def sync(job: Job) -> None:
            release.wait(HANG)

        @pool.job
        def fail(job: Job, number: int) -> None:
            raise ValueError(f"no tenant {number}")

        with pool.worker() as worker:
            running = sync.dispatch("busy")
            fail.dispatch("bad", 7)
            until(lambda: {job.state for job in pool.jobs()} == {"running", "dead"})
            assert [(one["pool"], one["kind"], one["jobs"]) for one in place.json("pools")] == [("tenants", "keyed", 1)]
            (seen,) = place.json("workers", "tenants")
            assert seen["id"] == worker.id and rows(place.says("workers", "tenants"))[1][0] == worker.id
            (key,) = place.json("keys", "tenants")
            assert (key["key"], key["state"], key["worker"]) == ("busy", "running", worker.id)
            (job,) = place.json("jobs", "tenants", "--state", "running")
            assert (job["id"], job["name"]) == (running.id, "sync")
            assert place.json("jobs", "tenants", "--id", running.id, "--key", "busy", "--name", "sync") == [job]
            (letter,) = place.json("dead", "tenants")
            assert str(letter["reason"]).startswith("ValueError: no tenant 7") and letter["attempts"] == 1
            assert "ValueError: no tenant 7" in place.says("dead", "tenants")
            place.says("pause", "tenants", "--key", "slow", "-y", "--reason", "floods us")
            assert [(one.key, one.reason) for one in pool.admin.paused()] == [("slow", "floods us")]
            waits = sync.dispatch("slow")
            assert "(1)" in place.says("cancel", "tenants", waits.id, "-y") and waits.status() == "cancelled"
            sync.dispatch("slow")
            assert "(1)" in place.says("purge", "tenants", "--key", "slow", "-y")
            place.says("resume", "tenants", "--key", "slow", "-y")
            assert "(1)" in place.says("replay", "tenants", str(letter["number"]), "-y")
            until(lambda: [one.attempts for one in pool.admin.dead_letters()] == [1])
            assert "(1)" in place.says("discard", "tenants", "--all", "-y") and not pool.admin.dead_letters()
            release.set()


def test_events_are_json_for_programs(shell: Shell, lab: ResourcePool):
    lab.acquire().release()
    assert [one["event"] for one in json.loads(shell.says("events", "gpus", "-o", "json"))][-2:] == [
        "granted",
        "released",
    ]


def test_a_shared_resource_is_released_by_token(shell: Shell):
    with ResourcePool("disk", shell.url) as pool:
        pool.add("disk", capacity=2)
        with pool.acquire(), pool.acquire():
            wrong = shell.run("release", "disk", "-y")
            assert wrong.returncode == 2 and "--if-token" in wrong.stderr
            assert "paused: move" not in shell.says("pools")
            shell.says("pause", "disk", "-y", "--reason", "move")
            assert "paused: move" in shell.says("pools")
            wrong = shell.run("pause", "disk", "--key", "k", "-y")
            assert wrong.returncode == 2 and "no keys" in wrong.stderr


def test_pages_go_on_where_they_ended(place: Shell):
    with KeyedPool("tenants", place.url) as pool:
        pool.declare_job("sync").dispatch_many([(f"key {number}",) for number in range(5)])
    first = place.run("jobs", "tenants", "--limit", "3", "-o", "json")
    after = first.stderr.split("--after ")[1].strip()
    rest = place.run("jobs", "tenants", "--after", after, "-o", "json")
    assert len(json.loads(first.stdout)) == 3 and len(json.loads(rest.stdout)) == 2 and not rest.stderr


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["who", "nothing"], 1, "there is no 'nothing'"),
        (["who", "--url", "sqlite:///typo.db"], 69, "there is no file"),
        (["replay", "nothing"], 2, "or --all"),
        (["purge", "nothing", "id", "--key", "k"], 2, "and no ids"),
        (["add", "a/b", "c"], 2, "could not be named again"),
        (["pause", "nothing", "--key", "k", "-y"], 2, "no keyed pool 'nothing'"),
        (["who", "--url", "redis://u:secret@127.0.0.1:1"], 69, "cannot be reached"),
        (["who", "--url", "temporal://u:secret@:notaport"], 1, "***"),
        (["keys", "nothing"], 1, "there is no keyed pool 'nothing'"),
        (["cordon", "nothing/x", "-y"], 1, "there is no 'nothing'"),
        (["jobs", "nothing", "--state", "odd"], 2, "'odd' is not one of"),
        (["who", "--url", "gopher://x"], 1, "no engine for"),
        (["keys", "x", "--url", "redis://:secret@127.0.0.1:1"], 69, "127.0.0.1:1"),
        (["who", "--url", "sqlite:////proc/none/pools.db"], 69, "/proc/none"),
    ],
)
def test_errors_are_one_line_and_tell_no_secret(shell: Shell, arguments: list[str], code: int, words: str):
    assert shell.run("add", "something").returncode == 0
    done = shell.run(*arguments)
    assert done.returncode == code and words in done.stderr
    assert "Traceback" not in done.stderr and "secret" not in done.stderr and not done.stdout


def test_the_doctor_looks_at_machine_and_place_and_tells_no_secret(place: Shell):
    place.run("add", "boards", "rp1")
    found = {str(one["what"]): one for one in place.json("doctor")}
    assert found["Python"]["state"] == found["SQLite"]["state"] == found["place"]["state"] == "good"
    if place.url.startswith("redis"):
        assert found["server"]["state"] == found["eviction"]["state"] == found["clock"]["state"] == "good"
        assert "ms" in str(found["latency"]["found"])
    else:
        assert "pools.db" in str(found["file system"]["found"])
    sick = place.run("doctor", "--url", "redis://:secret@127.0.0.1:1")
    assert sick.returncode == 1 and "bad" in sick.stdout and "secret" not in sick.stdout + sick.stderr


def test_the_doctor_counts_pools_of_both_kinds_and_makes_no_file(place: Shell, tmp_path: Path):
    place.run("add", "boards", "rp1")
    with KeyedPool("tenants", place.url) as pool:
        pool.declare_job("sync").dispatch("ann")
    found = {str(one["what"]): str(one["found"]) for one in place.json("doctor")}
    assert found["place"].endswith("has 2 pools")
    assert {"psycopg", "uvicorn", "prometheus_client"} <= set(found)
    absent = tmp_path / "absent.db"
    place.run("doctor", "--url", f"sqlite:///{absent}")
    assert not absent.exists()


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: Shell, name: str):
    assert "_MILLPOND_COMPLETE" in shell.says("completion", name)


def test_a_job_is_dispatched_by_name_and_tried_again_and_settings_change(place: Shell):
    tries: list[tuple[object, ...]] = []
    with KeyedPool("tenants", place.url) as pool:

        @pool.job(max_attempts=2, backoff=3600, backoff_limit=3600)
        def moody(job: Job, *values: Any, mood: Any = None) -> list[Any]:
            tries.append((*values, mood))
            if len(tries) < 2:
                raise OSError("not yet")
            return [*values, mood]

        with pool.worker():
            assert "would dispatch moody" in place.says("dispatch", "tenants", "moody", "k", "--dry-run")
            said = place.says(
                "dispatch", "tenants", "moody", "k", "5", "five", '"5"', "--set", "mood=[1]", "--id", "one"
            )
            assert said == "dispatched one\n"
            until(lambda: [job.state for job in pool.jobs()] == ["retry"])
            wrong = place.run("retry", "tenants", "another", "-y")
            assert wrong.returncode == 1 and "no job 'another' waits" in wrong.stderr
            assert "(1)" in place.says("retry", "tenants", "one", "-y", "--reason", "impatience")
            until(lambda: len(tries) == 2)
            assert tries == [(5, "five", "5", [1])] * 2
            assert place.says("dispatch", "tenants", "moody", "k", "7", "--wait", str(HANG)) == "[7, null]\n"
        place.says("configure", "tenants", "max_jobs=3", "lease=7.5", "-y", "--reason", "small")
        for wrong_setting, words in (("max_dreams=3", "it has lease, drain"), ("max_jobs", "NAME=VALUE")):
            refused = place.run("configure", "tenants", wrong_setting, "-y")
            assert refused.returncode == 2 and words in refused.stderr
        lines = place.json("events", "tenants")
        assert [one["what"] for one in lines] == ["dispatch", "retry", "dispatch", "configure"]
        assert lines[0]["about"] == "moody one of k"
        assert [(one["what"], one["about"], one["reason"]) for one in lines if one["what"] != "dispatch"] == [
            ("retry", "k", "impatience"),
            ("configure", "lease=7.5, max_jobs=3", "small"),
        ]
        assert "configure  lease=7.5, max_jobs=3  by " in place.says("events", "tenants")
    with KeyedPool("tenants", place.url) as pool, pytest.raises(PoolFull):
        pool.declare_job("moody").dispatch_many([("k",)] * 4)


def test_settings_of_a_resource_pool_change(shell: Shell, lab: ResourcePool):
    shell.says("configure", "gpus", "lock_delay=2", "-y", "--reason", "they are hot")
    assert any(event.data.get("reason") == "they are hot" for event in lab.admin.history())
    assert "it has patience, ageing" in shell.run("configure", "gpus", "lease=3", "-y").stderr


def test_top_shows_all_pools_and_what_is_in_the_way(shell: Shell, lab: ResourcePool):
    with KeyedPool("tenants", shell.url) as pool, lab.acquire(name="gpu-0", reason="train [v7]"):
        pool.declare_job("sync").dispatch("k")
        shown = shell.says("top", "--frames", "2", "--every", "0.1")
    assert shown.count("resources gpus") == shown.count("keyed tenants") == 2
    assert "1 of 2 units held, 0 wait" in shown and "train [v7]" in shown and "no worker: nothing runs" in shown


def test_states_of_jobs_are_those_of_the_library():
    assert importlib.import_module("millpond.cli.verbs").STATES == STATES


def test_a_slip_is_told_and_does_nothing(place: Shell):
    with KeyedPool("tenants", place.url) as pool:

        @pool.job
        def sync(job: Job) -> None:
            job.lost.wait(HANG)

        for arguments, words in (
            (("cancel", "tenants", "nosuch", "-y"), "nothing to cancel"),
            (("retry", "tenants", "--key", "k", "-y"), "nothing to try again"),
            (("retry", "tenants", "--all", "-y"), "nothing to try again: no job of tenants waits"),
            (("replay", "tenants", "--key", "k", "-y"), "nothing to replay"),
            (("replay", "tenants", "--all", "-y"), "nothing to replay"),
            (("discard", "tenants", "--all", "-y"), "nothing to discard"),
            (("purge", "tenants", "--key", "k", "-y"), "nothing to purge: no job of key 'k' of tenants waits"),
            (("resume", "tenants", "--key", "k", "-y"), "nothing to resume: key 'k' of tenants is not paused"),
            (("resume", "tenants", "-y"), "nothing to resume: tenants is neither paused nor shut down"),
        ):
            done = place.run(*arguments)
            assert done.returncode == 1 and words in done.stderr
        with pool.worker(grace=0):
            done = place.run("dispatch", "tenants", "snyc", "k")
            assert done.returncode == 2 and "they know sync" in done.stderr and not pool.statistics().jobs
            assert place.run("dispatch", "tenants", "snyc", "odd", "--force").returncode == 0
            done = place.run("dispatch", "tenants", "sync", "k", "--wait", "0.1", "--id", "one")
            assert done.returncode == 75 and "job one has not ended in 0.1 s" in done.stderr
        assert "max_jobs=null" in place.says("configure", "tenants")
        place.says("configure", "tenants", "max_jobs=1", "-y")
        assert pool.admin.settings()["max_jobs"] == 1
        place.says("configure", "tenants", "max_jobs=null", "-y")
        assert pool.admin.settings()["max_jobs"] is None
        assert place.run("configure", "tenants", "lease=null", "-y").returncode == 2


def test_a_key_is_paused_before_it_has_jobs(place: Shell):
    with KeyedPool("tenants", place.url) as pool:
        job = pool.declare_job("sync")
        job.dispatch("busy")
        assert place.says("pause", "tenants", "--key", "busy", "-y") == "done: pause key 'busy' of tenants\n"
        said = place.says("pause", "tenants", "--key", "new", "-y")
        assert said == "done: pause key 'new' of tenants (it has no jobs now: those to come will wait)\n"
        assert {one.key for one in pool.admin.paused()} == {"busy", "new"}
        place.says("pause", "tenants", "-y")
        for arguments in (("--key", "new"), ("--key", "busy"), ()):
            place.says("resume", "tenants", *arguments, "-y")
        assert not pool.admin.paused()
        pool.admin.shutdown()
        place.says("resume", "tenants", "-y")
        assert not pool.statistics().is_shut


def test_a_resource_pool_is_resumed_that_was_paused(shell: Shell, lab: ResourcePool):
    done = shell.run("resume", "gpus", "-y")
    assert done.returncode == 1 and "nothing to resume: gpus is not paused" in done.stderr


def test_names_mean_one_thing(shell: Shell, lab: ResourcePool):
    assert [one["name"] for one in shell.json("ls", "gpus/gpu-1")] == ["gpu-1"]
    assert "gpu-0" not in shell.says("events", "gpus/gpu-1")
    with KeyedPool("tenants", shell.url) as pool:
        pool.statistics()
    assert "'tenants' is a keyed pool" in shell.run("who", "tenants").stderr
    for verb in ("configure", "pause", "resume"):
        done = shell.run(verb, "gpus/gpu-1", "-y")
        assert done.returncode == 2 and "name a pool, not a resource" in done.stderr
    assert {one["pool"] for one in shell.json("pools")} == {"gpus", "tenants"}
    assert "say what to add to gpus" in shell.run("add", "gpus").stderr
    assert shell.says("add", "gpus", "gpu-9", "--dry-run") == "would add gpus/gpu-9\n"
    assert "already" in shell.run("add", "gpus", "gpu-0").stderr
    assert shell.says("add", "gpus", "gpu-0", "gpu-2", "--exist-ok") == "added gpus/gpu-2\n"
    assert "lock_delay=0.0" in shell.says("configure", "gpus")


def test_a_wrong_name_is_told_with_the_right_ones(shell: Shell):
    with KeyedPool("tenants", shell.url) as pool:
        pool.statistics()
    for arguments in (("pause", "tenantz"), ("resume", "tenantz"), ("configure", "tenantz"), ("dead", "tenantz")):
        done = shell.run(*arguments)
        assert done.returncode == 1 and done.stderr.endswith("; there is tenants\n"), done.stderr
    assert "; there is tenants" in shell.run("pause", "tenantz", "--key", "k", "-y").stderr
    assert "there is nothing to hold (keyed pools: tenants)" in shell.run("who", "tenantz").stderr
    done = shell.run("drain", "tenants/w1", "-y")
    assert done.returncode == 1 and "to drain a worker, send it SIGTERM" in done.stderr
    assert "has no resources to cordon" in shell.run("cordon", "tenants", "-y").stderr


def test_looking_makes_no_pool_anew(shell: Shell):
    with KeyedPool("tenants", shell.url, slots=16) as pool:  # so that one made anew would be another
        pool.statistics()
        sight = Sight(Place(shell.url))
        assert [one.name for one in sight.look()[1]] == ["tenants"]
        pool.admin.drop()
        assert sight.look()[1] == [] and keyed.pools(shell.url) == []
        with pytest.raises(NotFound, match="no keyed pool"), KeyedPool("tenants", shell.url, create=False) as guest:
            guest.statistics()
        pool.declare_job("sync").dispatch("k")
        assert pool.admin.settings()["slots"] == 16
        sight.close()


def test_a_pipe_that_is_closed_is_no_error(shell: Shell, lab: ResourcePool):
    for _ in range(100):
        lab.acquire().release()
    command = " ".join(map(shlex.quote, [*COMMAND, "events", "gpus"]))
    done = subprocess.run(["sh", "-c", f"{command} | head -1"], capture_output=True, text=True, env=shell.environment)
    assert done.returncode == 0 and not done.stderr
