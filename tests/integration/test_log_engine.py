"""Resource pools between machines, on real servers, with real processes: deaths, pauses, lost stores and refusals.

Machines are companions with names of their own (`?machine=`), as far as the engine can know. Some tests run companions
in a thread, to choose the boot of a machine and to let it vanish.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

import log_stores
from companions import Machine, quick
from log_stores import of_machine
from millpond import EngineError, EngineUnavailable, LeaseLost, ResourcePool
from millpond._redis import Address, Client
from millpond.resources._questions import Holders
from millpond.resources._rules import commands as do
from millpond.resources._rules.records import HELD, Holder, Want
from millpond.resources.engines.log import LogEngine, _companion, _engine, _hosted, _rendezvous
from millpond.resources.engines.log import _messages as say
from millpond.resources.engines.log._stores import open_log
from waiting import HANG, becomes, until

HOLD = """
import os, sys, time
from millpond import ResourcePool
pool = ResourcePool("lab", sys.argv[1])
grant = pool.acquire(timeout=60, reason="a test")
print(grant.token, pool._engine.companion[0], flush=True)
what = sys.argv[2]
if what == "exec":
    os.execvp("sleep", ["sleep", "1000"])
time.sleep(1000)
"""


@pytest.fixture(scope="module", params=["redis", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    with log_stores.running(request.param) as url:
        yield url


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with log_stores.redis() as server:
        yield server.url


@pytest.fixture
def lab(store: str) -> Iterator[ResourcePool]:
    """A pool of one board, as another machine sees it."""
    with ResourcePool("lab", of_machine(store, "office")) as pool:
        pool._engine.drop("lab")
        pool.add("board")
        yield pool


@contextlib.contextmanager
def holder(url: str, what: str = "sleep") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the board; yields it and the pid of its companion."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, url, what], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline().split()[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.communicate()


def why_it_died(pool: ResourcePool) -> str:
    return " ".join(str(event.data) for event in pool.admin.history())


def companion_of(pool: ResourcePool) -> int:
    engine = pool._engine
    assert isinstance(engine, LogEngine)
    found = until(lambda: engine.companion)
    assert found is not None
    return found[0]


def free(pool: ResourcePool) -> bool:
    return pool.statistics().free_units == 1


# --- who lives and who does not --------------------------------------------------------------------------------------


def test_a_killed_holders_lock_is_the_next_ones_on_another_machine(lab, store):
    with holder(of_machine(store, "bench")) as (process, _):
        assert lab.holders()[0].pid == process.pid
        process.kill()
        with lab.acquire(timeout=HANG) as grant:  # no lease that could end: only its witness can have said so
            assert grant.resource == "board"
    assert "is gone" in why_it_died(lab)


def test_a_holder_keeps_its_lock_when_its_companion_is_killed(lab, store):
    with holder(of_machine(store, "bench")) as (process, companion):
        before = lab.holders()[0].token
        os.kill(companion, signal.SIGKILL)
        with ResourcePool("lab", of_machine(store, "bench")) as neighbour:  # it starts another companion
            assert neighbour.holders()[0].token == before
            assert neighbour.try_acquire() is None
            process.kill()
            with lab.acquire(timeout=HANG):
                pass


def test_a_holder_and_its_companion_killed_at_once_are_found_by_the_next_process_of_the_machine(lab, store):
    with holder(of_machine(store, "bench")) as (process, companion):
        os.kill(companion, signal.SIGKILL)
        process.kill()
        process.wait()
        assert not free(lab), "nobody could tell"
        with ResourcePool("lab", of_machine(store, "bench")) as neighbour:
            until(lambda: free(neighbour))


def test_a_stopped_holder_loses_nothing(lab, store):
    with holder(of_machine(store, "bench")) as (process, _):
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            lab.acquire(timeout=1)
        assert lab.holders()[0].pid == process.pid and not lab.holders()[0].suspect


def test_a_holder_that_becomes_another_program_keeps_its_lock_until_that_ends(lab, store):
    with holder(of_machine(store, "bench"), "exec") as (process, _):
        until(lambda: b"sleep\x001000" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        with pytest.raises(TimeoutError):
            lab.acquire(timeout=1)
        process.kill()
        with lab.acquire(timeout=HANG):
            pass


def test_a_decider_that_stands_still_loses_the_gate_and_comes_back(lab, store):
    with ResourcePool("lab", of_machine(store, "bench")) as bench:
        for _ in range(3):
            with bench.acquire(timeout=HANG):
                pass  # the gate is there now
            companion = companion_of(bench)
            os.kill(companion, signal.SIGSTOP)
            try:
                with lab.acquire(timeout=HANG):
                    pass
            finally:
                os.kill(companion, signal.SIGCONT)
        with bench.acquire(timeout=HANG) as grant:
            assert lab.holders()[0].token == grant.token


@pytest.fixture
def machine(store: str, tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Make machines whose companions are threads of this test."""
    made: list[Machine] = []

    def make(name: str, boot: str = "") -> Machine:
        made.append(Machine(store, tmp_path, name, boot))
        return made[-1]

    yield make
    for one in made:
        one.vanish()


def test_a_lost_machine_is_suspect_until_it_is_heard_of_again(lab, machine, monkeypatch):
    with quick(monkeypatch):
        gone, watching = machine("gone"), machine("watching")
        engine, other = gone.engine(monkeypatch), watching.engine(monkeypatch)
        send(other, do.Remove("none"))
        held = send(engine, acquire(engine))
        assert held.kind == HELD
        gone.vanish()
        until(lambda: "has not been heard of" in lab.holders()[0].suspect)
        assert lab.try_acquire() is None, "nobody knows whether it still uses the board"
        back = machine("gone", "boot of gone again")
        returned = back.engine(monkeypatch)
        send(returned, do.Remove("none"))  # it uses the pool again
        becomes(lambda: free(lab), True)  # the machine has another boot: none of its old processes is left


def test_who_only_looks_sees_that_a_machine_is_lost(store, machine, monkeypatch):
    """By the store's clock: the one who looks has not been there to measure the silence."""
    with quick(monkeypatch), contextlib.closing(open_log(store)) as log:
        gone = machine("gone")
        engine = gone.engine(monkeypatch)
        send(engine, do.Add("board", {}), "looked")
        assert send(engine, acquire(engine), "looked").kind == HELD
        gone.vanish()
        until(lambda: log.beat("looked", "test", 500_000))
        looking = machine("looking")
        monkeypatch.setattr(looking.companion, "_silence", lambda pool, orphan: 0.0)
        other = looking.engine(monkeypatch)
        send(other, do.Remove("none"), "looked")
        seen = until(lambda: look(other, "looked")[0].suspect)
        assert "gone was last seen" in seen
        other.close()


def look(engine: LogEngine, pool: str) -> list[Any]:
    """Return who holds what."""
    answers: list[Any] = []
    came = threading.Event()
    engine.ask(pool, Holders(), lambda answer: (answers.append(answer), came.set()), block=False)  # type: ignore[arg-type, func-returns-value]
    assert came.wait(HANG)
    return list(answers[0])


def test_a_beat_in_the_future_is_no_sign_of_life(store, machine):
    """The clock of the store was set back."""
    with contextlib.closing(open_log(store)) as log:
        log.check()
        log.register("ahead", "early", "session", machine("early").here)
        if store.startswith("postgres"):
            with psycopg.connect(store, autocommit=True) as connection:
                connection.execute("UPDATE millpond_resource_companion SET beat = beat * 2 WHERE pool = 'ahead'")
        else:
            log_stores.command(store, "HSET", "millpond:resources:{ahead}:beats", "early", "9000000000000000")
        assert [one.session for one in log.beat("ahead", "late", 1_000_000)] == ["session"]


def test_a_name_that_was_given_to_a_machine_is_seen_as_its_host(lab):
    with lab.acquire(timeout=HANG):
        assert lab.holders()[0].host == "office"


def test_a_pool_may_free_what_a_lost_machine_held_after_a_time(lab, machine, monkeypatch):
    lab.admin.configure(free_after=1.0)
    with quick(monkeypatch):
        gone, watching = machine("gone"), machine("watching")
        engine, other = gone.engine(monkeypatch), watching.engine(monkeypatch)
        send(other, do.Remove("none"))
        assert send(engine, acquire(engine)).kind == HELD
        gone.vanish()
        with lab.acquire(timeout=HANG):
            assert "a guess" in why_it_died(lab)


def test_a_session_that_the_store_forgot_is_registered_again(store, lab, machine, monkeypatch):
    """A failover may lose the registration alone; without one nobody could prove a death later."""
    with quick(monkeypatch), contextlib.closing(open_log(store)) as log:
        engine = machine("forgotten").engine(monkeypatch)
        assert send(engine, acquire(engine)).kind == HELD
        assert engine.session in log.sessions("lab")
        log.unregister("lab", [engine.session])
        until(lambda: engine.session in log.sessions("lab"))


def test_a_session_with_nothing_open_leaves_a_pool_and_comes_back_unharmed(store, lab, machine, monkeypatch):
    monkeypatch.setattr(_companion, "IDLE", 0.3)
    with quick(monkeypatch), contextlib.closing(open_log(store)) as log:
        here = machine("idle")
        engine = here.engine(monkeypatch)
        held = send(engine, acquire(engine))
        registered = engine.session in log.sessions("lab")
        assert registered
        becomes(lambda: here.companion._pools["lab"].is_idle(engine.session, 0.3), False)  # while it holds
        send(engine, do.Release(engine.session, held.token))
        until(lambda: engine.session not in log.sessions("lab"))
        until(lambda: here.companion._pools["lab"].wakes_at() is None)  # it costs the store nothing now
        assert send(engine, acquire(engine, 1)).kind == HELD
        assert engine.session in log.sessions("lab")
        engine.close()
        becomes(lambda: free(lab), True)
        until(lambda: engine.session not in log.sessions("lab"))


def test_a_store_that_is_away_holds_up_the_opening_of_no_other(redis_url, monkeypatch):
    """Opening one that does not answer takes as long as it takes, in its thread."""
    began, go_on = threading.Event(), threading.Event()

    class Slow(LogEngine):
        def __init__(self, url: str, machine: str) -> None:
            if "slow" in url:
                began.set()
                go_on.wait(HANG)
            super().__init__(url, machine)

    monkeypatch.setattr(_engine, "LogEngine", Slow)
    opened: list[ResourcePool] = []
    opener = threading.Thread(target=lambda: opened.append(ResourcePool("lab", of_machine(redis_url, "slow"))))
    opener.start()
    try:
        assert began.wait(HANG)
        with ResourcePool("lab", of_machine(redis_url, "quick")) as pool:
            assert pool.resources() == []
    finally:
        go_on.set()
        opener.join(HANG)
    opened[0].close()


def acquire(engine: LogEngine, number: int = 0) -> do.Acquire:
    return do.Acquire(f"#{engine.session}-{number}", engine.session, 0, Holder("process", "test"), (Want(),))


def send(engine: LogEngine, command: do.Command, pool: str = "lab") -> Any:
    came = threading.Event()
    answers: list[Any] = []

    def done(answer: Any) -> None:
        answers.append(answer)
        came.set()

    engine.apply(pool, command, done, block=True)
    assert came.wait(HANG)
    return answers[0]


# --- the store -------------------------------------------------------------------------------------------------------


def test_calls_go_on_while_connections_are_cut_all_the_time(lab, store):
    """Each cut may come before a call, between its effect and its answer, or after it."""
    tokens: list[int] = []
    with cutting(store) as cut:
        for number in range(40):
            cutter = threading.Timer(number % 7 / 1000, cut)
            cutter.start()
            with lab.acquire(timeout=HANG) as grant:
                tokens.append(grant.token)
            cutter.join()
    assert tokens == sorted(set(tokens))
    becomes(lambda: (lab.holders(), lab.waiters()), ([], []))
    assert lab.statistics().grants_total == 40


@contextlib.contextmanager
def cutting(url: str) -> Iterator[Callable[[], None]]:
    """Yield what cuts all connections of companions once, and lets the server forget its scripts."""
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'millpond'"

            def cut() -> None:
                connection.execute(ours)

            yield cut
    else:

        def cut() -> None:
            with contextlib.suppress(ConnectionError):  # one cut may strike the connection of another
                log_stores.command(url, "CLIENT", "KILL", "TYPE", "pubsub")
                log_stores.command(url, "SCRIPT", "FLUSH")
                log_stores.command(url, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        yield cut


def test_behind_a_pgbouncer_in_transaction_mode_grants_go_from_machine_to_machine(tmp_path):
    """No hint ever comes there: LISTEN is taken and forgotten."""
    with log_stores.postgres() as server:
        direct = server.new_database()
        with log_stores.pgbouncer(direct, tmp_path) as url:
            here, there = of_machine(url, "here"), of_machine(url, "there")
            with ResourcePool("lab", here) as one, ResourcePool("lab", there) as two:
                one.add("board")
                grants = []
                for _ in range(5):
                    for pool in (one, two):
                        with pool.acquire(timeout=HANG) as grant:
                            grants.append(grant.token)
                assert grants == sorted(set(grants))
                held, got = one.acquire(), []
                waiter = threading.Thread(target=lambda: got.append(two.acquire(timeout=HANG)))
                waiter.start()
                until(lambda: one.waiters())
                held.release()
                waiter.join(HANG)
                with ResourcePool("lab", of_machine(direct, "beside it")) as three:
                    assert three.holders()[0].token == got[0].token
                got[0].release()


@contextlib.contextmanager
def own_store(kind: str) -> Iterator[tuple[str, Any]]:
    if kind == "postgres":
        with log_stores.postgres("fsync=on") as server:
            yield server.url, server
    else:
        with log_stores.redis(None, "--appendonly", "yes", "--appendfsync", "always") as redis:
            yield redis.url, redis


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_a_server_that_is_killed_and_comes_back_has_lost_nothing(kind):
    with own_store(kind) as (url, server), ResourcePool("lab", url) as pool:
        pool.add("board")
        with pool.acquire() as grant:
            server.restart()
            until(lambda: held_by(pool, grant.token))
            server.kill()
            waiter = threading.Thread(target=until, args=(lambda: was_lent(pool), "it is lent again"))
            waiter.start()
            server.restart()
        waiter.join(2 * HANG)
        assert not waiter.is_alive()
        becomes(lambda: free(pool), True)


def was_lent(pool: ResourcePool) -> bool:
    """Take it and give it back; a server that is away for longer than a call waits is asked again."""
    with contextlib.suppress(EngineUnavailable):
        pool.acquire(timeout=HANG).release()
        return True
    return False


def held_by(pool: ResourcePool, token: int) -> bool:
    with contextlib.suppress(EngineUnavailable):
        return [one.token for one in pool.holders()] == [token]
    return False


def test_a_redis_that_forgot_everything_is_told_and_tokens_still_grow():
    with log_stores.redis() as server, ResourcePool("lab", server.url, on_lost="ignore") as pool:
        pool.add("board")
        grant = pool.acquire()
        server.restart()
        until(lambda: is_lost(grant))
        pool.add("board", exist_ok=True)
        with pool.acquire(timeout=HANG) as again:
            assert again.token > grant.token


def is_lost(grant: Any) -> bool:
    try:
        grant.check()
    except LeaseLost:
        return True
    return False


def test_a_companion_rests_while_the_store_is_away_although_its_process_has_died():
    with log_stores.redis() as server:
        with ResourcePool("lab", server.url) as pool:
            pool.add("board")
        with holder(server.url) as (process, companion):
            watched = psutil.Process(companion)
            server.kill()
            process.kill()
            process.wait()
            before = watched.cpu_times().user
            until(lambda: watched.num_ctx_switches().voluntary > 50)  # it tries, and sleeps in between
            assert watched.cpu_times().user - before < 5
            server.restart()
            with ResourcePool("lab", server.url) as pool:
                until(lambda: not pool.holders())


def test_a_store_that_is_away_is_told_as_such_and_no_call_hangs():
    with log_stores.redis() as server, ResourcePool("lab", server.url) as pool:
        pool.add("board")
        server.kill()
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            pool.holders()
        with pytest.raises((EngineUnavailable, TimeoutError)):
            pool.acquire(timeout=0.5)
        server.restart()


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_a_server_that_stands_still_is_told_as_away_and_goes_on(kind):
    with own_store(kind) as (url, server), ResourcePool("lab", url) as pool:
        pool.add("board")
        with pool.acquire(timeout=HANG) as grant:
            server_process = psutil.Process(server.process.pid)
            stopped = [server_process, *server_process.children()]  # PostgreSQL has one for each connection
            for process in stopped:
                process.suspend()
            try:
                with pytest.raises(EngineUnavailable):
                    pool.holders()
            finally:
                for process in stopped:
                    process.resume()
            until(lambda: held_by(pool, grant.token))


@contextlib.contextmanager
def standing_still(server: Any) -> Iterator[None]:
    """Suspend a Redis server for a while."""
    process = psutil.Process(server.process.pid)
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@pytest.mark.parametrize("request_id", [None, "job-7"])
def test_a_request_that_was_told_that_the_store_is_away_holds_nothing_when_it_is_back(request_id):
    with log_stores.redis() as server, ResourcePool("lab", server.url) as pool:
        pool.add("board")
        with standing_still(server), pytest.raises(EngineUnavailable):
            pool.acquire(timeout=HANG, request_id=request_id)
        with ResourcePool("lab", of_machine(server.url, "other")) as other, other.acquire(timeout=HANG):
            pass
        with pool.acquire(timeout=HANG, request_id=request_id):  # an id that had no effect may ask again
            pass


def test_what_had_ended_ends_again_when_a_failover_brings_it_back():
    with log_stores.redis() as server, ResourcePool("lab", server.url) as lab:
        client = Client(Address(server.url))
        lab.add("board")
        with holder(server.url) as (process, _):
            lab.add("mine")
            with lab.acquire(name="mine"):
                kept = {key: client.command("DUMP", key) for key in client.command("KEYS", "*")}
            process.kill()
            until(lambda: not lab.holders())
        client.command("MULTI")
        client.command("FLUSHALL")
        for key, value in kept.items():
            client.command("RESTORE", key, 0, value)
        client.command("EXEC")
        client.close()
        becomes(lambda: [one.resources for one in lab.holders()], [])


def test_a_log_is_compacted(store, machine, monkeypatch):
    monkeypatch.setattr(_hosted, "COMPACT", 60)
    engine = machine("small").engine(monkeypatch)
    send(engine, do.Add("board", {}), "small")
    for number in range(700):
        held = send(engine, acquire(engine, number), "small")
        assert send(engine, do.Release(engine.session, held.token), "small").kind == "released"
    engine.close()
    if store.startswith("postgres"):
        with psycopg.connect(store) as connection:
            counted = "SELECT count(*) FROM millpond_resource_item WHERE pool = 'small'"
            rows = connection.execute(counted).fetchall()[0][0]
    else:
        rows = int(log_stores.command(store, "XLEN", "millpond:resources:{small}:log")[1:].strip())
    assert 900 < rows < 1200, f"{rows} items are kept after 1,400 changes"
    with ResourcePool("small", of_machine(store, "late")) as late:
        assert len(late.admin.history(limit=1000)) > 500
        assert late.statistics().grants_total == 700


def test_to_look_at_a_pool_makes_none_and_a_deleted_one_does_not_come_back(store):
    with ResourcePool("typo", store) as pool, ResourcePool("other", store) as other:
        assert pool.holders() == []
        engine = pool._engine
        with ResourcePool("deleted", store) as deleted:
            deleted.add("board")
            engine.drop("deleted")
        pool.close()
        assert not {"typo", "deleted"} & set(engine.pools())
        other.add("board", exist_ok=True)
        assert "other" in engine.pools()
    if store.startswith("redis"):
        client = Client(Address(store))
        until(lambda: not [key for key in client.command("KEYS", "*") if b"typo" in key or b"deleted" in key])
        client.close()


def test_an_engine_forgets_pools_that_nobody_uses(store):
    with ResourcePool("kept", store) as kept:
        with ResourcePool("left", store):
            pass
        engine = kept._engine
        assert isinstance(engine, LogEngine)
        assert list(engine._watchers) == ["kept"]


def test_a_name_that_postgresql_cannot_keep_is_refused_and_harms_no_other_pool():
    with log_stores.running("postgres") as url, ResourcePool("other", url) as other:
        with ResourcePool("a\0b", url) as odd, pytest.raises(EngineError, match="another name"):
            odd.holders()
        other.add("board")
        assert len(other.resources()) == 1


def test_tables_that_were_lost_are_made_again_when_a_pool_is_opened():
    with log_stores.running("postgres") as url:
        with ResourcePool("lab", of_machine(url, "before")) as pool:
            pool.add("board")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP TABLE millpond_resource_companion")
        with ResourcePool("lab", of_machine(url, "after")) as pool:
            assert len(pool.resources()) == 1


def test_a_pool_of_another_format_can_be_dropped(redis_url):
    with ResourcePool("other", redis_url) as other:
        with ResourcePool("newer", redis_url) as pool:
            pool.add("board")
        log_stores.command(redis_url, "HSET", "millpond:resources:{newer}:meta", "format", "2")
        with ResourcePool("newer", redis_url) as pool:
            with pytest.raises(EngineError, match="format 2"):
                pool.holders()
            other._engine.drop("newer")
            pool.add("board")


def test_a_companion_with_nothing_to_tell_ends_although_its_store_is_away():
    with log_stores.redis() as server, ResourcePool("lab", server.url) as pool:
        pool.add("board")
        pid = companion_of(pool)
    until(lambda: not os.path.exists(f"/proc/{pid}"))


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(url: str) -> str:
    with pytest.raises(EngineError) as error:
        ResourcePool("lab", url)
    return str(error.value)


def test_a_redis_that_deletes_keys_is_refused():
    with log_stores.redis(None, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        assert "maxmemory-policy noeviction" in refused(server.url)


def test_a_read_only_replica_is_refused(redis_url):
    port = redis_url.rpartition(":")[2].partition("/")[0]
    with log_stores.redis() as server:
        log_stores.command(server.url, "REPLICAOF", "127.0.0.1", port)
        until(lambda: b"role:slave" in log_stores.command(server.url, "INFO", "replication"))
        assert "read-only replica" in refused(server.url)


def test_a_wrong_password_is_refused_and_no_password_is_shown():
    with log_stores.redis() as server:
        log_stores.command(server.url, "CONFIG", "SET", "requirepass", "geheim")
        words = refused(server.url.replace("//", "//:falsch@"))
        assert "refused to let us in" in words and "falsch" not in words
        url = server.url.replace("//", "//:geheim@")
        with ResourcePool("lab", url) as pool:
            pid = companion_of(pool)
            assert b"geheim" not in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert "geheim" not in f"{pool!r} {pool._engine.url}"


def test_a_database_that_is_not_there_and_a_user_that_is_not_known_are_told(redis_url):
    assert "no database of that number" in refused(redis_url.replace("/0", "/99"))
    assert "refused to let us in" in refused(redis_url.replace("redis://", "redis://bob@"))


def test_a_companion_that_fails_says_so(store, machine, monkeypatch):
    broken = machine("broken")
    monkeypatch.setattr(broken.companion, "_listen", lambda: 1 // 0)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        broken.engine(monkeypatch)


def test_a_pool_of_a_newer_format_is_refused_and_harms_no_other(redis_url):
    log_stores.command(redis_url, "HSET", "millpond:resources:{newer}:meta", "format", "99", "epoch", "1", "seq", "1")
    with ResourcePool("newer", redis_url) as newer, ResourcePool("older", redis_url) as older:
        older.add("a")
        with pytest.raises(EngineError, match="format 99"):
            newer.holders()
        with older.acquire(timeout=HANG):
            pass


def test_a_server_that_is_not_there_is_told_at_once():
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        ResourcePool("lab", "redis://127.0.0.1:1/0")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://localhost:port", "is no URL of Redis"),
        ("redis://localhost/?colour=red", "option 'colour'"),
        ("redis://localhost/abc", "is no URL of Redis"),
        ("redis://localhost/-1", "is no URL of Redis"),
        ("redis://a..b/0", "is no URL of Redis"),
        ("redis://localhost/0?socket_timeout=nan", "more than 0 seconds"),
        ("redis://localhost/0?socket_connect_timeout=-1", "more than 0 seconds"),
        ("postgresql://localhost/db?foo=bar", "is no URL of PostgreSQL"),
        ("postgresql://u:sec/ret@localhost/db", "is no URL of PostgreSQL"),
    ],
)
def test_a_bad_url_is_refused_before_anything_is_started(url, words):
    with pytest.raises(ValueError, match=words):
        ResourcePool("lab", url)


def test_a_postgres_without_the_right_to_create_tables_says_what_an_owner_must_run():
    with log_stores.postgres() as server:
        url = server.new_database()
        name = url.rpartition("/")[2]
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE USER guest")
            connection.execute(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC; GRANT CONNECT ON DATABASE {name} TO guest")
            connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
            assert "millpond schema" in refused(url.replace("postgres@", "guest@"))
            sql = subprocess.run(
                [sys.executable, "-m", "millpond", "schema"], capture_output=True, text=True, check=True
            )
            connection.execute(sql.stdout)
            connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO guest")
            connection.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO guest")
        with ResourcePool("lab", url.replace("postgres@", "guest@")) as pool:
            pool.add("board")
            with pool.acquire(timeout=HANG):
                pass


# --- the companion ---------------------------------------------------------------------------------------------------


def test_a_companion_serves_all_processes_of_a_machine_and_ends_after_the_last(redis_url):
    url = of_machine(redis_url, "shared")
    with ResourcePool("lab", url) as pool, holder_of("lab", url, pool) as companion:
        assert companion == companion_of(pool)
    until(lambda: not os.path.exists(f"/proc/{companion}"))


@contextlib.contextmanager
def holder_of(name: str, url: str, pool: ResourcePool) -> Iterator[int]:
    pool.add("board", exist_ok=True)
    with holder(url) as (_, companion):
        yield companion


def test_a_companion_is_in_a_group_of_its_own_and_hears_no_ctrl_c(redis_url):
    with ResourcePool("lab", redis_url) as pool:
        pool.add("board", exist_ok=True)
        pid = companion_of(pool)
        assert os.getpgid(pid) != os.getpgid(0) and os.getsid(pid) != os.getsid(0)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            os.kill(pid, number)
        with pool.acquire(timeout=HANG):
            assert companion_of(pool) == pid


def test_a_forked_child_is_a_session_of_its_own(lab):
    with lab.acquire(timeout=HANG) as grant:
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                status = 0 if lab.try_acquire() is None and lab.holders()[0].token == grant.token else 2
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        grant.check()


def test_a_companion_that_gives_no_sign_of_life_is_replaced(redis_url, monkeypatch):
    monkeypatch.setattr(_engine, "SILENCE", 0.3)
    with ResourcePool("lab", of_machine(redis_url, "stuck")) as pool:
        pool.add("board", exist_ok=True)
        grant = pool.acquire(timeout=HANG)
        pid = companion_of(pool)
        os.kill(pid, signal.SIGSTOP)
        assert [one.token for one in pool.holders()] == [grant.token]
        assert companion_of(pool) != pid
        grant.release()


def test_calls_are_answered_when_no_companion_can_be_started_again(redis_url, monkeypatch):
    monkeypatch.setattr(_engine, "SILENCE", 0.3)
    with ResourcePool("lab", of_machine(redis_url, "hopeless")) as pool:
        pool.add("board", exist_ok=True)
        pid = companion_of(pool)
        with monkeypatch.context() as patch:
            patch.setattr(_rendezvous, "_start", no_more_processes)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineUnavailable, match="no more processes"):
                pool.holders()
            with pytest.raises(EngineUnavailable, match="no more processes"):
                pool.acquire(timeout=HANG)
        with pool.acquire(timeout=HANG):
            pass


def no_more_processes(*args: object) -> None:
    raise BlockingIOError(11, "no more processes")


def test_a_socket_of_a_companion_that_nobody_serves_is_replaced(redis_url, monkeypatch):
    """A process that is forked as the socket is made keeps it open, whatever becomes of the companion."""
    monkeypatch.setattr(_engine, "SILENCE", 0.3)
    url = of_machine(redis_url, "deaf")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path := _rendezvous._path(url))
        listener.listen(10)
        os.utime(path, (0, 0))  # else its companion may yet be on its way
        with ResourcePool("lab", url) as pool:
            pool.add("board", exist_ok=True)


def test_who_stands_still_while_starting_a_companion_holds_up_nobody_for_ever(redis_url, monkeypatch):
    monkeypatch.setattr(_rendezvous, "START", 0.2)
    url = of_machine(redis_url, "halted")
    with (
        _rendezvous._locked(f"{_rendezvous._path(url)}.lock"),
        pytest.raises(EngineUnavailable, match=f"process {os.getpid()} has been starting"),
    ):
        ResourcePool("lab", url)


def test_a_process_that_is_forked_while_a_companion_is_started_keeps_neither_lock_nor_socket(tmp_path):
    path = str(tmp_path / "lock")
    with _rendezvous._own(socket.socket(socket.AF_UNIX)) as made, _rendezvous._locked(path):
        child = os.fork()
        if child == 0:
            os._exit(0 if made.fileno() < 0 and not _rendezvous._owned else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert made.fileno() >= 0
    with _rendezvous._locked(path):
        pass


def test_a_folder_for_temporary_files_with_a_long_name_is_no_trouble(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    assert str(_rendezvous._folder()) == f"/tmp/millpond-{os.getuid()}"


def test_a_folder_for_temporary_files_that_is_gone_is_named(redis_url, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at-all")
    assert "/nowhere/at-all" in refused(redis_url) and "TMPDIR" in refused(redis_url)


def test_a_companion_of_many_pools_answers_between_their_turns(store, machine, monkeypatch):
    """With a slow store they take longer than its processes wait for a sign of life."""
    monkeypatch.setattr(_companion, "TURNS", 0.0)
    slow = machine("slow")
    engine = slow.engine(monkeypatch)
    names = [f"slow-{number}" for number in range(5)]
    for name in names:
        send(engine, do.Add("board", {}), name)
    order: list[str] = []
    is_answered = threading.Event()
    take, turn = slow.companion._take, slow.companion._turn

    def turned(name: str) -> None:
        if not order:
            engine._ask(lambda number, acked: say.Ping(number), lambda answer: is_answered.set())
        order.append(name)
        turn(name)

    def taken(connection: Any, ask: Any) -> None:
        order.append(type(ask).__name__)
        take(connection, ask)

    monkeypatch.setattr(slow.companion, "_take", taken)
    monkeypatch.setattr(slow.companion, "_turn", turned)
    assert is_answered.wait(HANG)
    assert order.index("Ping") < len(names)
    engine.close()
