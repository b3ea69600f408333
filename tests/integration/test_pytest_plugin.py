"""The plugin of pytest: tests that hold what they use, alone and under xdist."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from millpond.resources import ResourcePool
from waiting import HANG

PLUGIN = ["-p", "millpond.pytest_plugin"]


class Suite:
    """A folder with tests of a user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.patience = 3 * HANG
        self.url = f"sqlite:///{folder}/pools.db"
        (folder / "pytest.ini").write_text(f"[pytest]\nmillpond_url = {self.url}\n")
        self.environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        for name in ("MILLPOND_MATRIX", "CUDA_VISIBLE_DEVICES"):
            self.environment.pop(name, None)

    def write(self, text: str, name: str = "test_it.py") -> None:
        (self.folder / name).write_text(textwrap.dedent(text))

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGIN, *options],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=self.patience,
        )


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def test_a_test_holds_what_its_mark_names(suite: Suite):
    with ResourcePool("boards", suite.url) as pool:
        for name, chip in (("a", "esp32"), ("b", "rp2040"), ("c", "rp2040")):
            pool.add(name, labels={"chip": chip})
    suite.write(
        """
        import pytest
        from millpond import ResourcePool

        @pytest.mark.holds("boards", count=2, chip="rp2040")
        def test_two(held, request):
            assert held.resources == ("b", "c") and held.token > 0
            with ResourcePool("boards", request.config.getini("millpond_url")) as pool:
                (holder,) = pool.holders()
            assert holder.reason == "pytest: test_it.py::test_two"

        @pytest.mark.holds("boards", name="a")
        @pytest.mark.holds("licence")
        class TestBoth:
            def test_several(self, held):
                assert [grant.resource for grant in held] == ["a", "licence"]

        @pytest.mark.holds("boards", count=9)
        def test_too_many():
            pass

        @pytest.mark.holds()
        def test_wrong():
            pass

        def test_nothing(held):
            pass

        def test_without():
            pass
        """
    )
    done = suite.run()
    assert "3 passed, 3 errors" in done.stdout, done.stdout
    assert "could ever satisfy" in done.stdout and "takes the name of a pool first" in done.stdout
    assert "mark it with @pytest.mark.holds(POOL)" in done.stdout
    with ResourcePool("boards", suite.url) as pool:
        assert not pool.holders()


def devices(suite: Suite, workers: int, tests: int, killed: list[int]) -> None:
    """Run tests whose xdist workers share two devices; some tests kill their worker."""
    with ResourcePool("devices", suite.url) as pool:
        pool.add("one")
        pool.add("two")
    suite.write(
        f"""
        import fcntl, os, signal, time
        import pytest

        @pytest.mark.parametrize("number", range({tests}))
        @pytest.mark.holds("devices")
        def test_use(number, held):
            with open(f"oracle-{{held.resource}}", "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if another has it
                if number in {killed} and not os.path.exists(f"killed-{{number}}"):
                    open(f"killed-{{number}}", "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.01)
            with open("ran", "a") as log:
                log.write(f"{{number}}\\n")
        """
    )
    done = suite.run("-p", "xdist.plugin", "-n", str(workers))
    assert f"{tests - len(killed)} passed" in done.stdout, done.stdout
    assert done.stdout.count("crashed while running") >= len(killed) and "BlockingIOError" not in done.stdout
    ran = {int(line) for line in (suite.folder / "ran").read_text().split()}
    assert ran == set(range(tests)) - set(killed)
    with ResourcePool("devices", suite.url) as pool:
        assert not pool.holders() and not pool.waiters()


def test_workers_of_xdist_share_devices_and_a_killed_one_frees_its_own(suite: Suite):
    devices(suite, 4, 40, [7, 21])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_workers_of_xdist_share_devices_and_twenty_are_killed(suite: Suite):
    suite.patience = 1200.0
    devices(suite, 8, 400, list(range(7, 400, 20)))


def test_gpus_of_a_run_are_set_before_anything_is_imported(suite: Suite):
    (suite.folder / "bin").mkdir()
    tool = suite.folder / "bin" / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "0, GPU-a, NVIDIA A100, 81920"\necho "1, GPU-b, NVIDIA A100, 81920"\n')
    tool.chmod(0o755)
    suite.environment["PATH"] = f"{tool.parent}:{suite.environment['PATH']}"
    suite.write(
        """
        import os
        import pytest
        SEEN = os.environ["CUDA_VISIBLE_DEVICES"]

        @pytest.mark.parametrize("number", range(8))
        def test_seen(number):
            with open("seen", "a") as log:
                log.write(SEEN + "\\n")
        """
    )
    assert "8 passed" in suite.run("--hold", "gpus:1").stdout
    assert set((suite.folder / "seen").read_text().split()) == {"0"}
    done = suite.run("--hold", "gpus:1", "-p", "xdist.plugin", "-n", "2")
    assert "8 passed" in done.stdout, done.stdout + done.stderr
    assert set((suite.folder / "seen").read_text().split()) == {"0", "1"}


def test_what_is_held_for_the_run_or_around_it_is_not_waited_for(suite: Suite):
    suite.write(
        """
        import pytest

        @pytest.mark.holds("rig")
        def test_rig(held):
            assert held.resource == "rig" and held.token > 0
        """
    )
    assert "1 passed" in suite.run("--hold", "rig").stdout
    command = [sys.executable, "-m", "millpond", "run", "--create", "--url", suite.url, "--hold", "rig", "--"]
    command += [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGIN]
    done = subprocess.run(
        command, cwd=suite.folder, env=suite.environment, capture_output=True, text=True, timeout=3 * HANG
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    with ResourcePool("rig", suite.url) as pool:
        assert not pool.holders()


def test_tests_inside_a_run_use_its_place(suite: Suite):
    with ResourcePool("boards", suite.url) as pool:
        pool.add("esp1")
        pool.add("rp1")
    (suite.folder / "pytest.ini").write_text("[pytest]\n")
    suite.environment["XDG_STATE_HOME"] = str(suite.folder / "state")
    suite.environment.pop("MILLPOND_URL", None)
    suite.write(
        """
        import pytest

        @pytest.mark.holds("boards")
        def test_board(held):
            assert held.resource == "esp1"
        """
    )
    command = [sys.executable, "-m", "millpond", "run", "--url", suite.url, "--hold", "boards/esp1", "--"]
    command += [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGIN]
    done = subprocess.run(
        command, cwd=suite.folder, env=suite.environment, capture_output=True, text=True, timeout=3 * HANG
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    assert not (suite.folder / "state").exists()


def test_what_a_test_starts_uses_the_place_of_its_run(suite: Suite):
    suite.environment["XDG_STATE_HOME"] = str(suite.folder / "state")
    suite.write(
        """
        import subprocess, sys

        def test_inner():
            run = [sys.executable, "-m", "millpond", "run", "--hold", "rig", "--timeout", "50", "--", "true"]
            done = subprocess.run(run, capture_output=True, text=True)
            assert done.returncode == 0 and "held already" in done.stderr, done.stderr
        """
    )
    done = suite.run("--hold", "rig")
    assert "1 passed" in done.stdout, done.stdout
    assert not (suite.folder / "state").exists()


def test_one_pool_is_marked_once(suite: Suite):
    suite.write(
        """
        import pytest

        @pytest.mark.holds("rig")
        @pytest.mark.holds("rig", count=2)
        def test_rig():
            pass
        """
    )
    done = suite.run()
    assert "1 error" in done.stdout and "'rig' is marked twice: hold several of one pool by one mark" in done.stdout


def test_labels_that_nothing_has_fail_a_test_and_make_nothing(suite: Suite):
    suite.write(
        """
        import pytest

        @pytest.mark.holds("boards", chip="stm32")
        def test_board():
            pass
        """
    )
    done = suite.run()
    assert "1 error" in done.stdout and f"there is no 'boards' at {suite.url}" in done.stdout, done.stdout
    with ResourcePool("boards", suite.url) as pool:
        assert not pool.resources()
        pool.add("rp1", labels={"chip": "rp2040"})
    done = suite.run()
    assert "could ever satisfy boards{chip=stm32}" in done.stdout and suite.url in done.stdout, done.stdout


def test_jobs_of_a_program_are_run_in_memory(suite: Suite):
    suite.write(
        """
        from millpond import Job, KeyedPool

        pool = KeyedPool("tenants", "redis://127.0.0.1:1")

        @pool.job
        def double(job: Job, number: int) -> int:
            return 2 * number
        """,
        "app.py",
    )
    suite.write(
        """
        import app

        def test_double(in_memory):
            in_memory(app.pool)
            assert app.double.dispatch("k", 21).result(30) == 42

        def test_again(in_memory):
            assert in_memory(app.pool, worker=False).statistics().dispatched_total == 0
        """
    )
    done = suite.run()
    assert "2 passed" in done.stdout, done.stdout


def test_workers_inside_a_run_use_each_their_own_part_of_what_it_holds(suite: Suite):
    with ResourcePool("devices", suite.url) as pool:
        for name in ("one", "two", "three"):
            pool.add(name)
    suite.write(
        """
        import fcntl, time
        import pytest

        @pytest.mark.parametrize("number", range(16))
        @pytest.mark.holds("devices")
        def test_use(number, held):
            assert held.resource != "three"
            with open(f"oracle-{held.resource}", "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if another has it
                time.sleep(0.02)
        """
    )
    command = [sys.executable, "-m", "millpond", "run", "--url", suite.url, "--hold", "devices:2", "--"]
    command += [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *PLUGIN,
        "-p",
        "xdist.plugin",
        "-n",
        "3",
    ]
    done = subprocess.run(
        command, cwd=suite.folder, env=suite.environment, capture_output=True, text=True, timeout=3 * HANG
    )
    assert done.returncode == 0 and "16 passed" in done.stdout, done.stdout + done.stderr


def test_what_cannot_be_held_for_a_run_is_said_in_a_line(suite: Suite):
    suite.write("def test_nothing(): pass")
    for holds, words in (
        (["--hold", "rig:9"], "could ever satisfy"),
        (["--hold", "rig/a", "--hold", "rig/b"], "by one --hold NAME:COUNT"),
        (["--hold", "rig:x"], "is not NAME"),
    ):
        done = suite.run(*holds)
        assert done.returncode == 4 and words in done.stderr and "INTERNALERROR" not in done.stdout + done.stderr
