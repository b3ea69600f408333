"""Every store of keyed pools is put to the conformance suite (`conformance/`)."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.keyed.rules.mailboxes import MailboxRules
from millpond.keyed.rules.pool import Rules
from millpond.keyed.rules.takes import TakeRules
from millpond.keyed.stores.memory import MemoryStore
from millpond.keyed.stores.memory._tables import MemoryMembers, MemorySignals
from millpond_conformance import STORE_CHECKS, StoreBench, check_store

_pools = itertools.count(1)


def _missing(problem: str) -> Any:
    pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)


def _opener(store: str) -> Callable[[str, str], Any]:
    try:
        module = importlib.import_module(f"millpond.keyed.stores.{store}")
    except ImportError as problem:
        _missing(f"the store on {store} cannot be imported: {problem}")
    opener: Callable[[str, str], Any] = module.open
    return opener


def _bench(store: str, url: str) -> StoreBench:
    opener, pool = _opener(store), f"conformance-{next(_pools)}"
    return StoreBench(lambda: opener(url, pool), lambda: opener(url, pool))


@pytest.fixture(params=["memory", "sqlite", "redis", "valkey"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreBench]:
    if request.param == "memory":
        made = StoreBench(MemoryStore)
    elif request.param == "sqlite":
        made = _bench("sqlite", f"sqlite:///{tmp_path}/pools.db")
    else:
        made = _bench("redis", request.getfixturevalue(f"{request.param}_url"))
    yield made
    made.close()


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
def test_a_store_keeps_the_contract(check, bench):
    check(bench)


def test_the_suite_covers_every_verb_promise_and_hole():
    names = [check.__name__ for check in STORE_CHECKS]
    assert len(names) == len(set(names)) > 60
    verbs = ("open", "drop", "close", "dispatch", "outcomes", "apply", "join", "renew", "leave", "give", "claim", "work", "where", "keys", "listen")  # fmt: skip
    wanted = [f"verb_{verb}_" for verb in verbs]
    wanted += [f"k{number}_" for number in range(1, 8)]
    wanted += [f"hole_{number}_" for number in range(1, 19) if number not in (14, 16, 17)]  # those are no store's
    for one in wanted:
        assert any(name.startswith(one) for name in names), one


def _again(rules: MailboxRules[Any], slot: int, mailbox: str, raw: bytes, *_: Any) -> None:
    box = rules._boxes.make(slot, mailbox)
    rules._boxes.append(box, raw)
    rules._numbers.jobs += 1
    rules.make_ready(box)


FAULTS: dict[str, tuple[type, str, Any]] = {
    "a job makes its key ready although it runs": (MailboxRules, "enter", _again),
    "a lease lasts for ever": (Rules, "_is_dead", lambda *_: False),
    "what was handed over is not kept for who did not hear it": (MemorySignals, "add", lambda *_: None),
    "a worker has room for ever": (MemoryMembers, "use_spare", lambda *_: None),
    "what was handed over comes again when it is over": (TakeRules, "checked", lambda rules, signals: signals),
    "what ran is forgotten": (MailboxRules, "recover", lambda rules, now, box, blame: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_suite_finds_a_fault(fault, monkeypatch):
    monkeypatch.setattr(*FAULTS[fault])
    with pytest.raises(AssertionError):
        check_store(lambda: StoreBench(MemoryStore))
