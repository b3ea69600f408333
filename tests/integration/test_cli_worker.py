"""`millpond worker MODULE:POOL` as a program."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from millpond import KeyedPool
from millpond.errors import JobFailed
from waiting import HANG, until

APP = """
from millpond import AsyncKeyedPool, Job, KeyedPool

pool = {kind}("numbers", "sqlite:///numbers.db", slots=16)
other = 7

@pool.job
async def double(job: Job, number: int) -> int:
    return 2 * number
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "millpond", "worker", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("kind", ["KeyedPool", "AsyncKeyedPool"])
def test_a_worker_works_until_it_is_told_to_end(tmp_path, kind):
    (tmp_path / "app.py").write_text(APP.format(kind=kind))
    process = start(tmp_path, "app:pool", "--concurrency", "4", "--grace", "1")
    try:
        with KeyedPool("numbers", f"sqlite:///{tmp_path}/numbers.db", slots=16) as pool:
            assert pool.declare_job("double").dispatch("k", 21).result(HANG) == 42
            os.kill(process.pid, signal.SIGTERM)
            output, _ = process.communicate(timeout=HANG)
            assert process.returncode == 0, output
            assert pool.workers() == [] and "numbers" in output
    finally:
        process.kill()
        process.communicate()


def test_a_worker_writes_its_log_for_programs(tmp_path):
    (tmp_path / "app.py").write_text(
        APP.format(kind="KeyedPool").replace("return 2 * number", "raise ValueError(number)")
    )
    process = start(tmp_path, "app:pool", "--log-format", "json")
    try:
        with KeyedPool("numbers", f"sqlite:///{tmp_path}/numbers.db", slots=16) as pool:
            with pytest.raises(JobFailed):
                pool.declare_job("double").dispatch("k", 21).result(HANG)
            os.kill(process.pid, signal.SIGTERM)
            output, _ = process.communicate(timeout=HANG)
    finally:
        process.kill()
        process.communicate()
    lines = [json.loads(line) for line in output.splitlines()]
    failed = next(line for line in lines if line.get("event") == "job_failed")
    assert (failed["level"], failed["pool"], failed["key"], failed["job"]) == ("error", "numbers", "k", "double")
    assert "ValueError: 21" in failed["traceback"] and {"worker_joined", "worker_left"} <= {
        line.get("event") for line in lines
    }


@pytest.mark.parametrize(
    ("target", "words"),
    [("app", "MODULE:POOL"), ("nowhere:pool", "no module"), ("app:missing", "no 'missing'"), ("app:other", "is int")],
)
def test_what_names_no_pool_is_said_clearly(tmp_path, target, words):
    (tmp_path / "app.py").write_text(APP.format(kind="KeyedPool"))
    process = start(tmp_path, target)
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 2 and words in output and "Traceback" not in output


def ask(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=HANG) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_probes_are_told_how_a_worker_is(tmp_path):
    (tmp_path / "app.py").write_text(APP.format(kind="KeyedPool"))
    process = start(tmp_path, "app:pool", "--health-port", "0")
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next(found[1] for found in (re.search(r"(http://\S+)/healthz", line) for line in lines) if found)
        until(lambda: ask(f"{address}/readyz") == (200, "ok\n"))
        assert ask(f"{address}/healthz") == (200, "ok\n") and ask(f"{address}/")[0] == 404
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=HANG)
        assert process.returncode == 0 and "leaves after SIGTERM: it waits for 0 that run" in output
    finally:
        process.kill()
        process.communicate()


def test_a_file_tells_that_a_worker_is_a_member(tmp_path):
    (tmp_path / "app.py").write_text(APP.format(kind="AsyncKeyedPool"))
    file = tmp_path / "healthy"
    process = start(tmp_path, "app:pool", "--health-file", str(file))
    try:
        until(file.exists)
        first = file.stat().st_mtime_ns
        until(lambda: file.stat().st_mtime_ns > first)
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=HANG)
        assert process.returncode == 0 and not file.exists(), output
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("health", ["nothing", "host:port", "host:99999", ":80", "", 7])
def test_what_is_no_place_for_health_is_refused(health, tmp_path):
    with KeyedPool("numbers", f"sqlite:///{tmp_path}/numbers.db") as pool:
        if health == "nothing":
            return  # a file of that name
        with pytest.raises(ValueError, match="HOST:PORT"):
            pool.run(health=health)


def members(pool: KeyedPool) -> dict[int, str]:
    return {int(one.label.rpartition(":")[2]): one.id for one in pool.workers()}


def is_replaced(pool: KeyedPool, victim: int) -> bool:
    found = members(pool)  # one look: it may be gone in the next
    return len(found) == 2 and victim not in found


def test_several_processes_work_and_one_that_is_killed_is_replaced(tmp_path):
    (tmp_path / "app.py").write_text(APP.format(kind="KeyedPool"))
    process = start(tmp_path, "app:pool", "--processes", "2", "--grace", "1", "--log-format", "json")
    try:
        with KeyedPool("numbers", f"sqlite:///{tmp_path}/numbers.db", slots=16) as pool:
            until(lambda: len(members(pool)) == 2)
            victim, other = sorted(members(pool))
            assert process.pid not in (victim, other)
            os.kill(victim, signal.SIGKILL)
            until(lambda: is_replaced(pool, victim))
            assert other in members(pool)
            assert pool.declare_job("double").dispatch("k", 21).result(HANG) == 42
            os.kill(process.pid, signal.SIGINT)
            output, _ = process.communicate(timeout=HANG)
            assert process.returncode == 0 and not members(pool), output
    finally:
        process.kill()
        process.communicate()
    lines = [json.loads(line)["message"] for line in output.splitlines()]
    assert any(f"worker process {victim} was killed by signal 9: another one takes its place" in one for one in lines)
    assert sum("leaves after SIGINT" in one for one in lines) == 2


def test_workers_end_with_the_process_that_looks_after_them(tmp_path):
    (tmp_path / "app.py").write_text(APP.format(kind="KeyedPool"))
    process = start(tmp_path, "app:pool", "--processes", "2")
    try:
        with KeyedPool("numbers", f"sqlite:///{tmp_path}/numbers.db", slots=16) as pool:
            until(lambda: len(members(pool)) == 2)
            process.kill()
            process.communicate(timeout=HANG)  # they have its pipe, so this waits for their end
            with pool.worker():  # who is there sees that they are dead
                until(lambda: list(members(pool)) == [os.getpid()])
    finally:
        process.kill()
        process.communicate()


def test_workers_are_started_anew_when_the_program_changes(tmp_path):
    app = tmp_path / "app.py"
    app.write_text(APP.format(kind="KeyedPool"))
    process = start(tmp_path, "app:pool", "--reload")
    try:
        with KeyedPool("numbers", f"sqlite:///{tmp_path}/numbers.db", slots=16) as pool:
            double = pool.declare_job("double")
            assert double.dispatch("k", 21).result(HANG) == 42
            app.write_text(APP.format(kind="KeyedPool").replace("2 * number", "200 * number"))
            until(lambda: double.dispatch("k", 21).result(HANG) == 4200)
            os.kill(process.pid, signal.SIGTERM)
            output, _ = process.communicate(timeout=HANG)
            assert process.returncode == 0 and f"{app} has changed" in output
    finally:
        process.kill()
        process.communicate()


def test_workers_that_cannot_begin_are_not_tried_for_ever(tmp_path):
    (tmp_path / "app.py").write_text(APP.format(kind="KeyedPool"))
    process = start(tmp_path, "app:missing", "--processes", "3")
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 2 and output.count("no 'missing'") == 1
    process = start(tmp_path, "app:pool", "--processes", "3", "--health-port", "0")
    output, _ = process.communicate(timeout=HANG)
    assert process.returncode == 2 and "one process" in output


SLOW = """
import pathlib, time
from millpond import Job, KeyedPool

pool = KeyedPool("numbers", "sqlite:///numbers.db", lease=600.0)

@pool.job
def wait(job: Job) -> int:
    pathlib.Path(f"begun-{job.key}-{job.attempt}").touch()
    while not pathlib.Path("go").exists():
        assert not job.lost.is_set
        time.sleep(0.01)
    return job.attempt
"""


def test_a_signal_to_the_whole_group_is_one_signal(tmp_path):
    """A service manager tells every process, and the one that looks after the others passes it on: nobody hurries."""
    (tmp_path / "app.py").write_text(SLOW)
    process = start(tmp_path, "app:pool", "--processes", "2", "--grace", "600")
    try:
        with KeyedPool("numbers", f"sqlite:///{tmp_path}/numbers.db", lease=600.0) as pool:
            until(lambda: len(members(pool)) == 2)
            receipts = [pool.declare_job("wait").dispatch(key) for key in ("a", "b", "c", "d")]
            until(lambda: len(list(tmp_path.glob("begun-*"))) == 4)
            for pid in [*members(pool), process.pid]:
                os.kill(pid, signal.SIGTERM)
            until(lambda: all(one.is_leaving for one in pool.workers()))
            (tmp_path / "go").touch()
            assert [receipt.result(HANG) for receipt in receipts] == [1, 1, 1, 1]
            output, _ = process.communicate(timeout=HANG)
            assert process.returncode == 0 and "hurries" not in output
    finally:
        process.kill()
        process.communicate()


def test_a_worker_that_is_told_to_end_by_others_is_replaced(tmp_path):
    (tmp_path / "app.py").write_text(APP.format(kind="AsyncKeyedPool"))
    process = start(tmp_path, "app:pool", "--processes", "2")
    try:
        with KeyedPool("numbers", f"sqlite:///{tmp_path}/numbers.db", slots=16) as pool:
            until(lambda: len(members(pool)) == 2)
            victim = min(members(pool))
            os.kill(victim, signal.SIGTERM)
            until(lambda: is_replaced(pool, victim))
            pool.admin.shutdown()
            output, _ = process.communicate(timeout=HANG)
            assert process.returncode == 0 and f"worker process {victim} left: another one takes its place" in output
    finally:
        process.kill()
        process.communicate()


def test_a_program_that_is_broken_for_a_while_is_loaded_again(tmp_path):
    app = tmp_path / "app.py"
    app.write_text(APP.format(kind="KeyedPool"))
    process = start(tmp_path, "app:pool", "--reload")
    try:
        with KeyedPool("numbers", f"sqlite:///{tmp_path}/numbers.db", slots=16) as pool:
            until(lambda: len(members(pool)) == 1)
            app.rename(tmp_path / "app.txt")
            assert process.stdout is not None
            while "tried again when a file changes" not in process.stdout.readline():
                assert process.poll() is None
            (tmp_path / "app.txt").rename(app)
            assert pool.declare_job("double").dispatch("k", 21).result(HANG) == 42
            os.kill(process.pid, signal.SIGTERM)
            process.communicate(timeout=HANG)
            assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_health_is_told_over_ipv6_and_a_port_in_use_is_said(tmp_path):
    (tmp_path / "app.py").write_text(APP.format(kind="KeyedPool"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start(tmp_path, "app:pool", "--health-port", str(port))
        output, _ = process.communicate(timeout=HANG)
        assert process.returncode == 1 and f"health cannot be told at 127.0.0.1:{port}" in output
    if not socket.has_ipv6:
        pytest.skip("there is no IPv6 here")
    process = start(tmp_path, "app:pool", "--health-port", "0", "--health-host", "::1")
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        found = next(found for found in (re.search(r"http://::1:(\d+)/healthz", line) for line in lines) if found)
        until(lambda: ask(f"http://[::1]:{found[1]}/readyz")[0] == 200)
    finally:
        process.kill()
        process.communicate()
