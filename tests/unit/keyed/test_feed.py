"""A worker's conversation with its store, turn by turn, on the true defaults: 4096 slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millpond.errors import EngineError
from millpond.keyed.rules import commands as do
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.placement import Member, Placement, Rendezvous
from millpond.keyed.rules.questions import A
from millpond.keyed.rules.records import SECOND, Joiner, Outcome, PoolState, Report, Settings
from millpond.keyed.stores.memory import MemoryStore
from millpond.keyed.worker import feed as feed_module
from millpond.keyed.worker.feed import Feed
from millpond.keyed.worker.membership import Membership
from millpond.keyed.worker.running_take import RunningTakes


class Clock:
    """The time of this machine, and with it that of the store."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RecordingStore(MemoryStore):
    """Remembers what was given to whom, and how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[str] = []

    def do(self, command: do.Command[A]) -> A:
        if isinstance(command, do.Give):
            self.given += [taker for _, taker in command.moves]
        return super().do(command)

    def join(self, name: str) -> PoolState:
        return self.do(do.Join(Joiner(name, name)))

    def renew(self, worker: str, **how: Any) -> PoolState | None:
        return self.do(do.Renew(worker, **how))

    def pass_time(self, clock: Clock, seconds: float) -> None:
        clock.now += seconds
        self.skew += round(seconds * SECOND)


class IdleRunner:
    """Has room and nothing to do."""

    def __init__(self) -> None:
        self.takes = RunningTakes()

    def room(self) -> int:
        return 100

    def per_key(self) -> int:
        return 1

    def start(self, *_: Any) -> None: ...
    def hear(self, *_: Any) -> None: ...
    def take_back(self, *_: Any) -> None: ...
    def give_away(self, *_: Any) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(feed_module, "elapsed", clock)
    monkeypatch.setattr("millpond.keyed.worker.membership.elapsed", clock)
    monkeypatch.setattr("millpond.keyed.worker.rebalancer.elapsed", clock)
    return clock


def feed_of(store: RecordingStore, clock: Clock, placement: Placement | None = None) -> tuple[Feed, Membership]:
    settings = Settings()
    store.open(settings)
    feed = Feed("p", store, settings, placement or Rendezvous(), _ignore, _ignore, _ignore)
    feed._runner = IdleRunner()  # type: ignore[assignment]
    membership = Membership("a", settings.lease / SECOND, clock())
    feed.serve(membership, store.join("a"), settings)
    return feed, membership


def _ignore(*_: Any) -> None: ...


def owned(store: MemoryStore, worker: str) -> int:
    return store.ask(about.Owners())[1].count(worker)


def settle_down(feed: Feed, *, turns: int = 10) -> None:
    """Run the feed until it has done what it would do at once."""
    for _ in range(turns):
        feed._bell.clear()
        feed._round()
        if not feed._bell.is_set():
            return
    raise AssertionError(f"still something to do after {turns} rounds")


@pytest.mark.parametrize("is_brief", [False, True])
@pytest.mark.parametrize("name", ["b", "g"])  # more slots than two rounds claim, and fewer
def test_what_a_dead_worker_owned_is_claimed_in_some_rounds_and_never_given_back(clock, name, is_brief):
    """Half of 4096 slots are more than one round claims."""
    store = RecordingStore()
    feed, membership = feed_of(store, clock)
    settle_down(feed)
    assert owned(store, "a") == 4096
    feed.tell(store.join(name))
    settle_down(feed)
    assert 1800 < owned(store, name) < 2300
    store.given.clear()
    for _ in range(5):  # the other one is silent from now on
        store.pass_time(clock, 1.5)
        beat = store.renew("a", version=store.ask(about.Members()).version if is_brief else 0)
        assert beat is not None and beat.is_brief is is_brief
        membership.extend(clock())
        feed.tell(beat)
        settle_down(feed)
    assert owned(store, "a") == 4096
    assert store.given == []


def test_what_a_dead_worker_owned_is_claimed_although_the_placement_fails_and_that_is_said_once(clock, caplog):
    """In some rounds, the others of which are silent."""
    is_broken = False

    def halves(members: Sequence[Member], slots: int) -> list[str]:
        if is_broken:
            raise SystemExit(1)
        return [members[slot % len(members)].id for slot in range(slots)]

    store = RecordingStore()
    feed, membership = feed_of(store, clock, halves)
    feed.tell(store.join("b"))
    settle_down(feed)
    store.do(do.Claim("b", list(range(1, 4096, 2)), {}))
    assert (owned(store, "a"), owned(store, "b")) == (2048, 2048)
    store.given.clear()
    is_broken = True
    for _ in range(5):  # the other one is silent from now on
        store.pass_time(clock, 1.5)
        beat = store.renew("a")
        assert beat is not None
        membership.extend(clock())
        feed.tell(beat)
        settle_down(feed)
    assert owned(store, "a") == 4096 and store.given == []
    said = [one.getMessage() for one in caplog.records if "placement" in one.getMessage()]
    assert len(said) == 2, "once for both, once for the one that is left, however many rounds there are"
    assert all("halves" in each and "SystemExit" in each for each in said)


def test_two_workers_that_join_at_once_come_to_an_end(clock):
    store = RecordingStore()
    feed, _ = feed_of(store, clock)
    store.join("b")  # before the first one has looked: its beat is a list of one member
    settle_down(feed)
    assert owned(store, "a") < 2300


def test_a_list_of_members_that_comes_late_keeps_nobody_busy(clock):
    """Two join within moments, and a heartbeat sent before the second one is told after it: the first is alone in it."""
    store = RecordingStore()
    feed, membership = feed_of(store, clock)
    settle_down(feed)
    late = store.renew("a")
    feed.tell(store.join("b"))
    settle_down(feed)
    shares = owned(store, "a"), owned(store, "b")
    assert late is not None and len(late.members) == 1 and min(shares) > 1024
    feed.tell(late)
    settle_down(feed)
    assert (owned(store, "a"), owned(store, "b")) == shares
    for _ in range(5):  # and it still sees that the other one is silent
        store.pass_time(clock, 1.5)
        beat = store.renew("a")
        assert beat is not None
        membership.extend(clock())
        feed.tell(beat)
        settle_down(feed)
    assert owned(store, "a") == 4096


def test_a_death_is_seen_to_in_the_midst_of_a_backlog(clock):
    """There is always more to report, so that a round does not end: the members are looked at nevertheless."""
    store = RecordingStore()
    feed, membership = feed_of(store, clock)
    settle_down(feed)
    feed.tell(store.join("b"))
    settle_down(feed)
    calls, real = 0, store.do

    def carry_out(command: do.Command[Any]) -> Any:
        nonlocal calls
        if not isinstance(command, do.Work):
            return real(command)
        calls += 1
        if calls > 200:
            raise AssertionError("the dead one was not noticed")
        if owned(store, "a") < 4096:
            feed._reports.append(Report(1, "j:1", 1, 0))  # a stale report: only its being there counts
        if calls % 10 == 0:  # the heart goes on beating meanwhile
            store.pass_time(clock, 1.5)
            beat = store.renew("a")
            assert beat is not None
            membership.extend(clock())
            feed.tell(beat)
        return real(command)

    store.do = carry_out  # type: ignore[method-assign, assignment]
    feed._round()
    assert owned(store, "a") == 4096


class Picky(RecordingStore):
    """Refuses, for good, a call with a report that carries too much."""

    def __init__(self, refused: bytes) -> None:
        super().__init__()
        self.refused = refused
        self.taken: list[Report] = []

    def do(self, command: do.Command[A]) -> A:
        if isinstance(command, do.Work):
            if any(self.refused in outcome.data for one in command.reports for outcome in one.outcomes):
                raise EngineError("too large for me")
            self.taken += command.reports
        return super().do(command)


def test_a_report_that_the_store_cannot_take_holds_up_no_other(clock):
    store = Picky(b"huge")
    feed, _ = feed_of(store, clock)
    settle_down(feed)
    for number in range(100):
        data = b"huge result" if number == 37 else b"ok"
        feed._reports.append(Report(1, f"j:{number}", number, 1, outcomes=(Outcome(f"id{number}", "done", data, 60),)))
    for _ in range(40):
        try:
            feed._round()
        except EngineError:
            continue
        break
    assert not feed._reports
    assert {one.mailbox for one in store.taken} == {f"j:{number}" for number in range(100)}
    (bare,) = (one.outcomes[0] for one in store.taken if one.mailbox == "j:37")
    assert bare.status == "failed" and b"too large for me" in bare.data


def test_a_store_that_refuses_every_report_gets_each_of_them_once_more_and_no_more(clock):
    store = Picky(b"")
    feed, _ = feed_of(store, clock)
    settle_down(feed)
    feed._reports.extend(Report(1, f"j:{n}", n, 1, outcomes=(Outcome("id", "done", b"x", 60),)) for n in range(5))
    refusals = 0
    while feed._reports and refusals < 100:
        try:
            feed._round()
        except EngineError:
            refusals += 1
    assert not feed._reports and refusals < 20


def test_a_leaving_worker_whose_hand_over_failed_gives_everything_at_its_next_heartbeat(clock):
    """What it still runs may take for ever, and would hold up every other key."""
    store = RecordingStore()
    feed, _ = feed_of(store, clock)
    settle_down(feed)
    store.join("b")
    feed.stop_taking()
    beat = store.renew("a", leaving=True)
    assert beat is not None
    feed.tell(beat)
    settle_down(feed)
    assert owned(store, "a") == 0 and owned(store, "b") == 4096
