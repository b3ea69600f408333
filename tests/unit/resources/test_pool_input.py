"""What is wrong with an argument is said at once, by name and value, and nothing is lost by it."""

from __future__ import annotations

import pytest
from faces import url_of

from millpond.errors import PoolError
from millpond.resources import AsyncResourcePool, ResourcePool, want


@pytest.fixture
def pool(url):
    with ResourcePool("lab", url) as made:
        made.add("a", labels={"k": "v"})
        yield made


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (TypeError, "timeout must be seconds as a number, or None, not '5'", {"timeout": "5"}),
        (TypeError, "timeout must be seconds as a number, or None, not True", {"timeout": True}),
        (ValueError, "timeout must be at least 0 seconds, not -1", {"timeout": -1}),
        (ValueError, "timeout must be at least 0 seconds, not nan", {"timeout": float("nan")}),
        (ValueError, "lease must be at least 0.05 seconds, not 0.01", {"lease": 0.01}),
        (ValueError, "lease must be at least 0.05 seconds, not 0", {"lease": 0}),
        (TypeError, "priority must be a whole number, not 1.5", {"priority": 1.5}),
        (ValueError, "priority must be at most 9007199254740992, not", {"priority": 2**60}),
        (ValueError, "priority must be between -1000000 and 1000000, not 1000001", {"priority": 1_000_001}),
        (ValueError, "priority must be between -1000000 and 1000000, not -1000001", {"priority": -1_000_001}),
        (ValueError, "count must be a whole number from 1 on, not 0", {"count": 0}),
        (ValueError, "count must be a whole number from 1 on, not True", {"count": True}),
        (ValueError, "units must be a whole number from 1 on, or 'all', not 'some'", {"units": "some"}),
        (ValueError, "units must be a whole number from 1 on, or 'all', not", {"units": 2**70}),
        (ValueError, "count=2 of the one resource 'a': use units=", {"name": "a", "count": 2}),
        (TypeError, "name= must be a non-empty string, not ''", {"name": ""}),
        (TypeError, "group must be a string, not 7", {"group": 7}),
        (TypeError, "reason must be a string, not 7", {"reason": 7}),
        (TypeError, "request_id must be a non-empty string, not 7", {"request_id": 7}),
        (TypeError, "request_id must be a non-empty string, not ''", {"request_id": ""}),
        (ValueError, "request_id must have at most 1000 characters, not 1001", {"request_id": "x" * 1001}),
        (ValueError, "request_id must be plain Unicode", {"request_id": "\ud800"}),
        (ValueError, "a selector must be plain Unicode", {"name": "\ud800"}),
    ],
)
def test_a_bad_argument_of_acquire_is_refused(pool, error, message, options):
    with pytest.raises(error, match=message):
        pool.acquire(**options)
    assert not pool.holders() and not pool.waiters()
    with pool.acquire(timeout=0):
        pass


@pytest.mark.parametrize(
    "selector", [7, b"k", {"k": None}, {7: "v"}, {"": "v"}, [], [1], {"k": []}, {"k": 1.5}, "k=", "a b"]
)
def test_a_bad_selector_is_refused(pool, selector):
    with pytest.raises((TypeError, ValueError)):
        pool.acquire(selector)
    with pytest.raises((TypeError, ValueError)):
        pool.try_acquire(selector)


def test_a_selector_and_a_name_are_one_too_many(pool):
    with pytest.raises(TypeError, match="give a selector or name=, not both"):
        pool.acquire({"k": "v"}, name="a")


def test_a_bundle_needs_parts(pool):
    with pytest.raises(ValueError, match="acquire_all needs at least one selector"):
        pool.acquire_all([])
    with pytest.raises(TypeError, match="acquire_all takes a list of selectors, not 'k=v'"):
        pool.acquire_all("k=v")
    with pytest.raises(TypeError):
        pool.acquire_all([want({"k": "v"}), 7])


def test_ages_are_for_ever(pool):
    for forever in (float("inf"), 1e300, 1e15):
        with pool.acquire(timeout=forever) as grant:
            assert grant.is_held
        with pool.acquire(lease=forever) as grant:
            assert grant.deadline is None


def test_a_long_reason_is_cut_and_an_odd_one_is_spelled_out(pool):
    with pool.acquire(reason="x" * 5000):
        [holder] = pool.holders()
        assert holder.reason == "x" * 1000
    with pool.acquire(reason="caf\udce9", group="g\udce9"):
        [holder] = pool.holders()
        assert (holder.reason, holder.group) == ("caf\\udce9", "g\\udce9")


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (TypeError, "a resource's name must be a non-empty string, not ''", {"name": ""}),
        (TypeError, "a resource's name must be a non-empty string, not 7", {"name": 7}),
        (ValueError, "a resource's name must be plain Unicode", {"name": "\ud800"}),
        (TypeError, "capacity must be a whole number, not 'x'", {"name": "b", "capacity": "x"}),
        (ValueError, "capacity must be at least 1, not 0", {"name": "b", "capacity": 0}),
        (ValueError, "capacity must be at most 9007199254740992, not", {"name": "b", "capacity": 2**64}),
        (TypeError, "labels must be a mapping", {"name": "b", "labels": ["x"]}),
        (ValueError, "label 'x' is False: leave it out", {"name": "b", "labels": {"x": False}}),
        (
            TypeError,
            "label 'x' must be a string, a whole number or True, not None",
            {"name": "b", "labels": {"x": None}},
        ),
        (ValueError, "a label must be plain Unicode", {"name": "b", "labels": {"x": "\ud800"}}),
    ],
)
def test_a_bad_resource_is_refused(pool, error, message, options):
    with pytest.raises(error, match=message):
        pool.add(**options)
    assert [one.name for one in pool.resources()] == ["a"]


def test_bad_arguments_of_operators_are_refused(pool):
    admin = pool.admin
    for call in (
        lambda: admin.resize("a", 0),
        lambda: admin.resize("a", 2**70),
        lambda: admin.relabel("a", ["k"]),
        lambda: admin.relabel("a", {"k": 1.5}),
        lambda: admin.drain("a", timeout=-1),
        lambda: admin.group("g", weight=0),
        lambda: admin.group("g", quota=0),
        lambda: admin.group("", quota=1),
        lambda: admin.configure(patience="x"),
        lambda: admin.configure(claim_within=0.0001),
        lambda: admin.history(limit=-1),
        lambda: admin.cordon("a", reason=7),
        lambda: admin.steal("a", token=1, reason="r", lease=0.001),
        lambda: pool.adopt("x"),
        lambda: pool.adopt(1.5),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert not isinstance(caught.value, PoolError)
    [one] = pool.resources()
    assert (one.state, one.capacity, one.labels) == ("active", 1, {"k": "v"})


@pytest.mark.parametrize("kind", [ResourcePool, AsyncResourcePool])
@pytest.mark.parametrize(
    ("error", "message", "args", "options"),
    [
        (TypeError, "a pool's name must be a non-empty string", ("",), {}),
        (TypeError, "a pool's name must be a non-empty string", (None,), {}),
        (TypeError, "a pool's URL must be a string such as 'sqlite:///pools.db', not int", ("p", 7), {}),
        (ValueError, "no engine for 'redix://x': use 'memory:', 'sqlite", ("p", "redix://x"), {}),
        (ValueError, "no engine for 'pools.db': use 'memory:', 'sqlite", ("p", "pools.db"), {}),
        (ValueError, "does not name a file: write sqlite:///relative", ("p", "sqlite://host/x.db"), {}),
        (ValueError, "sync= is not known.*use synchronous=NORMAL", ("p", "sqlite:///x.db?sync=1"), {}),
        (ValueError, "placement 'best' is not known: use a callable or one of first", ("p",), {"placement": "best"}),
        (ValueError, "on_lost must be .* or a function, not 'panic'", ("p",), {"on_lost": "panic"}),
        (ValueError, "suspect_after must be at least 0 seconds, not -1", ("p",), {"suspect_after": -1}),
        (TypeError, "holder must be a string, not 7", ("p",), {"holder": 7}),
    ],
)
def test_a_bad_argument_of_a_pool_is_refused(kind, error, message, args, options):
    with pytest.raises(error, match=message):
        kind(*args, **options)


def test_one_file_has_one_durability_in_a_process(tmp_path):
    url = url_of("sqlite", tmp_path)
    with ResourcePool("p", url), pytest.raises(ValueError, match="is open in this process with synchronous=NORMAL"):
        ResourcePool("p", url + "?synchronous=FULL")


def test_a_bad_call_harms_nobody_in_the_same_batch(url):
    """What cannot be kept is refused before it can spoil a transaction that others share."""
    with ResourcePool("p", url) as pool, ResourcePool("p", url) as other:
        pool.add("a", capacity=5)
        grants = [other.acquire() for _ in range(3)]
        for bad in ({"priority": 2**65}, {"timeout": -1}, {"units": 2**65}):
            with pytest.raises(ValueError, match="must be"):
                pool.acquire(**bad)  # type: ignore[arg-type]
        for grant in grants:
            grant.check()
            grant.release()
