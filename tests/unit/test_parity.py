"""The page of parity has every row of what is to be matched, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "parity.md").read_text()
NAMED = sorted(set(re.findall(r"\b((?:\w+/)?test_\w+)::(test_\w+)", PAGE)))
ROWS = [
    (one, what, shown)
    for one, what, shown in re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.M)
    if one != "from"
]

WANTED = """
Local pools
toy v1: fixed size | buffered queue | submit | wait for all
toy v2: cancellation by token and deadline | of what is queued | no BaseException, kills a worker
toy v3: workers on demand | idle time-out | status
toy TODO: dedicated queues | work stealing | results and errors as futures
queue strategies: unbounded | bounded | priority: lanes and heap | LIFO
scale-up: on demand | proactive, by Little's law | warm-up | starvation injection
scale-down: idle TTL | periodic reaper
resize policies: eager | balanced | lazy
rejection: block, with time-out | raise | drop | drop oldest | caller runs | a callable
pond: groups: first error cancels | subpools share | resize | non-blocking submit | fire and forget | counters
ants: tune | release with time-out | reboot | purge | bound on blocked submitters
gammazero: pause | resume
Java: prestart | hooks for each task | rejection handlers
concurrent.futures: is an Executor | `wait` | `as_completed` | `asyncio.wrap_future` | `run_in_executor` | default executor | initializer | `max_tasks_per_child`
pebble, loky, mpire: fails its own task only | time-out kills the one process | recycling by tasks, age, memory | progress bar
anyio: contextvars | limiter
users' wishes: endless source, ordered and not | never deadlocks | usable after fork | clean Ctrl-C | same key, same worker, in order
Keyed pools
seed: connect to or create a pool by name | separate programs | jobs by key, with small payloads | consistent hashing | jump | join and leave at run time | when a worker dies | not acknowledged in time | reconnect after Redis fails | queueing delay | one and only one worker per tenant | removes stale ones
Pulse: node, worker and client-only | waits for the outcome, or not | policy for a job that exists | idempotent dispatch by id | stop a job | notify the owner | list of keys, payloads, workers | schedule | distributed ticker | whole-pool shutdown against local close | options for every time-out
beats it: 1: | 2: | 3: | 4: | 5: | 6: | 7: | 8, 9, 10: | 11: | 12: | K1 | K2 | K3 | K4 | K5 | K6 | K7
beyond: per-key mailbox in order | results | retries with back-off | dead letters with replay by key | delay | cron that fires once | queue, reject, replace, coalesce | state per key with idle passivation | weights and bounded load | fairness between keys | per-key and pool limits | queue age | typed handlers | sync and async | fencing token
Resource pools
seed: any free resource (pooling), or a given one (locking) | who holds what | release a leak by hand | placement by code | true locks, not leases | restart of every program
sample: detach and re-attach | longest wait | added at run time | several pools
beats it: release that races the grant | one bad requester | leaves no ghost | never grants what is held | noticed without heartbeats
beyond: plain programs as holders | labels and selectors | capacity and quantity | bundles, all or nothing | priorities | cordon, drain | waiters with place and reason | fencing tokens | leases by choice | compare and release | steal, reserve | audit history | events | the same pool on SQLite and Redis
Resource pools on Temporal
seed: a long-lived pool lends to workflows | several activities | worker and starter | locking a given resource | query and release by Temporal's own tool | placement by code of one's own | decoupled from workers and task queues | restart of workers and of the server
sample: detach and re-attach | longest wait | added at run time | several pools | signals, answers and input
beats it: 1: | 3: | 4: | 5: | 6: | 7: | 8: | 9: | 10: | 11: | 12: | 13: | 14: | 15: | 16:
What none of them has
one vocabulary, one tool: the same verbs in API, command line and page
embedded and durable: a file per user
proof of death: by the kernel
rules once: executable specification | differential test
a picture: keys that move when a worker is killed | a GPU that goes to the next in line
why: why a key is where it is | who has it, since when, why, who is next
any language: `millpond run --hold gpus:2 -- command`
tests share devices: xdist workers, kill -9 included
order per key for free: order and limits per key | a page
"""
"""The rows of what must be matched, in the words of the page: a section, then what each system has, part by part."""


def _wanted() -> list[tuple[str, str, str]]:
    section, found = "", []
    for line in WANTED.strip().splitlines():
        one, colon, parts = line.partition(": ")
        if colon:
            found += [(section, one, part.strip()) for part in parts.split(" | ")]
        else:
            section = line
    return found


def _rows_of(section: str) -> str:
    (_, _, after) = PAGE.partition(f"\n## {section}\n")
    return after.partition("\n## ")[0]


def test_the_page_names_many_tests():
    assert len(NAMED) > 40


@pytest.mark.parametrize(("section", "one", "part"), _wanted())
def test_what_is_to_be_matched_has_a_row(section: str, one: str, part: str):
    rows = re.findall(rf"^\| {re.escape(one)} \| (.+?) \| .+ \|$", _rows_of(section), re.M)
    assert any(part in row for row in rows), rows


@pytest.mark.parametrize(("one", "what", "shown"), ROWS)
def test_a_row_has_a_test_or_says_that_it_is_missing(one: str, what: str, shown: str):
    assert one == "row" or "::test_" in shown or "**missing**" in shown


def test_every_row_has_three_cells():
    assert {line.count(" | ") for line in PAGE.splitlines() if line.startswith("| ")} == {2}


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_named_on_the_page_exists(file, test):
    (path,) = (ROOT / "tests").rglob(f"{file}.py")
    assert re.search(rf"^(async )?def {test}\(", path.read_text(), re.M)
