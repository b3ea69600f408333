"""The watch over other processes, with a fake clock where time matters."""

from __future__ import annotations

import dataclasses
import os
import select
import subprocess

import pytest

from millpond._sqlite import CONFIRM, DeathWatch, LiveFile, Passport
from millpond._sqlite._deathwatch import EAGER_POLL, IDLE_POLL
from millpond._sqlite._process import read_stat
from waiting import HANG


@pytest.fixture
def live(tmp_path):
    made = LiveFile(tmp_path / "p.db")
    yield made
    made.close()


class Sleeper:
    def __init__(self, live: LiveFile) -> None:
        self.process = subprocess.Popen(["sleep", "3600"])
        stat = read_stat(self.process.pid)
        assert stat is not None
        self.passport = dataclasses.replace(Passport.of_this_process(live), pid=self.process.pid, start=stat.start)

    def kill(self) -> None:
        self.process.kill()
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def sleeper(live):
    made: list[Sleeper] = []

    def make() -> Sleeper:
        made.append(Sleeper(live))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.wait()


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def watch(live, clock):
    made = DeathWatch(live, clock=lambda: clock[0])
    yield made
    made.close()


def test_a_death_makes_it_readable_and_is_told_once(watch, sleeper):
    one, two = sleeper(), sleeper()
    watch.update({1: one.passport, 2: two.passport})
    assert watch.dead() == [] and watch.patience() is None
    assert select.select([watch], [], [], 0)[0] == []
    one.process.kill()
    assert select.select([watch], [], [], HANG)[0] == [watch]
    assert watch.dead() == [1]
    assert select.select([watch], [], [], 0)[0] == []
    assert watch.dead() == []


def test_all_sessions_of_a_process_die_together_and_share_a_descriptor(watch, sleeper):
    one = sleeper()
    before = len(os.listdir("/proc/self/fd"))
    watch.update({1: one.passport, 2: one.passport})
    assert len(os.listdir("/proc/self/fd")) == before + 1
    one.kill()
    assert watch.dead() == [1, 2]
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_who_was_dead_before_is_told_at_once(watch, sleeper):
    zombie, reaped = sleeper(), sleeper()
    zombie.kill()
    reaped.kill()
    reaped.process.wait()
    watch.update({1: zombie.passport, 2: reaped.passport})
    assert watch.patience() == 0.0
    assert watch.dead() == [1, 2]


def test_a_pid_that_was_given_out_again_is_a_death(watch, sleeper):
    other = sleeper()
    watch.update({1: dataclasses.replace(other.passport, start=other.passport.start - 1)})
    assert watch.dead() == [1]


def test_those_no_longer_asked_for_are_forgotten(watch, sleeper):
    one = sleeper()
    before = len(os.listdir("/proc/self/fd"))
    watch.update({1: one.passport})
    watch.update({})
    assert len(os.listdir("/proc/self/fd")) == before
    one.kill()
    assert watch.dead() == []


def test_one_who_has_moved_to_another_live_file_is_watched_there(watch, live, sleeper, clock):
    """What is known of a process must be what it says now: in a file that is gone nobody's lock can be found."""
    stranger = dataclasses.replace(sleeper().passport, namespace="elsewhere")
    watch.update({1: dataclasses.replace(stranger, live_nonce="of a file that is gone")})
    watch.update({1: stranger})
    for _ in range(2):
        clock[0] += IDLE_POLL + CONFIRM
        dead = watch.dead()
    assert dead == [1]


def test_ones_own_sessions_are_left_out(watch, live):
    watch.update({1: Passport.of_this_process(live)})
    assert watch.patience() is None and watch.dead() == []


def test_one_who_cannot_be_seen_is_polled_and_dies_by_a_lock_seen_free_twice(watch, live, sleeper, clock):
    stranger = dataclasses.replace(sleeper().passport, namespace="elsewhere")
    live.lock(1)  # stands for the lock of the stranger
    watch.update({1: stranger})
    assert watch.dead() == []
    assert watch.patience() == pytest.approx(IDLE_POLL)
    assert watch.patience(eager=True) == pytest.approx(EAGER_POLL)
    live.unlock(1)
    clock[0] += EAGER_POLL / 2
    assert watch.dead(eager=True) == []
    clock[0] += EAGER_POLL
    assert watch.dead(eager=True) == []  # seen free once
    assert watch.patience() == pytest.approx(CONFIRM)
    clock[0] += CONFIRM * 0.9
    assert watch.dead(eager=True) == []
    clock[0] += CONFIRM * 0.15
    assert watch.dead(eager=True) == []  # its next look is not due
    clock[0] += EAGER_POLL
    assert watch.dead(eager=True) == [1]


def test_a_lock_that_was_free_for_a_moment_is_no_death(watch, live, sleeper, clock):
    watch.update({1: dataclasses.replace(sleeper().passport, namespace="elsewhere")})
    assert watch.dead() == []  # free
    live.lock(1)
    clock[0] += CONFIRM
    assert watch.dead() == []  # held
    live.unlock(1)
    clock[0] += IDLE_POLL
    assert watch.dead() == []  # free, for the first time again
    clock[0] += CONFIRM * 1.01
    assert watch.dead() == [1]


def test_one_of_another_live_file_is_never_dead_without_its_pid(watch, sleeper, clock):
    watch.update({1: dataclasses.replace(sleeper().passport, namespace="elsewhere", live_nonce="another")})
    for _ in range(5):
        clock[0] += 1
        assert watch.dead() == []


def test_without_descriptors_left_the_pid_is_polled(watch, sleeper, clock, monkeypatch):
    def refuse(pid):
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    one = sleeper()
    watch.update({1: one.passport})
    assert watch.dead() == [] and watch.patience() == pytest.approx(IDLE_POLL)
    one.kill()
    clock[0] += IDLE_POLL
    assert watch.dead() == [1]


def test_where_the_system_has_no_pidfd_everybody_is_polled(live, sleeper, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    watch = DeathWatch(live)
    assert watch.fileno() == -1
    one = sleeper()
    one.kill()
    watch.update({1: one.passport})
    assert watch.dead() == [1]
    watch.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of threads that pytest's plugins may have
def test_a_forked_child_that_closes_it_does_not_end_the_parents_watch(watch, sleeper):
    one = sleeper()
    watch.update({1: one.passport})
    pid = os.fork()
    if pid == 0:
        try:
            watch.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    one.process.kill()
    assert select.select([watch], [], [], HANG)[0] == [watch]
    assert watch.dead() == [1]
