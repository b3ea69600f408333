"""The checker of storms, on made-up logs: it sees what is broken, and forgives only what has a cause."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from keyed_checker import Checker

FINE = """
D 1.0 9 a 1
A 1.1 9 a 1
S 1.2 1 j a 1 100 1
E 1.3 1 j a 1 100 ok
D 1.4 9 a 2
A 1.5 9 a 2
S 1.6 1 j a 2 101 1
E 1.7 1 j a 2 101 ok
"""
DISPATCHED = "D 0 9 a 1\nA 0 9 a 1\nD 0 9 a 2\nA 0 9 a 2\n"


def faults(log: str, dead: Iterable[tuple[str, int]] = (), **options: Any) -> str:
    checker = Checker(log.strip().splitlines(), lease=1.0, **options)
    return "; ".join(checker.check(dead))


def test_a_log_in_order_has_no_fault():
    assert faults(FINE) == ""


def test_the_order_of_lines_does_not_matter_but_their_times_do():
    assert faults("\n".join(reversed(FINE.strip().splitlines()))) == ""


def test_a_line_that_cannot_be_read_is_a_fault():
    assert "cannot be read" in faults(FINE + "S 1.2 1 j")
    assert "cannot be read" in faults(FINE + "? 1.2 1")


# --- nothing lost --------------------------------------------------------------------------------------------------------


def test_an_acknowledged_job_that_never_ran_is_lost():
    assert "a #3 was acknowledged and is lost (never began)" in faults(FINE + "D 2 9 a 3\nA 2 9 a 3")


def test_an_acknowledged_job_that_was_only_begun_is_lost():
    log = FINE + "D 2 9 a 3\nA 2 9 a 3\nS 2.1 1 j a 3 102 1\nK 2.2 1"
    assert "a #3 was acknowledged and is lost (began)" in faults(log)
    assert faults(log, dead=[("a", 3)]) == ""
    assert faults(log + "\nO 2.5 0\nU 2.6 0", may_lose=1.0) == ""
    assert "is lost" in faults(log + "\nO 2.5 0\nU 2.6 0", may_lose=0.1)
    assert "is lost" in faults(log + "\nO 2.5 0\nU 2.6 0")
    assert "is lost" in faults(log + "\nO 1.5 0\nU 1.6 0", may_lose=1.0)


def test_a_job_whose_dispatch_spans_an_outage_may_be_lost_where_that_is_allowed():
    log = FINE + "D 2 9 a 3\nO 2.1 0\nU 2.6 0\nA 2.7 9 a 3"
    assert faults(log, may_lose=1.0) == ""
    assert "is lost" in faults(log)
    assert "is lost" in faults(FINE + "O 2.1 0\nU 2.6 0\nD 2.65 9 a 3\nA 2.7 9 a 3", may_lose=1.0)


def test_a_job_that_was_not_acknowledged_may_be_lost_or_run():
    assert faults(FINE + "D 2 9 a 3") == ""
    assert faults(FINE + "D 2 9 a 3\nS 2.1 1 j a 3 102 1\nE 2.2 1 j a 3 102 ok") == ""


def test_a_job_out_of_nowhere_is_a_fault():
    assert "never dispatched" in faults(FINE + "S 2 1 j a 7 102 1\nE 2.1 1 j a 7 102 ok")


# --- one at a time -------------------------------------------------------------------------------------------------------

OVERLAP = DISPATCHED + "S 1.0 1 j a 1 100 1\nS 1.2 2 j a 1 101 2\nE 1.3 2 j a 1 101 ok\nE 1.4 1 j a 1 100 stopped\n"


def test_two_workers_at_once_are_an_overlap():
    assert "overlap" in faults(OVERLAP)


def test_one_that_ends_as_the_next_begins_is_none():
    log = DISPATCHED + "S 1 1 j a 1 100 1\nE 1.2 1 j a 1 100 ok\nS 1.200001 2 j a 2 101 1\nE 1.3 2 j a 2 101 ok"
    assert faults(log) == ""


def test_a_worker_that_was_cut_off_or_killed_later_is_no_excuse_for_an_overlap():
    assert "overlap" in faults(OVERLAP + "O 0.1 1\nU 2.0 1\n")
    assert "overlap" in faults(OVERLAP + "K 1.5 1\n")
    assert "overlap" in faults(OVERLAP + "W 1.1 1 lost\n")


def test_a_store_that_lost_its_data_does_not_know_what_runs():
    assert faults(OVERLAP + "O 1.05 0\nU 1.1 0\n", may_lose=9.0) == ""
    assert "overlap" in faults(OVERLAP + "O 1.05 0\nU 1.1 0\n")
    assert "overlap" in faults(OVERLAP.replace("E 1.4", "E 7.4") + "O 1.05 0\nU 1.1 0\n", may_lose=9.0)


def test_a_killed_worker_ends_where_it_was_killed():
    log = DISPATCHED + "S 1.0 1 j a 1 100 1\nK 1.1 1\nS 1.2 2 j a 1 101 2\nE 1.3 2 j a 1 101 ok\n"
    log += "S 1.4 2 j a 2 102 1\nE 1.5 2 j a 2 102 ok\n"
    assert faults(log) == ""
    assert "overlap" in faults(log.replace("K 1.1 1", "K 1.25 1"))
    late = log + "S 1.6 1 j a 2 103 1\nE 1.7 1 j a 2 103 ok\n"
    assert "a process that is gone runs something" in faults(late + "G 1.55 1")
    assert "is gone" not in faults(late + "G 1.75 1"), "it may live for a little while after it was killed"


STILL = DISPATCHED + "S 1.0 1 j a 1 100 1\nP 1.1 1\nS 2.5 2 j a 1 101 2\nE 2.6 2 j a 1 101 ok\nC 3.0 1\n"
STILL += "S 3.1 2 j a 2 102 1\nE 3.2 2 j a 2 102 ok\n"


def test_a_worker_that_stood_still_past_its_lease_may_overlap_until_it_has_woken():
    checker = Checker((STILL + "E 3.1 1 j a 1 100 stopped").splitlines(), lease=1.0)
    assert checker.check() == []
    assert len(checker.excused) == 1


def test_it_may_not_if_it_goes_on_for_long():
    assert "overlap" in faults(STILL + "E 8.3 1 j a 1 100 stopped")


def test_it_may_not_if_it_stood_still_for_less_than_the_margin_of_its_lease():
    log = STILL.replace("P 1.1 1", "P 2.4 1") + "E 3.1 1 j a 1 100 stopped"
    assert "overlap" in faults(log)
    assert "overlap" in faults(STILL.replace("C 3.0 1", "C 1.2 1") + "E 3.1 1 j a 1 100 stopped")
    assert "overlap" in faults(STILL.replace("C 3.0 1", "C 1.4 1") + "E 3.1 1 j a 1 100 stopped"), "nor long before"
    assert faults(log + "\nI 2.45 1 2.2") == "", "it may have stood still before that was seen"


def test_one_that_got_no_time_stood_still():
    log = STILL.replace("P 1.1 1", "I 3.0 1 1.1").replace("C 3.0 1\n", "") + "E 3.1 1 j a 1 100 stopped"
    assert faults(log) == ""
    assert "overlap" in faults(log.replace("I 3.0 1 1.1", "I 1.2 1 1.1"))
    assert "overlap" in faults(log.replace("I 3.0 1 1.1", "I 3.0 3 1.1"))
    pieces = "I 2.3 1 2.2\nI 2.45 1 2.35\nI 3.0 1 2.47"
    assert faults(log.replace("I 3.0 1 1.1", pieces)) == "", "with blinks between"
    assert "zombie" not in faults("S 1.0 1 r k 0 100 1\nI 3.0 1 1.1\nT 19 8"), "it may have been able to renew"


def test_another_that_stood_still_is_no_excuse():
    log = STILL.replace("P 1.1 1", "P 1.1 3").replace("C 3.0 1", "C 3.0 3") + "E 3.1 1 j a 1 100 stopped"
    assert "overlap" in faults(log)


def test_a_zombie_is_seen_when_another_took_over_or_it_has_lost_its_lease():
    log = "S 1.0 1 r k 0 100 1\nP 1.1 1\nC 3.0 1\n"
    lost, taken = "W 3.1 1 lost\n", "S 2.5 2 r k 0 101 1\nE 2.6 2 r k 0 101 stopped\n"
    for why in (lost, taken):
        assert "zombie" not in faults(log + why + "E 3.5 1 r k 0 100 stopped")
        assert "zombie" in faults(log + why + "E 8.5 1 r k 0 100 stopped")
        assert "zombie" in faults(log + why + "T 9 8")  # it never ends
    assert faults(log + "E 8.5 1 r k 0 100 stopped") == "", "the store told it that nobody had taken over"


# --- tokens --------------------------------------------------------------------------------------------------------------


def test_a_token_that_falls_is_a_fault():
    log = DISPATCHED + "S 1 1 j a 1 100 1\nE 1.1 1 j a 1 100 ok\nS 2 2 j a 2 99 1\nE 2.1 2 j a 2 99 ok\n"
    assert "an old token begins" in faults(log)


def test_one_token_of_two_workers_is_a_fault():
    log = DISPATCHED + "S 1 1 j a 1 100 1\nE 1.1 1 j a 1 100 ok\nS 2 2 j a 2 100 1\nE 2.1 2 j a 2 100 ok\n"
    assert "one token, two workers" in faults(log)


def test_what_was_about_to_begin_when_its_worker_was_stopped_may_begin_when_it_wakes():
    log = DISPATCHED + "P 1 1\nS 2.5 2 j a 1 101 1\nE 2.6 2 j a 1 101 ok\nC 3 1\nS 3.01 1 j a 1 100 1\n"
    log += "E 3.02 1 j a 1 100 stopped\nS 4 2 j a 2 102 1\nE 4.1 2 j a 2 102 ok\n"
    assert faults(log) == ""
    assert "an old token begins" in faults(log.replace("S 3.01", "S 3.6").replace("E 3.02", "E 3.7"))


# --- order ---------------------------------------------------------------------------------------------------------------


def test_first_completions_out_of_order_are_a_fault():
    log = DISPATCHED + "S 1 1 j a 2 100 1\nE 1.1 1 j a 2 100 ok\nS 2 1 j a 1 101 1\nE 2.1 1 j a 1 101 ok\n"
    assert "order: #1 was first completed after #2" in faults(log)


def test_repeated_completions_after_a_kill_are_in_order():
    log = DISPATCHED + "S 1 1 j a 1 100 1\nE 1.1 1 j a 1 100 ok\nS 1.1 1 j a 2 100 1\nE 1.2 1 j a 2 100 ok\nK 1.25 1\n"
    log += "S 2 2 j a 1 101 2\nE 2.1 2 j a 1 101 ok\nS 2.1 2 j a 2 101 1\nE 2.2 2 j a 2 101 ok\n"
    checker = Checker(log.splitlines(), lease=1.0)
    assert checker.check() == []
    assert checker.repeated() == 2
    assert checker.failovers() == []


# --- twice only for a cause ----------------------------------------------------------------------------------------------

TWICE = DISPATCHED + "S 1 1 j a 1 100 1\nE 1.1 1 j a 1 100 ok\nS 4 2 j a 1 101 1\nE 4.1 2 j a 1 101 ok\n"
TWICE += "S 5 2 j a 2 102 1\nE 5.1 2 j a 2 102 ok\n"


def test_a_job_that_runs_twice_needs_a_cause():
    assert "for no cause" in faults(TWICE)
    assert faults(TWICE + "O 3.5 0\nU 3.6 0", may_lose=5.0) == ""


@pytest.mark.parametrize("cause", ["K 1.2 1", "P 1.05 1\nC 3 1", "O 1.05 1\nU 2 1", "O 1.05 0\nU 2 0", "W 1.2 1 lost"])
def test_causes(cause: str):
    assert faults(TWICE + cause) == ""


@pytest.mark.parametrize(
    "cause", ["K 3.9 1", "K 1.2 3", "P 3.8 1\nC 3.9 1", "P 0.9 3\nC 2.9 3", "O 3.8 0\nU 3.9 0", "T 1.05 1"]
)
def test_what_is_no_cause(cause: str):
    assert "for no cause" in faults(TWICE + cause)


def test_on_a_shared_store_one_that_stands_still_may_hold_up_the_others():
    assert faults(TWICE + "P 0.9 3\nC 2.9 3", shared_fate=True) == ""


def test_a_worker_that_leaves_may_stop_a_job_but_not_repeat_what_it_finished():
    stopped = TWICE.replace("E 1.1 1 j a 1 100 ok", "E 1.1 1 j a 1 100 stopped")
    assert "for no cause" in faults(stopped)
    assert faults(stopped + "T 1.05 1") == ""


# --- residents -----------------------------------------------------------------------------------------------------------


CONFIRMED = "R 1.5 7 other 99 1\n"
"""Of somebody else: so this log says when ends were confirmed."""


def test_an_end_that_was_not_confirmed_may_be_followed_by_another_run_however_late_its_worker_was_killed():
    assert "for no cause" in faults(CONFIRMED + TWICE), "nothing happened to it"
    assert faults(CONFIRMED + TWICE + "K 1.9 1\n") == ""
    late = CONFIRMED + TWICE.replace(" 4", " 30").replace(" 5", " 31")
    assert faults(late + "K 29.0 1\n") == ""
    assert "for no cause" in faults(late + "K 31.0 1\n"), "it was killed after that"


def test_an_end_that_was_confirmed_is_followed_by_no_other_run_whatever_befell_its_worker_then():
    confirmed = TWICE + "R 1.6 1 a 100 1\n"
    assert "for no cause" in faults(confirmed + "K 1.9 1\n")
    assert faults(confirmed + "K 1.55 1\n") == "", "before it wrote that down"
    assert faults(TWICE + "R 1.6 1 a 100 0\nK 1.9 1\n") == "", "no job of the take had ended"


def residents(log: str, alive: set[int]) -> str:
    checker = Checker(log.strip().splitlines(), lease=1.0)
    return "; ".join(checker.check() + checker.check_residents(alive, 1.0))


def test_a_resident_runs_once_on_a_living_worker():
    log = "+ 1 9 k\nS 1.1 1 r k 0 100 1\nT 9 8\n"
    assert residents(log, {1, 2}) == ""
    assert "runs 0 times" in residents(log, {2})
    assert "overlap" in residents(log + "S 1.2 2 r k 0 101 1\n", {1, 2})
    assert "runs 0 times" in residents(log + "E 3 1 r k 0 100 stopped\n", {1, 2})


def test_a_resident_that_was_stopped_does_not_run():
    log = "+ 1 9 k\nS 1.1 1 r k 0 100 1\n- 2 9 k\nT 9 8\n"
    assert "should not" in residents(log, {1})
    assert residents(log + "E 2.1 1 r k 0 100 stopped\n", {1}) == ""


def test_messages_to_a_resident_arrive_in_order():
    log = "N 1 9 k 1\nN 2 9 k 2\nM 1.1 1 k 1 100\nM 2.1 1 k 2 100\n"
    assert faults(log) == ""
    assert faults(log + "M 3 2 k 2 101\n") == "", "one that was not acknowledged comes again"
    assert "never heard" in faults(log + "N 3 9 k 3\n")
    assert faults(log + "N 3 9 k 3\n- 3.1 9 k\n") == "", "its resident was stopped"
    assert "never heard" in faults(log + "N 3 9 k 3\n- 2.9 9 k\n")
    assert "first heard after" in faults("N 1 9 k 1\nN 2 9 k 2\nM 2.1 1 k 2 100\nM 2.2 1 k 1 100\n")


# --- figures -------------------------------------------------------------------------------------------------------------


def test_the_time_of_a_failover_is_from_the_kill_to_the_next_start():
    log = DISPATCHED + "S 1.0 1 j a 1 100 1\nK 1.1 1\nS 2.6 2 j a 1 101 2\nE 2.7 2 j a 1 101 ok\n"
    checker = Checker(log.splitlines(), lease=1.0)
    assert checker.failovers() == [pytest.approx(1.5)]
    assert "1 kills" in checker.summary()


def test_one_that_others_had_taken_over_from_before_it_was_killed_has_no_failover():
    checker = Checker((STILL.replace("C 3.0 1", "K 3.0 1")).splitlines(), lease=1.0)
    assert checker.check() == []
    assert checker.failovers() == []


def test_a_second_stop_changes_nothing():
    assert "overlap" in faults(STILL.replace("P 1.1 1", "P 1.1 1\nP 1.2 1") + "E 8.3 1 j a 1 100 stopped")
