"""The same random verbs on the bare rules and on every store: whatever they answer must be the same.

`millpond_conformance._keyed_script` writes, plays and compares. A failure of a seed prints it; `MILLPOND_SEED=…` repeats it.
"""

from __future__ import annotations

import importlib
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millpond.keyed.rules.records import SECOND
from millpond_conformance import _keyed_script
from millpond_conformance._keyed_script import MOST, SETTINGS, SLACK, Differs, Move, moves_of

NUMBER = st.integers(0, MOST - 1)
MOVE: st.SearchStrategy[Move] = st.tuples(NUMBER, NUMBER, NUMBER, NUMBER)
STORES = ("memory", "sqlite", "redis")
_pools = itertools.count(1)


def _missing(problem: str) -> Any:
    pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Any]]:
    """Give a maker of stores of fresh pools."""
    name = request.param
    try:
        opener = importlib.import_module(f"millpond.keyed.stores.{name}").open
    except ImportError as problem:
        _missing(f"the store on {name} cannot be imported: {problem}")
    url = "memory:differential"
    if name == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('stores')}/pools.db"
    elif name == "redis":
        url = request.getfixturevalue("redis_url")
    first = opener(url, "first")
    first.open(SETTINGS[0])  # what is set up once is set up now
    with _listening(url) if name == "redis" else nullcontext():
        yield lambda: opener(url, f"differential-{next(_pools)}")
    first.close()


@contextmanager
def _listening(url: str) -> Iterator[None]:
    """Listen to everything on a server: a job is handed over only to who listens."""
    with redis.Redis.from_url(url) as client, client.pubsub() as listener:
        listener.psubscribe("*")
        while listener.get_message(timeout=1) is None:
            pass
        yield


def _play(make: Callable[[], Any], moves: list[Move], variant: int) -> None:
    for attempt in range(5):
        store, start = make(), time.monotonic()
        try:
            _keyed_script.run(moves, SETTINGS[variant % len(SETTINGS)], {type(store).__name__: store})
            return
        except Differs:
            if attempt == 4 or time.monotonic() - start < SLACK / SECOND / 2:
                raise  # else this machine stood still for so long that the clocks may have differed
        finally:
            store.drop()
            store.close()


def _search(make: Callable[[], Any], seeds: Iterator[int], seconds: float, length: int) -> None:
    deadline = time.monotonic() + seconds
    for seed in seeds:
        if time.monotonic() > deadline:
            return
        try:
            _play(make, moves_of(seed, length), seed)
        except Exception as problem:
            problem.add_note(f"seed {seed}, length {length}: MILLPOND_SEED={seed} repeats it")
            raise


def _fresh() -> Iterator[int]:
    return itertools.count(int(os.environ.get("MILLPOND_SEED", random.SystemRandom().randrange(1 << 40))))


def test_a_store_answers_known_scripts_as_the_rules_do(store):
    _search(store, iter(range(40)), 30, 50)


def test_a_store_answers_fresh_scripts_as_the_rules_do(store):
    _search(store, _fresh(), 10, 60)


def test_a_store_answers_what_hypothesis_writes_as_the_rules_do(store):
    @settings(
        max_examples=60,
        deadline=None,
        print_blob=True,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.lists(MOVE, max_size=30), st.integers(0, len(SETTINGS) - 1))
    def check(moves: list[Move], variant: int) -> None:
        _play(store, moves, variant)

    check()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_store_answers_thousands_of_scripts_as_the_rules_do(store):
    _search(store, _fresh(), 300, 60)
    _search(store, _fresh(), 120, 200)
