"""Bells: heard across processes and folders of any depth, never waiting, never raising."""

from __future__ import annotations

import os
import select
import sys
import threading
from pathlib import Path

import pytest

from millpond._sqlite import Bell
from waiting import HANG

sys.path.insert(0, str(Path(__file__).parent))
import sqlite_programs as programs

start = programs.start


def is_rung(bell: Bell, seconds: float = 0.0) -> bool:
    return bool(select.select([bell], [], [], seconds)[0])


@pytest.fixture
def bells(tmp_path):
    made: list[Bell] = []

    def make(number: int, folder: Path = tmp_path) -> Bell:
        made.append(Bell(folder / "p.db", number))
        return made[-1]

    yield make
    for bell in made:
        bell.close()


def test_a_ring_is_heard_by_the_one_it_is_meant_for(bells):
    one, two, three = bells(1), bells(2), bells(3)
    one.ring([2])
    assert is_rung(two) and not is_rung(one) and not is_rung(three)
    two.drain()
    assert not is_rung(two)
    two.ring([1, 3])
    assert is_rung(one) and is_rung(three)


def test_a_ring_reaches_another_process(bells, tmp_path, start):
    bell = bells(1)
    program = start(
        "import select; bell = Bell(sys.argv[1], 2); say('hung')\n"
        "select.select([bell], [], []); bell.drain(); bell.ring([1]); hear()",
        tmp_path / "p.db",
    )
    assert program.line() == "hung"
    bell.ring([2])
    assert is_rung(bell, HANG)


def test_a_folder_deeper_than_a_socket_path_will_do(bells, tmp_path):
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    one, two = bells(1, deep), bells(2, deep)
    assert one.is_audible and two.is_audible
    one.ring([2])
    assert is_rung(two)


def test_where_a_path_is_too_long_the_own_ring_still_works(bells, tmp_path, monkeypatch):
    monkeypatch.setattr("millpond._sqlite._bell._HAS_PROC", False)
    deep = tmp_path / ("d" * 150)
    deep.mkdir()
    bell = bells(1, deep)
    assert not bell.is_audible
    bell.ring([2])
    bell.ring_self()
    assert is_rung(bell)
    bell.drain()
    assert not is_rung(bell)


def test_without_proc_a_short_path_works_too(bells, tmp_path, monkeypatch):
    monkeypatch.setattr("millpond._sqlite._bell._HAS_PROC", False)
    monkeypatch.chdir(tmp_path)
    one, two = bells(1, Path(".")), bells(2, Path("."))
    one.ring([2])
    assert one.is_audible and is_rung(two)


def test_a_dead_or_unknown_peer_is_no_error(bells, tmp_path, start):
    bell = bells(1)
    program = start("bell = Bell(sys.argv[1], 2); say('hung'); hear()", tmp_path / "p.db")
    program.line()
    program.kill()
    bell.ring([2, 77])
    assert os.path.exists(tmp_path / "p.db-bells" / "2")
    bell.sweep(2)
    bell.sweep(77)
    assert os.listdir(tmp_path / "p.db-bells") == ["1"]


def test_full_peers_neither_stop_the_ringer_nor_silence_him_for_others(bells):
    """What they have not read counts against the sender's buffer."""
    ringer, listener = bells(1), bells(2)
    full = list(range(100, 160))
    for number in full:
        bells(number)
    for _ in range(30):
        ringer.ring(full)  # would wait for ever, since nobody listens
    with pytest.raises(BlockingIOError):  # else the test shows nothing: that socket must be exhausted or the peer full
        for _ in range(1000):
            ringer._far.sendto(b"!", ringer._address(100))
    ringer.ring([2])
    ringer.ring_self()
    assert is_rung(listener) and is_rung(ringer)


def test_rings_at_oneself_are_spared_until_they_are_drained(bells):
    bell = bells(1)
    sent = []

    class Near:
        def send(self, data):
            sent.append(data)

        def close(self):
            pass

    near, bell._near = bell._near, Near()  # type: ignore[assignment]
    for _ in range(5):
        bell.ring_self()
    assert len(sent) == 1
    bell.drain()
    bell.ring_self()
    assert len(sent) == 2
    near.close()


def test_a_ring_in_the_middle_of_draining_does_not_mute_the_next(bells):
    bell = bells(1)
    ear = bell._ear

    class Ear:
        """Another thread rings just when the first ring is being read."""

        def recv(self, size):
            bell.ring_self()
            return ear.recv(size)

    bell.ring_self()
    bell._ear = Ear()  # type: ignore[assignment]
    bell.drain()
    bell._ear = ear
    bell.drain()
    bell.ring_self()
    assert is_rung(bell)
    bell.drain()
    bell._ear = Ear()  # type: ignore[assignment]
    bell.ring_self()
    bell.drain()
    bell._ear = ear
    assert not is_rung(bell)
    bell.ring_self()
    assert is_rung(bell)


def test_no_ring_of_another_thread_is_lost(bells):
    """The ringer sets a flag of its own and rings; a waiter that drains and looks must see each."""
    bell = bells(1)
    done, seen, rounds = threading.Event(), [0], 20_000
    work = [0]

    def ringer():
        for _ in range(rounds):
            work[0] += 1
            bell.ring_self()
        done.set()

    thread = threading.Thread(target=ringer)
    thread.start()
    while seen[0] < rounds:
        assert is_rung(bell, HANG), f"lost: {seen[0]} of {work[0]} seen, and no ring"
        bell.drain()
        seen[0] = work[0]
    thread.join()


def test_an_old_socket_in_the_place_is_replaced(bells, tmp_path, start):
    program = start("bell = Bell(sys.argv[1], 5); say('hung'); hear()", tmp_path / "p.db")
    program.line()
    program.kill()
    mine, other = bells(5), bells(6)
    other.ring([5])
    assert is_rung(mine)


def test_close_takes_the_socket_away_and_may_be_called_twice(tmp_path):
    bell = Bell(tmp_path / "p.db", 1)
    bell.close()
    bell.close()
    assert os.listdir(tmp_path / "p.db-bells") == []


def test_a_forked_child_neither_takes_the_rings_nor_the_socket(tmp_path, start):
    program = start(
        """
        bell, other = Bell(sys.argv[1], 1), Bell(sys.argv[1], 2)
        other.ring([1])
        pid = os.fork()
        if pid == 0:
            bell.drain()
            bell.ring_self()
            bell.close()
            os._exit(0)
        os.waitpid(pid, 0)
        import select
        say(bool(select.select([bell], [], [], 0)[0]), os.path.exists(sys.argv[1] + "-bells/1"))
        bell.drain()
        other.ring([1])
        say(bool(select.select([bell], [], [], 60)[0]))
        """,
        tmp_path / "p.db",
    )
    assert program.line() == "True True"
    assert program.line() == "True"
