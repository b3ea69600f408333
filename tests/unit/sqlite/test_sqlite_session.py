"""The session of a process: that it can always be begun again, and that nothing that fails on the way is half done."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond._sqlite import Bell, Database, LiveFile, Passport, Session, Transaction, strike
from millpond._sqlite._sessions import enrolled
from millpond.errors import EngineError, EngineUnavailable
from millpond.keyed.stores import sqlite as keyed
from millpond.resources.engines import sqlite as resources


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "p.db")
    yield made
    made.close()


class Part:
    """A part that uses the file: it notes its sessions, and refuses them when a test says so."""

    def __init__(self, database: Database) -> None:
        self.is_refusing = False
        self.noted: list[tuple[int, int | None]] = []
        self.database = database

    def session(self) -> Session:
        return Session(self.database, read=enrolled, begin=self.begin)

    def begin(self, transaction: Transaction, number: int, before: int | None) -> None:
        if self.is_refusing:
            raise EngineUnavailable("no room")
        self.noted.append((number, before))


@pytest.fixture
def part(database: Database) -> Part:
    return Part(database)


@pytest.fixture
def session(part: Part) -> Iterator[Session]:
    made = part.session()
    yield made
    made.close()


def rows(database: Database) -> dict[int, str]:
    with database.reading() as transaction:
        return enrolled(transaction)


def bury(database: Database, number: int) -> None:
    with database.writing() as transaction:
        strike(transaction, number)


def is_rung(session: Session) -> bool:
    return bool(select.select([session.bell], [], [], 0)[0])


def test_a_session_that_is_refused_leaves_no_row_no_lock_and_no_descriptor(part, database):
    part.is_refusing = True
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(EngineUnavailable):
        part.session()
    assert rows(database) == {} and len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("part", [keyed, resources])
def test_a_file_whose_session_cannot_begin_is_closed_again(tmp_path, part):
    (tmp_path / "p.db-live").write_text("half")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(EngineError, match="damaged"):
        part.files.open(f"sqlite:///{tmp_path}/p.db")
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_cannot_be_watched_leaves_no_descriptor(part, monkeypatch):
    def too_many(live: LiveFile) -> None:
        raise OSError("too many open files")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("millpond._sqlite._session.DeathWatch", too_many)
    with pytest.raises(OSError, match="too many"):
        part.session()
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_was_buried_by_mistake_learns_it_from_the_file_and_takes_another_number_and_bell(part, session, database):
    session.meet()
    old, bell = session.number, session.bell
    assert session.is_well()
    bury(database, old)
    assert not session.meet() and not session.is_well()
    with database.gate:
        session.mend()
    assert session.is_well() and session.number != old and part.noted == [(old, None), (session.number, old)]
    assert list(rows(database)) == [session.number] and os.listdir(session.bell.folder) == [str(session.number)]
    assert bell.fileno() == -1 and session.live.is_locked(session.number) and not session.live.is_locked(old)
    session.meet()
    assert session.is_well() and session.others() == set()


def test_a_new_session_that_could_not_be_written_is_taken_later_and_the_old_bell_rings_until_then(
    part, session, database
):
    old = session.number
    session.meet()
    bury(database, old)
    session.meet()
    part.is_refusing = True
    with database.gate, pytest.raises(EngineUnavailable):
        session.mend()
    assert not session.is_well() and session.number == old
    session.bell.ring_self()
    assert is_rung(session)
    part.is_refusing = False
    with database.gate:
        session.mend()
    assert session.is_well() and list(rows(database)) == [session.number] != [old]


def test_a_live_file_that_was_replaced_is_left_for_the_new_one_with_all_that_was_locked(session, database):
    os.unlink(session.live.path)
    session.live.lock(1 << 60)
    assert not session.is_well()
    with database.gate:
        session.mend()
    assert session.is_well()
    assert Passport.decode(rows(database)[session.number]) == Passport.of_this_process(session.live)
    there = os.stat(session.live.path).st_ino
    assert session.live.identity[0] == there
    assert all(session.live.is_locked(byte) for byte in (session.number, 1 << 60))


def test_a_move_to_another_live_file_that_could_not_be_written_is_made_later(session, database, monkeypatch):
    """Else nobody could find our lock: the row would name a file that is gone."""
    os.unlink(session.live.path)
    with monkeypatch.context() as patch:
        patch.setattr(session, "_database", Broken())
        with pytest.raises(EngineUnavailable):
            session.mend()
    assert not session.is_well()
    with database.gate:
        session.mend()
    assert session.is_well()
    assert Passport.decode(rows(database)[session.number]) == Passport.of_this_process(session.live)


class Broken:
    def writing(self) -> None:
        raise EngineUnavailable("no room")


def test_one_whose_row_was_struck_by_another_part_is_dead(part, database):
    there: dict[int, str | None] = {}
    session = Session(database, read=lambda transaction: {**enrolled(transaction), **there}, begin=part.begin)
    session.meet()
    there[77] = None
    session.meet()
    assert session.find_dead() == {77} and session.dead == {77} and session.others() == set()
    there.clear()
    session.forget({77})
    assert session.find_dead() == set() and not session.knows(77) and not session.meet()
    session.close()


def test_who_has_gone_is_told_once(part, session, database):
    other = part.session()
    session.meet()
    assert session.others() == {other.number} and session.knows(other.number)
    bury(database, other.number)
    assert session.meet() and not session.meet() and session.others() == set()
    other.close()


def test_a_bell_that_ends_leaves_the_place_to_a_newer_one_of_its_number(tmp_path):
    """In a file that replaced theirs, numbers begin anew, and the folder with the bells may be the same."""
    old, new = Bell(tmp_path / "p.db", 1), Bell(tmp_path / "p.db", 1)
    old.close()
    ringer = Bell(tmp_path / "p.db", 2)
    ringer.ring([1])
    assert select.select([new], [], [], 0)[0]
    ringer.close()
    new.close()
    assert os.listdir(new.folder) == []


def test_two_parts_of_a_process_have_a_session_each_and_the_end_of_one_is_not_that_of_the_other(part, session):
    other = part.session()
    assert session.number != other.number
    other.close()
    assert session.live.is_locked(session.number) and not session.live.is_locked(other.number)
