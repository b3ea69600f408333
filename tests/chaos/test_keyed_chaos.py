"""Keyed pools under storms: real processes killed, stopped, dismissed and cut off at random.

What must hold is read from the log of what ran when (`keyed_checker`, `keyed_log`). Seeds are printed; `CHAOS_SEED`
repeats one.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from keyed_checker import Checker
from keyed_storm import Storm, seed

from millpond.testing._redis import redis_server


def rage(storm: Storm, kills: int, pause: float) -> Checker:
    with storm:
        storm.start()
        time.sleep(1.0)
        while storm.kills < kills:
            storm.strike()
            time.sleep(storm.random.random() * pause)
        storm.settle()
        return storm.check()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_forty_kills_among_stops_and_farewells_on_sqlite(tmp_path: Path) -> None:
    storm = Storm(tmp_path, f"sqlite:///{tmp_path}/pools.db", seed(), shared_fate=True)
    checker = rage(storm, kills=40, pause=0.6)
    assert len(checker.acknowledged) > 1000


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_forty_kills_among_stops_and_farewells_on_redis(tmp_path: Path) -> None:
    with redis_server() as server:
        checker = rage(Storm(tmp_path, server.url, seed()), kills=40, pause=0.6)
    assert len(checker.acknowledged) > 1000
