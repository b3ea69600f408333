"""A plugin of pytest: tests hold what they use, so that those of other workers, and other people's, wait their turn.

    @pytest.mark.holds("boards", count=2, chip="rp2040")
    def test_two_boards_talk(held):
        talk(*held.resources)

A test waits until it has them, and gives them back when it has ended, its fixtures included. Under pytest-xdist each
worker is a holder of its own: one that is killed frees what it held. Pools live in the user's own file (as for
`millpond run`), or where `--millpond-url`, the ini value `millpond_url` or `MILLPOND_URL` says; a name that is not
known is a lock.

The fixture `in_memory` runs jobs of a keyed pool without a server: `in_memory(app.tenants)` starts a worker of it that
ends with the test.

`--hold gpus:1` holds for a whole run, or for each worker of xdist, from before anything is imported: GPUs are set in
the environment by then.

Nothing of Millpond is imported before a test holds something.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
from collections.abc import Callable, Generator
from typing import Any

import pytest

MARK = "holds(pool, *, name=None, count=1, timeout=None, **labels): hold resources of a Millpond pool during the test"
TIMEOUT = 3600.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take options."""
    group = parser.getgroup("millpond")
    group.addoption(
        "--hold",
        action="append",
        default=[],
        metavar="NAME[/RESOURCE][:COUNT][{LABEL=VALUE}]",
        help="hold this for the whole run, or for each worker of xdist; repeatable",
    )
    group.addoption("--millpond-url", default="", metavar="URL", help="where the pools live")
    parser.addini("millpond_url", "where the pools live", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Hold what is wanted for the whole run, before anything is imported."""
    config.addinivalue_line("markers", MARK)
    holds = config.getoption("--hold")
    is_lead = holds and not hasattr(config, "workerinput") and getattr(config.option, "numprocesses", None)
    if holds and not is_lead:  # under xdist the workers hold, not who leads them
        stack = contextlib.ExitStack()
        config.add_cleanup(stack.close)
        try:
            wanted = [importlib.import_module("millpond.cli.wanted").parse(text) for text in holds]
            if len({one.pool for one in wanted}) < len(wanted):
                raise ValueError("hold several of one pool by one --hold NAME:COUNT")
            for one in sorted(wanted):  # all in the same order: no two wait for one another
                stack.enter_context(_Holding(config, one, is_told=True))
        except Exception as error:
            raise pytest.UsageError(f"--hold: {_text(error)}") from None


class _Holding:
    """Holds resources, and sets what tells a program of GPUs. What is held around it, it has already."""

    def __init__(
        self,
        config: pytest.Config,
        wanted: Any,
        reason: str = "pytest",
        timeout: float = TIMEOUT,
        *,
        is_told: bool = False,
    ) -> None:
        self._url = config.getoption("--millpond-url") or config.getini("millpond_url")
        self._wanted, self._reason, self._timeout, self._is_told = wanted, reason, timeout, is_told
        self._after = contextlib.ExitStack()

    def __enter__(self) -> Any:
        lending: Any = importlib.import_module("millpond.cli.lending")
        place = importlib.import_module("millpond.cli.place").Place(self._url or None)
        around = importlib.import_module("millpond.cli.family").ancestors()
        urls: Any = importlib.import_module("millpond._urls")
        resources: Any = importlib.import_module("millpond.resources")
        wanted = self._wanted
        with contextlib.ExitStack() as stack:
            user = importlib.import_module("millpond._person").user()
            pool = stack.enter_context(resources.ResourcePool(wanted.pool, place.url, holder=user))
            held: Any = lending.held_around(pool, place.url, wanted, around)
            if held is not None:
                tails = importlib.import_module("millpond.cli.tail").Tails(place.file)
                stack.callback(tails.unlock)
                deadline = importlib.import_module("millpond._clock").elapsed() + self._timeout
                held.resources = tails.borrow(wanted.pool, held.resources, wanted.number, deadline)
            else:
                lending.ensure(pool, place.url, wanted, may_create=True)
                held = stack.enter_context(
                    lending.acquire(pool, place.url, wanted, timeout=self._timeout, reason=self._reason)
                )
                hold = lending.Hold(wanted.pool, list(held.resources), held.token, urls.shown(place.url))
                told = {lending.HELD: lending.telling([hold]), **place.variables()} if self._is_told else {}
                for variable, value in {**lending.variables(pool, hold), **told}.items():
                    stack.callback(_restore, variable, os.environ.get(variable))
                    os.environ[variable] = value
            self._after = stack.pop_all()
        return held

    def __exit__(self, *error: object) -> None:
        self._after.close()


def _text(error: Exception) -> str:
    return str(getattr(error, "message", "") or error)


def _restore(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


_held = pytest.StashKey[list[Any]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Hold what the marks of a test name, from before its fixtures are made until they are gone."""
    with contextlib.ExitStack() as stack:
        item.stash[_held] = []
        try:
            marks = sorted(item.iter_markers("holds"), key=lambda one: str(one.args))
            for mark, after in itertools.pairwise(marks):
                if mark.args == after.args:
                    raise ValueError(f"{mark.args[0]!r} is marked twice: hold several of one pool by one mark, count=")
            for mark in marks:
                item.stash[_held].append(stack.enter_context(_of(item, mark)))
        except Exception as error:
            item.stash[_held] = [_text(error)]  # the test fails with it, and the others go on
        return (yield)


def _of(item: pytest.Item, mark: pytest.Mark) -> _Holding:
    labels = dict(mark.kwargs)
    name, count, timeout = labels.pop("name", None), labels.pop("count", 1), labels.pop("timeout", TIMEOUT)
    if len(mark.args) != 1 or not isinstance(mark.args[0], str):
        raise TypeError(f"pytest.mark.holds takes the name of a pool first, not {mark.args!r}")
    plain = tuple((key, str(value)) for key, value in labels.items())
    wanted = importlib.import_module("millpond.cli.wanted").Wanted(mark.args[0], name, count, plain)
    return _Holding(item.config, wanted, f"pytest: {item.nodeid}", timeout)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that could not have what it wants."""
    for one in item.stash.get(_held, []):
        if isinstance(one, str):
            pytest.fail(one, pytrace=False)


@pytest.fixture
def held(request: pytest.FixtureRequest) -> Any:
    """Return what the test holds by its mark: a grant with `resource`, `resources` and `token`; several: a list."""
    grants = request.node.stash.get(_held, [])
    if not grants:
        raise LookupError("this test holds nothing: mark it with @pytest.mark.holds(POOL)")
    return grants[0] if len(grants) == 1 else grants


@pytest.fixture
def in_memory() -> Generator[Callable[..., Any], None, None]:
    """Return a function that lets a `KeyedPool` live in memory until the test ends, with a worker."""
    with contextlib.ExitStack() as stack:

        def start(pool: Any, **options: Any) -> Any:
            testing: Any = importlib.import_module("millpond.testing")
            return stack.enter_context(testing.in_memory(pool, **options))

        yield start
