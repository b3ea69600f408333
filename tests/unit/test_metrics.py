"""Metrics of pools: what is told, that it is bounded, and that a scrape never harms."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from millpond import (
    AsyncKeyedPool,
    AsyncPool,
    AsyncResourcePool,
    Event,
    Job,
    KeyedPool,
    ProcessPool,
    ResourcePool,
    Retry,
    ThreadPool,
    metrics,
)
from millpond.errors import AcquireTimeout, EngineUnavailable
from millpond.metrics import _families, _histograms
from waiting import HANG, becomes, until

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: bytes | str) -> Samples:
    """Return what an exposition says, and make sure that it says nothing twice."""
    found: Samples = {}
    for family in text_string_to_metric_families(text if isinstance(text, str) else text.decode()):
        for one in family.samples:
            series = one.name, tuple(sorted(one.labels.items()))
            assert series not in found, f"{series} is told twice"
            found[series] = one.value
    return found


def scrape(*sources: Any) -> Samples:
    return samples(text_of(metrics.Collector(*sources)))


def text_of(collector: Any) -> bytes:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)


def value(found: Samples, name: str, pool: str, **labels: str) -> float:
    [answer] = values(found, name, pool, **labels)
    return answer


def values(found: Samples, name: str, pool: str, **labels: str) -> list[float]:
    wanted = {"pool": pool, **labels}.items()
    return [v for (n, has), v in found.items() if n == name and wanted <= dict(has).items()]


# --- local pools ------------------------------------------------------------------------------------------------------


def test_a_pool_of_threads_is_told_as_its_statistics_say():
    go = threading.Event()
    with ThreadPool(2, name="resize", max_queued=3, when_full="drop") as pool:
        for _ in range(2):
            pool.submit(go.wait)
        until(lambda: pool.statistics().running == 2)
        for _ in range(4):
            pool.submit(int)  # of which the last one is dropped
        found = scrape(pool)
        assert value(found, "millpond_queue_depth", "resize") == 3
        assert value(found, "millpond_running", "resize") == 2 == value(found, "millpond_pool_limit", "resize")
        assert value(found, "millpond_workers", "resize", state="busy") == 2
        assert value(found, "millpond_jobs_finished_total", "resize", outcome="rejected") == 1
        assert value(found, "millpond_up", "resize", kind="local") == 1
        go.set()
        pool.drain()
        pool.submit(divmod, 1, 0).exception(HANG)
        pool.drain()
        pool.pause()
        found = scrape(pool)
        assert value(found, "millpond_pool_paused", "resize") == 1
        assert value(found, "millpond_jobs_finished_total", "resize", outcome="error") == 1
        assert value(found, "millpond_jobs_finished_total", "resize", outcome="ok") == 5
        assert value(found, "millpond_queue_oldest_age_seconds", "resize") >= 0
        pool.resume()
    assert value(scrape(pool), "millpond_pool_closed", "resize") == 1


def test_what_waits_in_a_local_pool_grows_old():
    go = threading.Event()
    with ThreadPool(1, name="old") as pool:
        pool.submit(go.wait)
        until(lambda: pool.statistics().running == 1)
        pool.submit(int)
        collector = metrics.Collector(pool)
        text_of(collector)
        until(lambda: value(samples(text_of(collector)), "millpond_queue_oldest_age_seconds", "old") > 0.01)
        go.set()


def test_processes_and_coroutines_are_told_as_well():
    async def main() -> Samples:
        async with AsyncPool(3, name="fetch") as pool:
            await (await pool.submit(asyncio.sleep, 0))
            while pool.statistics().running:
                await asyncio.sleep(0)
            return await asyncio.to_thread(scrape, pool, processes)  # as a server of metrics does

    with ProcessPool(1, name="compute") as processes:
        processes.submit(abs, -1).result(HANG)
        found = asyncio.run(main())
    assert value(found, "millpond_jobs_submitted_total", "compute") == 1
    assert value(found, "millpond_jobs_finished_total", "fetch", outcome="ok") == 1
    assert value(found, "millpond_pool_limit", "fetch") == 3


def test_a_scrape_from_another_thread_measures_the_wait_in_a_loop():
    async def main() -> None:
        async with AsyncPool(1, name="loop") as pool:
            go = asyncio.Event()
            held = [await pool.submit(go.wait), await pool.submit(go.wait)]
            collector = metrics.Collector(pool)
            while value(samples(await asyncio.to_thread(text_of, collector)), AGE, "loop") <= 0:
                await asyncio.sleep(0)
            go.set()
            await asyncio.gather(*held)
            assert pool.statistics().queued == 0

    asyncio.run(main())


AGE = "millpond_queue_oldest_age_seconds"


def settles(pool: ThreadPool) -> None:
    """Wait until nothing runs: a task that has just ended may count twice for a moment, and a metric never falls."""
    becomes(lambda: pool.statistics().running, 0)


def test_two_pools_of_one_name_are_one_series_whose_counts_outlive_either():
    first, second = ThreadPool(1, name="twin"), ThreadPool(3, name="twin")
    collector = metrics.Collector(first, second, first)
    for pool in (first, second):
        for _ in range(4):
            pool.submit(int).result(HANG)
        settles(pool)
    found = samples(text_of(collector))
    assert value(found, "millpond_jobs_submitted_total", "twin") == 8
    assert value(found, "millpond_pool_limit", "twin") == 4
    second.shutdown()
    del second, pool
    gc.collect()
    found = samples(text_of(collector))
    assert value(found, "millpond_pool_limit", "twin") == 1
    assert value(found, "millpond_jobs_submitted_total", "twin") == 8  # less would look like a restart
    first.submit(int).result(HANG)
    settles(first)
    assert value(samples(text_of(collector)), "millpond_jobs_submitted_total", "twin") == 9
    first.shutdown()
    del first
    gc.collect()
    found = samples(text_of(collector))
    assert not values(found, "millpond_up", "twin") and not values(found, "millpond_jobs_submitted_total", "twin")


def test_counts_never_go_down_while_tasks_move():
    collector = metrics.Collector()
    last: dict[Any, float] = {}
    with ThreadPool(4, name="busy") as pool:
        collector.add(pool)
        for _ in range(30):
            tasks = [pool.submit(int) for _ in range(200)]
            for (name, labels), now in samples(text_of(collector)).items():
                if name.endswith("_total"):
                    assert now >= last.get((name, labels), 0.0), name
                    last[name, labels] = now
            del tasks


def test_a_collector_keeps_no_pool_alive_and_forgets_what_was_removed():
    pool, other = ThreadPool(1, name="gone"), ThreadPool(1, name="removed")
    collector = metrics.Collector(pool, other)
    collector.remove(other)
    other.shutdown()
    pool.shutdown()
    del pool
    gc.collect()
    found = samples(text_of(collector))
    assert not values(found, "millpond_up", "gone") and not values(found, "millpond_up", "removed")


# --- histograms -------------------------------------------------------------------------------------------------------


def test_waits_and_runs_of_local_tasks_are_measured():
    measured, stuck = metrics.Histograms(), threading.Event()
    with ThreadPool(1, name="h", on_event=measured) as pool:
        for _ in range(3):
            pool.submit(time.sleep, 0.02)
        pool.submit(divmod, 1, 0)
        pool.options(timeout=0.01).submit(stuck.wait)
        until(lambda: values(scrape(measured), "millpond_job_run_seconds_count", "h", outcome="timeout"))
        stuck.set()
    found = scrape(measured)
    assert value(found, "millpond_job_wait_seconds_count", "h") == 5
    assert value(found, "millpond_job_run_seconds_count", "h", outcome="ok") == 3
    assert value(found, "millpond_job_run_seconds_count", "h", outcome="error") == 1
    assert value(found, "millpond_job_run_seconds_sum", "h", outcome="ok") >= 0.06
    assert value(found, "millpond_job_run_seconds_bucket", "h", outcome="ok", le="0.01") == 0
    assert value(found, "millpond_job_run_seconds_bucket", "h", outcome="ok", le="+Inf") == 3


def test_waits_and_runs_of_jobs_are_measured_by_name_and_outcome():
    events: list[Event] = []
    measured = metrics.Histograms(then=events.append)
    pool = KeyedPool("jobs", "memory:metrics-jobs", slots=8, on_event=measured)

    @pool.job(max_attempts=2, backoff=0.001)
    def work(job: Job) -> int:
        if job.attempt == 1:
            raise ValueError
        return 1

    @pool.job(timeout=0.001)
    async def slow(job: Job) -> None:
        await asyncio.sleep(HANG)

    @pool.job
    async def again(job: Job) -> None:
        if job.attempt == 1:
            raise Retry(0)

    with pool, pool.worker():
        work.dispatch("a").result(HANG)
        again.dispatch("a").result(HANG)
        slow.dispatch("b")
        until(lambda: pool.statistics().dead)
        found = scrape(pool, measured)
    assert value(found, "millpond_job_wait_seconds_count", "jobs", job_name="work") == 1  # a retry waits by intention
    assert value(found, "millpond_job_run_seconds_count", "jobs", job_name="work", outcome="ok") == 1
    assert value(found, "millpond_job_run_seconds_count", "jobs", job_name="work", outcome="error") == 1
    assert value(found, "millpond_job_run_seconds_count", "jobs", job_name="slow", outcome="timeout") == 1
    assert value(found, "millpond_job_run_seconds_count", "jobs", job_name="again", outcome="retry") == 1
    assert value(found, "millpond_job_retries_total", "jobs") == 2
    assert value(found, "millpond_jobs_finished_total", "jobs", outcome="ok") == 2
    assert value(found, "millpond_jobs_finished_total", "jobs", outcome="error") == 1
    assert (
        value(found, "millpond_dead_letters", "jobs") == 1 == value(found, "millpond_workers", "jobs", state="active")
    )
    assert {"job_started", "job_ran", "job_done"} <= {each.name for each in events}
    assert all(each.data["waited"] >= 0 for each in events if each.name == "job_started")


def test_waits_for_resources_and_holds_are_measured():
    measured = metrics.Histograms()
    with ResourcePool("gpus", "memory:metrics", on_event=measured) as pool:
        pool.add("gpu-0")
        pool.add("gpu-1", capacity=3)
        pool.admin.quarantine("gpu-1", reason="broken fan")
        with pool.acquire():
            assert pool.try_acquire() is None
            with pytest.raises(AcquireTimeout):
                pool.acquire(timeout=0.001)
            found = scrape(pool)
        late = scrape(pool, measured)
    assert value(found, "millpond_resources", "gpus", state="held") == 1 == value(found, "millpond_holders", "gpus")
    assert value(found, "millpond_resources", "gpus", state="quarantined") == 1
    assert value(found, "millpond_units", "gpus", state="free") == 3 and value(found, "millpond_waiters", "gpus") == 0
    assert value(late, "millpond_grants_total", "gpus") == 1 == value(late, "millpond_hold_seconds_count", "gpus")
    for outcome in ("ok", "busy", "timeout"):
        assert value(late, "millpond_acquire_wait_seconds_count", "gpus", outcome=outcome) == 1


def test_a_cancelled_wait_for_a_resource_is_told_as_such():
    measured = metrics.Histograms()

    async def main() -> None:
        async with AsyncResourcePool("c", "memory:metrics-c", on_event=measured) as pool:
            await pool.add("one")
            async with pool.acquire():
                waiting = asyncio.ensure_future(_await(pool.acquire()))
                while not await pool.waiters():
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(main())
    assert value(scrape(measured), "millpond_acquire_wait_seconds_count", "c", outcome="cancelled") == 1


async def _await(what: Any) -> Any:
    return await what


def test_an_observer_that_raises_harms_no_grant(caplog):
    def broken(event: Event) -> None:
        raise RuntimeError("observer")

    with ResourcePool("b", "memory:metrics-b", on_event=broken) as pool:
        pool.add("one")
        with pool.acquire() as grant:
            assert grant.is_held
        assert not pool.holders()
    assert "on_event raised" in caplog.text


def test_histograms_are_bounded_whatever_the_names(monkeypatch):
    monkeypatch.setattr(_histograms, "MOST", 20)
    measured = metrics.Histograms()
    for number in range(1000):
        measured(Event("job_ran", f"p{number}", data={"job": f"j{number}", "outcome": "ok", "seconds": 0.1}))
    found = scrape(measured)
    assert len([1 for name, _ in found if name == "millpond_job_run_seconds_count"]) == 21
    assert value(found, "millpond_job_run_seconds_count", "other", job_name="other") == 980


@pytest.mark.parametrize("odd", [float("nan"), -1.0, -float("inf")])
def test_a_time_that_is_none_counts_as_nothing(odd):
    measured = metrics.Histograms()
    measured.observe("millpond_hold_seconds", ("p", "resources"), odd)
    assert value(scrape(measured), "millpond_hold_seconds_sum", "p") == 0.0


@pytest.mark.parametrize(
    "odd", [(), (2, 1), (1, 1), (0,), (True,), ("1",), "12", None, 7, (float("nan"),), (float("inf"),)]
)
def test_odd_buckets_are_refused(odd):
    with pytest.raises((TypeError, ValueError), match="buckets"):
        metrics.Histograms(buckets=odd)


@pytest.mark.parametrize("odd", [7, "pool", None, ThreadPool, object()])
def test_a_collector_takes_pools_only(odd):
    with pytest.raises(TypeError, match="a Collector takes pools and Histograms, not"):
        metrics.Collector(odd)


# --- places -----------------------------------------------------------------------------------------------------------


def filled(url: str) -> None:
    with KeyedPool("jobs", url, slots=8) as jobs, ResourcePool("gpus", url) as gpus:
        jobs.declare_job("f").dispatch_many([(f"k{n % 7}",) for n in range(20)])
        gpus.add("gpu-0")


def test_all_pools_of_a_place_are_rendered_and_two_who_ask_get_the_same(tmp_path):
    url = f"sqlite:///{tmp_path}/pools.db"
    filled(url)
    with metrics.Place(url) as one, metrics.Place(url) as other:
        texts = [one.render()[0], other.render()[0], metrics.render(url)[0], one.render()[0]]
    told = [{series: each for series, each in samples(text).items() if "_age_" not in series[0]} for text in texts]
    assert told[0] == told[1] == told[2] == told[3]
    found = samples(texts[0])
    assert value(found, "millpond_jobs_submitted_total", "jobs", kind="keyed") == 20
    assert (
        value(found, "millpond_queue_depth", "jobs") == 20 and value(found, "millpond_keys", "jobs", state="ready") == 7
    )
    assert value(found, AGE, "jobs") > 0 and value(found, "millpond_resources", "gpus", state="free") == 1
    assert metrics.render(url)[1] == "text/plain; version=0.0.4; charset=utf-8"


def test_counts_survive_a_restart(tmp_path):
    url = f"sqlite:///{tmp_path}/pools.db"
    code = f"""
from millpond import KeyedPool
pool = KeyedPool("jobs", {url!r}, slots=8)
@pool.job
def f(job): pass
with pool, pool.worker():
    for n in range(5):
        f.dispatch("k").result(60)
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG)
    found = samples(metrics.render(url)[0])
    assert value(found, "millpond_jobs_finished_total", "jobs", outcome="ok") == 10
    assert value(found, "millpond_workers", "jobs", state="active") == 0


def test_keys_make_no_series(tmp_path):
    url = f"sqlite:///{tmp_path}/pools.db"
    with KeyedPool("jobs", url) as jobs:
        jobs.declare_job("f").dispatch("k")
        few = len(metrics.render(url)[0])
        jobs.declare_job("g").dispatch_many([(f"key-{n}",) for n in range(10_000)])
        text = metrics.render(url)[0]
    assert len(text) < few + 100 and b"key-" not in text
    assert value(samples(text), "millpond_keys", "jobs", state="ready") == 10_001


@pytest.mark.parametrize("name", ['a "quoted" one', "back\\slash", "naïve ☃ 池", "x" * 200, "{not}", " "])
def test_odd_names_are_told_as_they_are(tmp_path, name):
    url = f"sqlite:///{tmp_path}/pools.db"
    with ResourcePool(name, url) as pool:
        pool.add("one")
    assert value(samples(metrics.render(url)[0]), "millpond_up", name, kind="resources") == 1
    local = ThreadPool(1, name=name + "\n")
    assert value(scrape(local), "millpond_up", name + "\n") == 1
    local.shutdown()


def test_a_name_that_cannot_be_written_does_not_hide_the_others():
    measured = metrics.Histograms()
    odd: Any = 7
    with ThreadPool(1, name="\udcff", on_event=measured) as pool, ThreadPool(1, name=odd, on_event=measured) as other:
        for each in (pool, other):
            each.submit(int).result(HANG)
        with ThreadPool(1, name="plain") as plain:
            until(lambda: len(values(scrape(measured), "millpond_job_run_seconds_count", "7")) == 1)
            found = scrape(pool, other, plain, measured)
    assert [value(found, "millpond_up", name) for name in (r"\udcff", "7", "plain")] == [1, 1, 1]


@pytest.mark.parametrize("trouble", [RuntimeError("of a package"), OSError("no route"), EngineUnavailable("away")])
def test_whatever_a_server_raises_is_told_by_up(monkeypatch, trouble):
    def pools(url: str) -> list[str]:
        raise trouble

    monkeypatch.setattr("millpond.keyed.pools", pools)
    found = samples(metrics.render("redis://127.0.0.1:1/0")[0])
    assert value(found, "millpond_up", "", kind="keyed") == 0


def test_a_store_that_is_away_is_told_and_not_raised():
    found = samples(metrics.render("redis://127.0.0.1:1/0")[0])
    assert value(found, "millpond_up", "", kind="keyed") == 0
    pool, other = (KeyedPool(name, "redis://127.0.0.1:1/0") for name in ("far", "too"))
    asked: list[str] = []
    for each in (pool, other):
        each.statistics = _away(asked, each.name)  # type: ignore[method-assign]
    found = scrape(pool, other)
    assert value(found, "millpond_up", "far") == 0 == value(found, "millpond_up", "too")
    assert not values(found, AGE, "far") and asked == ["far"]  # one speaks for all of the place


def _away(asked: list[str], name: str) -> Any:
    def statistics() -> Any:
        asked.append(name)
        raise EngineUnavailable("away")

    return statistics


def test_a_pool_that_breaks_does_not_hide_the_others(caplog):
    with KeyedPool("broken", "memory:metrics-broken") as broken, ThreadPool(1, name="well") as well:

        def statistics() -> Any:
            raise RuntimeError("a defect")

        broken.statistics = statistics  # type: ignore[method-assign]
        found = scrape(broken, well)
    assert value(found, "millpond_up", "broken") == 0 and value(found, "millpond_up", "well") == 1
    assert "cannot be read for metrics" in caplog.text


def test_a_pool_that_was_closed_or_dropped_is_told_no_more(tmp_path):
    url = f"sqlite:///{tmp_path}/pools.db"
    filled(url)
    closed = KeyedPool("jobs", url)
    collector = metrics.Collector(closed)
    assert value(samples(text_of(collector)), "millpond_up", "jobs") == 1
    closed.close()
    assert not values(samples(text_of(collector)), "millpond_up", "jobs")


def test_pools_of_asyncio_are_read_from_any_thread(tmp_path):
    url = f"sqlite:///{tmp_path}/pools.db"
    filled(url)

    async def main() -> tuple[Samples, Samples]:
        async with AsyncKeyedPool("jobs", url) as jobs, AsyncResourcePool("gpus", url) as gpus:
            collector = metrics.Collector(jobs, gpus)
            here = samples(text_of(collector))
            there = samples(await asyncio.to_thread(text_of, collector))
            collector.close()
            return here, there

    for found in asyncio.run(main()):
        assert value(found, "millpond_queue_depth", "jobs") == 20 and value(found, "millpond_up", "gpus") == 1


@pytest.mark.parametrize("odd", [None, 7, b"sqlite:///x", True])
def test_a_place_is_text(odd):
    with pytest.raises(TypeError, match="a URL is a string"):
        metrics.render(odd)


@pytest.mark.parametrize("odd", ["", "nowhere", "http://x", "\ud800"])
def test_a_place_where_no_pool_can_live_is_refused(odd):
    with pytest.raises(ValueError, match="no (store|engine) for"):
        metrics.render(odd)


def test_a_place_that_was_closed_says_so(tmp_path):
    place = metrics.Place(f"sqlite:///{tmp_path}/pools.db")
    place.close()
    with pytest.raises(RuntimeError, match="was closed here"):
        place.render()


def test_many_threads_may_scrape_while_pools_come_work_and_go(tmp_path):
    url = f"sqlite:///{tmp_path}/pools.db"
    filled(url)
    collector = metrics.Collector()
    measured = metrics.Histograms()
    collector.add(measured)
    troubles: list[BaseException] = []
    ended = threading.Event()

    def scraping() -> None:
        try:
            while not ended.is_set():
                samples(text_of(collector))
                samples(place.render()[0])
        except BaseException as error:
            troubles.append(error)

    with metrics.Place(url) as place:
        threads = [threading.Thread(target=scraping) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(12):
            with ThreadPool(2, name=f"p{number % 3}", on_event=measured) as pool, KeyedPool("jobs", url) as jobs:
                collector.add(pool, jobs)
                for _ in range(50):
                    pool.submit(int)
                jobs.declare_job("f").dispatch("k")
                if number % 2:
                    collector.remove(pool)
        ended.set()
        for thread in threads:
            thread.join(HANG)
    assert not troubles


# --- fork -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_counts_its_own_and_is_not_held_up_by_a_lock(tmp_path):
    url = f"sqlite:///{tmp_path}/pools.db"
    filled(url)
    measured = metrics.Histograms()
    measured.observe("millpond_hold_seconds", ("p", "resources"), 1.0)
    with KeyedPool("jobs", url) as jobs, metrics.Place(url) as place:
        collector = metrics.Collector(jobs, measured)
        text_of(collector), place.render()
        for lock in (measured._lock, collector._lock, place._lock):
            lock.acquire()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                measured.observe("millpond_hold_seconds", ("p", "resources"), 2.0)
                found = samples(text_of(collector))
                right = value(found, "millpond_hold_seconds_sum", "p") == 2.0
                right &= value(found, "millpond_queue_depth", "jobs") == 20
                right &= value(samples(place.render()[0]), "millpond_queue_depth", "jobs") == 20
                code = 0 if right else 2
            finally:
                os._exit(code)
        for lock in (measured._lock, collector._lock, place._lock):
            lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert value(samples(text_of(collector)), "millpond_hold_seconds_sum", "p") == 1.0


# --- docs and packages ------------------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "metrics.md"


def test_the_docs_list_every_metric_as_it_is():
    rows = re.findall(r"^\| `(millpond_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|", DOCS.read_text(), re.M)
    told = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), meaning.strip()) for name, kind, labels, meaning in rows
    }
    assert told == {name: tuple(family) for name, family in _families.FAMILIES.items()}
    assert rows[0][0] == AGE


def test_the_exposition_has_every_metric_with_its_labels_and_no_other(tmp_path):
    url = f"sqlite:///{tmp_path}/pools.db"
    filled(url)
    measured = metrics.Histograms()
    about = {"job": "f", "outcome": "ok", "seconds": 1.0, "waited": 1.0, "attempt": 1, "held": 1.0}
    for name in ("job_started", "job_ran", "acquired", "released"):
        measured(Event(name, "p", data=about))
    with KeyedPool("jobs", url) as jobs, ResourcePool("gpus", url) as gpus, ThreadPool(1) as threads:
        text = text_of(metrics.Collector(jobs, gpus, threads, measured)).decode()
    seen: dict[str, set[str]] = {}
    types: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            name = re.sub(r"_(bucket|count|sum)$", "", one.name) if family.type == "histogram" else one.name
            seen.setdefault(name, set()).update(set(one.labels) - {"le"})
            types[name] = family.type
    assert {name: frozenset(labels) for name, labels in seen.items()} == {
        name: frozenset(family.labels) for name, family in _families.FAMILIES.items()
    }
    assert {name: kind for name, kind in types.items() if kind != "gauge"} == {
        name: family.type for name, family in _families.FAMILIES.items() if family.type not in ("gauge", "info")
    }


def test_without_its_package_it_says_what_to_install():
    code = "import sys; sys.modules['prometheus_client'] = None; from millpond.metrics import Collector"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 1 and 'pip install "millpond[metrics]"' in done.stderr


def test_measuring_with_a_pool_imports_no_package_of_the_extras():
    code = """
import sys
from millpond import KeyedPool
pool = KeyedPool("p")
@pool.job
def f(job): return 1
with pool, pool.worker():
    assert f.dispatch("k").result(60) == 1
print(sorted({name.split('.')[0] for name in sys.modules} & {'prometheus_client', 'opentelemetry'}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=True)
    assert done.stdout.strip() == "[]"


def test_several_handles_of_a_stored_pool_are_one_pool(tmp_path):
    url = f"sqlite:///{tmp_path}/pools.db"
    with KeyedPool("tenants", url) as one, KeyedPool("tenants", url) as two:

        @one.job
        def nothing(job: Job) -> None: ...

        nothing.dispatch_many([(str(number),) for number in range(10)])
        collector = metrics.Collector(one, two)

        def counted() -> dict[Any, float]:
            return {series: value for series, value in collector.read().values.items() if "age" not in series[0]}

        told = counted()
        assert {value for (name, _), value in told.items() if name == "millpond_queue_depth"} == {10}
        collector.remove(one)
        assert counted() == told, "what a counter has told it does not take back"


def test_looking_at_a_file_that_is_not_there_makes_none(tmp_path):
    url = f"sqlite:///{tmp_path}/pools.db"
    assert b"millpond_up" not in metrics.render(url)[0].replace(b"# HELP millpond_up", b"").replace(
        b"# TYPE millpond_up", b""
    )
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_moved_away_is_told_as_a_place_that_is_away(tmp_path):
    url = f"sqlite:///{tmp_path}/pools.db"
    with ResourcePool("gpus", url) as pool:
        pool.add("gpu-0")
    with metrics.Place(url) as place:
        assert b'millpond_up{kind="resources",pool="gpus"} 1.0' in place.render()[0]
        (tmp_path / "pools.db").rename(tmp_path / "moved.db")
        assert b'millpond_up{kind="resources",pool=""} 0.0' in place.render()[0]
        assert not (tmp_path / "pools.db").exists()
        (tmp_path / "moved.db").rename(tmp_path / "pools.db")
        assert b'millpond_up{kind="resources",pool="gpus"} 1.0' in place.render()[0]
