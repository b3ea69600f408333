"""`millpond worker MODULE:POOL` as a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millpond import KeyedPool
from millpond.errors import JobFailed
from waiting import HANG

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
