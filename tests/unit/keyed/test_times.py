"""When schedules are due, and what becomes of times that were missed."""

from __future__ import annotations

import datetime
import itertools
import math
import zoneinfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millpond.keyed.rules.times import DAY, LATE, MOST, Cron, Every, due_between

NOON = datetime.datetime(2026, 11, 16, 12, 0, tzinfo=datetime.UTC).timestamp()
MOMENTS = st.floats(0, 4e9, allow_nan=False)
EXPRESSIONS = st.sampled_from(["* * * * *", "*/7 * * * *", "0 3 * * *", "30 2 * * 0", "0 0 29 2 *", "*/20 * * * * *"])
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kathmandu", "Pacific/Apia"])


def at(text: str, zone: str = "UTC") -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone)).timestamp()


@given(MOMENTS, st.floats(0.01, 1e6))
@example(1.9, 0.01)
def test_every_counts_from_the_epoch(moment: float, seconds: float):
    times = Every(seconds)
    due, last = times.after(moment), next(times.back(moment))
    assert last <= moment < due
    assert due - last == pytest.approx(seconds, rel=1e-3, abs=1e-5)


@given(MOMENTS, EXPRESSIONS, ZONES)
def test_what_comes_after_a_moment_is_what_came_before_the_next(moment: float, expression: str, zone: str):
    times = Cron(expression, zone)
    due = times.after(moment)
    last = list(itertools.islice(times.back(moment), 3))
    assert due > moment >= last[0] > last[1] > last[2]
    assert next(times.back(due)) == due, "a time is due at its own moment"


def test_a_cron_expression_means_the_clocks_of_its_zone():
    berlin = Cron("0 3 * * *", "Europe/Berlin")
    assert berlin.after(at("2026-07-01T00:00")) == at("2026-07-01T01:00")  # UTC + 2
    assert berlin.after(at("2026-12-01T00:00")) == at("2026-12-01T02:00")  # UTC + 1


def test_the_hour_that_is_left_out_in_spring_is_made_up_for_and_the_one_that_comes_twice_is_used_once():
    berlin = Cron("30 2 * * *", "Europe/Berlin")
    spring, autumn = at("2026-03-29T00:00"), at("2026-10-25T00:00")
    of_a_day = lambda start: [due for due in itertools.islice(berlin.back(start + DAY), 3) if due > start]  # noqa: E731
    assert of_a_day(spring) == [at("2026-03-29T01:00")], "03:00 in summer time, as Debian's cron does"
    assert len(of_a_day(autumn)) == 1


def test_an_expression_that_never_comes_true_is_refused():
    with pytest.raises(ValueError, match="day-of-month"):
        Cron("0 0 31 2 *")


@pytest.mark.parametrize("wrong", ["", "* * * *", "61 * * * *", "x", 5, None, "* * * * * * *"])
def test_what_is_no_expression_is_refused(wrong: str):
    with pytest.raises(ValueError, match="5 fields"):
        Cron(wrong)


@pytest.mark.parametrize("wrong", ["Mars/Olympus", "", "../etc/passwd", 3, None])
def test_what_is_no_zone_is_refused(wrong: str):
    with pytest.raises(ValueError, match="time zone"):
        Cron("* * * * *", wrong)


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, 0.001])
def test_what_is_no_interval_is_refused(wrong: float):
    with pytest.raises(ValueError, match="seconds"):
        Every(wrong)


def test_times_that_were_missed():
    hourly = Every(3600)
    assert due_between(hourly, NOON, NOON, "all") == []
    assert due_between(hourly, NOON - 1, NOON, "skip") == [NOON]
    assert due_between(hourly, NOON - 3 * 3600, NOON, "once") == [NOON]
    assert due_between(hourly, NOON - 3 * 3600, NOON, "all") == [NOON - 7200, NOON - 3600, NOON]
    assert due_between(hourly, NOON - 3 * DAY, NOON + 1, "all")[0] == NOON - DAY + 3600, "those of the last day"
    assert due_between(hourly, NOON - 3 * DAY, NOON + LATE + 1, "skip") == []
    assert due_between(hourly, NOON - 3 * DAY, NOON + LATE - 1, "skip") == [NOON]
    assert len(due_between(Every(1), NOON - DAY, NOON, "all")) == MOST


def test_a_weekly_time_is_made_up_for_days_later():
    weekly = Cron("0 3 * * 0")
    sunday = at("2026-11-15T03:00")
    assert due_between(weekly, sunday - 10, sunday + 3 * DAY, "once") == [sunday]
    assert due_between(weekly, sunday, sunday + 3 * DAY, "once") == []
