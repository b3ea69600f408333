"""A keyed pool as people look at it. Ages and durations are seconds, times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from millpond.keyed.rules.envelope import came, opened, stamped
from millpond.keyed.rules.records import (
    SECOND,
    Act,
    Counts,
    DeadLetter,
    Delayed,
    KeyView,
    Paused,
    PoolState,
    Slot,
    key_of,
)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker."""

    id: str
    """Its id: a new one each time it joins."""
    label: str
    """Host and pid."""
    weight: int
    """Its share of the keys beside others."""
    concurrency: int
    """Keys whose jobs it runs at a time."""
    jobs: tuple[str, ...]
    """The names that it can run."""
    joined_at: float
    """When it joined."""
    lease_left: float
    """Less than 0: it is silent, and others will take over."""
    slots: int
    """Shares of the key space that it owns."""
    is_leaving: bool
    """Whether it was told to leave and ends what it runs."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """A share of the keys."""

    number: int
    """Its number, from 0."""
    owner: str
    """The id of a worker; empty: nobody."""
    epoch: int
    """Grows each time its owner changes."""
    since: float
    """Since when its owner has it."""
    why: str
    """Why it moved: `rebalanced`, `left`, `died` (its owner before did), `free` (nobody had it), `nobody yet`."""
    before: str
    """Who owned it before."""


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key that has jobs."""

    key: str
    """The key."""
    slot: int
    """The share of the key space that it belongs to."""
    depth: int
    """Jobs that have not ended, the running one included."""
    oldest_age: float
    """How long its oldest job has been there."""
    state: str
    """`ready`, `running`, `retry` (waits to be tried again), `paused` or `parked` (no worker knows its job)."""
    worker: str
    """Who runs it, or owns it."""
    owner_since: float
    """Since when that worker owns it."""
    why: str
    """Why its slot is where it is: see `SlotView.why`."""
    failures: int
    """Failed attempts of its oldest job."""
    losses: int
    """Workers that died while they ran its oldest job; a lost lease counts for a fifth."""


@dataclass(frozen=True, slots=True)
class ResidentView:
    """A resident."""

    name: str
    """The name of its handler."""
    key: str
    """Its key."""
    id: str
    """The id of this start."""
    arguments: dict[str, Any]
    """What it was started with."""
    state: str
    """`running`, `ready`, `retry` (it failed and waits), `paused` or `parked` (no worker knows it)."""
    worker: str
    """Who runs it, or owns its key."""
    started_at: float
    """When it was asked for."""
    failures: int
    """How often it has failed in a row."""
    error: str
    """How it has failed the last time."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job that has not ended, or is dead."""

    id: str
    """Its id, as in the receipt."""
    key: str
    """Its key."""
    name: str
    """The name of its handler."""
    state: str
    """`waiting`, `running` (a worker has it), `retry` (it failed and is tried again), `paused`, `parked` (no worker
    knows it), `delayed` or `dead`."""
    dispatched_at: float | None
    """When it entered its key; None: it has not yet."""
    due_at: float | None
    """When it enters its key, if it is delayed, or is tried again."""
    worker: str
    """Who runs it."""
    running_since: float | None
    """Since when that worker has it."""
    attempts: int
    """How often it was begun."""
    error: str
    """How it has failed the last time, or why it is dead; a traceback may follow the first line."""
    died_at: float | None
    """When it became a dead letter."""
    number: int | None
    """Its number among the dead letters."""
    arguments: Any
    """What it was dispatched with, by parameter."""


@dataclass(frozen=True, slots=True)
class PauseView:
    """A key, or the whole pool, of which nothing may begin."""

    key: str | None
    """None: the whole pool."""
    since: float
    """Since when."""
    by: str
    """Who paused it: user and host, unless somebody said otherwise."""
    reason: str
    """Why."""


@dataclass(frozen=True, slots=True)
class ActView:
    """What a person did to the pool."""

    time: float
    """When."""
    by: str
    """Who: user and host, unless somebody said otherwise."""
    what: str
    """`pause`, `resume`, `purge`, `cancel`, `retry`, `replay`, `discard`, `configure`, `shutdown`, or a `note`."""
    about: str
    """A key, jobs, or settings; empty: the whole pool."""
    reason: str
    """Why."""


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A job that will not be run any more, unless it is replayed."""

    number: int
    """Its number among the dead letters."""
    key: str
    """Its key."""
    id: str
    """Its id, as in the receipt."""
    name: str
    """The name of its handler."""
    reason: str
    """The first line says why; a traceback may follow."""
    dispatched_at: float
    """When it was dispatched."""
    died_at: float
    """When it was given up."""
    attempts: int
    """How often it was begun."""
    arguments: Any
    """What it was dispatched with, by parameter."""


@dataclass(frozen=True, slots=True)
class KeyedStatistics:
    """How a pool stands, and what it has done since it was created."""

    jobs: int
    """Waiting or running."""
    keys_ready: int
    """Keys that have a job which could run now."""
    keys_running: int
    """Keys of which a job runs."""
    delayed: int
    """Jobs that wait for their time."""
    dead: int
    """Dead letters."""
    residents: int
    """Residents that were started and not stopped."""
    workers: int
    """Workers that are members."""
    oldest_age: float
    """How long the oldest job has waited that could run now: scale by this. 0 when nothing waits, or the pool is
    paused or shut down."""
    dispatched_total: int
    """Jobs dispatched."""
    done_total: int
    """Jobs that returned."""
    retried_total: int
    """Attempts that failed and were tried again."""
    dead_total: int
    """Jobs that became dead letters."""
    recovered_total: int
    """Keys that were taken over from a dead worker while one of their jobs ran."""
    moved_total: int
    """Slots that changed their owner."""
    is_paused: bool
    """Whether the whole pool is paused."""
    is_shut: bool
    """Whether the pool was shut down."""


def workers(state: PoolState, owners: Iterable[str]) -> list[WorkerView]:
    """Return the members, the oldest first."""
    owned: dict[str, int] = {}
    for owner in owners:
        owned[owner] = owned.get(owner, 0) + 1
    return [
        WorkerView(
            each.id,
            each.label,
            each.weight,
            each.concurrency,
            each.names,
            each.joined / SECOND,
            (each.lease_end - state.now) / SECOND,
            owned.get(each.id, 0),
            each.is_leaving,
        )
        for each in sorted(state.members, key=lambda member: (member.joined, member.id))
    ]


def slots(found: Iterable[Slot]) -> list[SlotView]:
    """Return all slots."""
    return [
        SlotView(number, each.owner, each.epoch, each.since / SECOND, each.why, each.before)
        for number, each in enumerate(found)
    ]


def key(each: KeyView, now: int) -> KeyInfo:
    """Return a key that has jobs."""
    return KeyInfo(
        key_of(each.mailbox),
        each.slot,
        each.depth,
        max(0, now - each.oldest) / SECOND,
        each.state,
        each.worker,
        each.owned / SECOND,
        each.why,
        each.failures,
        each.losses,
    )


def resident(view: KeyView) -> ResidentView:
    """Return a resident."""
    envelope = opened(view.last)
    arguments = _arguments(envelope.payload)
    return ResidentView(
        view.mailbox.split(":", 2)[1],
        key_of(view.mailbox),
        envelope.id,
        arguments if isinstance(arguments, dict) else {},
        view.state,
        view.worker,
        view.oldest / SECOND,
        view.failures,
        view.error.decode(errors="replace"),
    )


def job(view: KeyView, raw: bytes, index: int) -> JobView:
    """Return a job by its place in a mailbox."""
    envelope, is_taken = opened(raw), index < view.taken
    state, due, attempts, error = "waiting", None, 0, ""
    if is_taken:
        state = "running"
    elif view.state == "paused" or (view.state in ("retry", "parked") and not index):
        state = view.state
    if not index:
        attempts = view.failures + view.losses + (state == "running")
        due, error = view.due / SECOND if view.due else None, view.error.decode(errors="replace")
    return JobView(
        envelope.id,
        key_of(view.mailbox),
        envelope.name,
        state,
        came(raw) / SECOND,
        due,
        view.worker if is_taken else "",
        view.token / SECOND if is_taken else None,
        attempts,
        error,
        None,
        None,
        _arguments(envelope.payload),
    )


def delayed_job(one: Delayed) -> JobView:
    """Return a job that enters its key later."""
    envelope = opened(stamped(0, one.body))
    key, arguments = key_of(one.mailbox), _arguments(envelope.payload)
    due = one.due / SECOND
    return JobView(envelope.id, key, envelope.name, "delayed", None, due, "", None, 0, "", None, None, arguments)


def dead_job(one: DeadLetterView) -> JobView:
    """Return a dead letter as a job."""
    return JobView(
        one.id,
        one.key,
        one.name,
        "dead",
        one.dispatched_at,
        None,
        "",
        None,
        one.attempts,
        one.reason,
        one.died_at,
        one.number,
        one.arguments,
    )


def dead_letter(each: DeadLetter) -> DeadLetterView:
    """Return a dead letter."""
    envelope = opened(each.job)
    return DeadLetterView(
        each.number,
        key_of(each.mailbox),
        envelope.id,
        envelope.name,
        each.reason.decode(errors="replace"),
        came(each.job) / SECOND,
        each.at / SECOND,
        each.attempts,
        _arguments(envelope.payload),
    )


def pause(one: Paused) -> PauseView:
    """Return what is paused."""
    return PauseView(one.key or None, one.since / SECOND, one.by, one.reason)


def act(one: Act) -> ActView:
    """Return what a person did."""
    return ActView(one.at / SECOND, one.by, one.what, one.about, one.reason)


def statistics(counts: Counts, workers: int) -> KeyedStatistics:
    """Return how the pool stands."""
    waits = counts.oldest and not counts.is_paused and not counts.is_shut
    return KeyedStatistics(
        counts.jobs,
        counts.keys_ready,
        counts.keys_running,
        counts.delayed,
        counts.dead,
        counts.residents,
        workers,
        max(0, counts.now - counts.oldest) / SECOND if waits else 0.0,
        counts.dispatched,
        counts.done,
        counts.retried,
        counts.dead_total,
        counts.recovered,
        counts.moved,
        counts.is_paused,
        counts.is_shut,
    )


def _arguments(payload: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(payload)
    except msgspec.DecodeError:
        return payload
