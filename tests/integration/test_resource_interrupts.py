"""Ctrl-C at any moment of acquire and release: the pool stays whole, and nobody holds or waits unknowingly.

A program interrupts itself at random moments until it was struck a thousand times. One gap cannot be closed in Python: a signal between
the end of `acquire()` and the first instruction of `__enter__`, or on the first one of `__exit__`. Then the grant is
garbage, so it warns and shows as suspect; the program counts those apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from waiting import HANG

STORM = """
import gc, json, os, random, signal, sys, threading, time, warnings
from millpond.errors import AcquireTimeout
from millpond.resources import ResourcePool

url, (seed, strikes, rivals, HANG) = sys.argv[1], map(int, sys.argv[2:])
random.seed(seed)
warnings.simplefilter("ignore")

def strike(number, frame):
    signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGALRM, strike)

pool = ResourcePool("lab", url)
pool.add("a")
stop = threading.Event()
served = [0] * rivals
def rival(me):
    while not stop.is_set():
        with pool.acquire():
            served[me] += 1
            if random.random() < 0.1:
                time.sleep(0.0002)
threads = [threading.Thread(target=rival, args=(me,)) for me in range(rivals)]
for thread in threads:
    thread.start()

rounds = struck = gaps = 0
def close_gaps(generation=2):
    # Release what fell into the gap.
    global gaps
    gc.collect(generation)
    for one in pool.holders():
        if one.suspect:
            pool.admin.release("a", token=one.token, reason="gap")
            gaps += 1
def until(question, what):
    end = time.monotonic() + HANG
    while not question():
        assert time.monotonic() < end, (what, rounds, pool.holders(), pool.waiters())
        close_gaps()
        time.sleep(0.001)

while struck < strikes:
    rounds += 1
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 0.002 if rivals else 0.0006))
        if rounds % 4 == 0:
            pool.acquire(timeout=0.0001 * random.random()).release()
        elif rounds % 4 == 1:
            pool.acquire(lease=3600, timeout=1).release()
        else:
            with pool.acquire(timeout=1):
                pass
    except KeyboardInterrupt:
        struck += 1
    except AcquireTimeout:
        pass
    finally:
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
            except KeyboardInterrupt:
                struck += 1
    if rivals:
        close_gaps(0)
    else:
        until(lambda: not pool.holders() and not pool.waiters(), "a ghost")
stop.set()
until(lambda: not any(thread.is_alive() for thread in threads), "a rival waits for ever")
until(lambda: not pool.holders() and not pool.waiters(), "a ghost")
assert not pool._own._requests, pool._own._requests
with pool.acquire(timeout=HANG):
    pass
if url.startswith("memory"):
    from millpond.resources._rules.wire import freeze
    here = pool._engine._pools["lab"]
    now = freeze(here.replica.state)
    here._replica = None
    assert freeze(here.replica.state) == now, "the state is not what the journal tells"
pool.close()
print(json.dumps({"rounds": rounds, "struck": struck, "gaps": gaps, "served": served}))
"""


def storm(url: str, seed: int, strikes: int, rivals: int) -> dict[str, int]:
    command = [sys.executable, "-c", textwrap.dedent(STORM), url, *map(str, (seed, strikes, rivals, int(HANG)))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-3000:]}"
    told: dict[str, int] = json.loads(done.stdout)
    print(url, seed, told)
    return told


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rivals", [0, 3])
@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_ctrl_c_at_random_moments_leaves_no_ghost(engine, rivals, tmp_path):
    url = "memory:" if engine == "memory" else f"sqlite:///{tmp_path}/storm.db"
    told = storm(url, seed=17, strikes=1000, rivals=rivals)
    assert told["gaps"] <= told["struck"] // 4
