"""What is particular about keyed pools in Redis: the server, the way to it, and what stays there.

That its verbs do what the rules say is shown for all stores at once (tests/conformance, tests/property).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from millpond._redis import _address
from millpond.errors import EngineError, EngineUnavailable
from millpond.keyed import Job, KeyedPool
from millpond.keyed.rules import commands as do
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.envelope import Envelope, encode
from millpond.keyed.rules.records import SECOND, Batch, Joiner, Order, OrderOptions, Outcome, Report, Settings, Work
from millpond.keyed.stores import redis as redis_store
from millpond.keyed.stores.base import PoolGone
from millpond.keyed.stores.redis import RedisStore, _reads, _scripts
from millpond.testing._redis import RedisServer, find_redis_server, redis_server

sys.path.insert(0, str(Path(__file__).parent))
from keyed_redis_proxy import Proxy

from waiting import HANG, until

SLOTS = 8
_names = itertools.count(1)
_numbers = itertools.count(1)


@contextlib.contextmanager
def server_of_its_own(*options: str) -> Iterator[RedisServer]:
    if find_redis_server() is None:
        problem = "no redis-server here: what needs one is not tested"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    with redis_server(*options) as server:
        yield server


@pytest.fixture
def stores() -> Iterator[Callable[..., RedisStore]]:
    opened: list[RedisStore] = []

    def make(url: str, pool: str = "", **settings: Any) -> RedisStore:
        store = redis_store.open(url, pool or f"redis-{next(_names)}")
        opened.append(store)
        store.open(Settings(slots=SLOTS, lease=60 * SECOND)._replace(**settings))
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(stores: Callable[..., RedisStore], redis_url: str) -> RedisStore:
    return stores(redis_url)


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    made = Proxy(int(redis_url.rsplit(":", 1)[1].split("/")[0]))
    yield made
    made.close()


def body(job: str = "", keep: int = 0, payload: bytes = b"\0\xff") -> bytes:
    return encode(Envelope(job or f"job-{next(_numbers)}", "f", "producer", keep, payload))


def put(store: RedisStore, *jobs: str, key: str = "k") -> dict[int, str]:
    return dict(store.dispatch(Batch(f"batch-{next(_numbers)}", 1), [Order(1, f"j:{key}", body(job)) for job in jobs]))


def hire(store: RedisStore, worker: str = "w", slots: int = SLOTS) -> None:
    store.join(Joiner(worker, "host", names=("f",)))
    assert not store.claim(worker, range(slots), {}).is_gone


def work(store: RedisStore, *settles: Report, worker: str = "w", want: int = 100, per: int = 16) -> Work:
    return store.work(worker, next(_numbers), settles, want, per, want)


def ended(done: Work) -> list[Report]:
    return [Report(take.slot, take.mailbox, take.token, len(take.jobs)) for take in done.takes]


def ids(done: Work) -> list[str]:
    return [str(raw[STAMP_AND_HEADER:].split(b"\xa1f")[0].decode()) for take in done.takes for raw in take.jobs]


STAMP_AND_HEADER = 18


def keys_of(url: str, store: RedisStore) -> set[str]:
    with redis.Redis.from_url(url) as client:
        return {key.decode().rsplit("}:", 1)[1] for key in client.scan_iter(store._base.decode() + "*")}


# -- the server -------------------------------------------------------------------------------------------------------


def test_a_server_that_evicts_keys_is_refused(stores):
    with server_of_its_own("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        with pytest.raises(EngineError, match="maxmemory-policy allkeys-lru.*noeviction"):
            stores(server.url)
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory-policy", "noeviction")
        stores(server.url)


def test_a_server_without_memory_says_so_and_nothing_is_half_done(stores):
    with server_of_its_own() as server, redis.Redis.from_url(server.url) as client:
        store = stores(server.url)
        hire(store)
        client.config_set("maxmemory", "1")
        with pytest.raises(EngineUnavailable, match="out of memory"):
            put(store, "a")
        client.config_set("maxmemory", "0")
        assert store.ask(about.Counts()).jobs == 0
        assert put(store, "a") == {}
        assert ids(work(store)) == ["a"]


def test_a_server_without_memory_is_drained_by_workers_that_come_then():
    """Only what brings new work is refused: joining, taking, reporting, moving and switching are not."""
    done: list[int] = []
    with (
        server_of_its_own() as server,
        redis.Redis.from_url(server.url) as client,
        KeyedPool("p", server.url) as pool,
    ):

        @pool.job
        def step(job: Job, number: int) -> None:
            done.append(number)

        receipts = step.dispatch_many([(f"k{number % 40}", number) for number in range(400)])
        client.config_set("maxmemory", "1")
        pool.admin.pause("k1")
        assert receipts[-1].cancel()
        with pool.worker():
            until(lambda: len(done) == 389)
            pool.admin.resume("k1")
            until(lambda: len(done) == 399)
            assert receipts[0].result(HANG) is None
        assert pool.workers() == []
    assert sorted(done) == list(range(399))


def test_a_server_without_memory_does_all_that_brings_work_to_its_end(stores):
    with server_of_its_own() as server, redis.Redis.from_url(server.url) as client:
        store = stores(server.url, max_losses=1)
        hire(store)
        names = ("dead", "again", "runs", "moves", "purged", "cancelled")
        for name in names:
            put(store, f"{name}-1", f"{name}-2", key=name)
        assert store.do(do.Start(1, "r:f:k", body())) == "started"
        takes = {take.mailbox: take for take in work(store, per=1).takes}
        store.do(do.Log("somebody", "look"))

        def report(name: str, **how: Any) -> Report:
            return Report(1, f"j:{name}", takes[f"j:{name}"].token, **{"done": 0, **how})

        outcomes = (Outcome("runs-1", "done", b"x" * 1000, 60 * SECOND, "p"),)
        client.config_set("maxmemory", "1")
        again = report("again", how="retry", delay=SECOND, reason=b"why")
        assert not work(store, again, report("dead", how="to_dead_letters", reason=b"why"), want=0).stale
        assert not work(store, report("runs", done=1, how="keep", outcomes=outcomes), want=0).stale
        assert store.do(do.Retry(1, "j:again")) == "ready"
        assert store.do(do.Drop((1,))) == "1"
        assert store.do(do.Cancel(1, "j:cancelled", "cancelled-1")) == "asked"
        assert store.do(do.Cancel(1, "j:cancelled", "cancelled-2")) == "cancelled"
        assert store.do(do.Purge(1, "j:purged")) == "1"
        assert store.do(do.Stop(1, "r:f:k")) == "stopping"
        for command in (do.Pause(1, "moves"), do.Resume(1, "moves"), do.Pause(), do.Resume()):
            store.do(command)
        store.do(do.Configure((("max_jobs", 5),)))
        store.do(do.Log("somebody", "look"))
        assert store.do(do.Renew("w")) is not None
        assert store._run(store._other_link, "keep", ["w"])  # what the heart outside the process does
        hire(store, "v", 0)
        assert store.do(do.Give("w", [(2, "v")], "rebalanced")) == 1
        assert store.do(do.Gone("w")) == "noted"
        ends = {one.id: one.lease_end for one in store.ask(about.Members()).members}
        store.do(do.Leave("v"))
        store.skew += 61 * SECOND  # a lease
        hire(store, "u", 0)
        assert store.claim("u", range(SLOTS), {"w": ends["w"]}).recovered > 1
        left = work(store, worker="u", want=100)
        assert {take.mailbox for take in left.takes} >= {"j:again", "j:moves"}


def test_a_read_only_replica_is_refused_and_a_demoted_primary_is_told(stores, redis_url):
    port = redis_url.rsplit(":", 1)[1].split("/")[0]
    with server_of_its_own() as server, redis.Redis.from_url(server.url) as client:
        store = stores(server.url)
        client.replicaof("127.0.0.1", port)
        with pytest.raises(EngineUnavailable, match="read-only replica|loading"):
            put(store, "a")
        with pytest.raises(EngineError, match="read-only replica"):
            stores(server.url)


def test_an_old_server_is_refused(store, monkeypatch):
    monkeypatch.setattr(store._other_link, "command", lambda *_: b"redis_version:6.0.9\r\nrole:master\r\n")
    with pytest.raises(EngineError, match="version 6.0.9; keyed pools need Redis 6.2"):
        store.open(Settings())


def test_scripts_that_the_server_forgot_are_loaded_again(store, redis_url):
    hire(store)
    put(store, "a")
    with redis.Redis.from_url(redis_url) as client:
        client.script_flush()
        assert ids(work(store)) == ["a"]
        client.script_flush()
        put(store, "b")
        assert store.ask(about.Counts()).jobs == 2


def test_a_server_that_lost_its_data_has_no_pool_and_a_new_one_differs(stores):
    with server_of_its_own() as server, redis.Redis.from_url(server.url) as client:
        store = stores(server.url)
        hire(store)
        before = store.ask(about.Members()).incarnation
        client.flushall()
        for verb in (
            lambda: put(store, "a"),
            lambda: work(store),
            lambda: store.renew("w"),
            lambda: store.claim("w", [1], {}),
            lambda: store.apply(do.Pause()),
            lambda: store.ask(about.Members()),
            lambda: store.ask(about.Keys()),
            lambda: store.ask(about.Counts()),
            lambda: store.ask(about.Owners()),
            lambda: store.ask(about.Pauses()),
            lambda: store.ask(about.DelayedJobs()),
            lambda: store.ask(about.Jobs((("j:k", 0, 1),))),
            lambda: store.ask(about.Outcomes(("a",))),
            lambda: store.join(Joiner("w", "host")),
        ):
            with pytest.raises(PoolGone, match="open it again"):
                verb()
        assert keys_of(server.url, store) == set()
        assert store.open(Settings(slots=SLOTS)).incarnation != before
        assert put(store, "a") == {}


def test_a_server_that_comes_back_with_its_data_goes_on(stores, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    options = ("--port", str(port), "--dir", str(tmp_path), "--appendonly", "yes", "--appendfsync", "always")
    with server_of_its_own_at(port, options):
        store = stores(f"redis://127.0.0.1:{port}/0")
        hire(store)
        put(store, "a", "b")
        taken = work(store, per=1)
        heard = threading.Event()
        store.listen("w", heard.set)
        assert heard.wait(HANG)
    heard.clear()
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        put(store, "c")
    with server_of_its_own_at(port, options):  # connections that it closed meanwhile are not tried
        assert heard.wait(HANG), "who listens is told when there is a connection again"
        assert put(store, "c") == {}
        assert work(store, *ended(taken)).stale == ()
        assert store.ask(about.Counts()).jobs == 2


@contextlib.contextmanager
def server_of_its_own_at(port: int, options: tuple[str, ...]) -> Iterator[None]:
    binary = find_redis_server()
    if binary is None:
        pytest.fail("no redis-server") if os.environ.get("CI") else pytest.skip("no redis-server")
    assert binary is not None
    process = subprocess.Popen([binary, "--bind", "127.0.0.1", *options], stdout=subprocess.DEVNULL)
    try:
        until(lambda: _answers(port), "the server answers")
        yield
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with redis.Redis(port=port) as client, contextlib.suppress(redis.RedisError):
        return bool(client.ping())
    return False


def test_data_of_another_format_is_left_alone(store, redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.hset(store._base + b"meta", "format", "7")
        for verb in (lambda: put(store, "a"), lambda: store.open(Settings())):
            with pytest.raises(
                EngineError, match=f"format 7, and this millpond reads format {_scripts.FORMAT}; use the version"
            ):
                verb()
        assert keys_of(redis_url, store) == {"meta"}


# -- who may do what --------------------------------------------------------------------------------------------------


def test_a_user_with_its_prefix_can_do_all_that_a_pool_needs(stores):
    with server_of_its_own() as server, redis.Redis.from_url(server.url) as client:
        rules = ["reset", "on", ">secret", "+@all", "-@dangerous", "+info", "~lab:*", "resetchannels", "&lab:*"]
        client.execute_command("ACL", "SETUSER", "lab", *rules)
        url = f"redis://lab:secret@127.0.0.1:{server.port}/0?prefix=lab:"
        store = stores(url)
        every_verb(store)  # no script touches a key without this prefix
        heard = threading.Event()
        store.listen("w", heard.set)
        assert heard.wait(HANG)
        put(store, "a")
        assert ids(work(store)) == ["a"]
        assert all(key.startswith(store._base) for key in client.keys("*")), "one hash tag for all of a pool"
        store.drop()
        assert client.keys("*") == []
        with pytest.raises(EngineError, match="forbids something that a pool needs.*~millpond:\\*"):
            stores(f"redis://lab:secret@127.0.0.1:{server.port}/0")
        client.execute_command("ACL", "SETUSER", "lab", "-ltrim")
        with pytest.raises(EngineError, match="forbids something that a pool needs: LTRIM"):
            stores(url)
        client.execute_command("ACL", "SETUSER", "lab", "+ltrim", "-info")
        with pytest.raises(EngineError, match="forbids something that a pool needs.*'info'"):
            stores(url)


def test_a_wrong_password_is_told_without_telling_it(stores):
    with server_of_its_own() as server, redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "secret")
        for url in (server.url, f"redis://:wr0ng@127.0.0.1:{server.port}/0"):
            with pytest.raises(EngineError, match="refused to let us in.*user and password") as caught:
                stores(url)
            assert "wr0ng" not in str(caught.value)
            assert not isinstance(caught.value, EngineUnavailable)
        stores(f"redis://:secret@127.0.0.1:{server.port}/0")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://host", "is no URL of Redis"),
        ("redis://127.0.0.1/0?colour=red", "has an option 'colour'; there are cluster, db"),
        ("redis://127.0.0.1/abc", "is no URL of Redis: write .*:6379/0"),
        ("redis://127.0.0.1/-1", "is no URL of Redis"),
        ("redis://127.0.0.1/0?protocol=9", "has protocol='9'; it must be 2 or 3"),
    ],
)
def test_a_url_that_says_nothing_is_refused(url, problem):
    with pytest.raises(ValueError, match=problem):
        redis_store.open(url, "pool").open(Settings())


def test_nobody_at_the_address_is_told(stores):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(
        EngineUnavailable, match=f"127.0.0.1:{port} cannot be reached.*nothing was sent; check that the server runs"
    ):
        stores(f"redis://127.0.0.1:{port}/0")


def test_a_unix_socket_will_do(stores, tmp_path):
    with server_of_its_own("--unixsocket", f"{tmp_path}/redis.sock"):
        store = stores(f"unix://{tmp_path}/redis.sock?db=2")
        hire(store)
        put(store, "a")
        assert ids(work(store)) == ["a"]


def test_a_node_of_a_cluster_will_do(stores):
    with server_of_its_own("--cluster-enabled", "yes") as server, redis.Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True))
        store = stores(server.url.replace("redis:", "redis+cluster:"))
        every_verb(store)
        store.drop()
        assert client.keys("*") == []


@contextlib.contextmanager
def node_that_sends_elsewhere(ports: list[int]) -> Iterator[str]:
    """A node of a cluster that says of every call: ask the last one of these."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer(client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                while data := client.recv(65536):
                    for _ in range(data.count(b"CLIENT\r\n")):
                        client.sendall(b"+OK\r\n")
                    if b"EVALSHA" in data or b"EXISTS" in data:
                        client.sendall(b"-MOVED 77 127.0.0.1:%d\r\n" % ports[-1])

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/")[0])


def test_a_node_that_sends_us_elsewhere_is_followed(stores, redis_url):
    with node_that_sends_elsewhere([port_of(redis_url)]) as url:
        assert put(stores(url), "a") == {}


def test_the_node_of_the_url_is_asked_again_when_the_one_it_sent_us_to_is_gone(stores, redis_url):
    with server_of_its_own() as first, node_that_sends_elsewhere(ports := [port_of(first.url)]) as url:
        store = stores(url, "moves")
        assert put(store, "a") == {}
        ports.append(port_of(redis_url))
        stores(redis_url, "moves")  # the replica that takes over knows the pool
        first.kill()

        def is_there() -> bool:
            try:
                return put(store, "b") == {}
            except EngineUnavailable:
                return False

        assert until(is_there)


# -- the way to it ----------------------------------------------------------------------------------------------------


def test_nothing_is_sent_again_by_itself(proxy, stores):
    store = stores(proxy.url)
    for lost, jobs in (("lost", 0), ("answer", 1)):
        proxy.next = lost
        orders = [Order(1, "j:k", body("a"))]
        with pytest.raises(EngineUnavailable, match="cannot be reached.*unknown"):
            store.dispatch(Batch(f"batch-{lost}", 1), orders)
        assert store.ask(about.Counts()).jobs == jobs
        assert store.dispatch(Batch(f"batch-{lost}", 1), orders) == {}
        assert store.ask(about.Counts()).jobs == 1
        hire(store)
        taken = work(store)
        assert ids(taken) == ["a"]
        work(store, *ended(taken))


def test_a_dispatch_that_came_twice_is_in_once_and_its_refusals_are_told_again(proxy, stores):
    store = stores(proxy.url, max_per_key=2)
    orders = [Order(1, "j:k", body()) for _ in range(4)]
    proxy.next = "answer"
    with pytest.raises(EngineUnavailable):
        store.dispatch(Batch("batch", 1), orders)
    assert store.dispatch(Batch("batch", 1), orders) == {2: "full", 3: "full"}
    proxy.next = "twice"
    assert store.dispatch(Batch("other", 1), [Order(2, "j:l", body())]) == {}
    assert store.ask(about.Counts()).jobs == 3
    special = [Order(3, "j:m", body("x"), OrderOptions("x", "f", on_busy="reject")), Order(3, "j:m", body("y"), OrderOptions("y", "f", on_busy="reject"))]  # fmt: skip
    proxy.next = "answer"
    with pytest.raises(EngineUnavailable):
        store.dispatch(Batch("special", 1), special)
    assert store.dispatch(Batch("special", 1), special) == {1: "busy"}


def test_a_work_that_came_twice_takes_and_settles_once_and_what_was_lost_is_given_back(proxy, stores):
    store = stores(proxy.url)
    hire(store)
    put(store, "a", "b", "c")
    proxy.next = "twice"
    done = store.work("w", 1, [], 10, 1)
    assert done.takes == (), "the first of the two took it, and its answer was lost"
    assert store.claim("w", range(SLOTS), {}, known=[], call=1).recovered == 1
    done = store.work("w", 2, [], 10, 1)
    assert ids(done) == ["a"]
    proxy.next = "twice"
    again = store.work("w", 3, ended(done), 0, 1)
    assert again.stale == (0,) and store.ask(about.Counts()).done == 1
    proxy.next = "answer"
    with pytest.raises(EngineUnavailable):
        store.work("w", 4, [], 10, 16)
    assert store.ask(about.Counts()).keys_running == 1
    assert store.claim("w", range(SLOTS), {}, known=[], call=9).recovered == 1
    assert store.work("w", 9, [], 10, 16).takes == (), "a call that comes late takes nothing"
    assert ids(store.work("w", 10, [], 10, 16)) == ["b", "c"]
    assert store.ask(about.Keys())[0].losses == 0, "nobody died"


def test_a_server_that_does_not_answer_holds_up_one_purpose_only(proxy, stores, monkeypatch):
    monkeypatch.setattr(_address, "CALL", HANG)
    store = stores(proxy.url)
    hire(store)
    proxy.next = "silent"
    failed: list[Exception] = []

    def slow() -> None:
        try:
            put(store, "a")
        except EngineUnavailable as error:
            failed.append(error)

    thread = threading.Thread(target=slow)
    thread.start()
    assert proxy.happened.wait(HANG)
    assert store.renew("w") is not None and thread.is_alive()
    proxy.cut()
    thread.join(HANG)
    assert "unknown" in str(failed[0])


def test_a_call_that_is_not_answered_in_time_is_given_up(proxy, stores):
    store = stores(proxy.url)
    hire(store)
    put(store, "a")
    proxy.next = "silent"
    _address._limit(store._dispatch_link._client._connection.socket, 0.1)  # this call only: all others have time
    with pytest.raises(EngineUnavailable, match="did not answer within .* unknown"):
        put(store, "b")
    assert proxy.happened.wait(HANG), "it is in"
    put(store, "c")
    assert ids(work(store)) == ["a", "b", "c"], "the answer to it is not taken for that of the next"


def test_hints_come_and_come_again_after_a_cut(proxy, stores):
    store = stores(proxy.url)
    hire(store)
    heard, other = threading.Semaphore(0), threading.Semaphore(0)
    subscription = store.listen("w", heard.release)
    assert heard.acquire(timeout=HANG), "once there is a connection"
    store.listen("producer", other.release)
    assert other.acquire(timeout=HANG)
    _drain(heard, other)
    put(store, "a")
    assert heard.acquire(timeout=HANG), "something to take"
    done = work(store)
    outcome = Outcome("a", "done", b"", SECOND, "producer")
    work(store, ended(done)[0]._replace(outcomes=(outcome,)))
    assert other.acquire(timeout=HANG), "an outcome"
    _drain(heard, other)
    store.join(Joiner("v", "host"))
    assert heard.acquire(timeout=HANG), "a change of members"
    _drain(heard, other)
    proxy.cut()
    assert heard.acquire(timeout=HANG) and other.acquire(timeout=HANG), "after a cut something may have been missed"
    subscription.close()
    _drain(heard, other)
    store.leave("v")
    assert other.acquire(timeout=HANG) and not heard.acquire(blocking=False)


def _drain(*semaphores: threading.Semaphore) -> None:
    for one in semaphores:
        while one.acquire(timeout=0.05):
            pass


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(store):
    hire(store)
    put(store, "a")
    sockets = [link._client._connection for link in (store._dispatch_link, store._heartbeat_link)]
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            assert (
                store.dispatch(Batch("of the child", 1), [Order(1, "j:k", body("b"))]) == {}
                and store.ask(about.Members()).members
            )
            assert store._dispatch_link._client._connection not in sockets
            store.close()
            code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert put(store, "c") == {} and store._dispatch_link._client._connection is sockets[0]
    assert ids(work(store)) == ["a", "b", "c"]


def test_many_threads_may_call_at_once(store):
    hire(store)
    threads = [threading.Thread(target=lambda n=n: [put(store, f"{n}-{i}", key=str(n)) for i in range(30)]) for n in range(6)]  # fmt: skip
    for thread in threads:
        thread.start()
    got: list[str] = []
    settles: list[Report] = []
    while len(got) < 180:
        done = work(store, *settles)
        settles = ended(done)
        got += ids(done)
    for thread in threads:
        thread.join()
    for n in range(6):
        assert [one for one in got if one.startswith(f"{n}-")] == [f"{n}-{i}" for i in range(30)]


# -- what stays there -------------------------------------------------------------------------------------------------


def every_verb(store: RedisStore) -> None:
    """Use everything that leaves something behind for a while, and end it."""
    hire(store)
    mailbox = "r:watch:k"
    put(store, "a", "b", "c")
    late = Order(2, "j:late", body("late"), OrderOptions("late", "f", delay=30 * SECOND))
    unheard = Order(2, "j:late", body("later"), OrderOptions("later", "f", delay=30 * SECOND))
    store.dispatch(Batch(f"batch-{next(_numbers)}", 1), [late, unheard, Order(3, "j:unknown", body("u"))])
    assert store.apply(do.Cancel(2, "j:late", "later")) == "cancelled"
    assert store.apply(do.Start(4, mailbox, body("res"))) == "started"
    store.apply(do.Pause(1, "paused"))
    put(store, "p", key="paused")
    done = work(store)
    takes = {take.mailbox: take for take in done.takes}
    assert set(takes) == {"j:k", "j:unknown", mailbox}
    assert store.apply(do.Notify(4, mailbox, b"note")) == "sent"
    assert store.apply(do.Stop(4, mailbox)) == "stopping"
    assert store.apply(do.Cancel(1, "j:k", "c")) == "asked"
    key, unknown, resident = takes["j:k"], takes["j:unknown"], takes[mailbox]
    outcome = Outcome("a", "done", b"result", SECOND // 1000, "producer")
    done = work(
        store,
        Report(key.slot, key.mailbox, key.token, 1, "retry", delay=30 * SECOND, failures=1, outcomes=(outcome,)),
        Report(unknown.slot, unknown.mailbox, unknown.token, 0, "park", reason=b"g"),
        Report(resident.slot, mailbox, resident.token, 1, "end", notes=99),
        want=0,
    )
    assert [one.kind for one in done.signals] == ["note", "cancel", "cancel"] and not done.stale
    store.apply(do.Resume(1, "paused"))
    store.skew += 31 * SECOND  # half a lease
    store.join(Joiner("v", "host", names=("g",)))
    borrowed = work(store, worker="v")
    assert [take.mailbox for take in borrowed.takes] == ["j:unknown"]
    work(store, ended(borrowed)[0]._replace(done=0, how="to_dead_letters", reason=b"why"), worker="v")
    assert store.apply(do.Replay(tuple(one.number for one in store.ask(about.DeadLetters())))) == "1"
    store.leave("v")
    for _ in range(5):
        done = store.work("w", next(_numbers), ended(done) if not done.signals else [], 100, 16, 100, 99)
    assert store.ask(about.Counts()).jobs == 0, store.ask(about.Keys())


def test_a_pool_that_lost_some_of_its_keys_serves_the_others(store, redis_url):
    """Somebody deleted keys by hand: what they belonged to is gone, and harms nothing else."""
    hire(store)
    put(store, "gone", key="gone")
    put(store, "here", key="here")
    put(store, "parked", key="parked")
    with redis.Redis.from_url(redis_url) as client:
        client.delete(store._base + b"mb:j:gone")
        done = work(store)
        assert sorted(ids(done)) == ["here", "parked"]
        here, parked = sorted(ended(done), key=lambda one: one.mailbox)
        work(store, here, parked._replace(done=0, how="park", reason=b"g"))
        client.delete(store._base + b"parked", store._base + b"mb:j:parked")
        put(store, "more", key="more")
        store.join(Joiner("v", "host", names=("g",)))
        assert ids(work(store, worker="v")) == []
        assert ids(work(store)) == ["more"]


def test_a_report_that_the_server_cannot_carry_out_leaves_those_before_it_whole(store, redis_url):
    """An error in the middle of a script keeps what was written: so what was reported before it is brought to its end."""
    hire(store)
    put(store, "1", key="fine")
    put(store, "2", key="spoilt")
    done = work(store)
    fine, spoilt = sorted(ended(done), key=lambda one: one.mailbox)
    with redis.Redis.from_url(redis_url) as client:
        mailbox = store._base + b"mb:j:spoilt"
        jobs = client.lrange(mailbox, 0, -1)
        client.delete(mailbox)
        client.set(mailbox, "no list")  # somebody wrote it by hand
        with pytest.raises(EngineError, match="WRONGTYPE"):
            work(store, fine, spoilt)
        counts = store.ask(about.Counts())
        assert (counts.jobs, counts.keys_running, counts.done) == (1, 1, 1)
        left = keys_of(redis_url, store)
        assert "mb:j:fine" not in left and client.hkeys(store._base + b"run:1") == [b"j:spoilt"]
        client.delete(mailbox)
        client.rpush(mailbox, *jobs)
        assert work(store, fine, spoilt).stale == (0,) and store.ask(about.Counts()).done == 2


def test_a_long_reading_holds_up_neither_moves_nor_heartbeats(store, redis_url):
    """Each of them has a connection of its own."""
    hire(store)
    begun, release = threading.Event(), threading.Event()
    run = store._other_link.run

    def slowly(name, args):
        begun.set()
        assert release.wait(60)
        return run(name, args)

    store._other_link.run = slowly
    reader = threading.Thread(target=lambda: store.ask(about.Keys()))
    reader.start()
    try:
        assert begun.wait(60)
        assert store.renew("w") is not None and store.ask(about.Owners())[1] == ["w"] * SLOTS
        assert not store.claim("w", range(SLOTS), {}).is_gone and store.give("w", [(0, "")], "why") == 1
        assert put(store, "1") == {} and ids(work(store)) == ["1"]
    finally:
        release.set()
        reader.join(60)


def test_a_producer_costs_one_key_however_often_it_dispatches(redis_url):
    with KeyedPool(f"redis-{next(_names)}", redis_url) as pool:
        do = pool.declare_job("do")
        for number in range(30):
            do.dispatch(f"k{number % 3}")
        inner: Any = pool._connection.store
        kept = keys_of(redis_url, inner)
    assert len([key for key in kept if key.startswith("batch:")]) == 1, kept


def commands(client: Any) -> int:
    """Return how many commands the server has carried out, those of scripts included."""
    return sum(each["calls"] for name, each in client.info("commandstats").items() if "info" not in name)


def test_looking_at_a_pool_costs_the_server_the_same_whatever_waits_in_it(stores, monkeypatch):
    """Statistics, a heartbeat and a search for a job that is gone: few commands, and no more of them for more keys."""
    monkeypatch.setattr(_reads, "LOOKED_AT", 5)
    with server_of_its_own() as server, redis.Redis.from_url(server.url) as client:
        store = stores(server.url)
        hire(store)

        def costs() -> list[int]:
            found = []
            for look in (
                lambda: store.ask(about.Counts()),
                lambda: store.do(do.Renew("w")),
                lambda: store.ask(about.Where(1, "j:nobody", "gone")),
                lambda: work(store, want=0),
            ):
                before = commands(client)
                look()
                found.append(commands(client) - before)
            return found

        def load(keys: int) -> None:
            for number in range(keys):
                put(store, f"dead-{keys}-{number}", f"waits-{keys}-{number}", key=f"k{keys}-{number}")
            dead = work(store, want=keys, per=1).takes
            reports = [Report(one.slot, one.mailbox, one.token, 0, "to_dead_letters", reason=b"why") for one in dead]
            work(store, *reports, want=0)

        load(20)
        costs()  # the server knows the scripts from now on
        few = costs()
        load(300)
        counts = store.ask(about.Counts())
        assert (counts.dead, counts.keys_ready) == (320, 300)
        assert costs() == few


READ_WHOLE = {
    "sig:": "few: what a worker was told and has not heard",
    "run:": "as many as workers run at once",
    "borrowed": "as many as workers run at once of jobs that their owner does not know",
    "paused": "mailboxes that people have paused",
    "pk:": "those of one key",
    "msg:": "messages to one resident, which are limited",
    "own": "slots",
    "slot": "slots",
    "members": "workers",
    "pauses": "keys that people have paused",
}
"""What scripts may read as a whole, and why: it does not grow with the jobs that wait or have ended."""


def test_no_script_reads_as_a_whole_what_grows_with_jobs():
    whole = re.compile(
        r"call\('(?:(?:HVALS|HGETALL|HKEYS|SMEMBERS)', ([^)]*)\)|(?:LRANGE|ZRANGE|ZRANGEBYSCORE)', ([^)]*), 0, -1)"
    )
    found = set()
    for name in _scripts._PIECES.keys() - {"probe"}:
        for reading in whole.finditer(_scripts.script(name).source.decode()):
            found.add((name, "".join(filter(None, reading.groups()))))
    assert len(found) > 10
    for name, what in found:
        known = any(f"'{each}'" in what for each in READ_WHOLE)
        assert known or (name, what) in READ_LISTS, f"{name}.lua reads all of {what}"


SLOTS_OF_A_WORKER = "list"
READ_LISTS = {("names", "P .. queue .. here"), *((name, SLOTS_OF_A_WORKER) for name in _scripts._PIECES)}


def test_nothing_stays_but_what_is_fixed_when_all_is_done(store, redis_url):
    every_verb(store)
    left = keys_of(redis_url, store)
    assert {name for name in left if not name.startswith("batch:")} == {"meta", "own", "slot", "members", "w:w"}
    with redis.Redis.from_url(redis_url) as client:
        batches = [client.pttl(store._base + name.encode()) for name in left if name.startswith("batch:")]
    assert batches and all(0 < one <= 120_000 for one in batches)
    store.leave("w")
    assert {name for name in keys_of(redis_url, store) if not name.startswith("batch:")} == {"meta", "slot"}
    store.drop()
    assert keys_of(redis_url, store) == set()


def test_a_drop_takes_all_of_this_pool_and_nothing_of_others(stores, redis_url):
    one, other = stores(redis_url, "drop*me"), stores(redis_url, "drop*me}:x")
    for each in (one, other):
        hire(each)
        put(each, *(f"{number}" for number in range(10)))
    one.drop()
    assert keys_of(redis_url, one) == set()
    with pytest.raises(PoolGone):
        put(one, "a")
    assert other.ask(about.Counts()).jobs == 10
    one.drop()


def test_a_drop_that_stopped_halfway_is_ended_by_who_opens_the_pool(store, redis_url):
    hire(store)
    put(store, "a")
    before = store.ask(about.Members()).incarnation
    store._other_link.run("mark", [])  # and then its process died
    with pytest.raises(PoolGone):
        store.ask(about.Members())
    assert store.open(Settings(slots=SLOTS)).incarnation != before
    assert store.ask(about.Counts()).jobs == 0 and store.ask(about.Members()).members == ()
    store._other_link.run("sweep", [before, 1, "meta"])  # somebody else who was at it, too, comes too late
    assert store.ask(about.Members()).members == ()


def test_many_slots_change_hands_in_many_calls(stores, redis_url):
    store = stores(redis_url, slots=1000)
    store.join(Joiner("w", "host"))
    store.join(Joiner("v", "host"))
    assert store.claim("w", range(1000), {}).got == tuple(range(1000))
    assert store.give("w", [(slot, "v") for slot in range(0, 1000, 2)], "fair") == 500
    assert store.ask(about.Owners())[1] == ["v", "w"] * 500
    put(store, "a")
    assert store.ask(about.Counts()).keys_ready == 1 and len(store.ask(about.Keys())) == 1
    store.leave("v")
    assert store.ask(about.Owners())[1] == ["", "w"] * 500 and store.ask(about.Slots())[0].before == "v"
    assert store.ask(about.Outcomes(tuple(map(str, range(600))))) == [None] * 600


def test_large_jobs_are_taken_a_few_at_a_time(store):
    hire(store)
    store.dispatch(Batch("large", 1), [Order(1, "j:k", body(payload=bytes(1 << 20))) for _ in range(8)])
    done = work(store)
    assert [len(take.jobs) for take in done.takes] == [3]
    work(store, *ended(done))


def test_a_search_in_a_deep_mailbox_goes_in_parts(store):
    """No call looks at more than 5,000 jobs; what is there all the time is found, whatever workers take meanwhile."""
    hire(store)
    for start in range(0, 12_000, 1000):
        put(store, *(f"n{number}" for number in range(start, start + 1000)))
    run, asked = store._run, []

    def watched(link, name, args):
        if len(asked) == 1:  # the head is gone between the first part and the second
            settled = asked.append("settle") or work(store)
            work(store, *ended(settled), want=0)
        asked.append(name)
        return run(link, name, args)

    store._run = watched
    assert store.ask(about.Where(1, "j:k", "n16")) == "waiting"
    assert [name for name in asked if name == "where"] == ["where"] * 3
    asked.clear()
    asked.extend(["", ""])
    assert store.ask(about.Where(1, "j:k", "n11999")) == "waiting" and len(asked) == 3
    assert store.ask(about.Where(1, "j:k", "n3")) == "gone" and len(asked) == 6
    assert store.apply(do.Cancel(1, "j:k", "n17")) == "cancelled" and len(asked) == 9
    assert store.apply(do.Cancel(1, "j:k", "n17")) == "gone"
    store._run = run
    assert [int(one[1:]) for one in ids(work(store))] == [16, *range(18, 33)]


def test_a_page_of_dead_letters_is_read_in_one_call_and_ends_when_it_is_large(store):
    hire(store)
    for number in range(10):
        store.dispatch(Batch("large", number + 1), [Order(1, "j:k", body(payload=bytes(1 << 20)))])
        (report,) = ended(work(store, per=1))
        work(store, report._replace(done=0, how="to_dead_letters", reason=b"why"))
    run, sizes = store._run, []

    def watched(link, name, args):
        answer = run(link, name, args)
        sizes.append(len(answer[2]))
        return answer

    store._run = watched
    assert len(store.ask(about.DeadLetters())) == 10
    assert sizes == [4, 4, 2], "more than some megabytes in one answer"


def test_times_are_whole_however_far_away(store):
    hire(store)
    at = 4_102_444_800 * SECOND + 123_457  # in 2100
    store.dispatch(Batch("far", 1), [Order(1, "j:k", body("far"), OrderOptions("far", "f", at=at))])
    put(store, "a")
    done = work(store)
    assert done.due == at
    outcome = Outcome("a", "done", b"\0 \xff", 10**15 + 1, "")
    work(store, ended(done)[0]._replace(outcomes=(outcome,)))
    assert store.ask(about.Outcomes(("a",))) == [("done", b"\0 \xff")]


def test_neither_redis_py_nor_hiredis_has_to_be_there(redis_url):
    code = f"""
import sys
sys.modules["redis"] = sys.modules["hiredis"] = None
from millpond import KeyedPool
with KeyedPool("plain", {redis_url!r}) as pool:
    job = pool.job(name="double")(lambda job, number=0: 2 * number)
    with pool.worker():
        print(job.dispatch("k", 21).result(timeout={HANG}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "42\n", done.stderr


def test_a_worker_does_not_load_redis_py(redis_url):
    """It takes 12 MB and more, in every worker."""
    code = f"""
import sys
from millpond import KeyedPool
with KeyedPool("small", {redis_url!r}) as pool, pool.worker():
    print("redis" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_every_script_is_in_the_package_and_says_what_it_does():
    folder = Path(_scripts.__file__).parent / "lua"
    pieces = {piece for name, some in _scripts._PIECES.items() for piece in (name, *some.split())}
    assert {path.stem for path in folder.glob("*.lua")} == pieces
    for path in folder.glob("*.lua"):
        assert path.read_text().startswith("-- "), path
    assert f"meta[1] ~= '{_scripts.FORMAT}'" in (folder / "common.lua").read_text()


def test_a_job_begins_with_its_wake_up_while_the_worker_cannot_ask(redis_url):
    """It goes with the hint; nobody has to ask for it, and its report goes out when that is possible again."""
    begun: list[str] = []
    with KeyedPool(f"redis-{next(_names)}", redis_url, lease=HANG) as pool:

        @pool.job
        async def do(job: Job, blob: bytes) -> None:
            begun.append(job.key)

        real, may_ask = pool._connection.store, threading.Event()
        may_ask.set()
        told: list[int] = []

        def work(*args: Any) -> Work:
            assert may_ask.wait(HANG)
            answer = RedisStore.work(real, *args)  # type: ignore[arg-type]
            told.append(args[7])
            return answer

        real.work = work  # type: ignore[attr-defined]
        with pool.worker():
            do.dispatch("warm", b"").result(HANG)
            until(lambda: told[-1] > 0, "the worker says that it has room")
            may_ask.clear()
            numbers = itertools.count()
            until(lambda: do.dispatch(f"k {next(numbers)}", b"\0 \xff") and len(begun) > 1, "one begins")
            may_ask.set()
            assert do.dispatch("last", b"").result(HANG) is None
            until(lambda: pool.statistics().jobs == 0)
    assert len(begun) == len(set(begun)) == next(numbers) + 2


def test_what_was_handed_to_a_process_that_is_gone_waits_for_another(store, redis_url):
    """Nobody listens any more: so it is not taken, and nothing is held against it."""
    hire(store)
    store.work("w", 1, [], 10, 1, 0, 0, 5)
    put(store, "one")
    assert [view.state for view in store.ask(about.Keys("j"))] == ["ready"]
    with redis.Redis.from_url(redis_url) as client, client.pubsub() as listener:
        listener.subscribe(store._base + b"to:w")
        until(lambda: listener.get_message(timeout=1))
        put(store, "two", key="l")
        assert {view.mailbox: view.state for view in store.ask(about.Keys("j"))} == {"j:k": "ready", "j:l": "running"}
        (signal,) = store.work("w", 2, [], 0, 1, 0, 0, 0).signals
        assert (signal.kind, signal.mailbox, signal.slot) == ("take", "j:l", 1)
        text = until(lambda: listener.get_message(timeout=1))["data"]
        assert text.endswith(signal.data) and text.split(b" ")[:2] == [b"0", b"%d" % signal.number]


def test_a_hint_that_nobody_understands_is_a_reason_to_look_and_ends_no_listener(store, redis_url, caplog):
    heard = queue.SimpleQueue()
    handed = queue.SimpleQueue()
    with contextlib.closing(store.listen("w", lambda: heard.put("look"), lambda before, signal: handed.put(signal))):
        heard.get(timeout=HANG)  # once for the new connection
        with redis.Redis.from_url(redis_url) as client:
            for text in (b"hello", b"1 2 3 4 5", b"a b c d e f", b"1 2 3 4 2 \xff\xff"):
                until(partial(client.publish, store._base + b"to:w", text))
                heard.get(timeout=HANG)
            client.publish(store._base + b"to:w", b"0 1 2 3 3 j:kbody")
            assert handed.get(timeout=HANG).data == b"body"
    assert caplog.text.count("was not understood") == 4
