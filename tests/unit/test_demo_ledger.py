"""The books of the demo: what counts as moved, run again, lost, and out of order."""

from __future__ import annotations

from millpond.cli.demo.ledger import Ledger
from millpond.cli.demo.tenants import sentence


def books(*jobs: tuple[str, int]) -> Ledger:
    made = Ledger()
    for key, number in jobs:
        made.dispatch(key, number)
    return made


def test_a_kill_is_settled_when_its_keys_ran_elsewhere_and_all_their_jobs_ended():
    ledger = books(("a", 0), ("a", 1), ("b", 0), ("c", 0))
    ledger.begin("w1", "a", 0, 1.0)
    found = ledger.leave("w1", ["a", "b", "idle"], 2.0, is_killed=True)
    assert found.busy == {"a", "b"} and not found.has_moved
    ledger.begin("w2", "a", 0, 2.25)
    assert (found.moved, found.again) == ({"a": 0.25}, {("a", 0)})
    ledger.begin("w3", "b", 0, 2.5)
    assert found.has_moved and found.seconds == 0.5 and not found.is_settled
    for key, number in (("a", 0), ("a", 1), ("b", 0)):
        ledger.end("w2", key, number)
    assert found.is_settled
    assert sentence(found) == "w1: 3 keys moved in 0.50 s, 1 job re-run, 0 lost, order kept"


def test_a_job_that_began_once_was_not_run_again():
    ledger = books(("a", 0))
    found = ledger.leave("w1", ["a"], 1.0, is_killed=False)
    ledger.begin("w2", "a", 0, 1.5)
    ledger.end("w2", "a", 0)
    assert not found.again and ledger.again == 0 and found.is_settled


def test_one_that_had_ended_unheard_is_run_again_and_counts_once():
    ledger = books(("a", 0))
    ledger.begin("w1", "a", 0, 1.0)
    ledger.end("w1", "a", 0)
    ledger.begin("w2", "a", 0, 2.0)
    ledger.end("w2", "a", 0)
    assert (ledger.again, ledger.ended, ledger.disorder) == (1, 1, 0)


def test_what_ends_before_an_earlier_one_is_out_of_order():
    ledger = books(("a", 0), ("a", 1))
    found = ledger.leave("w1", ["a"], 0.0, is_killed=True)
    ledger.begin("w2", "a", 1, 1.0)
    ledger.end("w2", "a", 1)
    assert ledger.disorder == 1 and found.disorder == 1 and "OUT OF ORDER" in sentence(found)


def test_what_has_not_ended_and_the_store_does_not_know_is_lost():
    ledger = books(("a", 0), ("a", 1))
    found = ledger.leave("w1", ["a"], 0.0, is_killed=True)
    ledger.begin("w2", "a", 1, 1.0)
    ledger.compare([("a", 1)])
    assert ledger.lost == {("a", 0)} == found.lost
    ledger.end("w2", "a", 1)
    assert found.is_settled and "1 LOST" in sentence(found)


def test_a_late_line_of_a_dead_worker_moves_nothing():
    ledger = books(("a", 0))
    found = ledger.leave("w1", ["a"], 5.0, is_killed=True)
    ledger.begin("w1", "a", 0, 4.9)
    assert not found.moved and not found.has_moved
