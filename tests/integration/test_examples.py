"""Every example runs alone and prints what it promises."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millpond import KeyedPool
from millpond.errors import EngineError
from millpond.testing._redis import find_redis_server, redis_server
from waiting import HANG, until

EXAMPLES = Path(__file__).parents[2] / "examples"

PRINTS = {
    "bounded_downloads": ["stopped: https://example.invalid/42 is gone", "1 failed"],
    "directory_sizes": ["3000 bytes, 30 folders deep"],
    "crash_proof": ["crashed: [3, 13, 23]", "the rest: 7848", "never ended was killed"],
    "crawler": ["200 pages", "at once"],
    "gpu_pool": [
        "ann has gpu-0\nbob has gpu-1\n",
        "in line: 1. cid for model=a100: gpu-0 is held by ann (pid ",
        " s (training); gpu-1 is held by bob (pid ",
        "in line: 2. dan for model=a100: 1 ahead of it; gpu-0 is held by ann (pid ",
        "ms later cid has gpu-0",
        "bob is done, and dan has gpu-1",
        "gpu-0 died: ann",
    ],
    "device_lab": [
        "with NFC: pixel-1; when that is taken, any Android: pixel-2",
        "bundle: 1 of pixel-1, 1 of iphone-1, 2 of bench-power",
        "nobody gets past the one who waits for all four",
        "ci waits for @bench-power (all units): bench-power is held by ci (pid ",
        " s (soldering) and 3 of 4 units free",
        "calibration has all 4 outputs",
        "iphone-1 is quarantined (screen is cracked)",
        "ann holds pixel-1: test_login failed",
        "last in the history: revoked",
    ],
    "migration_lock": [
        "migrated from 0 to 2\n4 others found it done\n",
        "to 'schema' refused: token",
    ],
}


ON_TEMPORAL = {"temporal_resource_pool", "temporal_resource_locking"}
KEYED = {"fibonacci", "tenants"}


def test_every_example_is_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PRINTS)
    assert {path.parent.name for path in EXAMPLES.glob("*/*.py")} == ON_TEMPORAL | KEYED


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_runs_and_prints_what_it_promises(name):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, timeout=2 * HANG
    )
    assert done.returncode == 0, done.stderr
    for line in PRINTS[name]:
        assert line in done.stdout


def run_on_temporal(name, address):
    """Run worker and starter as the docstring of the example says; return what each printed."""
    worker = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", f"{name}.worker", address],
        cwd=EXAMPLES,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert worker.stdout is not None
        ready = worker.stdout.readline()
        starter = subprocess.run(
            [sys.executable, "-W", "error", "-m", f"{name}.starter", address],
            cwd=EXAMPLES,
            text=True,
            capture_output=True,
            timeout=2 * HANG,
        )
        worker.send_signal(signal.SIGINT)
        out, errors = worker.communicate(timeout=HANG)
    finally:
        worker.kill()
        worker.communicate()
    assert ready == "worker is ready\n"
    ends = (0, -6, -11)  # Temporal's SDK crashes now and then on a busy machine, when the interpreter has ended
    assert starter.returncode in ends, starter.stderr + out + errors
    assert worker.returncode in ends, errors
    return out, starter.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workflows_and_a_program_take_turns_with_two_gpus(temporal):
    work, story = run_on_temporal("temporal_resource_pool", temporal.address)
    for line in (
        "ann is done with",
        "bob is done with",
        "cid is done with",
        "dan ended: dan found a mistake in its data",
        "eve ended: Workflow cancelled",
        "fay ended: ",
        "all is given back",
    ):
        assert line in story
    assert re.search(r"gpu-\d  fay  \(died\)", story)

    lines = sorted(re.findall(r"^(\S+)  (gpu-\d)  (\w+)  (begins|ends) (\w+)$", work + story, re.M))
    for gpu in ("gpu-0", "gpu-1"):
        steps = [(user, what, step) for _, name, user, what, step in lines if name == gpu]
        for begin, end in zip(steps[::2], steps[1::2], strict=True):  # each step ends before the next one begins
            assert (begin[0], "begins", begin[2]) == (end[0], begin[1], end[2]) and end[1] == "ends"
        turns = [user for user, _ in itertools.groupby(user for user, _, _ in steps)]
        assert len(turns) == len(set(turns)), "somebody was let in between two steps of one holder"
        assert turns[-1] == "gil"
    used = {user: {step for _, _, who, _, step in lines if who == user} for user in ("ann", "cid", "dan", "eve", "fay")}
    assert used["ann"] == {"load", "train", "save"}
    assert used["cid"] == {"load", "train", "evaluate", "save"}  # over two runs, on one GPU
    assert used["dan"] == used["eve"] == used["fay"] == {"load"}
    assert len({name for _, name, user, _, _ in lines if user == "cid"}) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workflows_lock_accounts_by_name(temporal):
    work, result = run_on_temporal("temporal_resource_locking", temporal.address)
    assert "12 transfers are done: {'ann': 115, 'bob': 105, 'cid': 95, 'dan': 85}\n" in result
    assert "together: 400\nall is given back\n" in result

    locked = set()
    lines = sorted(re.findall(r"^(\S+)  (begins|ends) (\w+) to (\w+): \d+$", work, re.M))
    assert len(lines) == 24
    for _, what, source, target in lines:
        if what == "begins":
            assert not locked & {source, target}
            locked |= {source, target}
        else:
            locked -= {source, target}


def program(folder, module, *arguments, **variables):
    """Start a program of an example in a folder of its own."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    environment.pop("MILLPOND_URL", None)
    environment.update(variables)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", module, *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


STOOD_STILL = r"worker \w+ of pool '\w+' is (cut off \(lease\): its handlers stop|back: it was cut off as \w+)"
"""What a worker says on a machine that stood still for longer than its lease: no fault of an example."""


def ended(running, complaint=r"(?!)"):
    """Return what a program printed, when it has ended well, and logged no other warning than this."""
    try:
        out, errors = running.communicate(timeout=4 * HANG)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 0, errors
    assert not [line for line in errors.splitlines() if not re.fullmatch(f"{complaint}|{STOOD_STILL}", line)]
    return out


def fibonacci_worker(folder):
    """Start a worker that stays until Ctrl-C, and return when it has joined."""
    worker = program(folder, "fibonacci.worker", "3600")
    assert worker.stdout.readline() == "worker is ready\n"
    with KeyedPool("fibonacci", f"sqlite:///{folder}/fibonacci.db") as pool:
        until(pool.workers, "a worker")
    return worker


def test_a_producer_and_a_worker_meet_in_a_file(tmp_path):
    first = fibonacci_worker(tmp_path)
    told = ended(program(tmp_path, "fibonacci.producer", "42", "90"))
    assert told.endswith("fib(42)=267914296\nfib(90)=2880067194370816120\n")
    first.send_signal(signal.SIGINT)
    assert ended(first) == "key: fib(42)=267914296\nkey: fib(90)=2880067194370816120\nworker has left\n"

    alone = ended(program(tmp_path, "fibonacci.producer", "7"))  # nobody is there to run it
    assert alone.endswith("fib(7) is waiting: start a worker\n")
    second = fibonacci_worker(tmp_path)
    assert second.stdout.readline() == "key: fib(7)=13\n"
    second.send_signal(signal.SIGINT)
    assert ended(second) == "worker has left\n"


@pytest.mark.timeout(300)
def test_every_tenant_is_looked_after_by_one_worker(tmp_path):
    story = ended(
        program(tmp_path, "tenants.story"), r"worker \w+ of pool 'tenants' is dead: others take over its keys"
    )
    for line in (
        "eight tenants on three workers",
        "bob left, ivy came, ann has another plan",
        "a worker was killed, its tenants go on elsewhere",
        "a worker was asked to leave, and did (exit code 0)",
        "the last worker left (exit code 0)",
    ):
        assert line in story

    lines = sorted(re.findall(r"^(\S+)  (\d+)  (\w+) \((\w+)\) (begins|ends)", story, re.M))
    pids = {pid for _, pid, *_ in lines}
    left = set(re.findall(r"(\d+)  a worker has left", story))
    assert len(left) == 2
    tenants = {name for _, _, name, *_ in lines}
    assert tenants == {"ann", "bob", "cid", "dan", "eve", "fay", "gil", "hal", "ivy"}
    for tenant in tenants:  # nobody begins before the one before has ended, or was killed
        running = None
        for _, pid, name, plan, what in lines:
            if name == tenant and what == "begins":
                assert running is None or running[0] in pids - left, f"{tenant} runs twice:\n{story}"
                running = (pid, plan)
            elif name == tenant:
                assert running == (pid, plan), f"{tenant} ends where it did not run:\n{story}"
                running = None
        assert running is None, f"{tenant} has not ended:\n{story}"
    assert [plan for *_, name, plan, what in lines if (name, what) == ("ann", "begins")][-1] == "premium"


@pytest.mark.timeout(300)
def test_tenants_are_looked_after_again_when_redis_comes_back_empty(tmp_path):
    if find_redis_server() is None:
        problem = "no redis-server here: what needs one is not tested"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    ended(program(tmp_path, "tenants.tenant", "add", "ann", "bob"))
    with redis_server() as server:
        worker = program(tmp_path, "tenants.worker", MILLPOND_URL=server.url)
        with KeyedPool("tenants", server.url) as pool:

            def looked_after():
                try:
                    found = pool.residents()
                except EngineError:  # it is away, or has no pool yet
                    return set()
                return {one.key for one in found if one.name == "look_after" and one.state == "running"}

            def begins():
                """Wait until it says so: it is on a worker before it has begun."""
                return any("ann (basic) begins" in line for line in worker.stdout)

            try:
                until(lambda: looked_after() == {"ann", "bob"})
                assert begins()
                server.restart()
                until(lambda: looked_after() == {"ann", "bob"}, "they are back")
                assert begins()
                worker.send_signal(signal.SIGTERM)
                assert "ann (basic) begins" not in ended(worker, r".*pool 'tenants'.*")
            finally:
                worker.kill()
                worker.communicate()
