"""What the tests of keyed pools in SQLite share: orders, workers by hand, and a look at all rows."""

from __future__ import annotations

from typing import Any

from millpond.keyed.rules import placement
from millpond.keyed.rules.envelope import Envelope, encode, opened
from millpond.keyed.rules.records import SECOND, Joiner, Order, OrderOptions, Report, Settings, Take
from millpond.keyed.stores import sqlite
from millpond_conformance._verbs import Verbs

SLOTS = 16
SETTINGS = Settings(slots=SLOTS, lease=60 * SECOND)


def open_store(url: str, pool: str = "p", settings: Settings = SETTINGS) -> Verbs:
    store = Verbs(sqlite.open(url, pool))
    store.open(settings)
    return store


def order(key: str, job: str, options: OrderOptions | None = None, *, keep: int = 0, reply: str = "") -> Order:
    body = encode(Envelope(job, "job", reply, keep, b"x" * 40))
    return Order(placement.slot_of(key, SLOTS), f"j:{key}", body, options)


def resident(key: str, job: str, payload: bytes = b"") -> tuple[int, str, bytes]:
    return placement.slot_of(key, SLOTS), f"r:watch:{key}", encode(Envelope(job, "watch", "", 0, payload))


class Hand:
    """A worker that does what a test says."""

    def __init__(self, store: Verbs, name: str = "w", *, claims: bool = True) -> None:
        self.store, self.name, self.calls = store, name, 0
        store.join(Joiner(name, "test", 1, 100, ("job", "watch")))
        if claims:
            store.claim(name, range(SLOTS), {})

    def work(self, *settles: Report, want: int = 100, per: int = 16, residents: int = 10, heard: int = 0) -> Any:
        self.calls += 1
        return self.store.work(self.name, self.calls, settles, want, per, residents, heard)


def end(take: Take, how: str = "end", done: int | None = None, **more: Any) -> Report:
    return Report(take.slot, take.mailbox, take.token, len(take.jobs) if done is None else done, how, **more)


def ids(take: Take) -> list[str]:
    return [opened(raw).id for raw in take.jobs]


_FAULTS = {
    "I1: a mailbox is empty, or stands nowhere": "SELECT * FROM keyed_mailbox WHERE depth <= 0 OR state NOT IN (0, 1, 2, 3, 4)",
    "a mailbox has not as many jobs as it says": """
        SELECT mailbox, depth, (SELECT count(*) FROM keyed_job AS j WHERE j.pool = b.pool AND j.box = b.number) AS there
        FROM keyed_mailbox AS b WHERE depth <> there""",
    "jobs are left of a mailbox that is gone": """
        SELECT * FROM keyed_job WHERE (pool, box) NOT IN (SELECT pool, number FROM keyed_mailbox)""",
    "I2: the owner of a slot does not know that something is ready there": """
        SELECT b.mailbox, s.owner FROM keyed_mailbox AS b JOIN keyed_slot AS s USING (pool, slot)
        JOIN keyed_member AS m ON m.pool = b.pool AND m.id = s.owner WHERE b.state = 0 AND NOT EXISTS
        (SELECT 1 FROM keyed_active AS a WHERE a.pool = b.pool AND a.worker = s.owner AND a.lane = b.lane AND a.slot = b.slot)""",
    "I4: a take has more jobs than there are": """
        SELECT * FROM keyed_mailbox WHERE state = 1 AND (taken - done <= 0 OR taken - done > depth)""",
    "nothing will wake a retry": """
        SELECT * FROM keyed_mailbox AS b WHERE state = 2 AND NOT EXISTS
        (SELECT 1 FROM keyed_due AS d WHERE d.pool = b.pool AND d.what = 'retry' AND d.name = b.mailbox AND d.due = b.since)""",
    "nothing will wake a delayed job": """
        SELECT * FROM keyed_delayed AS b WHERE NOT EXISTS (SELECT 1 FROM keyed_due AS d WHERE d.pool = b.pool AND d.name = b.id)""",
    "a counter is off": """
        SELECT name, jobs, delayed, dead FROM keyed_pool AS p WHERE
        jobs <> (SELECT coalesce(sum(depth), 0) FROM keyed_mailbox AS b WHERE b.pool = p.id AND lane <> 'r') OR
        delayed <> (SELECT count(*) FROM keyed_delayed AS b WHERE b.pool = p.id) OR
        dead <> (SELECT count(*) FROM keyed_dead AS b WHERE b.pool = p.id)""",
    "active slots are left of one who is gone": """
        SELECT * FROM keyed_active WHERE (pool, worker) NOT IN (SELECT pool, id FROM keyed_member)""",
}


def check_rows(store: Verbs) -> None:
    """Look at all rows of all pools: the invariants of `rules.mailboxes`, and the counters."""

    def look(transaction: Any) -> None:
        for fault, query in _FAULTS.items():
            found = transaction.execute(query).fetchall()
            assert not found, f"{fault}: {found[:3]}"
        assert transaction.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    store._file.read(look)
