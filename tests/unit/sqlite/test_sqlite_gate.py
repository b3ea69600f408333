"""The gate, one rule at a time; storms are in tests/integration."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from millpond._sqlite import Gate, _lockfile
from millpond._sqlite import _gate as gate_module
from millpond.errors import EngineError
from waiting import never, until

sys.path.insert(0, str(Path(__file__).parent))
import sqlite_programs as programs

start = programs.start

HOLDER = "gate = Gate(sys.argv[1]); gate.enter(); say('inside'); hear(); gate.leave(); say('left'); hear()"


@pytest.fixture
def gate(tmp_path):
    made = Gate(tmp_path / "p.db")
    yield made
    made.close()


def test_one_process_at_a_time(gate, start):
    program = start(HOLDER, gate.database)
    program.line()
    assert not gate.try_enter()
    assert not gate.enter_within(0.01)
    assert program.ask() == "left"
    assert gate.try_enter()
    gate.leave()


def test_one_thread_at_a_time_also_through_two_objects(gate):
    other = Gate(gate.database)
    gate.enter()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(other.try_enter()))
    thread.start()
    thread.join()
    assert seen == [False]
    gate.leave()
    assert other.try_enter()
    other.leave()
    other.close()


def test_waiting_ends_when_the_other_leaves(gate, start):
    program = start(HOLDER, gate.database)
    program.line()
    me = threading.get_native_id()

    def end_the_wait() -> None:
        until(lambda: _syscall(os.getpid(), me) == "fcntl")
        program.tell()

    thread = threading.Thread(target=end_the_wait)
    thread.start()
    gate.enter()
    thread.join()
    assert gate.is_inside
    gate.leave()
    assert not gate.is_inside


def test_a_second_entry_is_refused_instead_of_waiting_for_oneself(gate):
    other = Gate(gate.database)
    with gate:
        for again in (gate.enter, gate.try_enter, other.enter, other.try_enter):
            with pytest.raises(RuntimeError, match="inside the gate .* already"):
                again()
        assert gate.is_inside and other.is_inside
    assert not other.is_inside
    other.close()


def test_leaving_without_having_entered_is_refused(gate):
    with pytest.raises(RuntimeError, match="not inside"):
        gate.leave()


def test_a_closed_second_object_does_not_open_the_gate_for_others(gate, tmp_path, start):
    os.symlink(tmp_path, tmp_path / "link")
    gate.enter()
    Gate(tmp_path / "link" / "p.db").close()
    program = start("say(Gate(sys.argv[1]).try_enter()); hear()", gate.database)
    assert program.line() == "False"
    gate.leave()


def test_the_last_close_gives_the_descriptor_back(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    gates = [Gate(tmp_path / "p.db") for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) == before + 1
    for each in gates:
        each.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_name_that_moves_to_a_file_we_have_costs_no_lock(tmp_path, start, monkeypatch):
    """Between looking at the name and opening it, it may come to name a file on which we hold a lock."""
    held, moving = Gate(tmp_path / "held.db"), tmp_path / "moving.db-gate"
    held.enter()
    moving.write_text("x")
    honest = os.open

    def treacherous(path, *args, **kwargs):
        if str(path) == str(moving):
            moving.unlink(missing_ok=True)
            os.link(held.path, moving)
        return honest(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", treacherous)
    other = Gate(tmp_path / "moving.db")
    monkeypatch.undo()
    other.close()
    program = start("say(Gate(sys.argv[1]).try_enter()); hear()", held.database)
    assert program.line() == "False"
    held.leave()
    held.close()


def test_ctrl_c_gets_through_while_waiting_and_leaves_no_trace(gate, start):
    gate.enter()
    program = start(
        """
        gate = Gate(sys.argv[1])
        for _ in range(3):
            try:
                say("waiting")
                gate.enter()
            except KeyboardInterrupt:
                say("interrupted", gate.is_inside)
        hear()
        gate.enter()
        say("inside")
        gate.leave()
        """,
        gate.database,
    )
    for _ in range(3):
        assert program.line() == "waiting"
        until(lambda: _syscall(program.pid) == "fcntl")
        program.signal(signal.SIGINT)
        assert program.line() == "interrupted False"
    gate.leave()
    assert program.ask() == "inside"


def _syscall(pid: int, thread: int | None = None) -> str:
    """Return what the thread, or the main one, is sleeping in."""
    number = Path(f"/proc/{pid}/task/{thread or pid}/syscall").read_text().split()[0]
    return "fcntl" if number in ("72", "25") else number  # x86-64, arm64


def test_ctrl_c_gets_through_while_another_thread_is_inside(start, tmp_path):
    program = start(
        """
        gate = Gate(sys.argv[1])
        inside, enough = threading.Event(), threading.Event()
        def hold():
            with gate:
                inside.set()
                enough.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        main = threading.get_ident()
        def strike():
            while sys._current_frames()[main].f_code is not Gate.enter.__code__:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
        try:
            threading.Thread(target=strike).start()
            gate.enter()
        except KeyboardInterrupt:
            say("interrupted", gate.is_inside)
        enough.set()
        thread.join()
        gate.enter()
        say("inside")
        """,
        tmp_path / "p.db",
    )
    assert program.line() == "interrupted False"
    assert program.line() == "inside"


@pytest.mark.parametrize("place", ["lock", "_is_open", "_arrive"])
def test_whatever_interrupts_an_entry_leaves_the_gate_free(gate, start, monkeypatch, place):
    owner = _lockfile.LockFile if place == "lock" else Gate
    honest = getattr(owner, place)

    def interrupted(*args, **kwargs):
        honest(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, place, interrupted)
    with pytest.raises(KeyboardInterrupt), gate:
        pass
    monkeypatch.undo()
    assert not gate.is_inside
    program = start("say(Gate(sys.argv[1]).try_enter()); hear()", gate.database)
    assert program.line() == "True"


def test_the_blocker_is_described(gate, start):
    assert gate.blocker() is None
    program = start(HOLDER, gate.database)
    program.line()
    assert gate.blocker() == f"process {program.pid} (python)"
    program.stop()
    assert gate.blocker() == f"process {program.pid} (python, stopped)"


def test_a_thread_that_blocks_is_described(gate):
    inside, enough = threading.Event(), threading.Event()

    def hold():
        with gate:
            inside.set()
            enough.wait()

    thread = threading.Thread(target=hold, name="the writer")
    thread.start()
    inside.wait()
    assert gate.blocker() == "thread 'the writer' of this process"
    enough.set()
    thread.join()
    with gate:
        assert gate.blocker() is None


def test_a_forked_child_is_not_inside_and_does_not_keep_the_gate(tmp_path, start):
    program = start(
        """
        gate = Gate(sys.argv[1])
        gate.enter()
        if os.fork() == 0:
            gate.leave()                                # the parent's entry: nothing happens
            say("child", gate.is_inside, gate.try_enter())
            signal.pause()
        signal.pause()
        """,
        tmp_path / "p.db",
    )
    assert program.line() == "child False False"
    gate = Gate(tmp_path / "p.db")
    assert not gate.try_enter()
    program.kill()  # the parent; the child lives on
    gate.enter()
    gate.leave()
    gate.close()


def test_a_child_forked_while_another_thread_was_inside_can_enter_later(tmp_path, start):
    program = start(
        """
        import warnings; warnings.simplefilter("ignore")
        gate = Gate(sys.argv[1])
        inside, enough = threading.Event(), threading.Event()
        def hold():
            with gate:
                inside.set()
                enough.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        pid = os.fork()
        if pid == 0:
            say("child", gate.try_enter())
            gate.enter()
            say("child inside")
            gate.leave()
            os._exit(0)
        hear()
        enough.set()
        os.waitpid(pid, 0)
        """,
        tmp_path / "p.db",
    )
    assert program.line() == "child False"
    assert program.ask() == "child inside"


def test_a_deleted_gate_file_is_noticed_by_the_next_who_enters(gate, start):
    """Else two processes would each hold a gate, on different files."""
    with gate:
        pass
    os.unlink(gate.path)
    program = start(HOLDER, gate.database)
    program.line()
    assert not gate.try_enter()
    assert not gate.try_enter()
    assert program.ask() == "left"
    gate.enter()
    gate.leave()


def test_one_who_waits_for_a_deleted_gate_file_moves_to_the_new_one(gate, start):
    gate.enter()
    waiter = start("gate = Gate(sys.argv[1]); say('waits'); gate.enter(); say('inside'); hear()", gate.database)
    waiter.line()
    until(lambda: _syscall(waiter.pid) == "fcntl")
    os.unlink(gate.path)
    newcomer = start(HOLDER, gate.database)
    newcomer.line()
    gate.leave()  # lets the waiter in, on the old file
    never(lambda: select.select([waiter.process.stdout], [], [], 0)[0], "that two are inside")
    probe = Gate(gate.database)
    assert probe.blocker() == f"process {newcomer.pid} (python)"
    assert newcomer.ask() == "left"
    assert waiter.line() == "inside"
    assert probe.blocker() == f"process {waiter.pid} (python)"
    probe.close()


def test_a_new_gate_of_a_database_in_use_opens_only_after_a_while(gate, tmp_path):
    """Somebody may be inside the one that was deleted, where nobody can see it."""
    (tmp_path / "p.db-wal").write_text("")
    with gate:
        os.unlink(gate.path)
        began = time.monotonic()
        other = Gate(gate.database)
        seen: list[float] = []
        thread = threading.Thread(target=lambda: (other.enter(), seen.append(time.monotonic()), other.leave()))
        thread.start()
        thread.join()
    assert seen[0] - began > 0.8 * gate_module.GRACE
    other.close()


def test_a_new_gate_waits_for_its_age_and_once_only(gate, tmp_path, monkeypatch):
    monkeypatch.setattr(gate_module, "GRACE", 3600.0)
    (tmp_path / "p.db-wal").write_text("")
    os.unlink(gate.path)
    other = Gate(gate.database)
    assert not other.try_enter()
    hour_ago = time.time() - 3601
    os.utime(other.path, (hour_ago, hour_ago))
    assert other.try_enter()
    other.leave()
    os.utime(other.path)  # as if it were new: but somebody has been inside
    assert other.try_enter()
    other.leave()
    other.close()


def test_a_missing_folder_is_said_in_words(tmp_path):
    with pytest.raises(EngineError, match="does not exist; create it first"):
        Gate(tmp_path / "no" / "p.db")


def test_a_folder_that_vanishes_is_said_in_words(tmp_path):
    (tmp_path / "folder").mkdir()
    gate = Gate(tmp_path / "folder" / "p.db")
    os.unlink(gate.path)
    os.rmdir(tmp_path / "folder")
    with pytest.raises(EngineError, match="does not exist"):
        gate.enter()
    assert not gate.is_inside
    gate.close()


def test_other_threads_give_way_while_somebody_is_inside(gate, tmp_path):
    usual = sys.getswitchinterval()
    other = Gate(tmp_path / "other.db")
    gate.enter()
    assert sys.getswitchinterval() < usual / 10
    thread = threading.Thread(target=lambda: (other.enter(), other.leave()))
    thread.start()
    thread.join()
    assert sys.getswitchinterval() < usual / 10  # one is still inside
    gate.leave()
    assert sys.getswitchinterval() == usual
    assert gate.try_enter()
    sys.setswitchinterval(0.01)  # somebody has wishes of its own
    gate.leave()
    assert sys.getswitchinterval() == pytest.approx(0.01)
    sys.setswitchinterval(usual)
    other.close()


# Python 3.12 and newer warn of the system's count of threads, which still has, for a moment, one that was joined.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_inside_begins_with_the_usual_interval(gate):
    usual = sys.getswitchinterval()
    gate.enter()
    pid = os.fork()
    if pid == 0:
        os._exit(sys.getswitchinterval() != usual)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    gate.leave()
