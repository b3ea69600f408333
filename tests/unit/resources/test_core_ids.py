"""The rules of resource pools: offers, deaths, and ids that take effect once."""

from __future__ import annotations

from millpond.resources._rules import commands as do
from millpond.resources._rules.records import Holder, Settings, Want
from millpond_conformance._stage import Stage

CLAIM = Settings().claim
RETENTION = Settings().retention


def offered() -> Stage:
    """A pool in which `2`, of another session, was just offered `a`, and `3` waits."""
    pool = Stage("a")
    pool.ask("1", session="s")
    pool.ask("2", session="t")
    pool.ask("3", session="u")
    pool.release("1")
    assert pool.all() == {"2": "offered a", "3": "waiting"}
    return pool


def test_a_hand_over_to_another_session_is_an_offer_until_it_is_claimed():
    pool = offered()
    assert pool.request("2").until == pool.now + CLAIM
    pool.claim("2")
    assert pool.of("2") == "held a"
    pool.later(100 * CLAIM)
    assert pool.of("2") == "held a"


def test_a_hand_over_to_ones_own_session_needs_no_claim():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", lease=50)
    pool.release("1")
    assert pool.of("2") == "held a"
    assert pool.request("2").until == pool.now + 50


def test_a_hand_over_to_one_who_cannot_vanish_or_to_nobody_needs_no_claim():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="workflow", sure=True)
    pool.ask("3", session="")
    pool.release("1")
    assert pool.of("2") == "held a"
    pool.release("2")
    assert pool.of("3") == "held a"


def test_the_picky_are_offered_also_what_their_own_session_gives_back():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", picky=True)
    pool.release("1")
    assert pool.of("2") == "offered a"


def test_a_lease_runs_from_the_claim():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t", lease=CLAIM)
    pool.release("1")
    pool.now += CLAIM - 1
    pool.claim("2")
    assert pool.request("2").until == pool.now + CLAIM


def test_an_offer_that_is_not_claimed_goes_to_the_next():
    pool = offered()
    pool.later(CLAIM - 1)
    assert pool.of("2") == "offered a"
    pool.later(1)
    assert pool.all() == {"2": "away", "3": "offered a"}


def test_who_comes_back_has_its_old_place():
    pool = offered()
    pool.later(CLAIM)
    pool.claim("3")
    pool.ask("4", session="u")
    pool.claim("2")
    assert pool.all() == {"2": "waiting", "3": "held a", "4": "waiting"}
    pool.release("3")
    assert pool.of("2") == "offered a"


def test_who_lapses_again_and_again_keeps_its_place():
    pool = offered()
    for _ in range(40):
        pool.later(CLAIM)
        pool.claim("3")
        pool.claim("2")
        assert pool.of("2") == "waiting"
        pool.release("3")
        assert pool.of("2") == "offered a"
        pool.ask("3", session="u")
    assert all(len(line.heap) < 10 for line in pool.state.index.lines.values())


def test_a_claim_too_late_gets_what_is_free_all_the_same():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t")
    pool.release("1")
    pool.now += CLAIM
    pool.claim("2")
    assert pool.of("2") == "held a"


def test_a_wait_that_is_over_while_offered_can_still_be_claimed_but_not_lapse():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t", timeout=CLAIM // 2)
    pool.release("1")
    pool.later(CLAIM // 2)
    assert pool.of("2") == "offered a"
    pool.later(CLAIM // 2)
    assert pool.of("2") == "timed out"


def test_a_deadline_at_the_very_end_of_the_claim_ends_the_wait():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t", timeout=CLAIM)
    pool.ask("3")
    pool.release("1")
    pool.later(CLAIM)
    assert pool.of("2") == "timed out"
    assert pool.of("3") == "offered a"


def test_a_declined_offer_goes_on_and_never_comes_back():
    pool = Stage("a", "b")
    pool.ask("1", "@a")
    pool.ask("2", "@b")
    pool.ask("3", session="t", picky=True)
    pool.ask("4", session="u")
    pool.release("1")
    pool.decline("3")
    assert pool.all() == {"2": "held b", "3": "waiting", "4": "offered a"}
    pool.claim("4")
    pool.release("4")
    assert pool.of("3") == "waiting"
    pool.release("2")
    assert pool.of("3") == "offered b"


def test_who_declines_all_there_is_waits_in_vain():
    pool = offered()
    pool.decline("2")
    assert pool.of("2") == "unsatisfiable"
    assert pool.of("3") == "offered a"


def test_declining_names_the_token_of_the_offer():
    pool = offered()
    assert pool.tell(do.Decline("t", "2", 1)).kind == "stale"
    assert pool.tell(do.Decline("u", "3", 0)).kind == "stale"
    assert pool.of("2") == "offered a"


def test_who_declines_after_its_deadline_is_timed_out():
    pool = Stage("a", "b")
    pool.ask("1", "@a")
    pool.ask("2", "@b")
    pool.ask("3", session="t", picky=True, timeout=10)
    pool.release("1")
    pool.now += 20
    pool.decline("3")
    assert pool.of("3") == "timed out"


def test_the_dead_lose_what_they_held_and_asked_for():
    pool = Stage("a", "b")
    pool.ask("1", "@a", session="dead")
    pool.ask("2", "@b", session="dead")
    pool.ask("3", "@a", session="dead")
    pool.ask("4", "@b", session="t")
    pool.tell(do.Bury("dead"))
    assert pool.all() == {"4": "offered b"}
    assert pool.ask("5", "@a").kind == "held"


def test_a_dead_session_is_given_nothing_in_the_step_that_buries_it():
    pool = Stage("a", settings=Settings(delay=100))
    pool.ask("1", lease=10)
    pool.ask("2", session="dead")
    pool.now += 110
    pool.tell(do.Bury("dead"))
    assert not pool.state.requests
    pool.later(0)
    assert pool.ask("3").kind == "waiting"  # the lease has ended just now
    pool.later(100)
    assert pool.of("3") == "offered a"


def test_an_offer_of_the_dead_goes_to_the_next():
    pool = offered()
    pool.tell(do.Bury("t"))
    assert pool.all() == {"3": "offered a"}


def test_nobody_cannot_die():
    pool = Stage("a")
    pool.ask("1", session="")
    pool.tell(do.Bury(""))
    assert pool.of("1") == "held a"
    assert not pool.changes


def test_burying_twice_changes_nothing():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t", chosen=True)
    pool.tell(do.Bury("t"))
    until = pool.request("2").until
    pool.now += 5
    pool.tell(do.Bury("t"))
    assert not pool.changes
    assert pool.request("2").until == until


def test_a_chosen_id_keeps_the_place_of_a_dead_process():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t", chosen=True)
    pool.ask("3", session="u")
    pool.tell(do.Bury("t"))
    assert pool.of("2") == "away"
    reply = pool.ask("2", session="t again", chosen=True)
    assert reply.kind == "waiting"
    pool.release("1")
    assert pool.of("2") == "offered a"
    assert pool.request("2").session == "t again"


def test_a_chosen_id_keeps_its_place_also_when_its_process_dies_with_an_offer():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t", chosen=True)
    pool.ask("3", session="u")
    pool.release("1")
    pool.tell(do.Bury("t"))
    assert pool.all() == {"2": "away", "3": "offered a"}
    pool.ask("2", session="t again", chosen=True)
    pool.withdraw("3")
    assert pool.of("2") == "offered a"


def test_the_answer_to_one_who_comes_back_tells_what_it_has():
    pool = Stage("a")
    pool.ask("1", lease=10)
    pool.ask("2", session="t", chosen=True)
    pool.tell(do.Bury("t"))
    pool.later(10)
    reply = pool.ask("2", session="t again", chosen=True, seen=pool.now + 1000)
    assert (reply.kind, reply.shares) == ("held", (("a", 1),))
    assert reply.token == pool.now + 1001


def test_who_comes_back_to_what_cannot_be_is_told():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t", chosen=True)
    pool.ask("3", session="u", chosen=True)
    pool.tell(do.Bury("t"))
    pool.tell(do.Bury("u"))
    pool.tell(do.Remove("a"))
    assert pool.ask("2", session="t again", chosen=True).kind == "unsatisfiable"
    pool.claim("3")
    assert pool.of("3") == "unsatisfiable"


def test_the_place_of_the_dead_is_kept_for_a_while_only():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t", chosen=True)
    pool.tell(do.Bury("t"))
    pool.later(RETENTION)
    assert pool.of("2") == "died"
    assert pool.ask("2", session="t again", chosen=True).kind == "waiting", "it had no effect, so it may ask again"


def test_the_same_id_again_tells_how_it_stands():
    pool = Stage("a")
    first = pool.ask("1")
    again = pool.ask("1")
    assert again == first and not pool.changes
    pool.ask("2")
    assert pool.ask("2").kind == "waiting" and not pool.changes


def test_the_id_of_another_living_session_is_taken():
    pool = offered()
    for name in ("2", "3"):
        assert pool.ask(name, session="v", chosen=True).kind == "taken"
    pool.later(CLAIM)
    assert pool.of("2") == "away", "but its session may be alive"
    assert pool.ask("2", session="v").kind == "taken"


def test_a_session_that_took_over_a_place_is_safe_from_the_next():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t", chosen=True)
    pool.tell(do.Bury("t"))
    pool.ask("2", session="u", chosen=True)
    pool.release("1")
    pool.later(CLAIM)
    assert pool.of("2") == "away"
    assert pool.ask("2", session="v", chosen=True).kind == "taken"


def test_a_chosen_id_that_had_its_effect_is_used():
    pool = Stage("a")
    pool.ask("1", chosen=True)
    pool.release("1")
    reply = pool.ask("1", session="t", chosen=True)
    assert (reply.kind, reply.detail) == ("used", "released")


def test_a_chosen_id_whose_grant_was_taken_away_may_ask_again():
    pool = Stage("a")
    pool.ask("1", chosen=True)
    pool.release("1", by="op")
    assert pool.ask("1", chosen=True).kind == "held"
    pool.tell(do.Bury("s"))
    assert pool.ask("1", session="t", chosen=True).kind == "held"


def test_a_claim_of_what_is_not_ones_own_changes_nothing():
    pool = offered()
    assert pool.tell(do.Claim("u", ("2", "3", "never"))).kind == "ok"
    assert not pool.changes


def test_one_claim_takes_all_offers_of_a_session():
    pool = Stage("a", "b")
    pool.ask("1", "@a")
    pool.ask("2", "@b")
    pool.ask("3", "@a", session="t")
    pool.ask("4", "@b", session="t")
    pool.release("1")
    pool.release("2")
    pool.claim("3", "4")
    assert pool.all() == {"3": "held a", "4": "held b"}


def test_a_holder_is_told_who_has_taken_an_id():
    pool = Stage("a")
    pool.tell(do.Acquire("1", "s", 0, Holder(id="ci-7"), (Want(),), chosen=True))
    assert pool.ask("1", session="t", chosen=True).detail == "ci-7"


def test_a_chosen_id_that_was_taken_back_before_its_holder_knew_may_ask_again():
    pool = Stage("a")
    pool.ask("1", chosen=True)
    assert pool.withdraw("1").kind == "withdrawn"
    assert pool.ask("1", chosen=True).kind == "held"
