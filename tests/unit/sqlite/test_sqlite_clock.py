"""The engine's clock: the pure choice of an offset, and the clock on a database."""

from __future__ import annotations

import contextlib
import time

import pytest

from millpond._sqlite import Database, EngineClock
from millpond._sqlite._clock import RECORD_EVERY, Setting, boot_ticks, choose
from millpond.errors import EngineError

HOUR = 3_600_000_000
NOON = 1_800_000_000_000_000


def test_a_first_clock_begins_at_the_wall_clock():
    assert choose(None, boot="a", ticks=500, wall=NOON) == Setting("a", NOON - 500, NOON)


def test_a_stepped_wall_clock_changes_nothing_within_a_boot():
    kept = Setting("a", NOON - 500, NOON)
    for step in (-HOUR, HOUR):
        assert choose(kept, boot="a", ticks=900, wall=NOON + step) == kept


def test_after_a_reboot_the_clock_goes_on_from_the_wall_clock():
    kept = Setting("a", NOON - 500, NOON)
    chosen = choose(kept, boot="b", ticks=7, wall=NOON + HOUR)
    assert chosen.boot == "b" and 7 + chosen.offset == NOON + HOUR


def test_after_a_reboot_with_a_wall_clock_that_is_behind_it_goes_on_from_the_last_record():
    kept = Setting("a", NOON - 500, NOON)
    chosen = choose(kept, boot="b", ticks=7, wall=NOON - HOUR)
    assert 7 + chosen.offset == NOON + 1


def test_where_there_is_no_boot_id_a_time_before_the_last_record_is_a_reboot():
    kept = Setting("", NOON - 5_000_000, NOON)
    chosen = choose(kept, boot="", ticks=100, wall=NOON + HOUR)
    assert 100 + chosen.offset == NOON + HOUR


def test_two_clocks_of_one_database_agree_though_the_wall_clock_was_stepped_between_them(tmp_path):
    database = Database(tmp_path / "p.db")
    ticks = iter(range(1000, 9000, 1000))
    first = EngineClock(database, ticks=lambda: next(ticks), wall=lambda: NOON, boot="a")
    second = EngineClock(database, ticks=lambda: next(ticks), wall=lambda: NOON - HOUR, boot="a")
    assert first.now() == NOON + 2000
    assert second.now() == NOON + 3000
    database.close()


def test_what_was_recorded_is_not_lived_through_again_after_a_reboot(tmp_path):
    database = Database(tmp_path / "p.db")
    now = [1000]
    clock = EngineClock(database, ticks=lambda: now[0], wall=lambda: NOON, boot="a")
    now[0] += 10 * RECORD_EVERY
    with database.writing() as transaction:
        clock.record(transaction)
    late = clock.now()
    rebooted = EngineClock(database, ticks=lambda: 5, wall=lambda: NOON - HOUR, boot="b")
    assert rebooted.now() == late + 1
    database.close()


def test_the_time_is_recorded_once_a_second_at_most(tmp_path):
    database = Database(tmp_path / "p.db")
    now = [1000]
    clock = EngineClock(database, ticks=lambda: now[0], wall=lambda: NOON, boot="a")
    written = []

    class Counting:
        def execute(self, *args):
            written.append(args)

    for _ in range(10):
        now[0] += RECORD_EVERY // 5
        clock.record(Counting())  # type: ignore[arg-type]
    assert len(written) == 2
    database.close()


def test_the_real_clock_is_near_the_wall_clock_and_never_goes_back(tmp_path):
    database = Database(tmp_path / "p.db")
    before = time.time()
    clock = EngineClock(database)
    first = clock.now() / 1e6
    after = time.time()
    near = 1.0 + (after - before)  # the machine may have stood still in between
    assert before - near < first < after + near
    times = [clock.now() for _ in range(1000)]
    assert times == sorted(times)
    assert boot_ticks() > 0
    database.close()


@pytest.mark.parametrize("kept", ["x", "{}", "[1, 2, 3]", '["boot", 1]', '["boot", 1, "2"]', 5, b"\xff"])
def test_a_record_that_makes_no_sense_is_told(tmp_path, kept):
    with contextlib.closing(Database(tmp_path / "p.db")) as database:
        with database.writing() as transaction:
            transaction.execute("INSERT INTO meta VALUES ('clock', ?)", (kept,))
        with pytest.raises(EngineError, match=r"p\.db' is damaged \(its clock is "):
            EngineClock(database)
