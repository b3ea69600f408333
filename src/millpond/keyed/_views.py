"""A keyed pool as people look at it. Ages and durations are seconds, times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from millpond.keyed._envelope import came, opened
from millpond.keyed._records import SECOND, Beat, Counts, DeadLetter, KeyView, Slot


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker."""

    id: str
    label: str
    """Host and pid."""
    weight: int
    concurrency: int
    jobs: tuple[str, ...]
    """The names that it can run."""
    joined_at: float
    lease_left: float
    """Less than 0: it is silent, and others will take over."""
    slots: int
    is_leaving: bool


@dataclass(frozen=True, slots=True)
class SlotView:
    """A share of the keys."""

    number: int
    owner: str
    """The id of a worker; empty: nobody."""
    epoch: int
    since: float
    why: str
    """Why it moved: `rebalanced`, `left`, `died` (its owner before did), `free` (nobody had it), `nobody yet`."""
    before: str
    """Who owned it before."""


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key that has jobs."""

    key: str
    slot: int
    depth: int
    """Jobs that have not ended, the running one included."""
    oldest_age: float
    state: str
    """`ready`, `running`, `retry` (waits to be tried again), `held` (paused) or `shelved` (no worker knows its job)."""
    worker: str
    """Who runs it, or owns it."""
    owner_since: float
    why: str
    """Why its slot is where it is: see `SlotView.why`."""
    failures: int
    losses: int


@dataclass(frozen=True, slots=True)
class ResidentView:
    """A resident."""

    name: str
    key: str
    id: str
    arguments: dict[str, Any]
    state: str
    """`running`, `ready`, `retry` (it failed and waits), `held` or `shelved`."""
    worker: str
    started_at: float
    """When it was asked for."""
    failures: int


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A job that will not be run any more, unless it is replayed."""

    number: int
    key: str
    id: str
    name: str
    reason: str
    """The first line says why; a traceback may follow."""
    dispatched_at: float
    died_at: float
    arguments: Any


@dataclass(frozen=True, slots=True)
class KeyedStatistics:
    """How a pool stands, and what it has done since it was created."""

    jobs: int
    """Waiting or running."""
    keys_ready: int
    keys_running: int
    delayed: int
    dead: int
    residents: int
    workers: int
    oldest_age: float
    """How long the oldest job has waited that could run now: scale by this. 0 when nothing waits."""
    dispatched_total: int
    done_total: int
    retried_total: int
    dead_total: int
    recovered_total: int
    moved_total: int
    is_paused: bool
    is_shut: bool


def workers(beat: Beat, owners: Iterable[str]) -> list[WorkerView]:
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
            (each.lease_end - beat.now) / SECOND,
            owned.get(each.id, 0),
            each.is_leaving,
        )
        for each in sorted(beat.members, key=lambda member: (member.joined, member.id))
    ]


def slots(found: Iterable[Slot]) -> list[SlotView]:
    """Return all slots."""
    return [
        SlotView(number, each.owner, each.epoch, each.since / SECOND, each.why, each.before)
        for number, each in enumerate(found)
    ]


def keys(found: Iterable[KeyView], table: list[Slot], now: int) -> list[KeyInfo]:
    """Return keys, with what their slots tell."""
    return [
        KeyInfo(
            each.mailbox[2:],
            each.slot,
            each.depth,
            max(0, now - each.oldest) / SECOND,
            each.state,
            each.worker,
            table[each.slot].since / SECOND,
            table[each.slot].why,
            each.failures,
            each.losses,
        )
        for each in found
    ]


def residents(found: Iterable[tuple[KeyView, bytes]]) -> list[ResidentView]:
    """Return residents."""
    views = []
    for view, raw in found:
        name, _, key = view.mailbox[2:].partition(":")
        envelope = opened(raw)
        arguments = _arguments(envelope.payload)
        views.append(
            ResidentView(
                name,
                key,
                envelope.id,
                arguments if isinstance(arguments, dict) else {},
                view.state,
                view.worker,
                view.oldest / SECOND,
                view.failures,
            )
        )
    return sorted(views, key=lambda one: (one.name, one.key))


def dead_letters(found: Iterable[DeadLetter]) -> list[DeadLetterView]:
    """Return dead letters."""
    views = []
    for each in found:
        envelope = opened(each.job)
        key = each.mailbox.split(":", 2 if each.mailbox[0] == "r" else 1)[-1]
        reason = each.reason.decode(errors="replace")
        views.append(
            DeadLetterView(
                each.number,
                key,
                envelope.id,
                envelope.name,
                reason,
                came(each.job) / SECOND,
                each.at / SECOND,
                _arguments(envelope.payload),
            )
        )
    return views


def statistics(counts: Counts, workers: int) -> KeyedStatistics:
    """Return how the pool stands."""
    return KeyedStatistics(
        counts.jobs,
        counts.keys_ready,
        counts.keys_running,
        counts.delayed,
        counts.dead,
        counts.residents,
        workers,
        max(0, counts.now - counts.oldest) / SECOND if counts.oldest else 0.0,
        counts.dispatched,
        counts.done,
        counts.retried,
        counts.buried,
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
