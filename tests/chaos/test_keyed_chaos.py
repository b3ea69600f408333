"""Keyed pools under storms: real processes killed, stopped, dismissed and cut off at random.

What must hold is read from the log of what ran when (`keyed_checker`, `keyed_log`). Seeds are printed; `CHAOS_SEED`
repeats one (the choices, not the timing). There are seventy kills here, at a lease of a second. `mutants` shows that
these tests can fail.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from keyed_proxy import Proxy
from keyed_storm import LEASE, Storm, seed
from keyed_worker import FOR_EVER, WHEN_TOLD, word_for

from millpond.keyed.rules.placement import Member, Rendezvous
from millpond.keyed.rules.records import Settings
from millpond.testing._redis import RedisServer, find_redis_server, redis_server
from waiting import HANG, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STORES = ["sqlite", "redis"]
SLOTS = Settings().slots
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
    """Strike at random until so many were killed that had begun."""
    enough = storm.kills + kills
    while storm.kills < enough:
        storm.strike()
        time.sleep(storm.random.random() * pause)  # so that strikes come at any point of what goes on


# --- kill, stop, leave, join ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_kills_among_stops_farewells_and_joins_break_no_promise(store: str, tmp_path: Path) -> None:
    with storm_on(store, tmp_path) as storm:
        storm.start()
        rage(storm, kills=20, pause=0.3)
        until(lambda: storm.count("A") > 1000, "a thousand jobs are acknowledged")
        storm.settle()
        storm.check()
    assert storm.statistics.recovered_total > 0


@pytest.mark.parametrize("store", STORES)
def test_a_join_storm_and_a_rolling_restart_interrupt_nothing(store: str, tmp_path: Path) -> None:
    """Each job runs once, and nothing overlaps, while all workers are replaced; each slot moves about twice."""
    with storm_on(store, tmp_path, workers=2, rate=250, lease=HANG, pool={"drain": 2 * HANG}) as storm:
        storm.start()
        share(storm, 2)
        storm.size = 5
        storm.fill()
        share(storm, 5)
        moved = storm.pool.statistics().moved_total
        for worker in list(storm.workers):
            storm.join()
            share(storm, 6)
            dismiss_amid_a_job(storm, worker)
            share(storm, 5)
        storm.reap(HANG)
        moves = (storm.pool.statistics().moved_total - moved) / SLOTS
        storm.settle()
        checker = storm.check()
    jobs = [run for run in checker.runs if run.lane == "j"]
    assert len(jobs) == len(checker.acknowledged), "each ran once"
    print(f"each slot moved {moves:.1f} times in a rolling restart of 5")
    assert moves < 3.5


def dismiss_amid_a_job(storm: Storm, worker: subprocess.Popen[bytes]) -> None:
    """Dismiss a worker while it runs a job, which ends only when the worker is leaving and others have done some."""
    mine = next(each for each in storm.pool.workers() if each.label.endswith(f":{worker.pid}"))
    for key in (f"held-{worker.pid}-{number}" for number in itertools.count()):
        if storm.pool.owner(key).owner == mine.id:
            storm.dispatch("flow", key, WHEN_TOLD)
            until(lambda: f" j {key} " in storm.path.read_text(), "its job begins")  # noqa: B023
            if f" {worker.pid} j {key} " in storm.path.read_text():
                break
            word_for(storm.path, key).touch()  # its slot was another's by then
    storm.dismiss(worker)
    until(lambda: all(each.is_leaving for each in storm.pool.workers() if each.id == mine.id), "it is leaving")
    ended = storm.count("E")
    until(lambda: storm.count("E") > ended + 20, "others go on")
    word_for(storm.path, key).touch()


def share(storm: Storm, count: int) -> None:
    """Wait until so many workers own all slots."""
    storm.gather(count)

    def is_shared() -> bool:
        owned = [each.slots for each in storm.pool.workers() if each.slots]
        return len(owned) == count and sum(owned) == SLOTS

    until(is_shared, f"{count} workers share the slots")


@pytest.mark.parametrize("store", STORES)
def test_a_worker_that_stood_still_past_its_lease_stops_what_it_runs_and_comes_back(store: str, tmp_path: Path) -> None:
    with storm_on(store, tmp_path, workers=3, rate=150, residents=12) as storm:
        storm.start()
        storm.gather(3)
        victim, held = storm.outlast()
        lost, joined = (storm.count(word, victim.pid) for word in ("lost", "joined"))
        storm.thaw(victim)
        until(lambda: storm.count("lost", victim.pid) > lost, "it finds out")
        until(lambda: storm.count("joined", victim.pid) > joined, "it comes back")
        until(lambda: not held.items() & storm.held_by(victim).items(), "it stops what others run")
        begun = storm.count("S")
        until(lambda: storm.count("S") > begun + 50, "all goes on")
        storm.settle()
        checker = storm.check()
    assert checker.excused, "others took over meanwhile"


def test_a_strict_worker_that_stood_still_past_its_lease_ends(tmp_path: Path) -> None:
    with storm_on("redis", tmp_path, workers=2, rate=100) as storm:
        storm.worker_options["strict"] = True
        storm.start()
        storm.gather(2)
        victim, _ = storm.outlast()
        storm.thaw(victim)
        assert victim.wait(HANG) == -signal.SIGALRM
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
    one_slot = {"slots": 1, "drain": 2 * HANG}
    with storm_on(store, tmp_path, workers=1, producers=0, residents=2, lease=10.0, pool=one_slot) as storm:
        storm.start()
        owner = storm.holder(2)
        storm.dispatch(job, "long", FOR_EVER)
        storm.dispatch(job, "long", 0.0)
        until(lambda: storm.count("S", owner.pid) == 3, "it runs")
        heir = storm.join()
        storm.gather(2)
        storm.dismiss(owner)
        until(lambda: len(storm.held_by(heir)) == 2, "its residents have moved")  # before that it may take more itself
        storm.dispatch(job, "neighbour", 0.0)
        until(lambda: storm.count("ok", heir.pid), "its neighbours go on")
        storm.kill(owner)
        storm.settle()
        checker = storm.check()
    assert [run.pid for run in checker.runs if run.key == "long"] == [owner.pid, heir.pid, heir.pid]
    assert len(checker.failovers()) == 1


def test_on_defaults_the_keys_of_a_machine_that_vanished_run_elsewhere_when_its_lease_is_over(tmp_path: Path) -> None:
    with storm_on("redis", tmp_path, workers=3, rate=100, residents=30, lease=None) as storm:
        storm.start()
        storm.gather(3)
        victim = storm.holder(6)
        asked = time.monotonic()
        left = max(one.lease_left for one in storm.pool.workers() if one.label.endswith(f":{victim.pid}"))
        storm.kill(victim, machine=True)
        until(storm.residents_run, "they run elsewhere")
        storm.settle()
        checker = storm.check()
    late = checker.failovers()
    assert 0 < len(late) == checker.killed()
    first = checker.processes[victim.pid].killed + late[0]
    assert first > asked + left, "nobody takes over from one that may live"


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("store", STORES)
def test_on_true_defaults_each_kill_starts_each_resident_once(store: str, workers: int, tmp_path: Path) -> None:
    """4096 slots, the lease of 5 s, 100 residents; a worker joins at the moment of each kill."""
    kills = 3
    with storm_on(store, tmp_path, workers=workers, producers=0, residents=100, lease=None) as storm:
        storm.start()
        storm.gather(workers)
        for _ in range(kills):
            victim = storm.holder(20)
            storm.join()
            storm.kill(victim)
            until(storm.residents_run, "they run elsewhere")
            storm.gather(workers)
        storm.settle()
        checker = storm.check()
    starts = Counter(run.key for run in checker.runs)
    assert checker.killed() >= kills
    # it may start with the heir first and with the joiner then, and it moved when the first workers came together
    assert max(starts.values()) <= 1 + workers + 2 * kills, starts.most_common(5)


# --- the store goes away -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fsync", FSYNC)
def test_redis_killed_and_restarted(fsync: str, tmp_path: Path) -> None:
    """With `always` nothing is lost; with `everysec` what came in the last moments; without, all: the pool is made anew."""
    with redis(*FSYNC[fsync]) as server, Storm(tmp_path, server.url, seed(), workers=4, rate=250) as storm:
        storm.start()
        until(lambda: len(storm.at_work()) >= 3)
        for away in (0.3, 2.2):
            rage(storm, kills=2, pause=0.5)
            restart(storm, server, away, fsync)
            rage(storm, kills=1, pause=0.3)
        storm.settle()
        storm.check(may_lose={"always": 0.0, "everysec": 5.0, "none": 1e9}[fsync])


def restart(storm: Storm, server: RedisServer, away: float, fsync: str) -> None:
    storm.log.write("O", pid=0)
    server.kill()
    time.sleep(away)  # less than a lease, or more
    server.restart()
    back = time.monotonic()
    storm.log.write("U", pid=0)
    if fsync == "none":
        for index in range(storm.resident_count):
            storm.start_resident(f"resident-{index}")
    sent, ended = storm.count("A"), storm.count("E")
    until(lambda: storm.count("A") > sent + 20 and storm.count("E") > ended + 20, "jobs run again")
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
        until(lambda: len(storm.at_work()) >= 3)
        for proxy in proxies:
            proxy.lose_request = proxy.lose_answer = 0.008
            proxy.double, proxy.delay = 0.1, 0.01
        strikes = [cut] * 6 + [cut_off_briefly] * 3 + [cut_off_until_others_take_over] * 3
        storm.random.shuffle(strikes)
        for strike in strikes:
            strike(storm, proxy_of)
            rage(storm, kills=1, pause=0.3)
        for proxy in proxies:
            proxy.lose_request = proxy.lose_answer = proxy.double = proxy.delay = 0.0
        storm.settle()
        print(f"{sum(each.cuts for each in proxies)} cuts, {sum(each.doubles for each in proxies)} doubles")
        storm.check()


def cut(storm: Storm, proxy_of: Callable[[str], Proxy]) -> None:
    proxy_of(storm.names[storm.random.choice(storm.workers).pid]).cut()


def cut_off_briefly(storm: Storm, proxy_of: Callable[[str], Proxy]) -> None:
    with cut_off(storm, storm.random.choice(storm.workers), proxy_of):
        time.sleep(0.3 * LEASE)


def cut_off_until_others_take_over(storm: Storm, proxy_of: Callable[[str], Proxy]) -> None:
    """Those who are cut off stop what they run by themselves: they hear nothing from the store before that."""
    held: set[str] = set()
    while not held:  # else its residents moved away just before
        with cut_off(storm, storm.holder(), proxy_of) as behind:
            held = {key for one in behind for key in storm.held_by(one)}
            until(lambda: not any(map(storm.held_by, behind)), "those who are cut off stop what they run")
            others = [one for one in storm.workers if one not in behind]
            if others:
                until(lambda: storm.have_all(others, held), "others take over")  # noqa: B023


@contextlib.contextmanager
def cut_off(
    storm: Storm, victim: subprocess.Popen[bytes], proxy_of: Callable[[str], Proxy]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Block all between the store and a worker and those behind the same proxy; give the workers of them."""
    proxy = proxy_of(storm.names[victim.pid])
    pids = {pid for pid, name in storm.names.items() if proxy_of(name) is proxy}
    for pid in pids:
        storm.log.write("O", pid=pid)
    proxy.block()
    yield [one for one in storm.workers if one.pid in pids]
    proxy.unblock()
    for pid in pids:
        storm.log.write("U", pid=pid)


# --- for long ------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("store", STORES)
def test_a_thousand_kills_break_no_promise(store: str, tmp_path: Path) -> None:
    with storm_on(store, tmp_path, workers=6) as storm:
        storm.start()
        rage(storm, kills=int(os.environ.get("CHAOS_KILLS") or 1000), pause=0.45)
        storm.settle()
        storm.check()


@pytest.mark.soak
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("store", STORES)
def test_on_true_defaults_fifty_kills_start_each_resident_once_and_soon(
    store: str, workers: int, tmp_path: Path
) -> None:
    """4096 slots, the lease of 5 s, 100 residents, jobs beside them. Each fifth kill takes the worker's heart along."""
    kills = int(os.environ.get("CHAOS_KILLS") or 50)
    strikes: list[tuple[bool, float, float, set[str]]] = []
    with storm_on(store, tmp_path, workers=workers, producers=1, rate=100, residents=100, lease=None) as storm:
        storm.start()
        for number in range(1, kills + 1):
            until(lambda: shares_are_settled(storm, workers), "no slot is to move any more")
            victim = storm.holder(1)
            held = set(storm.held_by(victim))
            with_heart = number % 5 == 0
            struck = time.monotonic()
            storm.kill(victim, machine=with_heart)
            until(storm.residents_run, "they run elsewhere")
            strikes.append((with_heart, struck, time.monotonic(), held))
            storm.fill()
        storm.settle()
        runs = [run for run in storm.check().runs if run.lane == "r"]
    late: dict[bool, list[float]] = {False: [], True: []}
    for with_heart, struck, over, held in strikes:
        began = [run for run in runs if struck < run.began < over]
        assert Counter(run.key for run in began) == dict.fromkeys(held, 1), "each resident of the dead once, no other"
        late[with_heart].append(max(run.began for run in began) - struck)
    for with_heart, times in late.items():
        what = "worker and heart" if with_heart else "worker"
        spread = f"median {statistics.median(times):.2f}, longest {max(times):.2f}"
        print(f"{store}, {workers} workers, {len(times)} kills of {what}: all its residents elsewhere after {spread} s")


def shares_are_settled(storm: Storm, workers: int) -> bool:
    """Return whether so many workers own all slots as the placement has it, and all residents run."""
    members = [each for each in storm.pool.workers() if not each.is_leaving]
    wanted = Rendezvous()([Member(each.id, each.weight) for each in members], SLOTS)
    return (
        len(members) == workers
        and [each.owner for each in storm.pool.slots()] == list(wanted)
        and storm.residents_run()
    )
