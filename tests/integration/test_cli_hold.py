"""`millpond run --hold`: in a shell, beside others, killed, nested, in a terminal."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from millpond._person import user
from millpond._urls import shown
from millpond.cli.hold import _standing, in_the_way
from millpond.cli.lending import Hold, telling
from millpond.cli.wanted import Wanted
from millpond.errors import AcquireTimeout
from millpond.resources import ResourcePool
from waiting import HANG, until

COMMAND = [sys.executable, "-c", "from millpond.cli import main; main()"]
LONG = "600"


def _hear_signals() -> None:
    """Undo what `nohup` or a shell's `&` around the tests has set: a signal that is ignored cannot be passed on."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Shell:
    """Runs `millpond` in a place of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        for name in ("MILLPOND_URL", "MILLPOND_HELD", "CUDA_VISIBLE_DEVICES"):
            self.environment.pop(name, None)
        self.url = f"sqlite:///{folder}/state/millpond/pools.db"
        self.running: list[subprocess.Popen[str]] = []

    def run(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        more = {"env": self.environment, "cwd": self.folder, **more}
        return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=HANG, **more)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.folder,
            preexec_fn=_hear_signals,
        )
        self.running.append(child)
        return child

    def hold(self, name: str = "build", *command: str) -> subprocess.Popen[str]:
        """Start a run, and wait until its command runs."""
        child = self.start("run", "--hold", name, "--", *(command or ("sleep", LONG)))
        until(lambda: psutil.Process(child.pid).children(), "the command runs")
        return child

    def holders(self, pool: str = "build") -> list[Any]:
        if not (self.folder / "state" / "millpond" / "pools.db").exists():
            return []
        with ResourcePool(pool, self.url) as looked_at:
            return looked_at.holders()

    def end(self) -> None:
        for child in self.running:
            for process in [*_family(child.pid), child]:
                process.kill()
            child.communicate()


def _family(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.end()


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_command_runs_and_is_told_what_it_holds(shell: Shell):
    script = 'echo "$MILLPOND_RESOURCE $MILLPOND_RESOURCES $MILLPOND_TOKEN"; echo oops >&2; exit 7'
    done = shell.run("run", "--hold", "build", "--", "sh", "-c", script)
    resource, resources, token = done.stdout.split()
    assert (done.returncode, resource, resources) == (7, "build", "build")
    assert done.stderr == "millpond: 'build' is new: a lock of its own\noops\n"
    assert shell.run("run", "-q", "--hold", "biuld", "--", "true").stderr == ""
    assert (
        "'buld' is new: a lock of its own (there is 'build'" in shell.run("run", "--hold", "buld", "--", "true").stderr
    )
    assert int(token) > 0 and not shell.holders()
    folder = shell.folder / "state" / "millpond"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["no-such-command"], 127, "no command 'no-such-command'"),
        (["/etc/passwd"], 126, "cannot be run"),
        (["/etc/passwd/x"], 127, "no command"),
        (["./odd"], 126, "cannot be run"),
        (["sh", "-c", "kill -TERM $$"], 128 + 15, ""),
        (["true"], 0, ""),
    ],
)
def test_exit_codes(shell: Shell, command: list[str], code: int, words: str):
    (shell.folder / "odd").write_text("no shebang")
    (shell.folder / "odd").chmod(0o755)
    done = shell.run("run", "--hold", "build", "--", *command)
    assert done.returncode == code and words in done.stderr
    assert not shell.holders()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--", "true"], "say what to hold, before the command"),
        (["--hold", "a b", "--", "true"], "is not NAME"),
        (["--hold", "a:0", "--", "true"], "asks for nothing"),
        (["--hold", "a{x}", "--", "true"], "is not LABEL=VALUE"),
        (["--hold", "a/b:2", "--", "true"], "names one resource"),
        (["--hold", "a", "--hold", "a", "--", "true"], "by one --hold"),
        (["--hold", "a"], "Missing argument"),
        (["--hold", "a:2", "--", "true"], "could ever satisfy"),
        (["--hold", "a", "--tiemout", "5", "--", "true"], "No such option"),
        (["--hold", "a", "--url", "memory:", "--", "true"], "one process only"),
        (["--hold", "a", "--url", "gopher://u:secret@h", "--", "true"], "no engine for"),
        (["--hold", "n" * 3000, "--", "true"], "name"),
        (["--hold", "a:" + "9" * 5000, "--", "true"], "could ever satisfy"),
        (["--hold", "a", "--priority", "9" * 30, "--", "true"], "priority"),
        (["--hold", "gpus", "--", "true"], "no GPUs here"),
    ],
)
def test_what_cannot_be_is_refused_in_words(shell: Shell, arguments: list[str], words: str):
    done = shell.run("run", *arguments)
    assert done.returncode in (1, 2, 66) and words in done.stderr and "Traceback" not in done.stderr
    assert "secret" not in done.stderr


def test_options_of_the_command_are_its_own(shell: Shell):
    done = shell.run("run", "--hold", "build", "--", "sh", "-c", 'echo "$@"', "sh", "--hold", "--url", "-q")
    assert done.stdout == "--hold --url -q\n"


def test_an_unknown_name_in_a_shared_place_is_a_mistake(shell: Shell):
    shell.environment["MILLPOND_URL"] = f"sqlite:///{shell.folder}/shared.db"
    done = shell.run("run", "--hold", "biuld", "--", "true")
    assert done.returncode == 66 and "--create" in done.stderr
    assert shell.run("run", "--hold", "build", "--create", "--", "true").returncode == 0
    assert shell.run("run", "--hold", "build", "--", "true").returncode == 0


def test_what_is_not_there_is_told_with_the_place_and_what_to_type(shell: Shell):
    shell.run("add", "boards", "rp1", "--label", "chip=rp2040")
    for wanted in ("boards{chip=stm32}", "boards:2", "boards/rp9"):
        done = shell.run("run", "--hold", wanted, "--", "true")
        assert done.returncode == 66 and wanted in done.stderr and shell.url in done.stderr
        assert "`millpond ls boards`" in done.stderr and "()" not in done.stderr and "=True" not in done.stderr


@pytest.mark.parametrize("wanted", ["boards{chip=stm32}", "boards:2"])
def test_an_unknown_name_with_labels_or_a_count_is_no_lock(shell: Shell, wanted: str):
    for create in ([], ["--create"]):
        done = shell.run("run", *create, "--hold", wanted, "--", "true")
        assert done.returncode == 66 and shell.url in done.stderr and "`millpond add boards NAME" in done.stderr
    assert "boards" not in shell.run("ls").stdout


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_time_out_that_nobody_explains_says_what_to_type():
    error = AcquireTimeout("no '*' of pool 'build' was free within 1 s: waiters() and holders() tell who is ahead")
    assert in_the_way(error, Wanted("build")) == "`millpond who build` tells who is ahead and who holds what"
    error = AcquireTimeout("no '*' of pool 'build' was free within 1 s: build is held by ann: make all()")
    assert in_the_way(error, Wanted("build")) == "build is held by ann: make all()"


def test_who_waits_is_told_who_holds_it_and_why(shell: Shell):
    first = shell.start("run", "--hold", "build", "--reason", "nightly", "--", "sleep", LONG)
    until(shell.holders)
    who = rf"{user()} \(pid {first.pid} on \S+\)"
    done = shell.run("run", "--hold", "build", "--timeout", "1", "--", "true")
    assert done.returncode == 75
    assert re.search(rf"no build within 1 s: build is held by {who} since .* \(nightly\)", done.stderr)
    assert not shell.run("run", "--hold", "build", "--timeout", "0.1", "-q", "--", "true").stdout
    second = shell.start("run", "--hold", "build", "--", "echo", "mine")
    with ResourcePool("build", shell.url) as pool:
        until(lambda: len(pool.waiters()) == 1)
    assert second.stderr is not None
    told = second.stderr.readline()  # the first is within a second, on a machine that is not busy
    assert re.search(rf"waiting for build: {who} has build since .*nightly; you are next", told)
    first.terminate()
    out, _ = second.communicate(timeout=HANG)
    assert (out, second.returncode, first.wait(HANG)) == ("mine\n", 0, 128 + 15)


def test_runs_are_served_in_their_order(shell: Shell):
    shell.hold()
    with ResourcePool("build", shell.url) as pool:
        for number in range(5):
            shell.start("run", "--hold", "build", "--", "sh", "-c", f"echo {number} >> order")
            until(lambda number=number: len(pool.waiters()) == number + 1)  # type: ignore[misc]
    shell.running[0].terminate()
    for child in shell.running[1:]:
        child.communicate(timeout=HANG)
    assert (shell.folder / "order").read_text().split() == ["0", "1", "2", "3", "4"]


def test_interrupted_while_it_waits_it_asks_for_nothing_any_more(shell: Shell):
    shell.hold()
    second = shell.start("run", "--hold", "build", "--", "true")
    with ResourcePool("build", shell.url) as pool:
        until(lambda: len(pool.waiters()) == 1)
        second.send_signal(signal.SIGINT)
        assert second.wait(HANG) == 130
        until(lambda: not pool.waiters())


# --- killed -----------------------------------------------------------------------------------------------------------


def test_a_killed_run_takes_its_command_along_and_the_next_one_goes_on(shell: Shell):
    first = shell.hold()
    (command,) = psutil.Process(first.pid).children()
    second = shell.start("run", "--hold", "build", "--", "echo", "mine")
    with ResourcePool("build", shell.url) as pool:
        until(lambda: len(pool.waiters()) == 1)
    first.kill()
    out, _ = second.communicate(timeout=HANG)
    assert out == "mine\n"
    until(lambda: not command.is_running() or command.status() == psutil.STATUS_ZOMBIE)


def test_a_killed_command_frees_what_its_run_held(shell: Shell):
    first = shell.hold()
    (command,) = psutil.Process(first.pid).children()
    command.kill()
    assert first.wait(HANG) == 128 + 9 and not shell.holders()
    assert shell.run("run", "--hold", "build", "--timeout", "50", "--", "true").returncode == 0


def test_what_a_killed_run_left_behind_holds_others_up(shell: Shell):
    first = shell.hold("build", "sh", "-c", f"sleep {LONG} & wait")
    (left,) = until(lambda: [process for process in _family(first.pid) if process.name() == "sleep"])
    first.kill()
    second = shell.start("run", "--hold", "build", "--", "echo", "mine")
    assert second.stderr is not None
    line = ""
    while "what a killed run left behind still uses it" not in line:
        line = second.stderr.readline()
        assert line, "it has ended"
    assert str(left.pid) in line
    assert second.poll() is None
    left.kill()
    out, _ = second.communicate(timeout=HANG)
    assert out == "mine\n"


def test_what_a_killed_run_left_behind_is_avoided_and_seen(shell: Shell):
    assert shell.run("add", "boards", "a", "b").returncode == 0
    first = shell.hold("boards/a", "sh", "-c", f"sleep {LONG} & wait")
    (left,) = until(lambda: [process for process in _family(first.pid) if process.name() == "sleep"])
    first.kill()
    first.wait()
    until(lambda: not shell.holders("boards"))
    done = shell.run("run", "--hold", "boards", "--", "sh", "-c", "echo $MILLPOND_RESOURCE")
    assert done.stdout == "b\n"
    line = next(line for line in shell.run("who").stdout.splitlines() if "left behind" in line)
    assert f"process {left.pid}" in line and "boards" in line
    left.kill()
    until(lambda: "left behind" not in shell.run("who").stdout)


def test_what_a_command_leaves_behind_holds_nobody_up(shell: Shell):
    done = shell.run("run", "--hold", "build", "--", "sh", "-c", f"sleep {LONG} >/dev/null 2>&1 & echo $!")
    left = psutil.Process(int(done.stdout))
    try:
        assert left.is_running()
        again = shell.run("run", "--hold", "build", "--timeout", "50", "--", "echo", "mine")
        assert (again.stdout, again.stderr) == ("mine\n", "")
    finally:
        left.kill()


WORK = "import subprocess; subprocess.run(['sh', '-c', 'while :; do date >> work; sleep 0.05; done'])"


@pytest.mark.parametrize("how", ["signal", "release"])
def test_what_a_command_that_was_ended_has_started_is_ended_too(shell: Shell, how: str):
    """Also where that has closed what it inherited, as the children of Python's subprocess do."""
    first = shell.hold("build", sys.executable, "-c", WORK)
    until((shell.folder / "work").exists)
    family = _family(first.pid)
    first.terminate() if how == "signal" else shell.run("release", "build", "--yes")
    done = shell.run("run", "--hold", "build", "--", "wc", "-l", "work")
    assert done.returncode == 0 and first.wait(HANG) == (128 + 15 if how == "signal" else 76)
    assert all(not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in family)


def test_what_is_added_while_one_waits_may_be_what_one_gets(shell: Shell):
    shell.run("add", "boards", "one")
    shell.hold("boards")
    second = shell.start("run", "--hold", "boards", "--", "sh", "-c", "echo $MILLPOND_RESOURCE")
    with ResourcePool("boards", shell.url) as pool:
        until(lambda: len(pool.waiters()) == 1)
        pool.add("two")
    assert second.communicate(timeout=HANG)[0] == "two\n"


def test_the_time_to_wait_is_for_all_of_it(shell: Shell):
    """For several names together, and for what a killed run has left behind."""
    first = shell.hold("build", "sh", "-c", f"sleep {LONG} & wait")
    (left,) = until(lambda: [process for process in _family(first.pid) if process.name() == "sleep"])
    first.kill()
    assert shell.run("run", "--hold", "build", "--timeout", "0.5", "--", "true").returncode == 75
    left.kill()


def test_the_code_of_the_command_counts_also_when_freeing_fails(shell: Shell):
    done = shell.run("run", "--hold", "build", "--", "sh", "-c", "rm -rf state; exit 7")
    assert done.returncode == 7


def test_long_names_are_told_apart(shell: Shell):
    names = ["x" * 210 + "1", "x" * 210 + "2"]
    assert shell.run("add", "q", *names).returncode == 0
    assert shell.run("run", "--hold", "q:2", "--timeout", "50", "--", "true").returncode == 0


def test_a_reason_cannot_move_the_terminal_of_others(shell: Shell):
    shell.start("run", "--hold", "build", "--reason", "x\x1b]0;PWN\x07\nmillpond: build is yours", "--", "sleep", LONG)
    until(shell.holders)
    shown = [
        shell.run("run", "--hold", "build", "--timeout", "0.7", "--", "true"),
        *(shell.run(verb, "build") for verb in ("show", "events", "who")),
        shell.run("release", "build", "--dry-run"),
    ]
    for done in shown:
        assert "\x1b" not in done.stdout + done.stderr and "\x07" not in done.stdout + done.stderr
        assert "\nmillpond: build is yours" not in done.stdout + done.stderr


def test_who_waits_is_told_of_a_holder_with_its_own_pid_on_another_machine(tmp_path: Path):
    """Programs in containers often have one and the same pid."""
    url = f"sqlite:///{tmp_path}/pools.db"
    with ResourcePool("boards", url, holder="ann") as pool:
        pool.add("rp1")
        with pool.acquire():
            (mine,) = pool.holders()
            assert mine.pid == os.getpid() and "has rp1" not in _standing(pool, Wanted("boards", None, 1, ()))
            other = SimpleNamespace(
                url=url, waiters=list, resources=pool.resources, holders=lambda: [replace(mine, host="lab-2")]
            )
            told = _standing(cast(Any, other), Wanted("boards", None, 1, ()))
            assert told.startswith(f"ann (pid {mine.pid} on lab-2) has rp1")


def test_what_an_operator_takes_away_ends_the_command(shell: Shell):
    first = shell.hold()
    (command,) = psutil.Process(first.pid).children()
    done = shell.run("release", "build", "--yes", "--reason", "urgent")
    assert done.returncode == 0 and f"pid {first.pid}" in done.stdout
    assert first.wait(HANG) == 76
    said = first.communicate()[1]
    assert not command.is_running() and "taken away (" in said and "urgent" in said


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT"])
def test_signals_are_passed_on(shell: Shell, name: str):
    number = name.removeprefix("SIG")
    first = shell.hold(
        "build", "sh", "-c", f"trap 'echo {number}; exit 5' {number}; touch ready; while :; do sleep 0.05; done"
    )
    until((shell.folder / "ready").exists)
    first.send_signal(getattr(signal, name))
    out, _ = first.communicate(timeout=HANG)
    assert (out, first.returncode) == (f"{number}\n", 5)


# --- nested -----------------------------------------------------------------------------------------------------------


def test_a_run_inside_a_run_never_waits_for_itself(shell: Shell):
    inner = [*COMMAND, "run", "--hold", "build", "--timeout", "50", "--", "sh", "-c", "echo $MILLPOND_RESOURCE"]
    done = shell.run("run", "--hold", "build", "--", "sh", "-c", '"$@"; echo $?', "sh", *inner)
    assert done.stdout == "build\n0\n" and "held already by the run around this one" in done.stderr
    assert not shell.holders()


def test_runs_inside_runs_know_all_that_is_around_them(shell: Shell):
    run = [*COMMAND, "run", "-q", "--timeout", "50", "--hold"]
    assert shell.run("run", "--hold", "a", "--", *run, "b", "--", *run, "a", "--", "echo", "inner").stdout == "inner\n"
    kept = [f"{name}={shell.environment.get(name, '')}" for name in ("PATH", "XDG_STATE_HOME", "PYTHONPATH")]
    bare = ["env", "-i", *kept, *run, "a", "--", "echo", "bare"]
    assert shell.run("run", "--hold", "a", "--", *bare).stdout == "bare\n"
    spelled = ["--url", "sqlite:///state/millpond/pools.db"]
    other = [*COMMAND, "run", "-q", *spelled, "--timeout", "50", "--hold", "a", "--", "echo", "spelled"]
    assert shell.run("run", "--hold", "a", "--", *other).stdout == "spelled\n"


def test_a_command_uses_the_place_of_its_run(shell: Shell):
    """Also where another one was set around it: what is inside must not take a lock somewhere else."""
    shell.environment["MILLPOND_URL"] = f"sqlite:///{shell.folder}/other.db"
    shared = f"sqlite:///{shell.folder}/shared.db"
    assert shell.run("add", "--url", shared, "boards", "esp1", "rp1").returncode == 0
    inner = [*COMMAND, "run", "--hold", "boards", "--timeout", "50", "--", "sh", "-c", "echo $MILLPOND_RESOURCE"]
    done = shell.run("run", "--url", shared, "--hold", "boards/esp1", "--", *inner)
    assert done.stdout == "esp1\n" and "held already by the run around this one" in done.stderr
    assert not (shell.folder / "other.db").exists() and not (shell.folder / "state").exists()


def test_a_command_is_told_the_url_once(shell: Shell):
    """As a whole, since it may need the password; what is held for it names the place without."""
    shared = f"sqlite:///{shell.folder}/shared.db"
    show = ["sh", "-c", "echo $MILLPOND_URL; echo $MILLPOND_HELD"]
    script = ["run", "--create", "--url", "sqlite:///shared.db", "--hold", "a", "--", *show]
    url, held = shell.run(*script).stdout.splitlines()
    assert url == shared and json.loads(held)[0]["url"] == shared
    secret = Hold("a", ["a"], 1, shown("redis://ann:secret@lab:6379"))
    assert "secret" not in telling([secret]) and "ann" in telling([secret])
    own, _ = shell.run("run", "--hold", "a", "--", *show).stdout.splitlines()
    assert own == ""  # the file of the user, where an unknown name is a lock: it is found without a word


def test_the_outer_run_waits_for_one_inside_it(shell: Shell):
    inner = " ".join([sys.executable, "-c", "'from millpond.cli import main; main()'", "run -q --hold a --"])
    script = f"{inner} sh -c 'touch begun; while ! test -e over; do sleep 0.02; done' & while ! test -e begun; do sleep 0.02; done"
    outer = shell.start("run", "--hold", "a", "--", "sh", "-c", script)
    until((shell.folder / "begun").exists)
    assert shell.run("run", "--hold", "a", "--timeout", "0.3", "--", "true").returncode == 75
    assert outer.poll() is None
    (shell.folder / "over").touch()
    assert outer.wait(HANG) == 0


def test_a_run_inside_a_run_that_wants_more_is_told_so(shell: Shell):
    assert shell.run("add", "boards", "a", "b").returncode == 0
    inner = [*COMMAND, "run", "--hold", "boards:2", "--", "true"]
    done = shell.run("run", "--hold", "boards", "--", *inner)
    assert done.returncode == 66 and "ask for all of it there" in done.stderr


def test_a_stale_word_of_the_environment_is_no_grant(shell: Shell):
    shell.hold()
    claim = [{"pool": "build", "resources": ["build"], "token": 1, "pid": os.getpid(), "url": shell.url}]
    environment = {**shell.environment, "MILLPOND_HELD": json.dumps(claim)}
    done = shell.run("run", "--hold", "build", "--timeout", "0.2", "--", "true", env=environment)
    assert done.returncode == 75
    for nonsense in ("x", "{}", "[1]", '[{"pool": 5}]', "[" * 50_000):
        environment = {**shell.environment, "MILLPOND_HELD": nonsense}
        assert shell.run("run", "--hold", "other", "--", "true", env=environment).returncode == 0


# --- several, and GPUs ------------------------------------------------------------------------------------------------


def test_several_names_labels_and_counts(shell: Shell):
    shell.run("add", "boards", "rp1", "rp2", "--label", "chip=rp2040")
    shell.run("add", "boards", "esp", "--label", "chip=esp32")
    show = ["sh", "-c", "echo $MILLPOND_RESOURCES"]
    assert shell.run("run", "--hold", "boards:2{chip=rp2040}", "--", *show).stdout == "rp1,rp2\n"
    assert shell.run("run", "--hold", "boards{chip=esp32}", "--hold", "build", "--", *show).stdout == "esp,build\n"
    assert shell.run("run", "--hold", "boards/rp2", "--", *show).stdout == "rp2\n"


def test_two_that_want_the_same_two_in_another_order_do_not_wait_for_each_other(shell: Shell):
    for number in range(6):
        names = ["a", "b"] if number % 2 else ["b", "a"]
        shell.start("run", "--hold", names[0], "--hold", names[1], "--", "true")
    assert [child.wait(HANG) for child in shell.running] == [0] * 6


SMI = """#!/bin/sh
echo "0, GPU-aaa, NVIDIA A100-SXM4-80GB, 81920"
echo "1, GPU-bbb, NVIDIA A100-SXM4-80GB, 81920"
echo "2, GPU-ccc, NVIDIA GeForce RTX 4090, 24564"
"""


def _have_gpus(shell: Shell) -> None:
    (shell.folder / "bin").mkdir()
    tool = shell.folder / "bin" / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o755)
    shell.environment["PATH"] = f"{tool.parent}:{shell.environment['PATH']}"


def test_gpus_are_found_and_the_command_sees_its_own_only(shell: Shell):
    _have_gpus(shell)
    show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES $MILLPOND_RESOURCES"]
    assert shell.run("run", "--gpus", "2", "--", *show).stdout == "0,1 gpu-0,gpu-1\n"
    assert shell.run("run", "--hold", "gpus{model=rtx-4090}", "--", *show).stdout == "2 gpu-2\n"
    listed = json.loads(shell.run("ls", "gpus", "-o", "json").stdout)
    assert [one["labels"]["memory"] for one in listed] == ["80", "80", "24"]
    outer = {**shell.environment, "CUDA_VISIBLE_DEVICES": "1"}
    assert shell.run("run", "--gpus", "1", "--", *show, env=outer).stdout == "1 gpu-1\n"
    assert (
        "no GPU may be used"
        in shell.run("run", "--gpus", "1", "--", "true", env={**outer, "CUDA_VISIBLE_DEVICES": ""}).stderr
    )
    inner = [*COMMAND, "run", "-q", "--gpus", "1", "--", *show]
    assert shell.run("run", "--gpus", "2", "--", *inner).stdout == "0 gpu-0\n"


def test_more_gpus_than_the_variable_around_allows_are_refused_with_its_name(shell: Shell):
    _have_gpus(shell)
    done = shell.run("run", "--gpus", "2", "--", "true", env={**shell.environment, "CUDA_VISIBLE_DEVICES": "1"})
    assert done.returncode == 66 and "CUDA_VISIBLE_DEVICES is 1 here, and allows no others" in done.stderr


def test_gpus_without_an_index_are_refused_since_no_variable_could_be_set(shell: Shell):
    _have_gpus(shell)
    shell.run("add", "gpus", "0", "--label", "model=a100")
    for wanted in (["--gpus", "1"], ["--hold", "gpus"], ["--hold", "gpus/0"], ["--hold", "gpus{model=a100}"]):
        done = shell.run("run", *wanted, "--", "touch", "ran")
        assert done.returncode == 66 and "gpus/0 has no label `index`" in done.stderr, done.stderr
        assert "CUDA_VISIBLE_DEVICES" in done.stderr and "`millpond remove gpus/0`" in done.stderr
    assert not (shell.folder / "ran").exists() and not shell.holders()
    shell.run("add", "gpus", "gpu-1", "--label", "index=1")
    show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    assert shell.run("run", "--hold", "gpus/gpu-1", "--", *show).stdout == "1\n", "it could not be another"
    assert shell.run("run", "--gpus", "1", "--", *show).returncode == 66, "who adds GPUs twice would lend them twice"


# --- a terminal -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the child runs another program at once
def test_ctrl_c_in_a_terminal_reaches_the_command_once(shell: Shell):
    pid, leader = pty.fork()
    if pid == 0:
        os.chdir(shell.folder)
        script = "trap 'echo caught >> caught' INT; touch ready; sleep 600; touch next; sleep 600; exit 9"
        os.execvpe(COMMAND[0], [*COMMAND, "run", "--hold", "build", "--", "sh", "-c", script], shell.environment)
    try:
        until((shell.folder / "ready").exists)
        until(lambda: any(process.name() == "sleep" for process in _family(pid)))
        os.write(leader, b"\x03")  # ends the first sleep; the shell goes on (what it prints now, the terminal may drop)
        until((shell.folder / "next").exists)
        assert (shell.folder / "caught").read_text() == "caught\n" and shell.holders()
    finally:
        for process in [*_family(pid), psutil.Process(pid)]:
            process.kill()
        os.waitpid(pid, 0)
        os.close(leader)


# --- a storm ----------------------------------------------------------------------------------------------------------


PROGRAM = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20020000):  # a new pid namespace for the children, and a new view of the mounts
    sys.exit(111)
pid = os.fork()
if pid == 0:
    libc.prctl(1, 9)  # it dies with its parent
    if libc.mount(b"none", b"/", None, 0x44000, None) or libc.mount(b"proc", b"/proc", b"proc", 0, None):
        sys.exit(111)
    os.execvp(sys.argv[1], sys.argv[1:])
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
APART = (sys.executable, "-S", "-c", PROGRAM)
"""In a pid namespace of its own, as in a container that shares the file."""


def can_be_apart() -> bool:
    return subprocess.run([*APART, "true"], capture_output=True).returncode == 0


def storm(
    shell: Shell, shells: int, runs: int, kills: int, seed: int, *, apart: bool = False
) -> tuple[list[int], int, list[float]]:
    """Start shells that fight over one name, kill runs and commands at random, until one was struck that had begun.

    With `apart`, every other run is in a pid namespace of its own. Return exit codes, how many were struck, and the
    seconds that each shell took.
    """
    flock = shutil.which("flock")
    assert flock is not None, "util-linux has it"
    command = [flock, "-n", "-E", "99", "-o", str(shell.folder / "oracle"), "sleep", "0.01"]
    codes: list[int] = []
    alive: set[int] = set()
    rng, struck, is_over = random.Random(seed), 0, threading.Event()

    took: list[float] = []

    def fight(number: int) -> None:
        began = time.monotonic()
        each = 0
        while each < runs or not struck:
            where = APART if apart and (number + each) % 2 else ()
            arguments = [*where, *COMMAND, "run", "-q", "--hold", "build", "--", *command]
            child = subprocess.Popen(arguments, env=shell.environment, cwd=shell.folder)
            alive.add(child.pid)
            codes.append(child.wait())
            alive.discard(child.pid)
            each += 1
        took.append(time.monotonic() - began)

    def strike() -> None:
        nonlocal struck
        while struck < kills and not is_over.wait(0.02):
            for pid in rng.sample(sorted(alive), min(1, len(alive))):
                family = _family(pid)
                if not family:
                    continue  # its command has not begun
                victim = rng.choice([pid, *(process.pid for process in family)])
                try:
                    os.kill(victim, signal.SIGKILL)
                except OSError:
                    continue
                struck += 1

    threads = [threading.Thread(target=fight, args=(number,)) for number in range(shells)]
    killer = threading.Thread(target=strike)
    for thread in (*threads, killer):
        thread.start()
    for thread in threads:
        thread.join()
    is_over.set()
    killer.join()
    return codes, struck, took


def check_storm(shell: Shell, codes: list[int], runs: int) -> None:
    assert len(codes) >= runs
    assert 99 not in codes, "two commands ran at once"
    assert set(codes) <= {0, -9, 128 + 9}, codes
    assert codes.count(0) > 0
    assert shell.run("run", "--hold", "build", "--timeout", str(HANG), "--", "true").returncode == 0, "it is stale"
    assert not shell.holders()


def test_a_small_storm_overlaps_nowhere_and_leaves_nothing(shell: Shell):
    codes, struck, _ = storm(shell, 4, 8, 8, random.randrange(1 << 32))
    check_storm(shell, codes, 32)
    assert struck > 0


def test_runs_of_two_pid_namespaces_exclude_each_other(shell: Shell):
    if not can_be_apart():
        pytest.skip("this system lets nobody make a pid namespace")
    codes, struck, _ = storm(shell, 4, 6, 6, random.randrange(1 << 32), apart=True)
    check_storm(shell, codes, 24)
    assert struck > 0


def test_the_same_pid_in_another_namespace_is_a_stranger(shell: Shell):
    if not can_be_apart():
        pytest.skip("this system lets nobody make a pid namespace")
    inner = [*COMMAND, "run", "-q", "--hold", "build", "--timeout", "0", "--", "true"]
    script = f"{shlex.join(inner)}; exit $?"  # so that the run has this shell, which is pid 1, around it
    holder = subprocess.Popen(
        [*APART, *COMMAND, "run", "-q", "--hold", "build", "--", "sleep", LONG], env=shell.environment, cwd=shell.folder
    )  # it is pid 1 as well
    try:
        until(lambda: [one.state for one in shell.holders()] == ["held"])
        assert shell.holders()[0].pid == 1
        done = subprocess.run([*APART, "sh", "-c", script], env=shell.environment, cwd=shell.folder, timeout=HANG)
        assert done.returncode == 75
    finally:
        holder.kill()  # what is in there dies with it
        holder.wait()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_storm_of_32_shells_overlaps_nowhere_and_leaves_nothing(shell: Shell):
    codes, struck, took = storm(shell, 32, 50, 200, random.randrange(1 << 32), apart=can_be_apart())
    check_storm(shell, codes, 1600)
    print(f"{struck} killed, shells took {min(took):.1f} to {max(took):.1f} s")
    assert struck >= 200 and max(took) / min(took) <= 1.2
