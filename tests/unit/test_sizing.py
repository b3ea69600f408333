"""How many workers: the rules as pure functions, and at work."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import Reaper, Snapshot, ThreadPool
from millpond.local import _sizing
from millpond.local._sizing import RULES, balanced, clamp, eager, fixed, lazy, proactive, sizing_rule, starved, surplus
from waiting import HANG, becomes, until


def now(**changes) -> Snapshot:
    return Snapshot(**{"workers": 2, "idle": 0, "queued": 0, "min_workers": 0, "max_workers": 8, **changes})


def test_fixed_wants_all():
    assert fixed(now()) == 8


def test_eager_wants_one_more_when_tasks_wait_and_nobody_rests():
    assert eager(now(queued=1)) == 3
    assert eager(now(queued=1, idle=1)) == 2
    assert eager(now()) == 2


def test_balanced_wants_what_keeps_the_expected_wait_short():
    assert balanced(now(queued=2)) == 2, "nothing known yet: one may wait per worker"
    assert balanced(now(queued=3)) == 3
    assert balanced(now(queued=10, run_time=0.001)) == 2, "10 x 1 ms / 2 workers is a wait of 5 ms"
    assert balanced(now(queued=10, run_time=0.1)) == 20
    assert balanced(now(queued=10, run_time=0.1, idle=1)) == 2


def test_lazy_wants_one_more_only_under_a_pile():
    assert lazy(now(queued=20)) == 2
    assert lazy(now(queued=21)) == 3
    assert lazy(now(queued=21, idle=1)) == 2


def test_proactive_follows_littles_law():
    assert proactive(now(arrival_rate=100, run_time=0.05)) == 6, "5 at once, and 20 % to spare"
    assert proactive(now(queued=1)) == 3, "nothing known yet: as eager"


def test_starved_means_that_tasks_wait_and_nothing_ends():
    assert starved(now(queued=1, stalled_for=0.6))
    assert not starved(now(queued=1, stalled_for=0.4))
    assert not starved(now(queued=0, stalled_for=9.0))
    assert not starved(now(queued=1, idle=1, stalled_for=9.0))


def test_a_reaper_sends_home_who_was_idle_throughout():
    assert surplus(3, now(workers=5)) == 3
    assert surplus(3, now(workers=5, min_workers=4)) == 1
    assert surplus(0, now(workers=5)) == 0


snapshots = st.builds(
    Snapshot,
    workers=st.integers(0, 50),
    idle=st.integers(0, 50),
    queued=st.integers(0, 10_000),
    min_workers=st.integers(0, 8),
    max_workers=st.integers(8, 50),
    arrival_rate=st.floats(0, 1e6),
    run_time=st.floats(0, 1e3),
    stalled_for=st.floats(0, 1e3),
)


@given(snapshots, st.sampled_from(sorted(RULES)))
def test_every_rule_stays_within_the_bounds_and_gives_work_a_worker(snapshot, word):
    want = clamp(sizing_rule(word)(snapshot), snapshot)
    assert snapshot.min_workers <= want <= snapshot.max_workers
    if snapshot.queued:
        assert want >= 1


@given(snapshots)
def test_a_lazier_rule_never_wants_more_than_eager_for_the_next_task(snapshot):
    assert lazy(snapshot) <= max(eager(snapshot), snapshot.workers)


# -- at work -----------------------------------------------------------------------------------------------


class Busy:
    """Tasks that stay until they are let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.running = threading.Semaphore(0)

    def __call__(self) -> None:
        self.running.release()
        self.go_on.wait(HANG)

    def wait_for(self, number: int) -> None:
        for _ in range(number):
            assert self.running.acquire(timeout=HANG)


@pytest.fixture
def never_starved(monkeypatch):
    """The rule alone decides, however long nothing moves: on a busy machine half a second is soon over."""
    monkeypatch.setattr(_sizing, "STARVED_AFTER", 3600.0)


def test_a_fixed_pool_has_all_its_workers_from_the_start():
    with ThreadPool(5, sizing="fixed") as pool:
        assert pool.statistics().workers == 5


def test_a_fixed_pool_that_is_resized_has_all_its_workers_again():
    with ThreadPool(2, sizing="fixed") as pool:
        pool.resize(5)
        assert pool.statistics().workers == 5


def test_min_workers_are_started_at_once_and_stay():
    with ThreadPool(5, min_workers=2, idle_timeout=0.01) as pool:
        assert pool.statistics().workers == 2
        busy = Busy()
        tasks = [pool.submit(busy) for _ in range(4)]
        busy.wait_for(4)
        busy.go_on.set()
        for task in tasks:
            task.result(HANG)
        becomes(lambda: pool.statistics().workers, 2)


def test_an_eager_pool_starts_a_worker_for_each_task_up_to_its_size(never_starved):
    busy = Busy()
    with ThreadPool(3) as pool:
        for number in range(1, 4):
            pool.submit(busy)
            busy.wait_for(1)
            assert pool.statistics().workers == number
        pool.submit(busy)
        assert pool.statistics().workers == 3
        busy.go_on.set()


def test_an_eager_pool_reuses_an_idle_worker(never_starved):
    with ThreadPool(3) as pool:
        for _ in range(5):
            pool.submit(int).result(HANG)
            becomes(lambda: pool.statistics().idle, 1)
        assert pool.statistics().largest == 1


def test_a_lazy_pool_holds_back_where_an_eager_one_grows(never_starved):
    busy = Busy()
    with ThreadPool(8, sizing="lazy") as pool:
        for _ in range(8):
            pool.submit(busy)
        busy.wait_for(1)
        assert pool.statistics().workers == 1
        for _ in range(12):
            pool.submit(busy)
        busy.wait_for(1)
        assert pool.statistics().workers >= 2
        busy.go_on.set()


def test_starvation_adds_workers_when_nothing_moves():
    """The running task waits for a queued one by means the pool cannot see: a lazy pool would hang."""
    arrived = threading.Event()
    with ThreadPool(4, sizing="lazy") as pool:
        waiting = pool.submit(arrived.wait, HANG)
        pool.submit(arrived.set)
        assert waiting.result(HANG) is True


def test_a_balanced_pool_grows_when_the_wait_would_be_long():
    def grows() -> bool:
        if pool.statistics().queued < 30:  # however late the pool looks at its size
            pool.submit_many(time.sleep, [(0.05,)] * 30)
        return pool.statistics().largest >= 4

    with ThreadPool(8, sizing="balanced") as pool:
        until(grows)
        pool.purge()


def test_a_pool_measures_how_fast_tasks_come_and_how_long_they_run():
    seen = []

    def rule(snapshot: Snapshot) -> int:
        seen.append(snapshot)
        return proactive(snapshot)

    def known() -> list[Snapshot]:
        return [each for each in seen if each.arrival_rate and each.run_time]

    with ThreadPool(16, sizing=rule) as pool:
        while len(known()) < 20:
            pool.submit(time.sleep, 0.05)
            time.sleep(0.01)
        assert known()[-1].arrival_rate < 200, "100 tasks come in per second at the most"
        assert known()[-1].run_time > 0.02, "each takes 50 ms at least"


def test_a_pool_starts_what_its_rule_foresees_for_a_load_that_is_not_there_yet():
    def foresee(snapshot: Snapshot) -> int:
        return proactive(replace(snapshot, arrival_rate=100.0, run_time=0.05))

    with ThreadPool(16, sizing=foresee) as pool:
        busy = Busy()
        pool.submit(busy)
        busy.wait_for(1)
        becomes(lambda: pool.statistics().idle, 5)  # for the tasks to come
        assert (pool.statistics().running, pool.statistics().queued) == (1, 0)
        busy.go_on.set()


def test_any_callable_is_a_sizing_rule(never_starved):
    with ThreadPool(10, sizing=lambda snapshot: 2) as pool:
        busy = Busy()
        for _ in range(10):
            pool.submit(busy)
        busy.wait_for(2)
        assert pool.statistics().workers == 2
        busy.go_on.set()


def test_idle_workers_leave_after_the_idle_timeout():
    with ThreadPool(4, idle_timeout=0.02) as pool:
        busy = Busy()
        for _ in range(4):
            pool.submit(busy)
        busy.wait_for(4)
        busy.go_on.set()
        becomes(lambda: pool.statistics().workers, 0)
        assert pool.submit(int).result(HANG) == 0, "and come back when they are needed"


def test_idle_workers_stay_without_an_idle_timeout():
    with ThreadPool(1, idle_timeout=None) as pool:
        pool.submit(int).result(HANG)
        assert pool._runner.workers.idle_timeout == -1


def test_a_reaper_sends_idle_workers_home_on_its_beat():
    with ThreadPool(4, idle_timeout=Reaper(period=0.1), min_workers=1) as pool:
        busy = Busy()
        for _ in range(4):
            pool.submit(busy)
        busy.wait_for(4)
        busy.go_on.set()
        becomes(lambda: pool.statistics().workers, 1)


def test_resize_grows_at_once_and_shrinks_as_tasks_end():
    busy = Busy()
    with ThreadPool(2) as pool:
        for _ in range(6):
            pool.submit(busy)
        busy.wait_for(2)
        pool.resize(5)
        busy.wait_for(3)
        assert pool.statistics().workers == 5
        pool.resize(1)
        busy.go_on.set()
        until(lambda: pool.statistics().workers <= 1)
        assert pool.drain(HANG)
        assert pool.statistics().completed == 6


@pytest.mark.parametrize("sizing", ["fast", 3, None])
def test_an_unknown_sizing_is_refused(sizing):
    with pytest.raises(ValueError, match="sizing must be one of 'fixed'"):
        ThreadPool(1, sizing=sizing)


def test_a_reaper_needs_a_period():
    with pytest.raises(ValueError, match="above 0"):
        Reaper(period=0)
