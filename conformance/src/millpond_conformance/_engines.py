# ruff: noqa: D401  (a check says what is so, not what to do)
"""What every engine of resource pools owes, as plain functions that any engine can be put to.

An engine is described by a `Bench`: how to open it, how to open it once more as another process would, and the URL
under which a `ResourcePool` finds it (both may be missing: then the checks that need them do nothing). Every check
takes a fresh bench, uses it and leaves it to be closed by the caller:

    for check in ENGINE_CHECKS:
        with closing(Bench(lambda: MyEngine(url), lambda: MyEngine(url), url=url)) as bench:
            check(bench)

or `check_engine(make_bench)` for all of them. A check raises AssertionError with a sentence that says what is owed.
Checks named `verb_…` speak to the engine itself, `g1_…` to `g9_…` are the promises of DESIGN.md, `face_…` use a pool.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from millpond.errors import AcquireTimeout, LeaseLost, NotFound
from millpond.resources import ResourcePool
from millpond.resources._engine import Engine, Question
from millpond.resources._questions import Explain, PoolSettings, Resources, Standings, WholePool
from millpond.resources._rules import changes, commands
from millpond.resources._rules.records import AWAY, HELD, OFFERED, WAITING, Holder, Request, Want
from millpond.resources._rules.state import State
from millpond.resources._rules.wire import Entry, thaw

T = TypeVar("T")
PATIENCE: Final = 60.0
"""Seconds after which something that should come is taken for lost."""
POOL: Final = "conformance"


class Bench:
    """One engine under test, opened as one process (`engine`) and, where it can be shared, as `other`."""

    def __init__(
        self, first: Callable[[], Engine], second: Callable[[], Engine] | None = None, *, url: str | None = None
    ) -> None:
        self.engine = first()
        self.other = second() if second is not None else None
        self.url = url
        """Where `ResourcePool` finds pools of this engine, for the checks of the public face."""
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Close what is open."""
        for engine in (self.engine, self.other):
            if engine is not None:
                engine.close()

    def new_id(self) -> str:
        """Return an id that was not used yet."""
        return f"check-{next(self._numbers)}"

    def acquire(self, engine: Engine | None = None, request: str | None = None, **options: Any) -> commands.Acquire:
        """Return a request for one unit of whatever there is."""
        engine = engine or self.engine
        options.setdefault("wants", (Want(),))
        return commands.Acquire(request or self.new_id(), engine.session, 0, Holder("process", "tester"), **options)

    def send(self, command: commands.Command, engine: Engine | None = None, *, block: bool = True) -> commands.Reply:
        """Run a command and return its answer, or raise what it was answered with."""
        reply: commands.Reply = self._wait(
            lambda done: (engine or self.engine).apply(POOL, command, done, block=block), command
        )
        return reply

    def ask(self, question: Question[T], engine: Engine | None = None, *, block: bool = True) -> T:
        """Ask a question and return the answer."""
        answer: T = self._wait(lambda done: (engine or self.engine).ask(POOL, question, done, block=block), question)
        return answer

    def add(self, *names: str, capacity: int = 1) -> None:
        """Add resources."""
        for name in names:
            self.send(commands.Add(name, {}, capacity))

    def states(self, engine: Engine | None = None) -> dict[str, str]:
        """Return how all requests stand."""
        return {one.id: one.state for one in self.requests(engine).values()}

    def copy(self, engine: Engine | None = None) -> State:
        """Return a copy of the whole pool."""
        return thaw(self.ask(WholePool(), engine).image)

    def requests(self, engine: Engine | None = None) -> dict[str, Request]:
        """Return all requests that are not over."""
        return self.copy(engine).requests

    def names(self, engine: Engine | None = None, *, block: bool = True) -> list[str]:
        """Return the names of all resources, in the pool's order."""
        return [one.name for one in self.ask(Resources(), engine, block=block)]

    def until(self, question: Callable[[], bool], owed: str) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + PATIENCE
        while not question():
            assert time.monotonic() < deadline, f"{owed}: not so after {PATIENCE:g} s"
            time.sleep(0.002)

    def _wait(self, call: Callable[[Callable[[Any], None]], object], what: object) -> Any:
        answers: list[Any] = []
        came = threading.Event()

        def done(answer: Any) -> None:
            answers.append(answer)
            came.set()

        call(done)
        assert came.wait(PATIENCE), f"{what} was not answered within {PATIENCE:g} s"
        assert len(answers) == 1, f"{what} was answered {len(answers)} times"
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]


class Watch:
    """Everything that a watcher was told."""

    def __init__(self, engine: Engine, own: bool = False) -> None:
        self.entries: list[Entry] = []
        self.stop = engine.watch(POOL, self._hear, own=own)

    def _hear(self, entries: Sequence[Entry]) -> None:
        self.entries.extend(entries)

    def names(self) -> list[str]:
        """Return what happened, in order."""
        return [type(change).__name__ for entry in list(self.entries) for change in entry.changes]


# --- the verbs -------------------------------------------------------------------------------------------------------


def verb_a_bad_command_fails_alone(bench: Bench) -> None:
    """What the rules cannot decide is its caller's error, and harms none of the calls that go with it."""
    bench.add("a", "b")
    answers: dict[str, list[Any]] = {}
    for round_ in range(5):
        for name in ("good 1", "bad", "good 2"):
            key = f"{name}, round {round_}"
            command = bench.acquire(request=key, wants=() if name == "bad" else (Want(),))
            found = answers.setdefault(key, [])
            try:
                bench.engine.apply(POOL, command, found.append, block=False)
            except Exception as error:  # an engine that decides here and now may raise it
                found.append(error)
        bench.until(lambda: all(answers.values()), "every call is answered, whatever goes with it")
        for key, found in answers.items():
            [answer] = found
            if key.startswith("bad"):
                assert isinstance(answer, Exception) or answer.kind == "refused", f"{key} was answered {answer}"
            else:
                assert isinstance(answer, commands.Reply) and answer.kind == HELD, f"{key} was answered {answer}"
        assert set(bench.states()) == {f"good {one}, round {round_}" for one in (1, 2)}, (
            "what is refused leaves nothing"
        )
        for key in [key for key in answers if key.startswith("good")]:
            bench.send(commands.Release(bench.engine.session, answers[key][0].token))
        answers.clear()


def verb_apply_answers_once_with_and_without_block(bench: Bench) -> None:
    """`apply` runs a command at once and answers exactly once."""
    bench.add("a")
    for block in (True, False):
        reply = bench.send(bench.acquire(request=f"r-{block}"), block=block)
        assert reply.kind == HELD, f"a free resource is granted, not {reply.kind}"
        assert bench.states() == {f"r-{block}": HELD}
        assert bench.send(commands.Release(bench.engine.session, reply.token), block=block).kind == "released"
        assert bench.states() == {}


def verb_apply_takes_effect_once_when_many_call_at_once(bench: Bench) -> None:
    """Commands of many threads each take effect once, and every one is answered."""
    bench.add("a", capacity=1000)
    answers: list[Any] = []
    came = threading.Semaphore(0)

    def done(answer: Any) -> None:
        answers.append(answer)
        came.release()

    def calls(number: int) -> None:
        for index in range(25):
            command = bench.acquire(request=f"t{number}-{index}")
            bench.engine.apply(POOL, command, done, block=bool(index % 2))

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(200):
        assert came.acquire(timeout=PATIENCE), f"only {len(answers)} of 200 calls were answered"
    tokens = {answer.token for answer in answers}
    assert len(tokens) == 200, "every grant has a token of its own"
    assert len(bench.states()) == 200


def verb_a_command_that_changes_nothing_makes_no_entry(bench: Bench) -> None:
    """What is refused leaves no trace."""
    bench.add("a")
    before = bench.ask(WholePool()).version
    watch = Watch(bench.engine)
    assert bench.send(commands.Release(bench.engine.session, 1)).kind == "stale"
    assert bench.send(commands.Remove("none")).kind == "unknown"
    assert bench.send(commands.Add("a", {})).kind == "exists"
    assert bench.ask(WholePool()).version == before, "a command that changed nothing moved the version"
    assert not watch.entries


def verb_watchers_hear_every_entry_once_in_order_and_before_the_answer(bench: Bench) -> None:
    """What a watcher was told when an answer comes is all that happened up to it, once and in order."""
    watch = Watch(bench.engine)
    bench.add("a")
    for number in range(50):
        request = f"r{number}"
        heard: list[bool] = []
        came = threading.Event()

        def done(answer: Any, request: str = request, heard: list[bool] = heard, came: threading.Event = came) -> None:
            heard.append(any(_asks(entry, request) for entry in list(watch.entries)))
            came.set()

        bench.engine.apply(POOL, bench.acquire(request=request), done, block=bool(number % 2))
        assert came.wait(PATIENCE), f"{request} was not answered"
        assert heard == [True], f"the answer to {request} came before its watchers heard of it"
        token = bench.requests()[request].token
        bench.send(commands.Release(bench.engine.session, token), block=bool(number % 2))
    assert watch.names() == ["Added", *["Asked", "Ended"] * 50], "every entry is told once and in order"
    times = [entry.at for entry in watch.entries]
    assert times == sorted(times), "entries are told in the order of time"


def _asks(entry: Entry, request: str) -> bool:
    return any(isinstance(change, changes.Asked) and change.request.id == request for change in entry.changes)


def verb_a_stopped_watcher_hears_nothing_more(bench: Bench) -> None:
    """`watch` returns what stops it, and leaves the others alone."""
    one, two = Watch(bench.engine), Watch(bench.engine, own=True)
    bench.add("a")
    one.stop()
    one.stop()
    bench.add("b")
    assert len(one.entries) == 1 and len(two.entries) == 2


def verb_a_watcher_that_fails_harms_nobody(bench: Bench) -> None:
    """An exception of a watcher is logged: others hear, and the answer comes."""

    def broken(entries: Sequence[Entry]) -> None:
        raise ZeroDivisionError("a watcher of a test fails on purpose")

    bench.engine.watch(POOL, broken)
    watch = Watch(bench.engine)
    bench.add("a")
    assert watch.names() == ["Added"]


def verb_a_watcher_may_apply_from_within(bench: Bench) -> None:
    """A watcher may call `apply`, and what comes of it is told after what it was called for."""
    came = threading.Event()
    answers: list[object] = []

    def done(answer: object) -> None:
        answers.append(answer)
        came.set()

    def answer_back(entries: Sequence[Entry]) -> None:
        for entry in entries:
            for change in entry.changes:
                if isinstance(change, changes.Added) and change.resource.name == "a":
                    bench.engine.apply(POOL, commands.Add("b", {}), done, block=False)

    bench.engine.watch(POOL, answer_back, own=True)
    watch = Watch(bench.engine)
    bench.add("a")
    assert came.wait(PATIENCE), "what a watcher applied was not answered"
    bench.until(lambda: watch.names() == ["Added", "Added"], "what a watcher applied is told")
    names = [
        change.resource.name for entry in watch.entries for change in entry.changes if isinstance(change, changes.Added)
    ]
    assert names == ["a", "b"]


def verb_ask_sees_what_was_answered(bench: Bench) -> None:
    """A question sees everything that was answered before it, with and without block; its error is its answer."""
    for number in range(20):
        bench.add(f"r{number}")
        for block in (True, False):
            found = len(bench.names(block=block))
            assert found == number + 1, f"a question saw {found} resources after {number + 1} were added"
    for block in (True, False):
        try:
            bench.ask(Explain("nobody"), block=block)
        except NotFound:
            continue
        raise AssertionError("the error of a question is its answer")


def verb_the_clock_does_not_go_back(bench: Bench) -> None:
    """Times that questions and entries show never fall."""
    times = [bench.ask(WholePool()).now for _ in range(50)]
    assert times == sorted(times)


def verb_pools_are_apart_and_can_be_dropped(bench: Bench) -> None:
    """Pools of other names are other pools; `drop` forgets one wholly."""
    bench.add("a")
    answers: list[Any] = []
    bench.engine.apply("another", commands.Add("b", {}), answers.append, block=True)
    bench.until(lambda: bool(answers), "a command in another pool is answered")
    bench.until(lambda: bench.engine.pools() == ["another", POOL], "all pools that exist are listed")
    assert bench.names() == ["a"]
    bench.engine.drop(POOL)
    assert bench.names() == []
    bench.until(lambda: bench.engine.pools() == ["another"], "a pool that was dropped is not listed")
    bench.add("c")
    assert bench.names() == ["c"]


def verb_a_wait_ends_on_time_with_nobody_calling(bench: Bench) -> None:
    """The time-out of a request is told by the engine itself."""
    bench.add("a")
    bench.send(bench.acquire())
    watch = Watch(bench.engine, own=True)
    start = time.monotonic()
    assert bench.send(bench.acquire(timeout=200_000)).kind == WAITING
    bench.until(lambda: "Ended" in watch.names(), "a wait of 0.2 s ends by itself")
    took = time.monotonic() - start
    assert took >= 0.19, f"a wait of 0.2 s ended after {took:.3f} s"


def verb_a_lease_ends_on_time_with_nobody_calling(bench: Bench) -> None:
    """The end of a lease is told by the engine itself, and what it held goes to the next."""
    bench.add("a")
    watch = Watch(bench.engine, own=True)
    lock = bench.send(bench.acquire())
    for request, lease in (("lease", 200_000), ("next", 0)):
        assert bench.send(bench.acquire(request=request, lease=lease, sure=True)).kind == WAITING
    start = time.monotonic()
    bench.send(commands.Release(bench.engine.session, lock.token))
    bench.until(lambda: watch.names().count("Held") == 2, "what a lease held goes to the next when it ends")
    took = time.monotonic() - start
    assert took >= 0.19, f"a lease of 0.2 s ended after {took:.3f} s"
    assert bench.states() == {"next": HELD}


def verb_a_cancelled_ticket_tells_the_truth(bench: Bench) -> None:
    """A ticket that says True to `cancel` has no effect and no answer; after the answer it says False."""
    bench.add("a", capacity=10_000)
    taken_back: set[str] = set()
    answered: set[str] = set()
    for number in range(100):
        request = f"r{number}"

        def done(answer: object, request: str = request) -> None:
            answered.add(request)

        ticket = bench.engine.apply(POOL, bench.acquire(request=request), done, block=False)
        if ticket.cancel():
            taken_back.add(request)
    bench.until(lambda: len(taken_back | answered) == 100, "what was not taken back is answered")
    states = bench.states()
    assert not taken_back & set(states), "a call that was taken back took effect"
    assert not taken_back & answered, "a call that was taken back was answered"
    assert set(states) == answered
    ticket = bench.engine.apply(POOL, bench.acquire(), lambda answer: answered.add("last"), block=True)
    bench.until(lambda: "last" in answered, "a call is answered")
    assert not ticket.cancel(), "a call that was answered cannot be taken back"


def verb_close_ends_what_the_session_holds(bench: Bench) -> None:
    """Closing the last use of a session releases and withdraws all that is its own."""
    if bench.other is None:
        return
    bench.add("a", "b")
    bench.send(bench.acquire(request="theirs"))
    mine = bench.send(bench.acquire(bench.other, request="mine"), bench.other)
    bench.send(bench.acquire(bench.other, request="waiting"), bench.other)
    assert mine.kind == HELD
    bench.other.close()
    bench.other = None
    bench.until(lambda: bench.states() == {"theirs": HELD}, "a closed session holds nothing and waits for nothing")


def verb_sessions_are_told_what_others_do(bench: Bench) -> None:
    """A watcher hears what another session did, once and in order, without calling."""
    if bench.other is None:
        return
    watch = Watch(bench.other)
    for number in range(20):
        bench.add(f"r{number}")
    bench.until(lambda: len(watch.entries) == 20, "what one session does is told in the other")
    names = [
        change.resource.name for entry in watch.entries for change in entry.changes if isinstance(change, changes.Added)
    ]
    assert names == [f"r{number}" for number in range(20)]


# --- the promises ----------------------------------------------------------------------------------------------------


def g1_no_grant_is_made_beyond_capacity(bench: Bench) -> None:
    """Many threads of all sessions take and give back; never more than the capacity is held."""
    bench.add("a", capacity=3)
    lock = threading.Lock()
    held: list[int] = [0, 0]
    errors: list[BaseException] = []

    def work(engine: Engine) -> None:
        try:
            for _ in range(15):
                command = bench.acquire(engine, sure=True, wait=False)
                reply = bench.send(command, engine)
                if reply.kind == HELD:
                    with lock:
                        held[0] += 1
                        held[1] = max(held)
                        assert held[0] <= 3, "G1: more units are held than there are"
                    with lock:
                        held[0] -= 1
                    bench.send(commands.Release(engine.session, reply.token), engine)
        except BaseException as error:
            errors.append(error)

    engines = [engine for engine in (bench.engine, bench.other) if engine is not None]
    threads = [threading.Thread(target=work, args=(engine,)) for engine in engines for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert bench.states() == {}


def g2_tokens_grow_with_every_grant(bench: Bench) -> None:
    """Tokens strictly increase per pool, over sessions and above what a client has seen."""
    bench.add("a")
    last = 0
    engines = [engine for engine in (bench.engine, bench.other) if engine is not None]
    for number in range(20):
        engine = engines[number % len(engines)]
        reply = bench.send(bench.acquire(engine), engine)
        assert reply.token > last, f"G2: token {reply.token} after {last}"
        last = reply.token
        bench.send(commands.Release(engine.session, last), engine)
    ahead = last + 10**12
    reply = bench.send(bench.acquire(seen=ahead))
    assert reply.token > ahead, "G2: a token is above the highest that the client has seen"


def g3_equal_requests_are_served_in_the_order_of_asking(bench: Bench) -> None:
    """Whoever asked first is served first, whichever session it is, and nobody barges in."""
    bench.add("a")
    first = bench.send(bench.acquire())
    engines = [engine for engine in (bench.engine, bench.other) if engine is not None]
    order = [f"r{number}" for number in range(10)]
    for number, request in enumerate(order):
        engine = engines[number % len(engines)]
        assert bench.send(bench.acquire(engine, request, sure=True), engine).kind == WAITING
    token = first.token
    for request in order:
        bench.send(commands.Release(bench.engine.session, token))
        assert bench.send(bench.acquire(wait=False)).kind == "busy", "G3: a newcomer barged in"
        states = bench.states()
        assert states[request] == HELD, f"G3: it was the turn of {request}, not {states}"
        token = bench.requests()[request].token


def g4_no_unit_stays_free_while_somebody_wants_it(bench: Bench) -> None:
    """Whatever frees or adds a unit hands it over in the same step."""
    bench.add("a")
    held = bench.send(bench.acquire())
    bench.send(bench.acquire(request="one", sure=True))
    bench.send(bench.acquire(request="two", sure=True))
    bench.send(commands.Release(bench.engine.session, held.token))
    assert bench.states() == {"one": HELD, "two": WAITING}
    bench.add("b")
    assert bench.states() == {"one": HELD, "two": HELD}


def g6_what_was_answered_is_there_for_everybody(bench: Bench) -> None:
    """A session that looks after an answer sees it, with no repair step in between."""
    if bench.other is None:
        return
    for number in range(20):
        bench.add(f"r{number}")
        seen = len(bench.names(bench.other))
        assert seen == number + 1, f"another session sees {seen} resources after {number + 1} were added"


def g7_a_request_id_takes_effect_once(bench: Bench) -> None:
    """The same id again tells how it stands; when it is over, that it is used; of another session, that it is taken."""
    bench.add("a", "b")
    one = bench.send(bench.acquire(request="job", chosen=True))
    again = bench.send(bench.acquire(request="job", chosen=True))
    assert (again.kind, again.token) == (HELD, one.token), "G7: the same id was granted twice"
    if bench.other is not None:
        reply = bench.send(bench.acquire(bench.other, "job", chosen=True), bench.other)
        assert reply.kind == "taken", f"G7: the id of a living session was given to another: {reply.kind}"
    bench.send(commands.Release(bench.engine.session, one.token))
    assert bench.send(bench.acquire(request="job", chosen=True)).kind == "used"
    assert bench.states() == {}


def g8_time_ends_no_lock_and_no_lease_too_early(bench: Bench) -> None:
    """A lock outlives time; a lease that is renewed lives on, and ends a whole length after the last renewal."""
    Watch(bench.engine, own=True)  # who watches a pool has it open
    bench.add("a", "b")
    lock = bench.send(bench.acquire(request="lock"))
    start = renewed = time.monotonic()
    lease = bench.send(bench.acquire(request="lease", lease=300_000))
    while time.monotonic() - start < 0.4:
        sent = time.monotonic()
        if bench.send(commands.Renew(bench.engine.session, lease.token)).kind != HELD:
            assert time.monotonic() - renewed >= 0.29, "G8: a renewed lease ended too early"
            break  # this machine stood still for so long
        renewed = sent
        time.sleep(0.01)
    bench.until(lambda: bench.states() == {"lock": HELD}, "a lease that is not renewed ends")
    assert time.monotonic() - renewed >= 0.29, "G8: a lease ended too early"
    reply = bench.send(commands.Renew(bench.engine.session, lease.token))
    assert reply.kind == "stale", f"G8: a lease that was over was revived: {reply.kind}"
    assert bench.send(commands.Release(bench.engine.session, lock.token)).kind == "released"


def g9_a_stale_token_changes_nothing_and_says_so(bench: Bench) -> None:
    """Release, renew, pass and adopt by an old token are refused; one's own repeated release is told so."""
    bench.add("a")
    one = bench.send(bench.acquire())
    assert bench.send(commands.Release(bench.engine.session, one.token)).kind == "released"
    again = bench.send(commands.Release(bench.engine.session, one.token))
    assert (again.kind, again.detail) == ("ended", "released by you"), f"G9: {again}"
    two = bench.send(bench.acquire())
    holder = Holder("process", "thief")
    for command in (
        commands.Release("someone else", one.token, by="operator"),
        commands.Renew(bench.engine.session, one.token - 1),
        commands.Pass(bench.engine.session, one.token),
        commands.Adopt(bench.engine.session, one.token, holder, "stolen"),
        commands.Release(bench.engine.session, two.token, resource="b", by="operator"),
    ):
        reply = bench.send(command)
        assert reply.kind in ("stale", "ended") and reply.detail, f"G9: {command} was answered with {reply}"
    assert list(bench.states().values()) == [HELD]


def g9_a_grant_taken_over_has_a_new_token(bench: Bench) -> None:
    """A grant that was passed on is adopted in one step, and its old token does not count any more."""
    bench.add("a")
    engine = bench.other or bench.engine
    one = bench.send(bench.acquire())
    adopt = commands.Adopt(engine.session, one.token, Holder("process", "heir"), "transferred")
    refused = bench.send(adopt, engine)
    assert (refused.kind, refused.detail) == ("stale", "it was not passed on: its holder must call transfer()")
    assert bench.send(commands.Pass(bench.engine.session, one.token)).kind == "ok"
    adopted = bench.send(adopt, engine)
    assert adopted.kind == HELD and adopted.token > one.token
    assert bench.send(commands.Release(bench.engine.session, one.token)).kind == "stale"
    assert bench.send(commands.Release(engine.session, adopted.token), engine).kind == "released"
    assert bench.states() == {}


def offers_to_another_session_lapse_unless_claimed(bench: Bench) -> None:
    """A hand-off to another session is an offer; claimed it is held, unclaimed it goes to the next in time."""
    if bench.other is None:
        return
    watch = Watch(bench.engine)
    bench.add("a")
    began = time.monotonic()
    held = bench.send(bench.acquire())
    enough = min(max(0.5, 20 * (time.monotonic() - began)), 10.0)  # for a claim to come in time on a slow machine
    settings = bench.ask(PoolSettings())
    bench.send(commands.Configure(msgspec.structs.replace(settings, claim=int(enough * 1e6))))
    bench.send(bench.acquire(bench.other, "sleeper"), bench.other)
    bench.send(bench.acquire(bench.other, "claimer"), bench.other)
    bench.send(commands.Release(bench.engine.session, held.token))
    other = bench.other

    def claimed() -> bool:
        """Claim what is, or was, offered: who comes too late, since the machine stood still, returns and is served."""
        if bench.states()["claimer"] in (OFFERED, AWAY):
            bench.send(commands.Claim(other.session, ("claimer",)), other)
        return bench.states()["claimer"] == HELD

    bench.until(claimed, "an offer that nobody claims goes to the next, who may claim it")

    def offers() -> list[str]:
        entries = list(watch.entries)
        return [one.id for entry in entries for one in entry.changes if isinstance(one, changes.Offered)]

    bench.until(lambda: len(offers()) > 1, "a watcher hears of offers")
    assert offers()[:2] == ["sleeper", "claimer"]
    bench.send(commands.Claim(other.session, ("sleeper",)), other)
    assert bench.states() == {"sleeper": WAITING, "claimer": HELD}, "one who was away returns to the line"


def verb_read_tells_how_a_request_ended_that_nobody_heard_of(bench: Bench) -> None:
    """What became impossible while nobody listened is told as that, and not as unknown."""
    bench.add("a")
    held = bench.send(bench.acquire())
    waiting = bench.acquire(bench.engine, "waits")
    assert bench.send(waiting).kind == WAITING
    bench.send(commands.Remove("a"))
    bench.send(commands.Release(bench.engine.session, held.token))
    (found,) = bench.ask(Standings(bench.engine.session, ("waits",)))
    assert (found.state, found.how.split(":")[0]) == ("gone", "unsatisfiable"), found


# --- through the public face -----------------------------------------------------------------------------------------


def face_threads_share_what_there_is_and_no_more(bench: Bench) -> None:
    """Sixteen threads at one resource of three units: never more than three hold it, and all are served."""
    if bench.url is None:
        return
    lock = threading.Lock()
    held = [0, 0]
    served: list[int] = []
    tokens: list[int] = []
    with ResourcePool("face", bench.url) as pool:
        pool.add("a", capacity=3)

        def work(number: int) -> None:
            for _ in range(5):
                with pool.acquire(timeout=PATIENCE) as grant:
                    with lock:
                        held[0] += 1
                        held[1] = max(held)
                        tokens.append(grant.token)
                    time.sleep(0.0005)
                    with lock:
                        held[0] -= 1
                served.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert held[1] <= 3, f"G1: {held[1]} held a resource of 3 units"
        assert len(served) == 80, f"only {len(served)} of 80 were served"
        assert len(set(tokens)) == 80, "G2: a token was given twice"
        assert not pool.holders() and not pool.waiters()


def face_waiters_are_served_in_order(bench: Bench) -> None:
    """Threads that wait are served in the order in which they came."""
    if bench.url is None:
        return
    with ResourcePool("face", bench.url) as pool:
        pool.add("a")
        order: list[int] = []

        def work(number: int) -> None:
            with pool.acquire(timeout=PATIENCE):
                order.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
        with pool.acquire():
            for number, thread in enumerate(threads):
                thread.start()
                bench.until(lambda count=number: len(pool.waiters()) == count + 1, "a waiter lines up")  # type: ignore[misc]
        for thread in threads:
            thread.join()
        assert order == list(range(10)), f"G3: the order of service was {order}"


def face_a_holder_knows_of_a_lost_lease_before_another_has_it(bench: Bench) -> None:
    """`check()` raises before the engine lends it again, although no renewal gets through."""
    if bench.url is None:
        return
    with ResourcePool("face", bench.url, on_lost="ignore") as pool, ResourcePool("face", bench.url) as other:
        pool.add("a")
        grant = pool.acquire(lease=0.3)
        pool._own._renew = lambda request: None  # type: ignore[method-assign]
        with other.acquire(timeout=PATIENCE):
            try:
                grant.check()
            except LeaseLost:
                return
            raise AssertionError("a lease was lent again while its holder believed to have it")


def face_a_timeout_is_kept_to(bench: Bench) -> None:
    """A request gives up on time, leaves nothing behind, and takes nothing from those behind it."""
    if bench.url is None:
        return
    with ResourcePool("face", bench.url) as pool:
        pool.add("a")
        with pool.acquire():
            start = time.monotonic()
            try:
                pool.acquire(timeout=0.2)
            except AcquireTimeout:
                took = time.monotonic() - start
            else:
                raise AssertionError("G1: a held resource was lent again")
            assert took >= 0.19, f"a time-out of 0.2 s took {took:.3f} s"
            assert not pool.waiters()
        with pool.acquire(timeout=0):
            pass


ENGINE_CHECKS: Final[tuple[Callable[[Bench], None], ...]] = tuple(
    value
    for name, value in list(globals().items())
    if callable(value)
    and name.partition("_")[0] in ("verb", "offers", "face", *(f"g{number}" for number in range(1, 10)))
)
"""All checks, in the order of this file."""


def check_engine(make: Callable[[], Bench]) -> None:
    """Put an engine to all checks, each on a bench of its own."""
    for check in ENGINE_CHECKS:
        bench = make()
        try:
            check(bench)
        finally:
            bench.close()
