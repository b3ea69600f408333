"""The rules of resource pools: tokens, and how a grant ends or changes hands."""

from __future__ import annotations

import pytest

from millpond.resources._rules import changes as to
from millpond.resources._rules import commands as do
from millpond.resources._rules.records import Holder, Settings, Want
from millpond_conformance._stage import Stage


def test_a_token_is_at_least_the_time():
    pool = Stage("a")
    assert pool.ask("1").token == pool.now


def test_tokens_grow_although_time_stands_still():
    pool = Stage("a", "b", "c")
    tokens = [pool.ask(name).token for name in "123"]
    assert tokens == [pool.now, pool.now + 1, pool.now + 2]


def test_tokens_grow_although_the_clock_goes_back():
    pool = Stage("a", "b")
    first = pool.ask("1").token
    pool.now -= 1000
    assert pool.ask("2").token == first + 1


def test_a_token_is_above_what_the_client_has_seen():
    pool = Stage("a")
    assert pool.ask("1", seen=pool.now + 500).token == pool.now + 501


def test_a_token_is_above_what_a_waiter_had_seen_when_it_asked():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", seen=pool.now + 500)
    pool.release("1")
    assert pool.request("2").token == pool.now + 501


def test_tokens_grow_after_everything_was_removed():
    pool = Stage("a")
    last = pool.ask("1", seen=pool.now + 500).token
    pool.release("1")
    pool.tell(do.Remove("a"))
    pool.add("a")
    assert pool.ask("2").token == last + 1


def test_ones_own_release_sent_again_is_told_so():
    pool = Stage("a")
    token = pool.ask("1").token
    assert pool.release("1").kind == "released"
    again = pool.tell(do.Release("s", token))
    assert (again.kind, again.detail) == ("ended", "released by you")


def test_a_stale_token_changes_nothing_and_says_what_became_of_it():
    pool = Stage("a")
    token = pool.ask("1", lease=10).token
    pool.later(10)
    for command in (
        do.Release("s", token),
        do.Renew("s", token),
        do.Adopt("t", token, Holder(), "stolen"),
        do.Suspect("t", token, "silent"),
    ):
        reply = pool.tell(command)
        assert (reply.kind, reply.detail) == ("stale", "expired: its lease ended")
        assert not pool.changes


def test_a_token_that_was_never_granted_is_stale():
    pool = Stage("a")
    pool.ask("1")
    for token in (0, 1, pool.state.token + 1):
        assert pool.tell(do.Release("s", token)).kind == "stale"
    assert pool.of("1") == "held a"


def test_a_token_counts_for_its_resource_only():
    pool = Stage("a", "b")
    token = pool.ask("1", "@a").token
    assert "not a grant of 'b'" in pool.tell(do.Release("op", token, "b", by="op")).detail
    assert pool.tell(do.Release("op", token, "a", by="op")).kind == "released"


def test_an_operator_takes_a_grant_away_and_its_holder_learns_by_whom():
    pool = Stage("a")
    token = pool.ask("1").token
    pool.tell(do.Release("console", token, by="jo", reason="wrong board"))
    reply = pool.tell(do.Release("s", token))
    assert (reply.kind, reply.detail) == ("stale", "revoked by jo: wrong board")


def test_a_lock_is_never_ended_by_time():
    pool = Stage("a")
    pool.ask("1")
    pool.tell(do.Suspect("watch", pool.request("1").token, "silent"))
    pool.later(10**15)
    assert pool.of("1") == "held a"
    assert pool.state.due() is None


def test_a_lease_ends_at_its_end_and_not_before():
    pool = Stage("a")
    pool.ask("1", lease=100)
    pool.ask("2", session="t")
    pool.later(99)
    assert pool.of("1") == "held a"
    pool.later(1)
    assert pool.all() == {"2": "offered a"}


def test_a_renewed_lease_runs_its_whole_length_again():
    pool = Stage("a")
    pool.ask("1", lease=100)
    pool.later(60)
    assert pool.renew("1").until == pool.now + 100
    pool.later(99)
    assert pool.of("1") == "held a"


def test_a_lease_that_is_over_is_not_revived():
    pool = Stage("a")
    token = pool.ask("1", lease=100).token
    pool.now += 100
    assert pool.tell(do.Renew("s", token)).kind == "stale"
    assert not pool.state.requests


def test_renewing_a_lock_takes_away_a_suspicion_and_nothing_else():
    pool = Stage("a")
    token = pool.ask("1").token
    pool.renew("1")
    assert not pool.changes
    pool.tell(do.Suspect("watch", token, "silent"))
    assert pool.request("1").suspect == "silent"
    pool.tell(do.Suspect("watch", token, "silent"))
    assert not pool.changes
    pool.renew("1")
    assert (pool.request("1").suspect, pool.request("1").until) == ("", 0)


@pytest.mark.parametrize("ending", ["expired", "revoked", "died"])
def test_a_resource_that_was_taken_away_is_not_lent_for_a_while(ending):
    pool = Stage("a", settings=Settings(delay=50))
    pool.ask("1", lease=100)
    pool.ask("2", session="t")
    if ending == "expired":
        pool.later(100)
    elif ending == "revoked":
        pool.release("1", by="op")
    else:
        pool.tell(do.Bury("s"))
    assert pool.all() == {"2": "waiting"}
    pool.later(49)
    assert pool.of("2") == "waiting"
    pool.later(1)
    assert pool.of("2") == "offered a"


def test_a_resource_that_was_given_back_is_lent_at_once():
    pool = Stage("a", settings=Settings(delay=50))
    pool.ask("1")
    pool.ask("2")
    pool.release("1")
    assert pool.of("2") == "held a"


def test_a_delay_holds_for_all_units_of_a_resource():
    pool = Stage(settings=Settings(delay=50))
    pool.add("a", 3)
    pool.ask("1", lease=100)
    pool.ask("2")
    pool.later(100)
    assert pool.ask("3").kind == "waiting"
    pool.later(50)
    assert pool.of("3") == "offered a"


def test_a_shorter_delay_does_not_cut_a_longer_one():
    pool = Stage(settings=Settings(delay=50))
    pool.add("a", 2)
    pool.ask("1")
    pool.ask("2")
    pool.release("1", by="op")
    pool.configure(delay=1)
    pool.release("2", by="op")
    pool.later(49)
    assert pool.ask("3").kind == "waiting"
    pool.later(1)
    assert pool.of("3") == "offered a"


def test_an_adopted_grant_has_a_new_token_and_the_old_one_is_stale():
    pool = Stage("a", "b")
    token = pool.ask("1", Want("*", 2), lease=100).token
    assert pool.pass_on("1").kind == "ok"
    reply = pool.tell(do.Adopt("t", token, Holder(id="heir"), "transferred", seen=pool.now + 7))
    assert (reply.kind, reply.token, reply.until) == ("held", pool.now + 8, 0)
    assert {name for name, _ in reply.shares} == {"a", "b"}
    stale = pool.tell(do.Release("s", token))
    assert (stale.kind, stale.detail) == ("stale", "transferred")
    pool.later(1000)
    assert pool.request("1").holder.id == "heir"
    pool.tell(do.Bury("s"))
    assert pool.of("1") == "held a b", "it belongs to the other session now"
    pool.tell(do.Bury("t"))
    assert pool.of("1") == "died"


def test_a_transfer_is_refused_unless_the_holder_passed_the_grant_on():
    pool = Stage("a")
    token = pool.ask("1").token
    adopt = do.Adopt("t", token, Holder(id="heir"), "transferred")
    reply = pool.tell(adopt)
    assert (reply.kind, reply.detail) == ("stale", "it was not passed on: its holder must call transfer()")
    assert pool.pass_on("1") == do.Reply("ok", "1", token)
    assert pool.changes == [to.Passed("1")]
    assert pool.pass_on("1").kind == "ok"
    assert pool.changes == [], "once is enough"
    assert pool.tell(adopt).kind == "held"


def test_who_adopted_a_grant_must_pass_it_on_itself():
    for how in ("transferred", "stolen", "kept"):
        pool = Stage("a")
        pool.ask("1")
        pool.pass_on("1")
        pool.tell(do.Adopt("t", pool.request("1").token, Holder(id="t"), how))
        token = pool.request("1").token
        assert pool.tell(do.Adopt("u", token, Holder(id="u"), "transferred")).kind == "stale"
        assert pool.tell(do.Pass("s", token)).detail == "it is in the hands of t"
        assert pool.tell(do.Adopt("u", token, Holder(id="u"), "stolen")).kind == "held"


def test_what_is_not_held_cannot_be_passed_on():
    pool = Stage("a")
    token = pool.ask("1").token
    pool.ask("2", session="t")
    pool.release("1")
    assert pool.pass_on("2").detail == "it was offered, but is not held yet"
    assert pool.tell(do.Pass("s", token)).kind == "ended"
    assert pool.tell(do.Pass("s", 12)).kind == "stale"


def test_a_theft_tells_the_victim_by_whom_and_why():
    pool = Stage("a")
    token = pool.ask("1").token
    pool.tell(do.Adopt("t", token, Holder(id="jo"), "stolen", "urgent", by="jo", resource="a"))
    assert pool.tell(do.Renew("s", token)).detail == "stolen by jo: urgent"
    assert pool.request("1").reason == "urgent"


def test_a_grant_is_kept_for_a_person_whatever_dies():
    pool = Stage("a")
    token = pool.ask("1").token
    pool.tell(do.Adopt("", token, Holder("person", "jo"), "kept", "post-mortem", lease=500))
    pool.tell(do.Bury("s"))
    pool.tell(do.Bury(""))
    assert pool.of("1") == "held a"
    pool.later(500)
    assert pool.of("1") == "expired"


def test_an_offer_cannot_be_adopted():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t")
    pool.release("1")
    reply = pool.tell(do.Adopt("u", pool.request("2").token, Holder(), "stolen"))
    assert (reply.kind, reply.detail) == ("stale", "it was offered, but is not held yet")


def test_an_adopted_grant_stays_in_its_group():
    pool = Stage("a", "b")
    pool.tell(do.SetGroup("g", quota=1))
    token = pool.ask("1", group="g").token
    pool.tell(do.Adopt("t", token, Holder(id="t"), "stolen"))
    assert pool.ask("2", group="g").kind == "waiting"
    pool.release("1")
    assert pool.of("2") == "offered a"


def test_a_release_takes_an_offer_back_too():
    pool = Stage("a")
    pool.ask("1")
    pool.ask("2", session="t")
    pool.release("1")
    assert pool.release("2").kind == "released"
    assert pool.ask("3").kind == "held"
