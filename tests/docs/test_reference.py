"""The API reference is complete: every public name is on a page, and every field of every view says what it means."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

from millpond import ResourcePool, errors

ROOT = Path(__file__).parents[2]
PAGES = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md")))
PARTS = (
    "millpond",
    "millpond.keyed",
    "millpond.resources",
    "millpond.resources.temporal",
    "millpond.metrics",
    "millpond.otel",
    "millpond.testing",
    "millpond.web",
)

VIEWS = sorted(
    {
        one
        for part in map(importlib.import_module, PARTS)
        for name in part.__all__
        if dataclasses.is_dataclass(one := getattr(part, name)) and isinstance(one, type)
    },
    key=lambda one: one.__qualname__,
)


@pytest.mark.parametrize("part", PARTS)
def test_every_public_name_is_in_the_reference(part: str) -> None:
    module = importlib.import_module(part)
    documented = set(re.findall(r"^::: [\w.]*?(\w+)$", PAGES, re.M))
    missing = []
    for name in module.__all__:
        found = getattr(module, name, None)
        is_error = inspect.isclass(found) and found.__module__ == errors.__name__
        if name.startswith("_") or inspect.ismodule(found) or is_error or name in documented:
            continue
        missing.append(name)
    assert missing == []


@pytest.mark.parametrize("view", VIEWS, ids=lambda one: one.__qualname__)
def test_every_field_of_a_view_is_explained(view: type) -> None:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(view))).body
    assert isinstance(body, ast.ClassDef)
    bare = []
    for one, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_"):
            is_told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            bare += [] if is_told else [one.target.id]
    assert bare == []


EMITTED = re.compile(r"""(?:\w*(?:observers?|on_event), |observe_many\()"(\w+)"(?: if \w+ else "(\w+)")?""")


@pytest.mark.parametrize("part", ["local", "keyed"])
def test_every_event_for_observers_is_in_the_reference(part: str) -> None:
    sources = (ROOT / "src" / "millpond" / part).rglob("*.py")
    emitted = {name for source in sources for pair in EMITTED.findall(source.read_text()) for name in pair if name}
    emitted.discard("on_event")  # what checks call the argument
    assert {"worker_lost", "worker_stopped" if part == "local" else "job_ran"} <= emitted  # the search finds them
    table = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "reference" / f"{part}.md").read_text()))
    assert sorted(emitted - table) == []


def test_every_event_of_a_pool_of_resources_is_on_its_page() -> None:
    page = (ROOT / "docs" / "how-to" / "resource-pools.md").read_text()
    told = set(re.findall(r"`([a-z ]+)`", page.partition("Names of events: ")[2].partition("The stream begins")[0]))
    with ResourcePool("events", "memory:events") as pool:
        admin = pool.admin
        pool.add("a", labels={"x": "1"})
        pool.add("b")
        grant = pool.acquire(name="a")
        admin.reserve("a", holder="ann", reason="to see")
        admin.release("a", token=grant.token, reason="to see")
        admin.relabel("b", {"y": "2"})
        admin.resize("b", 2)
        for act in (admin.cordon, admin.uncordon, admin.quarantine):
            act("b", reason="to see")
        admin.configure(patience=5)
        admin.group("web", weight=2)
        admin.pause(reason="to see")
        admin.resume()
        admin.remove("b")
        names = {event.name for event in admin.history()}
    assert {"reserved", "revoked", "granted", "added"} <= names
    assert sorted(names - told) == []
