"""Companions on one log, with calls that are lost on either way, gates that are taken, and companions that vanish.

What must hold, whatever happens: a numbered call takes effect once, however often it is sent and whoever decides; every
call is answered in the end, and with the answer of that one effect; all companions have the same state; what another
machine forgot or compacted does no harm.
"""

from __future__ import annotations

import itertools
from typing import Any, cast

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from memory_log import MemoryLog
from millpond.errors import EngineUnavailable
from millpond.resources._rules import changes as to
from millpond.resources._rules import commands as do
from millpond.resources._rules.records import HELD, WAITING, Holder, Want
from millpond.resources._rules.replica import Replica
from millpond.resources.engines.log import _hosted
from millpond.resources.engines.log._hosted import HostedPool, Listener, StoreClock
from millpond.resources.engines.log._log import GATE, Log, Witness, decode_item

COMPANIONS = ("a", "b", "c")
SESSIONS = {"s1": "a", "s2": "a", "s3": "b", "s4": "c"}


class Client(Listener):
    """A session's process: it remembers what it has asked and not been answered, and sends that again elsewhere."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.witness = Witness("", "", "", "", "", 1, 1)
        self.number = 0
        self.open: dict[int, do.Command] = {}
        self.answers: dict[int, do.Reply] = {}
        self.heard: list[Any] = []
        self.released: list[tuple[int, str]] = []

    def releases(self) -> dict[int, list[str]]:
        """Return what this was told when it gave back each of its tokens."""
        return {token: [kind for one, kind in self.released if one == token] for token, _ in self.released}

    @property
    def acked(self) -> int:
        return min(self.open, default=self.number + 1) - 1

    def news(self, pool: str, entries: list[Any], everything: bool) -> None:
        self.heard += [change for entry in entries for change in entry.changes]

    def missed(self, pool: str) -> None:
        self.heard.append("missed")

    def replied(self, number: int, reply: do.Reply) -> None:
        if number in self.open:
            command = self.open.pop(number)
            self.answers[number] = reply if reply.id else msgspec.structs.replace(reply, id=getattr(command, "id", ""))
            if isinstance(command, do.Release):
                self.released.append((command.token, reply.kind))
        assert reply.kind != "failed", reply


class Companions(RuleBasedStateMachine):
    """Three machines, four processes, one pool of two units."""

    @initialize()
    def begin(self) -> None:
        self.time = 1000.0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(_hosted, "elapsed", lambda: self.time)
        self.patch.setattr(_hosted, "COMPACT", 6)
        numbers = itertools.count(1)
        self.patch.setattr("os.urandom", lambda size: next(numbers).to_bytes(size, "big"))
        self.log = MemoryLog()
        self.clients = {name: Client(name) for name in SESSIONS}
        self.pools: dict[str, HostedPool] = {}
        for name in COMPANIONS:
            self.start(name)
        self.everything: dict[str, dict[int, tuple[int, bytes, bytes]]] = {}
        self.call("s1", do.Add("r1", {}))
        self.call("s1", do.Add("r2", {}))

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    def start(self, name: str) -> None:
        """Start a companion anew: its processes connect again and send what was not answered."""
        pool = self.pools[name] = HostedPool("p", cast(Log, self.log), f"{name}{self.time}", StoreClock())
        for session, home in SESSIONS.items():
            if home == name:
                client = self.clients[session]
                pool.listeners[session] = client
                pool.arrivals.append((session, client.witness))
                for number in sorted(client.open):
                    pool.call(session, number, client.acked, client.open[number])

    def call(self, session: str, command: do.Command) -> None:
        client = self.clients[session]
        client.number += 1
        client.open[client.number] = command
        self.pools[SESSIONS[session]].call(session, client.number, client.acked, command)

    @rule(session=st.sampled_from(sorted(SESSIONS)), wait=st.booleans(), sure=st.booleans())
    def acquire(self, session: str, wait: bool, sure: bool) -> None:
        client = self.clients[session]
        request = f"{session}-{client.number + 1}"
        self.call(session, do.Acquire(request, session, 0, Holder(), (Want(),), wait=wait, sure=sure))

    @rule(session=st.sampled_from(sorted(SESSIONS)), which=st.integers(0, 20))
    def release(self, session: str, which: int) -> None:
        held = [one.token for one in self.clients[session].answers.values() if one.kind == HELD]
        if held:
            self.call(session, do.Release(session, held[which % len(held)]))

    @rule(session=st.sampled_from(sorted(SESSIONS)), which=st.integers(0, 20))
    def withdraw(self, session: str, which: int) -> None:
        waiting = [one.id for one in self.clients[session].answers.values() if one.kind == WAITING]
        if waiting:
            self.call(session, do.Withdraw(session, waiting[which % len(waiting)]))

    @rule(
        name=st.sampled_from(COMPANIONS), fail=st.sampled_from(["", "", "", "before", "after"]), after=st.integers(0, 2)
    )
    def turn(self, name: str, fail: str, after: int) -> None:
        """Take a companion's turn; its first, second or third call to the store may be lost."""
        real = type(self.log)._before

        def before(left: list[int] = [after]) -> None:  # noqa: B006
            if left[0] == 0:
                self.log.fail = fail
            left[0] -= 1
            real(self.log)

        self.log._before = before  # type: ignore[method-assign]
        try:
            self.pools[name].turn()
        except EngineUnavailable:
            pass
        finally:
            del self.log._before
            self.log.fail = ""

    @rule(name=st.sampled_from(COMPANIONS))
    def vanish(self, name: str) -> None:
        """A companion is killed; another comes in its place."""
        self.time += 0.001
        self.start(name)

    @rule(seconds=st.sampled_from([0.01, 0.45, 0.6, 3.0]))
    def wait(self, seconds: float) -> None:
        self.time += seconds
        self.log.now += int(seconds * 1_000_000)

    @rule(name=st.sampled_from(COMPANIONS))
    def hint(self, name: str) -> None:
        self.pools[name].look_soon()

    @rule(name=st.sampled_from(COMPANIONS))
    def leave(self, name: str) -> None:
        self.pools[name].leave()

    @invariant()
    def each_call_took_effect_at_most_once(self) -> None:
        if not hasattr(self, "log"):
            return
        for item in self.log.pool("p").items:
            self.everything.setdefault("p", {})[item[0]] = item
        asked: dict[str, int] = {}
        granted: dict[int, str] = {}
        for _, _, body in self.everything.get("p", {}).values():
            for step in decode_item(body).steps:
                for change in step.entry.changes if step.entry is not None else ():
                    if isinstance(change, to.Asked):
                        asked[change.request.id] = asked.get(change.request.id, 0) + 1
                        if change.request.token:
                            assert change.request.token not in granted
                            granted[change.request.token] = change.request.id
        assert all(count == 1 for count in asked.values()), asked

    def settle(self) -> None:
        """Bring everything to its end: no more faults, and time goes on."""
        for number in range(60):
            self.time += 0.3
            self.log.now += 300_000
            for pool in self.pools.values():
                pool.look_soon()
                pool.turn()
            if number > 3 and not any(client.open for client in self.clients.values()):
                break  # and a decider that has vanished has lost the gate meanwhile
        for pool in self.pools.values():
            pool.look_soon()
            pool.turn()

    def check_end(self) -> None:
        self.settle()
        assert not any(client.open for client in self.clients.values()), "every call is answered"
        images = [msgspec.msgpack.encode(pool.replica.state.image()) for pool in self.pools.values()]
        assert images[0] == images[1] == images[2], "all companions have the same state"
        assert len({pool.replica.version for pool in self.pools.values()}) == 1
        state = self.pools["a"].replica.state
        for name, client in self.clients.items():
            for number, reply in client.answers.items():
                if reply.kind == HELD and reply.token in state.index.tokens:
                    assert state.requests[state.index.tokens[reply.token]].session == name
                assert reply.kind != "forgotten", (name, number)
            said = {reply.id: reply.kind for reply in client.answers.values()}
            for request in state.requests.values():
                if request.session == name:
                    assert said[request.id] in (HELD, WAITING), (
                        f"{request.id} was told {said[request.id]}, and is {request.state}"
                    )
            for token, kinds in client.releases().items():
                assert kinds.count("released") == 1, f"{name} released {token}, and was told {kinds}"
        held = [one for one in state.requests.values() if one.state == HELD]
        assert sum(len(one.shares) for one in held) <= 2
        assert not self.log.pool("p").inbox, "nothing stays in the inbox"


class CheckedAtTheEnd(Companions):
    def teardown(self) -> None:
        try:
            if hasattr(self, "log"):
                self.check_end()
        finally:
            super().teardown()


TestCompanions = CheckedAtTheEnd.TestCase
TestCompanions.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_gate_is_taken_from_one_who_shows_no_sign_of_work() -> None:
    assert 0 < _hosted.SURE < GATE / 1_000_000


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two companions of one process each, and a pool of one unit."""
    return Scene(monkeypatch)


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 1000.0
        monkeypatch.setattr(_hosted, "elapsed", lambda: self.time)
        self.log = MemoryLog()
        self.clients = {name: Client(name) for name in ("one", "two")}
        self.pools = {name: self.companion(name) for name in self.clients}
        self.run("one", do.Add("r", {}))

    def companion(self, name: str) -> HostedPool:
        pool = HostedPool("p", cast(Log, self.log), f"companion-{name}-{self.time}", StoreClock())
        pool.listeners[name] = self.clients[name]
        return pool

    def ask(self, name: str, command: do.Command) -> int:
        client = self.clients[name]
        client.number += 1
        client.open[client.number] = command
        self.pools[name].call(name, client.number, client.acked, command)
        return client.number

    def turn(self, name: str, fail: str = "", *, at: int = 0) -> None:
        """Take a turn; the call to the store that comes after `at` others is lost."""
        calls = iter([""] * at + [fail])
        real = MemoryLog._before

        def before() -> None:
            self.log.fail = next(calls, "")
            real(self.log)

        self.log._before = before  # type: ignore[method-assign]
        try:
            self.pools[name].turn()
        except EngineUnavailable:
            assert fail
        finally:
            del self.log._before
            self.log.fail = ""

    def run(self, name: str, command: do.Command) -> do.Reply:
        number = self.ask(name, command)
        for _ in range(20):
            for one in self.pools:
                self.pools[one].look_soon()
                self.turn(one)
            if number in self.clients[name].answers:
                return self.clients[name].answers[number]
            self.pass_time(0.3)
        raise AssertionError(f"{command} was not answered")

    def pass_time(self, seconds: float) -> None:
        self.time += seconds
        self.log.now += int(seconds * 1_000_000)

    def acquire(self, name: str, request: str, **options: Any) -> do.Acquire:
        return do.Acquire(request, name, 0, Holder(), (Want(),), **options)


def test_a_call_whose_append_was_lost_on_the_way_back_is_answered_as_it_was_done(scene: Scene) -> None:
    held = scene.run("one", scene.acquire("one", "a"))
    scene.pools["one"].look_soon()
    scene.turn("one")
    number = scene.ask("one", do.Release("one", held.token))
    scene.turn("one", "after")  # it was appended, and nobody knows
    assert scene.log.pool("p").items and number in scene.clients["one"].open
    scene.turn("one")
    assert scene.clients["one"].answers[number].kind == "released"


def test_a_call_that_is_sent_again_to_another_companion_is_answered_as_it_was_done(scene: Scene) -> None:
    held = scene.run("one", scene.acquire("one", "a"))
    number = scene.ask("one", do.Release("one", held.token))
    scene.clients["one"].replied = lambda number, reply: None  # type: ignore[method-assign]  # it dies before it can say so
    scene.turn("one")
    del scene.clients["one"].replied  # type: ignore[method-assign]
    scene.pools["one"] = scene.companion("one")
    scene.pools["one"].call("one", number, number - 1, do.Release("one", held.token))
    scene.pass_time(1)
    scene.turn("one")
    assert scene.clients["one"].answers[number].kind == "released"


def test_without_hints_a_pool_looks_often_while_it_expects_something_and_rarely_else(scene: Scene) -> None:
    assert _hosted.BLIND < _hosted.ANSWER < _hosted.LOOK
    one, two = scene.pools.values()

    def looks_in(pool: HostedPool) -> float:
        scene.turn(next(name for name, each in scene.pools.items() if each is pool))
        return round((pool.wakes_at() or 0.0) - scene.time, 3)

    scene.run("one", scene.acquire("one", "a"))
    scene.run("two", scene.acquire("two", "b"))
    scene.pass_time(2)  # nobody is busy now, and the second one waits for what the first one has
    assert (looks_in(one), looks_in(two)) == (_hosted.LOOK, _hosted.LOOK)
    for pool in (one, two):
        pool.has_hints = False
    scene.pass_time(2)
    assert (looks_in(one), looks_in(two)) == (_hosted.LOOK, _hosted.BLIND)
    scene.ask("one", do.Add("s", {}))
    scene.pass_time(2)
    assert looks_in(one) == _hosted.BLIND, "who has just decided is who others post to"
    number = scene.ask("two", do.Add("t", {}))
    for _ in range(3):
        scene.pass_time(_hosted.BLIND)
        scene.turn("two")
        scene.turn("one")
    assert number in scene.clients["two"].answers


def test_a_copy_of_a_refused_call_that_stayed_in_the_inbox_has_no_effect_later(scene: Scene) -> None:
    held = scene.run("two", scene.acquire("two", "theirs"))
    scene.pass_time(1)
    scene.pools["one"].look_soon()
    number = scene.ask("one", scene.acquire("one", "mine", wait=False))
    scene.turn("one", "after")  # posted, and nobody knows; it will be posted again
    scene.turn("one")
    assert scene.clients["one"].answers[number].kind == "busy"
    assert scene.run("two", do.Release("two", held.token)).kind == "released"
    for name in ("one", "two", "one"):
        scene.pass_time(1)
        scene.pools[name].look_soon()
        scene.turn(name)
    assert "mine" not in scene.pools["two"].replica.state.requests, "it was told that it is busy, and holds it"


def test_a_bad_command_fails_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Replica.decide

    def decide(self: Replica, command: do.Command, now: int) -> Any:
        found = real(self, command, now)
        if command == do.Add("bad", {}):
            raise ZeroDivisionError("a rule of a test fails, and has changed something already")
        return found

    monkeypatch.setattr(Replica, "decide", decide)
    client = scene.clients["one"]
    client.replied = lambda number, reply: client.answers.update({number: reply})  # type: ignore[method-assign]
    first = scene.ask("one", scene.acquire("one", "a"))
    bad = scene.ask("one", do.Add("bad", {}))
    last = scene.ask("one", do.Add("s", {}))
    scene.turn("one")
    scene.turn("one")
    assert [client.answers[number].kind for number in (first, bad, last)] == [HELD, "failed", "ok"]
    assert sorted(scene.pools["one"].replica.state.resources) == ["r", "s"]


def test_a_parcel_that_cannot_be_read_is_passed_over(scene: Scene) -> None:
    scene.log.pool("p").inbox.append((99, b"not a parcel"))
    assert scene.run("one", scene.acquire("one", "a")).kind == HELD
    assert scene.log.pool("p").inbox == []


def test_a_store_that_went_back_in_time_is_followed_and_watchers_look(scene: Scene) -> None:
    """As after a failover to a replica that had not got the last items."""
    here = scene.log.pool("p")
    before = (here.seq, here.tip, list(here.items))
    held = scene.run("one", scene.acquire("one", "a"))
    here.seq, here.tip, here.items = before
    here.decider, here.active = "", 0
    assert scene.run("two", scene.acquire("two", "b")).token > held.token, "tokens grow all the same"
    scene.pools["one"].look_soon()
    scene.turn("one")
    assert "missed" in scene.clients["one"].heard
    assert [one.id for one in scene.pools["one"].replica.state.requests.values()] == ["b"]


def test_a_store_that_forgot_everything_is_followed_and_calls_are_answered(scene: Scene) -> None:
    scene.run("one", scene.acquire("one", "a"))
    scene.log.pools_by_name.clear()
    assert scene.run("two", do.Add("r", {})).kind == "ok", "the pool is empty"
    assert scene.run("one", scene.acquire("one", "c")).kind == HELD
    assert "missed" in scene.clients["one"].heard


def settle(scene: Scene, *names: str, seconds: float = 0.3, turns: int = 12) -> None:
    """Advance the time with nobody calling."""
    for _ in range(turns):
        scene.pass_time(seconds)
        for name in names:
            scene.turn(name)


def test_a_death_that_was_posted_to_a_decider_that_died_is_decided_by_whoever_looks_next(scene: Scene) -> None:
    scene.run("one", scene.acquire("one", "a"))  # the gate is with "one"
    assert scene.run("two", scene.acquire("two", "b", sure=True)).kind == WAITING
    scene.pools["one"] = scene.companion("one")  # its companion died, and another one comes at once
    scene.pools["one"].bury("one", "it is gone")
    scene.turn("one")
    assert scene.log.pool("p").inbox, "it was posted to the one that is gone"
    settle(scene, "two")
    assert scene.pools["two"].replica.state.requests["b"].state == HELD


def test_a_call_that_the_store_has_lost_from_its_inbox_is_posted_again(scene: Scene) -> None:
    scene.run("one", scene.acquire("one", "a"))
    scene.pass_time(0.2)  # the gate is not free yet
    number = scene.ask("two", scene.acquire("two", "b"))
    scene.pools["two"].look_soon()
    scene.turn("two")
    assert scene.log.pool("p").inbox
    scene.log.pool("p").inbox.clear()
    settle(scene, "two", "one")
    assert scene.clients["two"].answers[number].kind == WAITING


def test_a_death_that_the_store_has_lost_from_its_inbox_is_posted_again(scene: Scene) -> None:
    scene.run("one", scene.acquire("one", "a"))
    scene.pass_time(1.0)
    scene.ask("two", do.Add("r2", {}))
    scene.turn("two")  # the gate is with "two"
    scene.pools["one"].bury("one", "it is gone")
    scene.turn("one")
    assert scene.log.pool("p").inbox
    scene.log.pool("p").inbox.clear()
    settle(scene, "two", "one")
    assert "a" not in scene.pools["two"].replica.state.requests


def test_a_pool_that_could_not_be_read_rests_and_forgets_no_death(scene: Scene) -> None:
    scene.run("one", scene.acquire("one", "a"))
    pool = scene.pools["one"]
    pool.bury("one", "it is gone")
    pool.give_up()
    assert pool.rests and (pool.wakes_at() or 0) > scene.time
    settle(scene, "one")
    assert not pool.replica.state.requests and scene.log.registered == {}


def test_a_command_of_the_companion_that_fails_does_not_stop_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Replica.decide

    def decide(self: Replica, command: do.Command, now: int) -> Any:
        if isinstance(command, do.Suspect):
            raise ZeroDivisionError("a rule of a test fails")
        return real(self, command, now)

    monkeypatch.setattr(Replica, "decide", decide)
    scene.run("one", scene.acquire("one", "a"))
    scene.pools["one"].send(do.Suspect("one", 1, "odd"))
    scene.pools["one"].send(do.Bury("one", "it is gone"))
    settle(scene, "one")
    assert not scene.pools["one"].replica.state.requests


def test_a_late_copy_of_a_call_has_no_effect_after_its_process_is_known_to_be_gone(scene: Scene) -> None:
    scene.run("two", do.Add("s", {}))
    scene.pass_time(0.1)
    scene.ask("one", scene.acquire("one", "a"))
    scene.pools["one"].look_soon()
    scene.turn("one", "after")  # posted, and nobody knows
    parcels = list(scene.log.pool("p").inbox)
    scene.run("two", do.Remove("none"))
    scene.pools["two"].send(do.Bury("one", "it is gone"))
    settle(scene, "two")
    assert not scene.pools["two"].replica.state.requests
    scene.log.pool("p").inbox += [(1000 + number, body) for number, body in parcels]
    settle(scene, "two")
    assert not scene.pools["two"].replica.state.requests, "it is held by nobody who could release it"
