"""Keyed pools in a SQLite file, between processes: shared, killed, stopped, woken."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from millpond._sqlite import Transaction
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.envelope import opened
from millpond.keyed.rules.records import SECOND, Batch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "sqlite"))
sys.path.insert(0, str(Path(__file__).parent))
import sqlite_programs as programs
from keyed_sqlite_tools import SLOTS, Hand, check_rows, end, open_store, order

from waiting import HANG, becomes, until

start = programs.start

TOOLS = f"""
sys.path.insert(0, {str(Path(__file__).parent)!r})
from keyed_sqlite_tools import *
from millpond.keyed.rules.records import Batch
from millpond.keyed.stores.sqlite import _file
_file.LOOK = 3600.0  # who waits is woken; nothing is found, and no lock held, by looking now and then
store = open_store(sys.argv[1])
"""

PRODUCER = """
number = 0
while True:
    orders = [order(f"k{i % 7}", f"{sys.argv[2]}-{number + i}") for i in range(20)]
    store.dispatch(Batch(f"{sys.argv[2]}-{number}", 1), orders)
    number += 20
    say(number)
"""

WORKER = """
hand = Hand(store, sys.argv[2], claims=False)
settles, done = [], 0
while True:
    store.claim(hand.name, range(SLOTS), {})
    work = hand.work(*settles, want=5, per=3)
    settles = [end(take) for take in work.takes]
    done += sum(len(take.jobs) for take in work.takes)
    say(done)
"""

HOLDER = """
hand = Hand(store, sys.argv[2])
takes = hand.work().takes
say(len(takes))
while hear():
    pass
"""

LISTENER = """
heard = threading.Event()
subscription = store.listen(sys.argv[2], heard.set)
hand = Hand(store, sys.argv[2])
heard.clear()
say("ready")
while hear():
    say("asleep")
    takes = ()
    while not takes and heard.wait(60):
        heard.clear()
        takes = hand.work().takes
    for take in takes:
        hand.work(end(take))
    say(len(takes))
"""


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/pools.db"


@pytest.fixture
def store(url):
    made = open_store(url)
    yield made
    check_rows(made)
    made.close()


def run(start, script, url, *args):
    return start(TOOLS + script, url, *args)


def drain(store, name="after"):
    """Take over from everybody who is dead, and return the ids of all jobs that are left, in order, by key."""
    hand = Hand(store, name, claims=False)
    beat = store.ask(about.Members())
    dead = {member.id: member.lease_end for member in beat.members if member.is_dead}
    claimed = store.claim(name, range(SLOTS), dead)
    assert len(claimed.got) == SLOTS and not claimed.contested
    found: dict[str, list[str]] = {}
    while takes := hand.work(want=50, per=50).takes:
        for take in takes:
            found.setdefault(take.mailbox, []).extend(opened(raw).id for raw in take.jobs)
        hand.work(*map(end, takes), want=0)
    return found


def test_what_one_process_dispatches_another_takes(store, url, start):
    producer = run(start, PRODUCER, url, "p")
    hand = Hand(store)
    seen: dict[str, list[int]] = {}
    total = 0
    while total < 400:
        takes = hand.work().takes
        for take in takes:
            jobs = [int(opened(raw).id.split("-")[1]) for raw in take.jobs]
            seen.setdefault(take.mailbox, []).extend(jobs)
            total += len(jobs)
        hand.work(*map(end, takes), want=0)
        producer.line()
    for jobs in seen.values():
        assert jobs == sorted(jobs)


def test_a_producer_that_is_killed_has_dispatched_whole_batches(store, url, start):
    for turn in range(4):
        producer = run(start, PRODUCER, url, f"p{turn}")
        for _ in range(3 + turn * 5):
            said = int(producer.line())
        producer.kill()
        check_rows(store)
        found = drain(store, f"w{turn}")
        store.leave(f"w{turn}")
        jobs = sorted(int(job.split("-")[1]) for some in found.values() for job in some)
        assert jobs == list(range(len(jobs))) and len(jobs) >= said and len(jobs) % 20 == 0
        for some in found.values():
            numbers = [int(job.split("-")[1]) for job in some]
            assert numbers == sorted(numbers)


def test_a_worker_that_is_killed_loses_no_job(store, url, start):
    total = 600
    for first in range(0, total, 100):
        store.dispatch(Batch(f"b{first}", 1), [order(f"k{n % 7}", f"x-{n}") for n in range(first, first + 100)])
    for turn in range(4):
        worker = run(start, WORKER, url, f"w{turn}")
        for _ in range(2 + turn):
            worker.line()
        worker.kill()
        check_rows(store)
        before = f"w{turn}"
        claimer = Hand(store, f"claimer{turn}", claims=False)
        claimed = store.claim(claimer.name, range(SLOTS), {before: 0})
        assert not claimed.is_gone and before not in {member.id for member in store.ask(about.Members()).members}
        store.leave(claimer.name)
        check_rows(store)
    counts = store.ask(about.Counts())
    left = drain(store)
    letters = store.ask(about.DeadLetters())
    assert counts.done + sum(map(len, left.values())) + len(letters) == total
    for jobs in left.values():
        numbers = [int(job.split("-")[1]) for job in jobs]
        assert numbers == sorted(numbers)


def test_what_a_killed_process_had_is_taken_over_at_once(store, url, start):
    store.dispatch(Batch("b", 1), [order(f"k{n}", f"x-{n}") for n in range(10)])
    holder = run(start, HOLDER, url, "victim")
    assert holder.line() == "10"
    heard, hand = threading.Event(), Hand(store, "heir", claims=False)
    subscription = store.listen("heir", heard.set)
    heard.clear()
    assert [member.is_dead for member in store.ask(about.Members()).members] == [False, False]
    holder.kill()
    assert heard.wait(HANG), "nobody told the heir"
    (victim,) = [member for member in store.ask(about.Members()).members if member.is_dead]
    claimed = store.claim("heir", range(SLOTS), {victim.id: victim.lease_end})
    takes = hand.work().takes
    assert len(claimed.got) == SLOTS and claimed.recovered == 10 and len(takes) == 10
    assert victim.lease_end > store.ask(about.Counts()).now, "its lease was not waited for"
    assert {take.losses for take in takes} == {1}
    subscription.close()


def test_a_stopped_process_is_not_dead_but_its_lease_ends(store, url, start):
    store.dispatch(Batch("b", 1), [order("k", "x-1")])
    holder = run(start, HOLDER, url, "sleeper")
    assert holder.line() == "1"
    holder.stop()
    hand = Hand(store, "heir", claims=False)
    (sleeper,) = [member for member in store.ask(about.Members()).members if member.id == "sleeper"]
    assert not sleeper.is_dead
    assert store.claim("heir", range(SLOTS), {"sleeper": sleeper.lease_end}).got == ()
    store.skew += 61 * SECOND
    store.renew("heir")
    assert not any(member.is_dead for member in store.ask(about.Members()).members)
    assert len(store.claim("heir", range(SLOTS), {"sleeper": sleeper.lease_end}).got) == SLOTS
    assert len(hand.work().takes) == 1
    holder.signal(signal.SIGCONT)


COMPUTER = """
hands = [Hand(store, name, claims=False) for name in ("a", "b", "left")]
hearts = [store.outer_heart(60.0, 60.0, renews=True) for hand in hands]
for heart, hand in zip(hearts, hands):
    heart.join(hand.name)
hearts[2].give_up("left")
threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()  # it computes
say("ready")
while words := hear():
    store.skew = int(words)
    store.renew("a")
    say("renewed")
"""


def test_when_one_worker_speaks_after_its_process_computed_others_vouch_for_all_but_those_who_gave_up(
    store, url, start
):
    """Its process comes to itself, and is held up again before the second worker has a turn."""
    computer = run(start, COMPUTER, url)
    assert computer.line() == "ready"
    hand = Hand(store, "w", claims=False)

    def leases() -> dict[str, float]:
        members = store.renew(hand.name).members
        now = store.ask(about.Counts()).now
        return {one.id: (one.lease_end - now) / SECOND for one in members if one.id != "w"}

    store.skew += 35 * SECOND
    until(lambda: min(leases().values()) > 55, "others vouch for them")
    store.skew += 35 * SECOND
    assert computer.ask(str(store.skew)) == "renewed"  # "a" only
    store.skew += 31 * SECOND
    until(lambda: leases()["a"] > 55, "others vouch for it again")
    left = leases()
    assert left["b"] > 55 and left["left"] < 0, left


def test_a_worker_in_another_process_is_woken_by_a_bell(store, url, start):
    listener = run(start, LISTENER, url, "sleeper")
    assert listener.line() == "ready"
    for number in range(30):
        assert listener.ask("go") == "asleep"
        time.sleep(0.005)  # so that it truly sleeps, mostly
        store.dispatch(Batch(f"b{number}", 1), [order("k", f"x-{number}")])
        assert listener.line() == "1"


def test_a_process_that_says_goodbye_leaves_nothing(store, url, start):
    listener = run(
        start,
        "subscription = store.listen('x', lambda: None)\nhand = Hand(store, 'x')\nhear()\nstore.close()\nsay('closed')\nhear()",
        url,
    )
    heard = threading.Event()
    subscription = store.listen("w", heard.set)
    until(lambda: store.ask(about.Members()).members)
    until(lambda: store._file.sessions.own.others())  # one that was never met is not missed
    heard.clear()
    assert listener.ask() == "closed"
    assert heard.wait(HANG)
    assert [member.is_dead for member in store.ask(about.Members()).members] == [True]
    subscription.close()
    rows = store._file.read(
        lambda t: (
            t.execute("SELECT count(*) FROM keyed_session").fetchone(),
            t.execute("SELECT count(*) FROM keyed_listener").fetchone(),
        )
    )
    assert rows == ((1,), (0,))


def test_the_dead_leave_no_session_or_bell_behind(store, url, start, tmp_path):
    programs_ = [run(start, HOLDER, url, f"w{n}") for n in range(2)]
    for program in programs_:
        program.line()
    for program in programs_:
        program.kill()
    becomes(lambda: len(os.listdir(tmp_path / "pools.db-bells")), 1)
    becomes(lambda: store._file.read(lambda t: t.execute("SELECT count(*) FROM session").fetchone()), (1,))


def test_a_session_that_was_buried_by_mistake_comes_back(store, url, start, tmp_path):
    hand = Hand(store)
    heard = threading.Event()
    subscription = store.listen("w", heard.set)
    home = store._file
    before = home.sessions.number

    def bury(transaction: Transaction) -> None:  # as another process does
        for table, column in (("session", "number"), ("keyed_session", "number"), ("keyed_listener", "session")):
            transaction.execute(f"DELETE FROM {table} WHERE {column} = ?", (before,))
        home.sessions.own.bell.sweep(before)

    home.write(bury)
    until(lambda: home.sessions.number != before)
    number = home.sessions.number
    tables = "SELECT session.number, keyed_session.number, keyed_listener.session FROM session, keyed_session, keyed_listener"
    becomes(lambda: home.read(lambda t: t.execute(tables).fetchall()), [(number,) * 3])
    assert not store.ask(about.Members()).members[0].is_dead and hand.work().is_gone is False
    becomes(lambda: os.listdir(tmp_path / "pools.db-bells"), [str(number)])
    heard.clear()
    start(TOOLS + "store.dispatch(Batch('b', 1), [order('k', '1')]); say('sent'); hear()", url).line()
    assert heard.wait(HANG)
    subscription.close()


def test_a_session_that_a_resource_pool_has_struck_is_buried_here_too(store):
    """Its row is gone, and with it the passport by which its death would be seen."""
    home = store._file
    dead = home.sessions.number + 1000

    def leave(transaction: Transaction) -> None:
        transaction.execute("INSERT INTO keyed_session VALUES (?)", (dead,))
        transaction.execute("INSERT INTO keyed_listener VALUES ('p', 'w', ?, 0)", (dead,))

    home.write(leave)
    home.sessions.own.bell.ring_self()
    becomes(lambda: home.read(lambda t: t.execute("SELECT number FROM keyed_session").fetchall()), [(dead - 1000,)])
    assert home.read(lambda t: t.execute("SELECT * FROM keyed_listener WHERE session = ?", (dead,)).fetchall()) == []
