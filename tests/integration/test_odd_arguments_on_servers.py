"""Odd arguments on the engines that have a server: what is written is read by another machine after each value."""

from __future__ import annotations

import inspect
import uuid
from typing import Any

import msgspec
import pytest

import log_stores
from log_stores import of_machine
from millpond import ResourcePool
from millpond.resources import temporal
from millpond.resources._rules import commands as do
from millpond.resources._rules.records import Holder
from millpond.resources.engines.temporal._orders import Order
from odd_arguments import ARGUMENTS, FEW, ODD, check, prepare, says_something, use

HERE = [one for one in ARGUMENTS if one != ("__init__", "url")]  # other URLs are other servers


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_nothing_that_is_given_makes_a_store_between_machines_unreadable(kind: str):
    with log_stores.running(kind) as store:
        url, there = of_machine(store, "here"), of_machine(store, "there")
        with ResourcePool("odd", url) as pool, ResourcePool("odd", there) as other:
            for method, argument in HERE:
                check(pool, method, argument, FEW, other.statistics)
            prepare(pool)
            use(pool)
        with ResourcePool("odd", of_machine(store, "elsewhere")) as late:  # reads all that is stored
            use(late)


WRONG: list[Any] = [True, 0.5, b"x", "\ud800", object()]


def test_nothing_that_is_given_makes_a_pool_on_temporal_unreadable(pools):
    name = f"odd-{uuid.uuid4().hex[:8]}"
    with ResourcePool(name, pools.url()) as pool:
        for method, argument in HERE:
            if method != "admin.delete_pool":  # its workflow would end, and another begin, with each value
                check(pool, method, argument, WRONG, lambda: None)
        prepare(pool)
        use(pool)


PLAIN: dict[str, dict[str, Any]] = {
    "acquire": {"pool": "gpus", "selector": None, "name": None, "count": 1, "units": 1},
    "acquire_all": {"pool": "gpus", "selectors": ["*"]},
}  # fmt: skip
for one in PLAIN.values():
    one |= {"timeout": 1, "lease": 1, "priority": 1, "group": "g", "reason": "x", "placement": "first", "wait_for_capacity": False, "work_ends_within": 1}  # fmt: skip


@pytest.mark.parametrize(("function", "argument"), [(name, one) for name, plain in PLAIN.items() for one in plain])
def test_what_a_workflow_asks_for_is_refused_or_can_be_read(function: str, argument: str):
    call = getattr(temporal, function)
    assert [*PLAIN[function], *(["reattach"] if function == "acquire" else [])] == [*inspect.signature(call).parameters]
    for value in ODD:
        arguments = {**PLAIN[function], argument: value}
        positional = [arguments.pop("pool"), arguments.pop("selector" if function == "acquire" else "selectors")]
        try:
            grant = call(*positional, **arguments)
        except (TypeError, ValueError) as refusal:
            says_something(refusal, value)
            continue
        command = do.Acquire("#1", "w:flow/run", 0, Holder(), grant._wants, sure=True, **grant._options)
        written = Order(grant._pool, command, grant._grace).write().payload.data
        assert msgspec.json.decode(written, type=Order).command == command


@pytest.mark.parametrize("value", [one for one in ODD if one is not None], ids=repr)
def test_a_workflow_takes_up_only_what_it_has_detached(value: Any):
    with pytest.raises(TypeError, match=r"reattach must be what detach\(\) returned"):
        temporal.acquire("gpus", reattach=value)
