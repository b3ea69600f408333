"""The death matrix: real processes that are stopped, killed, forked, hidden in namespaces, or robbed of their file.

The rule under test: a process that lives is never called dead, whatever happens to its locks and files; and one that
was killed is called dead as soon as the kernel says so.
"""

from __future__ import annotations

import dataclasses
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millpond._sqlite import CONFIRM, Database, DeathWatch, LiveFile, Passport, Verdict, enrolled, verdict
from millpond._sqlite._process import read_stat
from waiting import HANG

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "sqlite"))
import sqlite_programs as programs

start = programs.start

HOLDER = """
database = Database(sys.argv[1])
live = LiveFile(database.path)
number = enrol(database, live)
say(number)
while command := hear():
    if command == "drop":
        open(live.path).close()
    elif command == "reassert":
        live.reassert()
    elif command == "second":
        other = LiveFile(sys.argv[2])
        other.lock(1000)
        other.close()
    elif command == "fork":
        pid = os.fork()
        if pid == 0:
            sys.exit()
        os.waitpid(pid, 0)
    elif command == "start a program":
        import subprocess
        subprocess.Popen(["sleep", "600"], close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    elif command.startswith("exec "):
        os.execv(sys.executable, [sys.executable, "-c", command[5:], sys.argv[1]])
    elif command == "leave a child":
        if os.fork() == 0:
            signal.pause()
    say("done")
"""


class Scene:
    def __init__(self, path: Path, start: programs.Starter) -> None:
        self.path, self.start = path, start
        self.database = Database(path)
        self.live = LiveFile(path)

    def holder(self, *args: object, prefix: tuple[str, ...] = ()) -> tuple[programs.Program, int, Passport]:
        program = self.start(HOLDER, self.path, *args, prefix=prefix)
        number = int(program.line())
        with self.database.reading() as transaction:
            return program, number, Passport.decode(enrolled(transaction)[number])

    def close(self) -> None:
        self.live.close()
        self.database.close()


@pytest.fixture
def scene(tmp_path, start):
    made = Scene(tmp_path / "p.db", start)
    yield made
    made.close()


def unseen(passport: Passport) -> Passport:
    """The same process, as it looks from another container: only its lock counts."""
    return dataclasses.replace(passport, namespace="elsewhere")


def test_a_stopped_process_is_alive(scene):
    program, number, passport = scene.holder()
    program.stop()
    assert verdict(passport, number, scene.live) is Verdict.ALIVE
    assert verdict(unseen(passport), number, scene.live) is Verdict.ALIVE


def test_a_killed_process_is_dead_while_a_zombie_and_when_reaped(scene):
    program, number, passport = scene.holder()
    program.kill()
    state = read_stat(program.pid)
    assert state is not None and state.state == "Z"
    assert verdict(passport, number, scene.live) is Verdict.DEAD
    program.process.wait()
    assert verdict(passport, number, scene.live) is Verdict.DEAD
    assert verdict(unseen(passport), number, scene.live) is Verdict.FREED


def test_a_living_pid_with_another_start_time_is_another_process(scene):
    _, number, passport = scene.holder()
    assert verdict(dataclasses.replace(passport, start=passport.start + 1), number, scene.live) is Verdict.DEAD


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_deleted_live_file_kills_nobody(scene, is_recreated):
    program, number, passport = scene.holder()
    scene.live.close()
    os.unlink(scene.live.path)
    if is_recreated:
        LiveFile(scene.path).close()
    scene.live = LiveFile(scene.path)
    assert not scene.live.is_locked(number)  # the trap
    assert verdict(passport, number, scene.live) is Verdict.ALIVE
    assert verdict(unseen(passport), number, scene.live) is Verdict.UNKNOWN
    program.kill()
    assert verdict(passport, number, scene.live) is Verdict.DEAD
    assert verdict(unseen(passport), number, scene.live) is Verdict.UNKNOWN


def test_a_lock_lost_by_accident_kills_nobody_who_can_be_seen_and_is_taken_again(scene):
    program, number, passport = scene.holder()
    program.ask("drop")
    assert verdict(passport, number, scene.live) is Verdict.ALIVE
    assert verdict(unseen(passport), number, scene.live) is Verdict.FREED
    program.ask("reassert")
    assert verdict(unseen(passport), number, scene.live) is Verdict.ALIVE


def test_a_second_object_on_the_file_by_a_link_takes_nothing_along_when_closed(scene, tmp_path):
    os.symlink(tmp_path, tmp_path / "link")
    program, number, passport = scene.holder(tmp_path / "link" / "p.db")
    program.ask("second")
    assert verdict(unseen(passport), number, scene.live) is Verdict.ALIVE
    assert not scene.live.is_locked(1000)


def test_the_end_of_a_forked_child_takes_nothing_along(scene):
    program, number, passport = scene.holder()
    program.ask("fork")
    assert verdict(unseen(passport), number, scene.live) is Verdict.ALIVE


def test_a_forked_child_does_not_keep_its_dead_parent_alive(scene):
    program, number, passport = scene.holder()
    program.ask("leave a child")
    program.kill()
    assert verdict(passport, number, scene.live) is Verdict.DEAD
    assert verdict(unseen(passport), number, scene.live) is Verdict.FREED


IDLE = "print('here', flush=True); input()"
USE_MILLPOND = (
    "import sys; from millpond._sqlite import *; database = Database(sys.argv[1]); live = LiveFile(sys.argv[1]); "
    "number = enrol(database, live); live.close(); LiveFile(sys.argv[1]).close(); print('here', flush=True); input()"
)


@pytest.mark.parametrize("successor", [IDLE, USE_MILLPOND], ids=["stranger", "user of the same file"])
def test_a_process_that_replaced_itself_by_another_program_is_alive_for_everybody(scene, successor):
    program, number, passport = scene.holder()
    assert program.ask("exec " + successor) == "here"
    assert verdict(passport, number, scene.live) is Verdict.ALIVE
    assert verdict(unseen(passport), number, scene.live) is Verdict.ALIVE
    program.kill()
    assert verdict(passport, number, scene.live) is Verdict.DEAD
    assert verdict(unseen(passport), number, scene.live) is Verdict.FREED


def test_a_child_program_does_not_keep_the_lock_of_its_parent(scene):
    program, number, passport = scene.holder()
    assert program.ask("start a program") == "done"
    program.kill()
    assert verdict(unseen(passport), number, scene.live) is Verdict.FREED


def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("options", [(), ("--mount-proc",)])
def test_over_pid_namespaces_only_the_kernels_lock_counts(scene, options):
    if not can_unshare():
        pytest.skip("unshare --pid is not permitted here")
    program, number, passport = scene.holder(prefix=("unshare", "--pid", "--fork", "--kill-child", *options))
    assert passport.pid == 1 and not passport.is_visible  # pid 1 lives here, too, and is somebody else
    assert verdict(passport, number, scene.live) is Verdict.ALIVE
    watch = DeathWatch(scene.live)
    watch.update({number: passport})
    assert watch.dead(eager=True) == []
    began = time.monotonic()
    os.killpg(program.pid, signal.SIGKILL)
    while (dead := watch.dead(eager=True)) == []:
        assert time.monotonic() - began < HANG
        time.sleep(watch.patience(eager=True) or 0)
    took = time.monotonic() - began
    print(f"death in another pid namespace noticed after {took * 1000:.1f} ms")
    assert dead == [number]
    assert took >= CONFIRM
    watch.close()


def test_a_process_in_a_namespace_does_not_take_those_outside_for_dead(scene):
    if not can_unshare():
        pytest.skip("unshare --pid is not permitted here")
    outside, number, _ = scene.holder()
    inside = scene.start(
        """
        database, live = Database(sys.argv[1]), LiveFile(sys.argv[1])
        while hear():
            with database.reading() as transaction:
                sessions = enrolled(transaction)
            say(*[verdict(Passport.decode(passport), number, live).name for number, passport in sessions.items()])
        """,
        scene.path,
        prefix=("unshare", "--pid", "--fork", "--kill-child"),
    )
    assert inside.ask("?") == "ALIVE"
    outside.stop()
    assert inside.ask("?") == "ALIVE"
    outside.kill()
    assert inside.ask("?") == "FREED"


def test_a_kill_is_told_by_the_kernel_and_not_by_a_poll(scene):
    for number in range(5):
        process = subprocess.Popen(["sleep", "3600"])
        try:
            stat = read_stat(process.pid)
            assert stat is not None
            passport = dataclasses.replace(Passport.of_this_process(scene.live), pid=process.pid, start=stat.start)
            watch = DeathWatch(scene.live)
            watch.update({number: passport})
            assert watch.patience(eager=True) is None  # it need not look by itself
        finally:
            process.kill()
        assert select.select([watch], [], [], HANG)[0] == [watch]
        assert watch.dead() == [number]
        assert verdict(passport, number, scene.live) is Verdict.DEAD
        watch.close()
        process.wait()


def test_the_kill_of_a_python_process_with_sessions_is_told_when_its_lock_is_free(scene):
    for _ in range(3):
        program, number, passport = scene.holder()
        watch = DeathWatch(scene.live)
        watch.update({number: passport})
        assert watch.patience(eager=True) is None
        program.signal(signal.SIGKILL)
        assert select.select([watch], [], [], HANG)[0] == [watch]
        assert watch.dead() == [number]
        assert not scene.live.is_locked(number)
        watch.close()
