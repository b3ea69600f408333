"""Resource pools between real processes: ids that survive their process, lost wake-ups, passed-on grants."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millpond._sqlite import Bell, Gate
from millpond.errors import AcquireTimeout, AlreadyExists, EngineError, LeaseLost, StaleToken
from millpond.resources import ResourcePool
from millpond.resources._engine import AUDIT
from millpond.resources.engines.sqlite._engine import SAFETY, SqliteEngine
from waiting import HANG, until

PRELUDE = """
import os, sys, threading, time
from millpond.errors import *
from millpond.resources import ResourcePool
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def hear():
    return sys.stdin.readline().strip()
pool = ResourcePool("p", sys.argv[1], holder="child")
"""


class Child:
    def __init__(self, script: str, url: str) -> None:
        self.database = url.removeprefix("sqlite:///")
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script), url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child ended with {self.process.wait()}"
        return line.strip()

    def tell(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """SIGSTOP, and return when it has stopped: outside of the gate, for inside it would stop all others, too."""
        with Gate(self.database):
            self.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start() -> Iterator[Callable[[str, str], Child]]:
    children: list[Child] = []

    def begin(script: str, url: str) -> Child:
        children.append(Child(script, url))
        return children[-1]

    yield begin
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.process.kill()
        child.process.wait()
        for pipe in (child.process.stdin, child.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/p.db"


WAIT = """
kept = []
def wait():
    try:
        kept.append(pool.acquire(request_id="job-7", reason="before"))
    except Exception as error:
        say("error", error)
threading.Thread(target=wait, daemon=True).start()
while not any(one.request_id == "job-7" for one in pool.waiters()):
    time.sleep(0.005)
say("waiting")
hear()
"""


def test_a_request_of_a_process_that_died_keeps_its_place_for_who_asks_again(url, start):
    with ResourcePool("p", url) as pool:
        pool.add("a")
        held = pool.acquire()
        child = start(WAIT, url)
        assert child.line() == "waiting"
        order: list[str] = []

        def work(name: str, request_id: str | None) -> None:
            with pool.acquire(request_id=request_id, timeout=HANG):
                order.append(name)

        later = threading.Thread(target=work, args=("later", None))
        later.start()
        until(lambda: len(pool.waiters()) == 2)
        child.kill()
        until(lambda: [one.state for one in pool.waiters()] == ["away", "waiting"])
        assert "it is away: its process is gone" in pool.waiters()[0].why
        again = threading.Thread(target=work, args=("again", "job-7"))
        again.start()
        until(lambda: [one.state for one in pool.waiters()] == ["waiting", "waiting"])
        held.release()
        later.join()
        again.join()
        assert order == ["again", "later"]
        assert not pool.holders() and not pool.waiters()


def test_a_dead_process_can_be_replaced_at_once(url, start):
    """Asking again right after the kill finds the death by itself."""
    with ResourcePool("p", url) as pool:
        pool.add("a")
        held = pool.acquire()
        child = start(WAIT, url)
        assert child.line() == "waiting"
        child.kill()
        heir = threading.Thread(target=lambda: pool.acquire(request_id="job-7", timeout=HANG).release())
        heir.start()
        until(lambda: [one.state for one in pool.waiters()] == ["waiting"])
        held.release()
        heir.join()
        assert not pool.holders()


def test_the_id_of_a_living_process_is_taken(url, start):
    with ResourcePool("p", url) as pool:
        pool.add("a")
        with pool.acquire():
            child = start(WAIT, url)
            assert child.line() == "waiting"
            with pytest.raises(AlreadyExists, match="request 'job-7' belongs to child, which lives: choose another"):
                pool.acquire(request_id="job-7")


def test_a_grant_of_a_dead_process_is_free_for_the_next(url, start):
    with ResourcePool("p", url) as pool:
        pool.add("a")
        child = start("grant = pool.acquire(request_id='x'); say(grant.token); hear()", url)
        token = int(child.line())
        assert pool.try_acquire() is None
        child.process.send_signal(signal.SIGKILL)
        pool.acquire(timeout=HANG).release()
        with pool.acquire(request_id="x") as again:  # the one who had this id is proved dead
            assert again.token > token


def test_a_grant_is_passed_on_to_another_process(url, start):
    with ResourcePool("p", url) as pool:
        pool.add("a")
        child = start(
            """
            grant = pool.adopt(int(hear()), reason="mine now")
            say(grant.token, grant.resource)
            hear()
            grant.release()
            say("released")
            """,
            url,
        )
        with pool.acquire() as grant:
            child.tell(str(grant.transfer()))
            token, resource = child.line().split()
            assert int(token) > grant.token and resource == "a"
            until(lambda: not grant.is_held)
            with pytest.raises(LeaseLost, match="transferred by child"):
                grant.check()
        [holder] = pool.holders()
        assert (holder.token, holder.pid, holder.reason) == (int(token), child.process.pid, "mine now")
        child.tell()
        assert child.line() == "released"
        assert not pool.holders()


def test_a_revoked_holder_in_another_process_is_told_by_a_bell(url, start):
    """It looks by itself only after an hour here, so nothing else can tell it."""
    with ResourcePool("p", url) as pool:
        pool.add("a")
        child = start(
            """
            from millpond.resources.engines.sqlite import _engine
            _engine.SAFETY = 3600
            pool._engine._wakeups.wake()  # that its thread, too, sleeps so long from now on
            lost = threading.Event()
            pool = ResourcePool("p", sys.argv[1], on_lost=lambda grant: lost.set())
            grant = pool.acquire()
            say(pool._engine.session, grant.token)
            lost.wait()
            try:
                grant.check()
            except LeaseLost as error:
                say(error)
            """,
            url,
        )
        session, token = map(int, child.line().split())
        engine: Any = pool._engine
        until(lambda: session in engine._sessions.own.others())  # a bell is rung for those one knows
        pool.admin.release("a", token=token, reason="broom")
        assert "was lost: revoked by" in child.line()
        with pytest.raises(StaleToken):
            pool.admin.release("a", token=token, reason="again")


def test_one_buried_by_mistake_before_it_used_a_pool_learns_it_and_its_death_is_seen(url, start):
    """No pool tells it: there is nothing but its row that is missing. Whoever has none is watched by nobody."""
    with ResourcePool("p", url) as pool:
        pool.add("a")
        child = start(
            """
            engine, before = pool._engine, pool._engine.session
            with engine._database.writing() as transaction:
                transaction.execute("DELETE FROM session WHERE number = ?", (int(before),))
            while engine.session == before:
                time.sleep(0.005)
            grant = pool.acquire()
            say("held")
            hear()
            """,
            url,
        )
        assert child.line() == "held"
        assert pool.try_acquire() is None
        child.process.kill()
        pool.acquire(timeout=HANG).release()


def test_a_pool_that_is_opened_on_a_new_file_works_though_another_still_has_the_old_one(url, tmp_path, caplog):
    pool, other = ResourcePool("p", url), ResourcePool("q", url)
    pool.add("a")
    for file in tmp_path.iterdir():
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    with pytest.raises(EngineError, match="while in use.*close this pool and open it again"):
        while True:  # the file is looked at now and then
            pool.acquire().release()
    pool.close()
    caplog.clear()
    with ResourcePool("p", url) as pool:
        pool.add("a")
        pool.acquire(timeout=HANG).release()
        other.close()
        assert not caplog.records  # there is nothing to end in a file that is gone
        pool.acquire(timeout=HANG).release()


@pytest.mark.parametrize("silent", ["parent", "child"])
def test_a_lost_wake_up_costs_a_waiter_a_second_at_most(url, start, silent, monkeypatch):
    """G5: with no bell rung, whoever was granted something looks by itself after a second, and returns."""
    assert max(SAFETY, AUDIT) <= 1.0  # two nets: the engine looks by itself, and so does whoever waits
    with ResourcePool("p", url) as pool:
        pool.add("a")
        if silent == "child":
            child = start(
                """
                from millpond._sqlite import Bell
                Bell.ring = lambda self, numbers: None
                grant = pool.acquire()
                say("held")
                while not pool.waiters():
                    time.sleep(0.005)
                grant.release()
                hear()
                """,
                url,
            )
            assert child.line() == "held"
            pool.acquire(timeout=HANG).release()
        else:
            monkeypatch.setattr(Bell, "ring", lambda self, numbers: None)
            grant = pool.acquire()
            child = start("grant = pool.acquire(); say('held'); hear()", url)
            until(pool.waiters)
            grant.release()
            assert child.line() == "held"


def test_a_process_that_is_stopped_does_not_keep_what_it_was_offered(url, start):
    with ResourcePool("p", url) as pool:
        pool.add("a")
        pool.admin.configure(claim_within=0.3)
        held = pool.acquire()
        child = start(WAIT, url)
        assert child.line() == "waiting"
        child.stop()
        held.release()
        pool.acquire(timeout=HANG).release()
        child.process.send_signal(signal.SIGCONT)
        until(lambda: [one.request_id for one in pool.holders()] == ["job-7"])


def test_a_process_that_is_stopped_keeps_its_lock(url, start):
    """Also when somebody looks for deaths, and finds one."""
    with ResourcePool("p", url) as pool:
        pool.add("a")
        pool.add("b")
        script = "grant = pool.acquire(name=hear()); say('held'); hear(); grant.check(); grant.release(); say('fine')"
        stopped, killed = start(script, url), start(script, url)
        for child, name in ((stopped, "a"), (killed, "b")):
            child.tell(name)
            assert child.line() == "held"
        stopped.stop()
        killed.kill()
        pool.acquire(name="b", timeout=HANG).release()
        assert pool.try_acquire(name="a") is None
        stopped.process.send_signal(signal.SIGCONT)
        stopped.tell()
        assert stopped.line() == "fine"


def test_a_process_that_stood_still_for_a_thousand_steps_knows_what_it_lost(url, start):
    with ResourcePool("p", url) as pool:
        pool.add("a")
        pool.add("b")
        child = start(
            """
            grant = pool.acquire(name="a")
            say("held")
            hear()
            until = time.monotonic() + 60
            while grant.is_held and time.monotonic() < until:
                time.sleep(0.01)
            say("believes to hold it" if grant.is_held else "knows")
            """,
            url,
        )
        assert child.line() == "held"
        [holder] = pool.holders()
        child.stop()
        pool.admin.release("a", token=holder.token, reason="it stands still")
        engine = pool._engine
        assert isinstance(engine, SqliteEngine)
        while engine._replicas.pools["p"].base < 1000:  # the log is compacted: nobody can read that any more
            pool.acquire(name="b").release()
        for _ in range(600):
            pool.acquire(name="b").release()
        child.tell()
        child.process.send_signal(signal.SIGCONT)
        assert child.line() == "knows"


def test_a_lease_of_a_stopped_process_is_lost_and_it_knows_when_it_goes_on(url, start):
    with ResourcePool("p", url) as pool:
        pool.add("a")
        child = start(
            """
            grant = pool.acquire(lease=0.3)
            say("held")
            hear()
            try:
                grant.check()
                say("believes to hold it")
            except LeaseLost:
                say("knows")
            """,
            url,
        )
        assert child.line() == "held"
        child.stop()
        with pool.acquire(timeout=HANG):
            child.tell()
            child.process.send_signal(signal.SIGCONT)
            assert child.line() == "knows"


def test_what_was_answered_survives_the_death_of_every_process(url, start):
    """G10: a person's grant outlives processes, so it shows that an answered commit is in the file."""
    child = start(
        """
        pool.add("a", labels={"kind": "x"}); pool.add("b")
        pool.admin.cordon("b", reason="broken")
        kept = pool.acquire(name="a")
        token = pool.admin.keep("a", token=kept.token, holder="ada", reason="post-mortem")
        say(token)
        hear()
        """,
        url,
    )
    token = int(child.line())
    child.kill()
    with ResourcePool("p", url) as pool:
        [holder] = pool.holders()
        assert (holder.id, holder.kind, holder.token, holder.reason) == ("ada", "person", token, "post-mortem")
        assert [(one.name, one.state, one.note) for one in pool.resources()] == [
            ("a", "active", ""),
            ("b", "cordoned", "broken"),
        ]
        assert pool.try_acquire(name="a") is None
        pool.admin.release("a", token=token, reason="done")
        with pool.acquire(name="a") as grant:
            assert grant.token > token


def test_a_process_that_is_stopped_as_soon_as_it_has_what_it_waited_for_keeps_it(url, start):
    """It has accepted the offer by its byte, and the claim is not in the file yet when the offer is over."""
    with ResourcePool("p", url) as pool:
        pool.add("a")
        pool.admin.configure(claim_within=0.2)
        grant = pool.acquire()
        child = start(
            """
            import signal
            say("asking")
            with pool.acquire():
                os.kill(os.getpid(), signal.SIGSTOP)
                say("still mine")
            """,
            url,
        )
        child.line()
        until(pool.waiters)
        grant.release()
        os.waitid(os.P_PID, child.process.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(AcquireTimeout):
            pool.acquire(timeout=0.6)  # three times as long as the offer lasted
        assert [one.id for one in pool.holders()] == ["child"]
        child.process.send_signal(signal.SIGCONT)
        assert child.line() == "still mine"
        pool.acquire(timeout=HANG).release()
