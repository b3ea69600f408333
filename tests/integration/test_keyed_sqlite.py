"""Keyed pools in a SQLite file: every verb on rows, several pools and parts in one file, and what is refused."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond._clock import elapsed
from millpond._sqlite import Database, DiskFull, Transaction
from millpond.errors import EngineError, EngineUnavailable, PoolClosed
from millpond.keyed import KeyedPool
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.commands import (
    Cancel,
    Command,
    Drop,
    Notify,
    Pause,
    Purge,
    Renew,
    Replay,
    Resume,
    Shut,
    Start,
    Stop,
)
from millpond.keyed.rules.envelope import Envelope, encode
from millpond.keyed.rules.records import SECOND, Batch, Joiner, OrderOptions, Outcome, Settings
from millpond.keyed.stores import sqlite
from millpond.keyed.stores.base import PoolGone
from millpond.keyed.stores.sqlite import _own_workers, _reads, _writer
from millpond.resources import ResourcePool

sys.path.insert(0, str(Path(__file__).parent))
from keyed_sqlite_tools import SETTINGS, SLOTS, Hand, check_rows, end, ids, open_store, order, resident

from waiting import HANG, until


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/pools.db"


@pytest.fixture
def store(url):
    made = open_store(url)
    yield made
    check_rows(made)
    made.close()


# --- the verbs --------------------------------------------------------------------------------------------------------


def test_jobs_of_a_key_come_in_order_and_once(store):
    hand = Hand(store)
    store.dispatch(Batch("b1", 1), [order("a", "1"), order("b", "2"), order("a", "3")])
    assert dict(store.dispatch(Batch("b1", 1), [order("a", "1")])) == {}  # the same batch again
    first = {take.mailbox: take for take in hand.work().takes}
    assert ids(first["j:a"]) == ["1", "3"] and ids(first["j:b"]) == ["2"]
    assert hand.work().takes == ()
    assert hand.work(end(first["j:a"], "keep", 1), end(first["j:b"])).takes == ()
    assert store.ask(about.Where(first["j:a"].slot, "j:a", "1")) == "gone"
    assert store.ask(about.Where(first["j:a"].slot, "j:a", "3")) == "running"
    assert hand.work(end(first["j:a"])).stale == ()
    assert hand.work(end(first["j:a"])).stale == (0,)
    assert store.ask(about.Counts()).jobs == 0 and store.ask(about.Counts()).done == 3 and store.ask(about.Keys()) == []


def test_a_retry_a_dead_letter_and_a_parked_key(store):
    hand = Hand(store)
    store.dispatch(Batch("b", 1), [order("a", "1"), order("b", "2"), order("c", "3")])
    takes = {take.mailbox: take for take in hand.work().takes}
    due = hand.work(
        end(takes["j:a"], "retry", 0, delay=5 * SECOND, failures=1),
        end(takes["j:b"], "to_dead_letters", 0, reason=b"no"),
        end(takes["j:c"], "park", 0, reason=b"unknown"),
    ).due
    views = store.ask(about.Keys())
    assert {view.mailbox: view.state for view in views} == {"j:a": "retry", "j:c": "parked"}
    assert [letter.reason for letter in store.ask(about.DeadLetters())] == [b"no"]
    store.skew += due - store.ask(about.Counts()).now + 1
    (again,) = hand.work().takes
    assert (again.mailbox, again.failures) == ("j:a", 1)
    assert store.apply(Replay((1,))) == "1" and store.apply(Drop((1,))) == "0"
    assert [take.mailbox for take in hand.work(end(again)).takes] == ["j:b"]
    other = Hand(store, "other", claims=False)
    store.join(Joiner("other", "test", 1, 100, ("unknown",)))
    (borrowed,) = other.work().takes
    assert borrowed.mailbox == "j:c" and other.work(end(borrowed)).stale == ()


def test_delays_ids_and_outcomes_end_in_their_time(store):
    hand = Hand(store)
    late = OrderOptions("1", "job", delay=30 * SECOND, unique_for=60 * SECOND)
    assert dict(store.dispatch(Batch("b1", 1), [order("a", "1", late)])) == {}
    assert dict(store.dispatch(Batch("b2", 1), [order("a", "1", late)])) == {0: "same"}
    assert store.ask(about.Where(0, "j:a", "1")) == "delayed" and hand.work().takes == ()
    store.skew += 31 * SECOND
    store.renew("w")
    (take,) = hand.work().takes
    hand.work(end(take, outcomes=(Outcome("1", "done", b"42", 30 * SECOND),)))
    assert store.ask(
        about.Outcomes(
            (
                "1",
                "2",
            )
        )
    ) == [("done", b"42"), None]
    store.skew += 31 * SECOND
    store.renew("w")
    assert store.ask(about.Outcomes(("1",))) == [None]
    hand.work()
    rows = store._file.read(lambda t: t.execute("SELECT count(*) FROM keyed_outcome").fetchone())
    assert rows == (0,)


def test_cancel_purge_pause_and_resume(store):
    hand = Hand(store)
    store.dispatch(Batch("b", 1), [order("a", str(number)) for number in range(6)])
    slot = order("a", "x").slot
    (take,) = hand.work(per=2).takes
    assert store.apply(Cancel(slot, "j:a", "1")) == "asked"
    assert store.apply(Cancel(slot, "j:a", "3")) == "cancelled"
    assert store.apply(Cancel(slot, "j:a", "3")) == "gone"
    signals = hand.work().signals
    assert [(signal.kind, signal.id) for signal in signals] == [("cancel", "1")]
    assert hand.work(heard=signals[0].number).signals == ()
    store.apply(Pause(slot, "a"))
    assert hand.work(end(take)).takes == () and store.ask(about.Keys())[0].state == "paused"
    assert store.apply(Purge(slot, "j:a")) == "3" and store.ask(about.Keys()) == []
    store.apply(Resume(slot, "a"))


def test_residents_and_their_notes(store):
    hand = Hand(store)
    slot, mailbox, body = resident("k", "r1", b"one")
    assert store.apply(Start(slot, mailbox, body)) == "started"
    assert store.apply(Notify(slot, mailbox, b"early")) == "sent"
    (take,) = hand.work().takes
    assert [data for _, data in take.notes] == [b"early"]
    assert store.apply(Notify(slot, mailbox, b"late")) == "sent"
    assert [signal.data for signal in hand.work().signals] == [b"late"]
    assert store.apply(Start(slot, mailbox, body)) == "same"
    assert store.apply(Start(slot, mailbox, resident("k", "r2", b"two")[2])) == "replaced"
    assert len(store.ask(about.Keys("r"))) == 1
    (second,) = hand.work(end(take)).takes
    assert ids(second) == ["r2"]
    assert store.apply(Stop(slot, mailbox)) == "stopping"
    hand.work(end(second))
    assert store.apply(Stop(slot, mailbox)) == "gone" and store.ask(about.Keys("r")) == []


def test_slots_are_given_claimed_and_left(store):
    a, b = Hand(store, "a"), Hand(store, "b", claims=False)
    store.dispatch(Batch("b", 1), [order(str(number), str(number)) for number in range(20)])
    takes = a.work().takes
    assert len(takes) == 20
    assert store.give("a", [(slot, "b") for slot in range(SLOTS)], "balance") == SLOTS
    assert b.work().takes == () and store.claim("b", range(SLOTS), {}).contested
    assert a.work(*map(end, takes)).stale == ()
    store.leave("b")
    assert {slot.owner for slot in store.ask(about.Slots())} == {""}
    assert {slot.before for slot in store.ask(about.Slots())} == {"b"}
    version, owners = store.ask(about.Owners())
    assert owners == [""] * SLOTS and version == store.ask(about.Members()).version
    assert store.renew("b") is None and store.renew("a") is not None


def test_a_full_key_refuses_what_comes_after_it(url):
    store = open_store(url, "small", SETTINGS._replace(max_per_key=2, max_jobs=3))
    orders = [order("a", "1"), order("a", "2"), order("a", "3"), order("b", "4"), order("b", "5"), order("a", "6")]
    assert dict(store.dispatch(Batch("b", 1), orders)) == {2: "full", 4: "pool", 5: "full"}
    store.apply(Shut())
    assert dict(store.dispatch(Batch("b2", 1), [order("c", "7")])) == {0: "closed"}
    assert store.ask(about.Members()).is_shut
    store.close()


def test_large_jobs_are_taken_in_bearable_pieces(store):
    hand = Hand(store)
    body = encode(Envelope("big", "job", "", 0, b"x" * (1 << 20)))
    store.dispatch(Batch("b", 1), [order("big", "big")._replace(body=body)] * 6)
    (take,) = hand.work().takes
    assert len(take.jobs) == 3  # as many as fit into TAKE_BYTES
    (rest,) = hand.work(end(take)).takes
    assert len(rest.jobs) == 3 and hand.work(end(rest)).takes == ()


def test_keys_may_be_any_text(store):
    hand = Hand(store)
    keys = ["", "a\x00b", "a\x00c", "ü|:{}'\"%_?", "\U0001f986" * 50]
    for number in range(40):
        store.dispatch(Batch(str(number), 1), [order(key, f"{number} {key}") for key in keys])
    takes = hand.work().takes
    assert {take.mailbox for take in takes} == {f"j:{key}" for key in keys}
    assert hand.work(*map(end, takes)).stale == ()


# --- cost -------------------------------------------------------------------------------------------------------------


def _play(store, rng):
    """Call every verb, in all its ways."""
    hands = [Hand(store, name) for name in ("a", "b")]
    for number in range(150):
        job, key = str(number), order(rng.choice("xyz"), "")
        special = OrderOptions(
            job, "job", rng.choice([0, SECOND]), 0, rng.choice(["queue", "replace", "coalesce"]), SECOND
        )
        store.dispatch(Batch(job, 1), [order(rng.choice("xyz"), job, rng.choice([None, special]), keep=SECOND)])
        slot, mailbox, body = resident("k", job, bytes([number % 5]))
        commands: list[Command[str]] = [Start(slot, mailbox, body), Stop(slot, mailbox), Notify(slot, mailbox, b"")]
        commands += [Purge(key.slot, key.mailbox), Pause(key.slot, key.mailbox[2:]), Resume(key.slot, key.mailbox[2:])]
        commands += [Cancel(key.slot, key.mailbox, str(rng.randrange(number + 1))), Replay((1, 2, 3)), Drop((number,))]
        store.apply(rng.choice(commands))
        hand = rng.choice(hands)
        for take in hand.work(per=2).takes:
            how = rng.choice(["keep", "end", "retry", "to_dead_letters", "park"])
            hand.work(end(take, how, rng.randrange(2), reason=b"job", outcomes=(Outcome(job, "done", b"", SECOND),)))
        store.skew += SECOND // 2
        store.renew(hand.name)
        store.claim(hand.name, range(SLOTS), {}, [])
        store.give(hand.name, [(number % SLOTS, "b")], "test")
        check_rows(store)


def test_no_verb_walks_through_a_pool(store, monkeypatch):
    """By the plans that SQLite makes: every statement of a verb finds its rows by more than the number of the pool."""
    home = store._file
    seen: set[str] = set()
    commit = home._writer._commit

    class Spy:
        def __init__(self, transaction):
            self._of = transaction

        def execute(self, statement, *values):
            seen.add(statement)
            return self._of.execute(statement, *values)

        def executemany(self, statement, values):
            seen.add(statement)
            return self._of.executemany(statement, values)

    def spied(calls):
        for call in calls:
            step = call.step
            call.step = lambda transaction, step=step: step(Spy(transaction))
        commit(calls)

    monkeypatch.setattr(home._writer, "_commit", spied)
    _play(store, random.Random(1))
    assert len(seen) > 60
    for statement in seen:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")):
            numbered = [int(part[0]) for part in statement.split("?")[1:] if part[:1].isdigit()]
            values = [1] * max(numbered, default=statement.count("?"))
            plan = home.read(lambda t: t.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall())  # noqa: B023
            for *_, step in plan:
                is_few = any(name in f"{statement} {step}" for name in FEW)
                assert is_few or not step.startswith("SCAN keyed"), f"{statement}: {step}"
                assert is_few or not step.endswith("(pool=?)"), f"{statement}: {step}"


FEW = ("keyed_member", "keyed_session", "keyed_cancelled", "keyed_died", "keyed_mailbox_borrowed", "keyed_due")
"""Where all rows of a pool may be looked at: they are few, or one is enough."""


def test_statistics_cost_the_same_however_many_keys_wait(store, monkeypatch):
    """Counted in steps of SQLite's own machine."""
    monkeypatch.setattr(_reads, "LOOKED_AT", 5)
    connection = store.inner._file.database._connection
    hand = Hand(store)

    def cost():
        steps = 0

        def step():
            nonlocal steps
            steps += 1

        connection.set_progress_handler(step, 1)
        try:
            store.ask(about.Counts())
        finally:
            connection.set_progress_handler(None, 0)
        return steps

    def load(keys):
        for number in range(keys):
            jobs = [order(f"k{keys}-{number}", f"{kind}-{keys}-{number}") for kind in ("dead", "waits")]
            store.dispatch(Batch(f"b{keys}-{number}", 1), jobs)
        while dead := [each for each in hand.work(want=keys, per=1).takes if not each.failures]:
            hand.work(*(end(each, "to_dead_letters", 0, reason=b"no") for each in dead), want=0)
            if store.ask(about.Counts()).dead >= keys:
                return

    load(40)
    few = cost()
    load(400)
    counts = store.ask(about.Counts())
    assert counts.keys_ready + counts.keys_running >= 400 and counts.dead >= 400
    assert cost() <= few + 100


def test_a_producer_costs_one_row_however_often_it_dispatches(url):
    with KeyedPool("p", url) as pool:
        do = pool.declare_job("do")
        for number in range(30):
            do.dispatch(f"k{number % 3}")
        inner: Any = pool._connection.store
        kept = inner._file.read(lambda transaction: transaction.execute("SELECT * FROM keyed_batch").fetchall())
    assert len(kept) == 1


# --- several in one file ----------------------------------------------------------------------------------------------


def test_two_pools_in_one_file_know_nothing_of_each_other(url):
    one, two = open_store(url, "one"), open_store(url, "two", SETTINGS._replace(max_jobs=5))
    assert one._file is two._file
    a, b = Hand(one), Hand(two)
    one.dispatch(Batch("b", 1), [order("k", "1")])
    two.dispatch(Batch("b", 1), [order("k", "2")])
    assert [ids(take) for take in a.work().takes] == [["1"]]
    assert [ids(take) for take in b.work().takes] == [["2"]]
    one.drop()
    with pytest.raises(PoolGone, match="open it again"):
        one.ask(about.Counts())
    assert two.ask(about.Counts()).keys_running == 1 and two.open(SETTINGS).settings.max_jobs == 5
    before = two.ask(about.Members()).incarnation
    assert one.open(SETTINGS).incarnation != before and one.ask(about.Counts()).jobs == 0
    check_rows(two)
    one.close()
    with pytest.raises(PoolClosed):
        one.ask(about.Counts())
    assert two.ask(about.Counts()).jobs == 1
    two.close()


def test_two_objects_of_a_pool_are_one_pool(url):
    one, two = open_store(url), open_store(url, settings=Settings(slots=7))
    assert two.open(Settings(slots=7)).settings.slots == SLOTS
    heard = threading.Event()
    subscription = two.listen("w", heard.set)
    hand = Hand(one)
    assert heard.wait(HANG)
    heard.clear()
    two.dispatch(Batch("b", 1), [order("k", "1")])
    assert heard.wait(HANG)
    subscription.close()
    assert len(hand.work().takes) == 1
    one.close()
    assert two.ask(about.Counts()).keys_running == 1
    two.close()


def test_a_resource_pool_lives_in_the_same_file(url, tmp_path):
    with ResourcePool("gpus", url) as gpus:
        gpus.add("gpu-1")
        store = open_store(url)
        Hand(store)
        store.dispatch(Batch("b", 1), [order("k", "1")])
        with gpus.acquire() as grant:
            assert "gpu-1" in str(grant)
            assert store.ask(about.Counts()).jobs == 1
        store.close()
        with gpus.acquire():
            pass
    store = open_store(url)
    assert store.ask(about.Counts()).jobs == 1
    store.close()


def test_full_durability_is_asked_for_in_the_url(url):
    store = open_store(f"{url}?synchronous=FULL")
    assert store._file.read(lambda t: t.execute("PRAGMA synchronous").fetchone()) == (2,)
    store.dispatch(Batch("b", 1), [order("k", "1")])
    with pytest.raises(ValueError, match="synchronous=FULL"):
        sqlite.open(url, "p")
    store.close()
    store = open_store(url)
    assert store._file.read(lambda t: t.execute("PRAGMA synchronous").fetchone()) == (1,)
    assert store.ask(about.Counts()).jobs == 1
    store.close()


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_newer_format_is_left_alone(url, tmp_path):
    open_store(url).close()
    with sqlite3.connect(tmp_path / "pools.db") as connection:
        connection.execute("UPDATE meta SET value = 99 WHERE key = 'keyed_format'")
    connection.close()
    with pytest.raises(EngineError, match="newer Millpond .format 99.*upgrade"):
        sqlite.open(url, "p")


def test_a_file_that_is_replaced_is_a_pool_that_is_gone(url, tmp_path):
    store = open_store(url)
    heard = threading.Event()
    store.listen("w", heard.set)
    store.dispatch(Batch("b", 1), [order("k", "1")])
    for file in tmp_path.iterdir():
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    store._file.database._seen = 0.0  # as if a moment had passed
    with pytest.raises(PoolGone, match="deleted"):
        store.dispatch(Batch("b2", 1), [order("k", "2")])
    with pytest.raises(PoolGone):
        store.ask(about.Counts())
    store.open(SETTINGS)
    assert store.ask(about.Counts()).jobs == 0
    Hand(store)
    assert heard.wait(HANG)
    store.close()


def test_a_url_that_names_no_file_is_refused(tmp_path):
    for bad in ("sqlite://host/x.db", "sqlite:x.db", "sqlite:///", "sqlite:///x.db?mode=ro"):
        with pytest.raises(ValueError, match="sqlite"):
            sqlite.open(bad, "p")
    with pytest.raises(EngineError, match="does not exist; create it first"):
        sqlite.open(f"sqlite:///{tmp_path}/none/x.db", "p")


def test_one_call_that_fails_spoils_no_other(store):
    home = store._file
    results: list[object] = []

    def fail(transaction):
        transaction.execute("UPDATE keyed_pool SET jobs = 77")
        raise KeyError("mine")

    def call(step):
        try:
            results.append(home.write(step))
        except KeyError as error:
            results.append(error)

    with home.database.gate:  # so that all of them wait, and share a transaction
        steps = [fail, lambda t: "fine", lambda t: "good"]
        threads = [threading.Thread(target=call, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        until(lambda: len(home._writer._queue) == 3)
    for thread in threads:
        thread.join(HANG)
    assert sorted(map(str, results)) == ["'mine'", "fine", "good"]
    assert store.ask(about.Counts()).jobs == 0


def test_who_waits_too_long_is_told_who_is_in_the_way(store, monkeypatch):
    monkeypatch.setattr(_writer, "STUCK", 0.1)
    entered, over = threading.Event(), threading.Event()

    def hold():
        with store._file.database.gate:
            entered.set()
            over.wait(HANG)

    holder = threading.Thread(target=hold, name="the holder")
    holder.start()
    entered.wait(HANG)
    with pytest.raises(EngineUnavailable, match="the holder"):
        store.dispatch(Batch("b", 1), [order("k", "1")])
    monkeypatch.setattr(_writer, "STUCK", HANG)
    over.set()
    holder.join(HANG)
    store.dispatch(Batch("b2", 1), [order("k", "2")])
    assert store.ask(about.Counts()).dispatched == 1


# --- fork -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_begins_anew(store):
    hand = Hand(store)
    store.dispatch(Batch("b", 1), [order("k", "1")])
    session = store._file.sessions.number
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store.dispatch(Batch("child", 1), [order("k", "2")])
            child = Hand(store, "child", claims=False)
            is_new = store._file.sessions.number != session
            dead = {member.id: member.is_dead for member in store.ask(about.Members()).members}
            code = 0 if is_new and dead == {"w": False, "child": False} and child.work().takes == () else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [ids(take) for take in hand.work().takes] == [["1", "2"]]
    assert {member.id: member.is_dead for member in store.ask(about.Members()).members} == {"w": False, "child": True}


# --- a full disk ------------------------------------------------------------------------------------------------------


def disk(monkeypatch: pytest.MonkeyPatch, room: int) -> list[int]:
    """Limit every WAL to so many bytes, as on a disk that is full then; return how large it was when it was."""
    writing = Database.writing
    refused: list[int] = []

    @contextlib.contextmanager
    def limited(database: Database) -> Iterator[Transaction]:
        size = Path(f"{database.path}-wal").stat().st_size
        if size > room:
            refused.append(size)
            raise DiskFull(f"no space left to write {database.path!r}: nothing was changed")
        with writing(database) as transaction:
            yield transaction

    monkeypatch.setattr(Database, "writing", limited)
    return refused


def test_a_small_disk_is_not_filled_by_what_a_checkpoint_frees(url, monkeypatch):
    """A job takes some hundred bytes; each dispatch writes whole pages to the WAL, which is large before it is due."""
    with KeyedPool("small", url) as pool:
        job = pool.declare_job("step")
        job.dispatch("k", -1)
        refused = disk(monkeypatch, 400_000)
        for number in range(100):
            job.dispatch(f"k{number % 5}", number)
        assert refused
        assert pool.statistics().jobs == 101


def test_a_dispatch_to_a_full_disk_is_told_at_once_that_nothing_was_changed(url, monkeypatch):
    with KeyedPool("full", url) as pool:
        job = pool.declare_job("step")
        job.dispatch("k", 1)
        with monkeypatch.context() as patch:
            refused = disk(patch, -1)
            with pytest.raises(EngineUnavailable, match="no space left .*nothing was changed") as caught:
                job.dispatch("k", 2)
            assert "unknown" not in str(caught.value)
            assert len(refused) < 10, "it was not tried again and again"
        job.dispatch("k", 3)
        assert pool.statistics().jobs == 2


# --- several workers of one process -----------------------------------------------------------------------------------


def test_a_worker_that_renews_its_lease_does_so_for_all_of_its_process(url, monkeypatch):
    plain = sqlite.SqliteStore.do
    with KeyedPool("p", url, lease=600) as pool, pool.worker() as one, pool.worker() as held_up:

        def do(self, command):
            if isinstance(command, Renew) and command.worker == held_up.id:
                raise EngineUnavailable("its thread has no turn")
            return plain(self, command)

        monkeypatch.setattr(sqlite.SqliteStore, "do", do)

        def leases() -> dict[str, float]:
            return {each.id: each.lease_end for each in pool._connection.open()[0].ask(about.Members()).members}

        before = leases()
        speaker, other = one._worker, held_up._worker
        assert speaker is not None and other is not None
        speaker._heartbeat.wake()
        until(lambda: leases()[one.id] > before[one.id])
        assert leases()[held_up.id] == leases()[one.id]
        until(lambda: other._heartbeat._outer.renewed_at() > 0, "the one that was held up can see it")
        monkeypatch.undo()


def test_nobody_of_its_process_speaks_for_a_worker_that_was_silent_for_long_has_given_up_or_left(store, monkeypatch):
    names = ["speaks", "silent", "given up", "left", "elsewhere", "heard"]
    hands = {name: Hand(store, name, claims=False) for name in names}
    hearts = {name: store.outer_heart(60.0, 60.0, renews=True) for name in names}
    hearts["silent"].join("silent")
    now = elapsed()
    monkeypatch.setattr(_own_workers, "elapsed", lambda: now + 61)
    for name in ("speaks", "given up", "left", "elsewhere", "heard"):
        hearts[name].join(name)
    hearts["given up"].give_up("given up")
    hearts["given up"].beat()  # of a renewal that was under way
    hearts["left"].close()
    hearts["elsewhere"].join("new id")
    store.skew += 30 * SECOND
    before = {each.id: each.lease_end for each in store.ask(about.Members()).members}
    members = store.renew("speaks").members
    assert {each.id for each in members if each.lease_end > before[each.id]} == {"speaks", "heard"}
    assert [name for name in names if hearts[name].renewed_at()] == ["heard"]
    assert hands.keys() == before.keys()
