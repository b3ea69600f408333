"""Live files, passports and verdicts, as far as one process can show them; the rest is tests/integration."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from millpond._sqlite import LiveFile, Passport, Verdict, _liveness, _process, verdict
from millpond.errors import EngineError

sys.path.insert(0, str(Path(__file__).parent))
import sqlite_programs as programs

start = programs.start


@pytest.fixture
def live(tmp_path):
    made = LiveFile(tmp_path / "p.db")
    yield made
    made.close()


PROBE = "live = LiveFile(sys.argv[1]); say(*[live.is_locked(int(n)) for n in sys.argv[2:]]); hear()"


def test_a_passport_survives_the_trip_through_the_database(live):
    passport = Passport.of_this_process(live)
    assert Passport.decode(passport.encode()) == passport
    assert (passport.live_inode, passport.live_nonce) == live.identity
    assert passport.pid == os.getpid() and passport.start > 0


def test_fields_of_a_newer_version_are_ignored(live):
    passport = Passport.of_this_process(live)
    assert Passport.decode(passport.encode()[:-1] + ',"shoe_size":44}') == passport


@pytest.mark.parametrize("text", ["junk", "", "{}", "[1, 2]", "5", '"x"', b"\xff\x00", 5, None])
def test_who_has_an_unreadable_passport_is_never_taken_for_dead(live, text):
    assert verdict(Passport.decode(text), 7, live) is Verdict.UNKNOWN


def test_fields_of_another_type_make_a_passport_unreadable(live):
    passport = Passport.of_this_process(live)
    for name in Passport.__slots__:
        odd = json.dumps(dataclasses.asdict(passport) | {name: [getattr(passport, name)]})
        assert verdict(Passport.decode(odd), 7, live) is Verdict.UNKNOWN


def test_ones_own_process_is_alive_though_the_kernel_says_that_its_lock_is_free(live):
    live.lock(7)
    assert live._file.locker(7) is None  # the trap
    assert verdict(Passport.of_this_process(live), 7, live) is Verdict.ALIVE
    assert live.is_locked(7)
    other = LiveFile(live.path[:-5])
    assert other.is_locked(7)
    live.unlock(7)
    assert not other.is_locked(7)
    other.close()


def test_locks_are_seen_by_others_one_by_one(live, start):
    live.lock(7)
    live.lock(1_000_000_000_000)
    assert start(PROBE, live.path[:-5], 7, 8, 1_000_000_000_000).line() == "True False True"
    live.unlock(7)
    assert start(PROBE, live.path[:-5], 7, 8, 1_000_000_000_000).line() == "False False True"


def test_a_number_that_lives_elsewhere_cannot_be_locked(live, start):
    program = start("live = LiveFile(sys.argv[1]); live.lock(3); say('locked'); hear()", live.path[:-5])
    program.line()
    with pytest.raises(EngineError, match="session 3 .* belongs to another process"):
        live.lock(3)


def test_closing_a_second_object_on_the_same_file_costs_no_lock(live, tmp_path, start):
    os.symlink(tmp_path, tmp_path / "link")
    live.lock(7)
    for folder in (tmp_path, tmp_path / "link", Path(os.path.relpath(tmp_path))):
        other = LiveFile(folder / "p.db")
        assert other.identity == live.identity
        other.lock(8)
        other.close()
    assert start(PROBE, live.path[:-5], 7, 8).line() == "True False"


def test_an_accidental_drop_is_healed(live, start):
    live.lock(7)
    with open(live.path):
        pass
    assert start(PROBE, live.path[:-5], 7).line() == "False"  # the trap
    assert live.reassert()
    assert start(PROBE, live.path[:-5], 7).line() == "True"


def test_a_deleted_or_recreated_live_file_is_reported_and_has_another_identity(live):
    before = live.identity
    os.unlink(live.path)
    assert not live.reassert()
    other = LiveFile(live.path[:-5])
    assert other.identity != before and other.identity[1] != before[1]
    assert not live.reassert()
    assert live.identity == before
    other.close()


def test_a_damaged_live_file_is_refused(tmp_path):
    (tmp_path / "p.db-live").write_text("half")
    with pytest.raises(EngineError, match="damaged"):
        LiveFile(tmp_path / "p.db")


def test_processes_that_create_it_together_get_one_file_and_leave_no_drafts(tmp_path, start):
    programs = [
        start("say('ready'); hear(); live = LiveFile(sys.argv[1]); say(*live.identity); hear()", tmp_path / "p.db")
        for _ in range(4)
    ]
    for program in programs:
        program.line()
    for program in programs:
        program.tell()
    assert len({program.line() for program in programs}) == 1
    assert os.listdir(tmp_path) == ["p.db-live"]


def test_without_hard_links_it_is_created_too(tmp_path, monkeypatch):
    def no_links(*args):
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    live = LiveFile(tmp_path / "p.db")
    assert os.listdir(tmp_path) == ["p.db-live"]
    live.close()


def test_in_a_forked_child_it_must_be_opened_again(tmp_path, start):
    program = start(
        """
        live = LiveFile(sys.argv[1])
        live.lock(7)
        pid = os.fork()
        if pid == 0:
            live.unlock(7)
            live.close()
            for act in (lambda: live.lock(8), live.reassert, lambda: live.is_locked(9)):
                try:
                    act()
                    say("no error")
                except RuntimeError as error:
                    pass
            own = LiveFile(sys.argv[1])
            say("child sees", own.is_locked(7))
            own.close()
            sys.exit()
        os.waitpid(pid, 0)
        hear()
        """,
        tmp_path / "p.db",
    )
    assert program.line() == "child sees True"
    live = LiveFile(tmp_path / "p.db")
    assert live.is_locked(7)
    live.close()


# -- the table of verdicts, with faked witnesses -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "gone", "same_file", "locked", "expected"),
    [
        (True, True, True, True, Verdict.DEAD),
        (True, True, True, False, Verdict.DEAD),
        (True, True, False, False, Verdict.DEAD),
        (True, False, True, True, Verdict.ALIVE),
        (True, False, True, False, Verdict.ALIVE),
        (True, False, False, False, Verdict.ALIVE),
        (True, None, True, True, Verdict.ALIVE),
        (True, None, True, False, Verdict.UNKNOWN),
        (True, None, False, False, Verdict.UNKNOWN),
        (False, True, True, True, Verdict.ALIVE),
        (False, True, True, False, Verdict.FREED),
        (False, True, False, False, Verdict.UNKNOWN),
        (False, False, True, False, Verdict.FREED),
        (False, False, False, True, Verdict.UNKNOWN),
    ],
)
def test_verdicts(live, monkeypatch, visible, gone, same_file, locked, expected):
    passport = dataclasses.replace(Passport.of_this_process(live), pid=1, start=1)
    if not visible:
        passport = dataclasses.replace(passport, namespace="elsewhere")
    if not same_file:
        passport = dataclasses.replace(passport, live_nonce="another")
    monkeypatch.setattr(_liveness, "is_gone", lambda pid, start: gone)
    monkeypatch.setattr(LiveFile, "is_locked", lambda self, number: locked)
    assert verdict(passport, 7, live) is expected


def test_another_boot_is_not_proof_of_death(live):
    """Two machines may see one file; and after a reboot the free lock tells."""
    passport = dataclasses.replace(Passport.of_this_process(live), boot="another", pid=2**22 + 1)
    assert verdict(passport, 7, live) is Verdict.FREED
    live.lock(7)
    assert verdict(passport, 7, live) is Verdict.ALIVE


def test_where_proc_shows_another_namespace_nobodys_pid_counts(live, monkeypatch):
    monkeypatch.setattr(os, "readlink", lambda path: "1")
    _process._forget()
    try:
        passport = Passport.of_this_process(live)
        assert passport.namespace == "" and not passport.is_visible and passport.is_own
        assert verdict(passport, 7, live) is Verdict.ALIVE  # though nobody holds that lock: one does not doubt oneself
    finally:
        monkeypatch.undo()
        _process._forget()


def test_a_hidden_process_is_neither_alive_nor_gone(monkeypatch):
    monkeypatch.setattr(_process, "read_stat", lambda pid: None)
    assert _process.is_gone(os.getpid(), 1) is None
    assert _process.is_gone(2**22 + 1, 1) is True
