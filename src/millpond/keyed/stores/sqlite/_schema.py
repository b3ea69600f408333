"""The tables of keyed pools. All pools of a file share them: the first column of each is the number of the pool.

A mailbox that is not empty is one row of `keyed_mailbox`, with the place in which it stands as its `state`: so it
cannot stand in two. Partial indexes list those that are ready, running or parked. `place` is an order: who is put in
front gets a number below all others, who is put behind one above. `lane` is the queue: a job that is dead with its next
loss stands in `s` instead of `j`.

`keyed_due` is the heap of the rules, stale entries included: what is no longer so is skipped when its time comes.
`keyed_listener` says in which session there is a listener, and how often it was called.
"""

from __future__ import annotations

from typing import Final

FORMAT: Final = 4
"""Of these tables; the file as a whole has its own number (`_sqlite.MIGRATIONS`)."""

TABLES: Final = """
CREATE TABLE IF NOT EXISTS keyed_pool (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, incarnation TEXT NOT NULL, settings TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 1, is_shut INTEGER NOT NULL DEFAULT 0, is_paused INTEGER NOT NULL DEFAULT 0,
    last_token INTEGER NOT NULL DEFAULT 0, last_dead INTEGER NOT NULL DEFAULT 0,
    last_signal INTEGER NOT NULL DEFAULT 0, last_message INTEGER NOT NULL DEFAULT 0,
    last_due INTEGER NOT NULL DEFAULT 0, last_box INTEGER NOT NULL DEFAULT 0,
    first_place INTEGER NOT NULL DEFAULT 0, last_place INTEGER NOT NULL DEFAULT 0,
    ready INTEGER NOT NULL DEFAULT 0, jobs INTEGER NOT NULL DEFAULT 0, delayed INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    dispatched INTEGER NOT NULL DEFAULT 0, done INTEGER NOT NULL DEFAULT 0, retried INTEGER NOT NULL DEFAULT 0,
    dead_total INTEGER NOT NULL DEFAULT 0, recovered INTEGER NOT NULL DEFAULT 0, moved INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS keyed_member (
    number INTEGER PRIMARY KEY AUTOINCREMENT, pool INTEGER NOT NULL, id TEXT NOT NULL, label TEXT NOT NULL,
    weight INTEGER NOT NULL, concurrency INTEGER NOT NULL, names TEXT NOT NULL, joined INTEGER NOT NULL,
    lease_end INTEGER NOT NULL, is_leaving INTEGER NOT NULL, session INTEGER NOT NULL, call INTEGER NOT NULL,
    silent_since INTEGER NOT NULL DEFAULT 0, is_dead INTEGER NOT NULL DEFAULT 0,
    UNIQUE (pool, id));
CREATE TABLE IF NOT EXISTS keyed_slot (
    pool INTEGER NOT NULL, slot INTEGER NOT NULL, owner TEXT NOT NULL, epoch INTEGER NOT NULL, since INTEGER NOT NULL,
    why TEXT NOT NULL, before TEXT NOT NULL, PRIMARY KEY (pool, slot)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keyed_slot_owner ON keyed_slot (pool, owner) WHERE owner <> '';
CREATE TABLE IF NOT EXISTS keyed_active (
    pool INTEGER NOT NULL, worker TEXT NOT NULL, lane TEXT NOT NULL, place INTEGER NOT NULL, slot INTEGER NOT NULL,
    PRIMARY KEY (pool, worker, lane, place), UNIQUE (pool, worker, lane, slot)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keyed_mailbox (
    pool INTEGER NOT NULL, mailbox TEXT NOT NULL, number INTEGER NOT NULL, lane TEXT NOT NULL, slot INTEGER NOT NULL,
    state INTEGER NOT NULL, place INTEGER NOT NULL, depth INTEGER NOT NULL, tail INTEGER NOT NULL,
    failures INTEGER NOT NULL, losses INTEGER NOT NULL, deaths INTEGER NOT NULL, token INTEGER NOT NULL,
    worker TEXT NOT NULL, taken INTEGER NOT NULL, done INTEGER NOT NULL, is_borrowed INTEGER NOT NULL,
    unknown TEXT NOT NULL, since INTEGER NOT NULL, error BLOB NOT NULL, PRIMARY KEY (pool, mailbox)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keyed_mailbox_ready ON keyed_mailbox (pool, slot, lane, place) WHERE state = 0;
CREATE INDEX IF NOT EXISTS keyed_mailbox_running ON keyed_mailbox (pool, slot, place) WHERE state = 1;
CREATE INDEX IF NOT EXISTS keyed_mailbox_suspect ON keyed_mailbox (pool, worker) WHERE state = 1 AND lane = 's';
CREATE INDEX IF NOT EXISTS keyed_mailbox_borrowed ON keyed_mailbox (pool, place) WHERE state = 1 AND is_borrowed = 1;
CREATE INDEX IF NOT EXISTS keyed_mailbox_parked ON keyed_mailbox (pool, lane, unknown, place) WHERE state = 4;
CREATE INDEX IF NOT EXISTS keyed_mailbox_paused ON keyed_mailbox (pool, slot) WHERE state = 3;
CREATE TABLE IF NOT EXISTS keyed_job (
    pool INTEGER NOT NULL, box INTEGER NOT NULL, position INTEGER NOT NULL, raw BLOB NOT NULL,
    PRIMARY KEY (pool, box, position)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keyed_due (
    pool INTEGER NOT NULL, due INTEGER NOT NULL, number INTEGER NOT NULL, what TEXT NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (pool, due, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keyed_delayed (
    pool INTEGER NOT NULL, id TEXT NOT NULL, due INTEGER NOT NULL, slot INTEGER NOT NULL, mailbox TEXT NOT NULL,
    body BLOB NOT NULL, PRIMARY KEY (pool, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keyed_delayed_mailbox ON keyed_delayed (pool, mailbox);
CREATE TABLE IF NOT EXISTS keyed_paused (
    pool INTEGER NOT NULL, key TEXT NOT NULL, since INTEGER NOT NULL, by TEXT NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (pool, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keyed_act (
    number INTEGER PRIMARY KEY AUTOINCREMENT, pool INTEGER NOT NULL, at INTEGER NOT NULL, by TEXT NOT NULL,
    what TEXT NOT NULL, about TEXT NOT NULL, reason TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS keyed_act_pool ON keyed_act (pool, number);
CREATE TABLE IF NOT EXISTS keyed_cancelled (
    pool INTEGER NOT NULL, id TEXT NOT NULL, PRIMARY KEY (pool, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keyed_message (
    pool INTEGER NOT NULL, mailbox TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (pool, mailbox, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keyed_signal (
    pool INTEGER NOT NULL, worker TEXT NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, mailbox TEXT NOT NULL,
    job TEXT NOT NULL, note INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (pool, worker, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keyed_outcome (
    pool INTEGER NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL, status TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (pool, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keyed_outcome_until ON keyed_outcome (pool, until);
CREATE TABLE IF NOT EXISTS keyed_unique (
    pool INTEGER NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (pool, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keyed_unique_until ON keyed_unique (pool, until);
CREATE TABLE IF NOT EXISTS keyed_died (
    pool INTEGER NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (pool, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS keyed_dead (
    pool INTEGER NOT NULL, number INTEGER NOT NULL, slot INTEGER NOT NULL, mailbox TEXT NOT NULL, at INTEGER NOT NULL,
    reason BLOB NOT NULL, raw BLOB NOT NULL, attempts INTEGER NOT NULL, job TEXT NOT NULL,
    PRIMARY KEY (pool, number)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keyed_dead_job ON keyed_dead (pool, job);
CREATE TABLE IF NOT EXISTS keyed_batch (
    pool INTEGER NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL, number INTEGER NOT NULL, verdicts BLOB,
    PRIMARY KEY (pool, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keyed_batch_until ON keyed_batch (pool, until);
CREATE TABLE IF NOT EXISTS keyed_session (number INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS keyed_listener (
    pool TEXT NOT NULL, name TEXT NOT NULL, session INTEGER NOT NULL, rung INTEGER NOT NULL,
    PRIMARY KEY (pool, name, session)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keyed_listener_session ON keyed_listener (session);
"""

OF_A_POOL: Final = (
    "member", "slot", "active", "mailbox", "job", "due", "delayed", "paused", "cancelled", "message", "signal",
    "outcome", "unique", "died", "dead", "batch", "act",
)  # fmt: skip
"""Tables with rows of a pool."""
