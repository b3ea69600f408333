"""Keyed pools under storms: real processes killed, stopped, dismissed and cut off at random.

What must hold is read from the log of what ran when (`keyed_checker`, `keyed_log`). Seeds are printed; `CHAOS_SEED`
repeats one (the choices, not the timing). There are a hundred kills here, at a lease of a second. `keyed_mutants` shows
that these tests can fail.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from keyed_proxy import Proxy
from keyed_storm import Storm, seed

from millpond.testing._redis import RedisServer, find_redis_server, redis_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
STORES = ["sqlite", "redis"]
FSYNC = {
    "always": ("--appendonly", "yes", "--appendfsync", "always"),
    "everysec": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "none": (),
}


@contextlib.contextmanager
def redis(*options: str) -> Iterator[RedisServer]:
    if find_redis_server() is None:
        problem = "no redis-server here: keyed pools on Redis are not tested"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    with redis_server(*options) as server:
        yield server


@contextlib.contextmanager
def storm_on(store: str, folder: Path, **options: Any) -> Iterator[Storm]:
    with contextlib.ExitStack() as ends:
        url = f"sqlite:///{folder}/pools.db" if store == "sqlite" else ends.enter_context(redis()).url
        yield ends.enter_context(Storm(folder, url, seed(), shared_fate=store == "sqlite", **options))


def rage(storm: Storm, kills: int, pause: float) -> None:
    """Strike at random until so many were killed."""
    until = storm.kills + kills
    while storm.kills < until:
        storm.strike()
        time.sleep(storm.random.random() * pause)


# --- kill, stop, leave, join ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_kills_among_stops_farewells_and_joins_break_no_promise(store: str, tmp_path: Path) -> None:
    with storm_on(store, tmp_path) as storm:
        storm.start()
        rage(storm, kills=35, pause=0.3)
        storm.settle()
        checker = storm.check()
    assert len(checker.acknowledged) > 1000
    assert storm.statistics.recovered_total > 0


@pytest.mark.parametrize("store", STORES)
def test_a_join_storm_and_a_rolling_restart_interrupt_nothing(store: str, tmp_path: Path) -> None:
    """Each job runs once, and nothing overlaps, while all workers are replaced; each slot moves about twice."""
    with storm_on(store, tmp_path, workers=2, rate=250) as storm:
        storm.start()
        storm.gather(2)
        storm.size = 5
        storm.fill()
        storm.gather(5)
        moved = storm.pool.statistics().moved_total
        for worker in list(storm.workers):
            storm.join()
            storm.gather(6)
            storm.dismiss(worker)
        storm.reap(15)
        moves = (storm.pool.statistics().moved_total - moved) / 64
        storm.settle()
        checker = storm.check()
    jobs = [run for run in checker.runs if run.lane == "j"]
    losses = sum(len(process.losses) for process in checker.processes.values())
    assert losses or len(jobs) == len(checker.acknowledged), "each ran once"
    print(f"each slot moved {moves:.1f} times in a rolling restart of 5")
    assert moves < 3.5


@pytest.mark.parametrize("store", STORES)
def test_a_worker_that_stood_still_past_its_lease_stops_what_it_runs_and_comes_back(store: str, tmp_path: Path) -> None:
    with storm_on(store, tmp_path, workers=3, rate=150, residents=12) as storm:
        storm.start()
        storm.gather(3)
        time.sleep(0.5)
        victim = next(one for one in storm.workers if storm.has_happened("S", one.pid))
        storm.freeze(victim, 3.0)
        time.sleep(3.0)
        assert storm.wait(lambda: storm.has_happened("lost", victim.pid), 5.0), "it finds out"
        assert storm.wait(lambda: storm.has_happened("joined", victim.pid, 2), 5.0), "it comes back"
        time.sleep(0.5)
        storm.settle()
        checker = storm.check()
    assert checker.excused, "others took over meanwhile"


def test_a_strict_worker_that_stood_still_past_its_lease_ends(tmp_path: Path) -> None:
    with storm_on("redis", tmp_path, workers=2, rate=100) as storm:
        storm.worker_options["strict"] = True
        storm.start()
        storm.gather(2)
        victim = storm.workers[0]
        storm.freeze(victim, 2.0)
        time.sleep(2.0)
        assert victim.wait(2.0) == -signal.SIGALRM
        storm.log.write("K", pid=victim.pid)
        storm.workers.remove(victim)
        woken = storm.path.read_text().splitlines()
        began = [line for line in woken if line.startswith(("S", "E")) and line.split()[2] == str(victim.pid)]
        storm.settle()
        checker = storm.check()
    (stop,) = checker.processes[victim.pid].stops
    assert not [line for line in began if float(line.split()[1]) > stop[1]], "it did nothing more"


@pytest.mark.parametrize(("store", "job"), [("sqlite", "flow"), ("redis", "call")])
def test_a_worker_killed_while_it_drains_holds_back_only_what_it_ran(store: str, job: str, tmp_path: Path) -> None:
    """All keys share one slot. Its owner is asked to leave while a handler runs, and killed before that has ended."""
    with storm_on(store, tmp_path, workers=2, producers=0, residents=2, pool={"slots": 1}) as storm:
        storm.start()
        storm.gather(2)
        storm.dispatch(job, "long", 4.0)
        storm.dispatch(job, "long", 0.0)

        def runs_it() -> list[subprocess.Popen[bytes]]:
            return [one for one in storm.workers if storm.has_happened("S", one.pid, 3)]

        assert storm.wait(lambda: bool(runs_it()), 10.0)
        (owner,) = runs_it()
        (heir,) = [one for one in storm.workers if one is not owner]
        storm.size = 1
        storm.dismiss(owner)
        told = time.monotonic()
        storm.dispatch(job, "neighbour", 0.0)
        assert storm.wait(lambda: storm.has_happened("ok", heir.pid), 2.0), "its neighbours go on"
        assert storm.wait(lambda: storm.has_happened("S", heir.pid, 3), 2.0), "its residents have moved"
        assert time.monotonic() - told < 2.0
        storm.kill(owner)
        storm.settle()
        checker = storm.check()
    assert [run.pid for run in checker.runs if run.key == "long"] == [owner.pid, heir.pid, heir.pid]
    (late,) = checker.failovers()
    assert late < 3.0


def test_on_defaults_the_keys_of_a_killed_worker_run_elsewhere_within_ten_seconds(tmp_path: Path) -> None:
    with storm_on("redis", tmp_path, workers=3, rate=100, residents=30, lease=None) as storm:
        storm.start()
        storm.gather(3)
        assert storm.wait(storm.residents_run, 10.0)
        time.sleep(0.5)
        storm.kill(next(one for one in storm.workers if storm.has_happened("S", one.pid)))
        assert storm.wait(storm.residents_run, 10.0)
        storm.settle()
        checker = storm.check()
    late = checker.failovers()
    assert len(late) > 5
    assert late[-1] < 10.0, late


# --- the store goes away -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fsync", FSYNC)
def test_redis_killed_and_restarted(fsync: str, tmp_path: Path) -> None:
    """With `always` nothing is lost; with `everysec` what came in the last moments; without, all: the pool is made anew."""
    with redis(*FSYNC[fsync]) as server, Storm(tmp_path, server.url, seed(), workers=4, rate=250) as storm:
        storm.start()
        storm.gather(3)
        for away in (0.3, 2.2):
            rage(storm, kills=2, pause=0.5)
            restart(storm, server, away, fsync)
            rage(storm, kills=1, pause=0.3)
        storm.settle()
        checker = storm.check(may_lose={"always": 0.0, "everysec": 3.0, "none": 1e9}[fsync])
        after = max(end for _, end in checker.outages)
        assert sum(moment > after for moment in checker.acknowledged.values()) > 20, "it works again"


def restart(storm: Storm, server: RedisServer, away: float, fsync: str) -> None:
    storm.log.write("O", pid=0)
    server.kill()
    time.sleep(away)
    server.restart()
    back = time.monotonic()
    storm.log.write("U", pid=0)
    if fsync == "none":
        for index in range(storm.resident_count):
            storm.start_resident(f"resident-{index}")
    lines = storm.path.stat().st_size
    assert storm.wait(lambda: b" ok\n" in storm.path.read_bytes()[lines:], 10.0), "jobs run again"
    print(f"away for {away} s, jobs run {time.monotonic() - back:.2f} s after it is back")


def test_connections_cut_delayed_and_doubled(tmp_path: Path) -> None:
    chance = seed()
    with contextlib.ExitStack() as ends:
        server = ends.enter_context(redis())
        proxies = [ends.enter_context(Proxy(server.port, chance + index)) for index in range(3)]

        def proxy_of(name: str) -> Proxy:
            return proxies[int(name[-1]) % 3]

        def url_of(name: str) -> str:
            return proxy_of(name).url

        storm = ends.enter_context(Storm(tmp_path, server.url, chance, workers=5, rate=250, url_of=url_of))
        storm.start()
        storm.gather(3)
        for proxy in proxies:
            proxy.lose_request = proxy.lose_answer = 0.008
            proxy.double, proxy.delay = 0.1, 0.01
        for _ in range(12):
            proxy = storm.random.choice(proxies)
            if storm.random.random() < 0.5:
                proxy.cut()
            else:
                behind = [pid for pid, name in storm.names.items() if proxy_of(name) is proxy]
                for pid in behind:
                    storm.log.write("O", pid=pid)
                proxy.block()
                time.sleep(storm.random.choice([0.3, 1.5]))
                proxy.unblock()
                for pid in behind:
                    storm.log.write("U", pid=pid)
            rage(storm, kills=1, pause=0.3)
        for proxy in proxies:
            proxy.lose_request = proxy.lose_answer = proxy.double = proxy.delay = 0.0
        storm.settle()
        print(f"{sum(each.cuts for each in proxies)} cuts, {sum(each.doubles for each in proxies)} doubles")
        storm.check()


# --- for long ------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("store", STORES)
def test_six_hundred_kills_break_no_promise(store: str, tmp_path: Path) -> None:
    with storm_on(store, tmp_path, workers=6) as storm:
        storm.start()
        rage(storm, kills=int(os.environ.get("CHAOS_KILLS") or 600), pause=0.45)
        storm.settle(60.0)
        storm.check()
