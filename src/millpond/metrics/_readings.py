"""A pool of each kind, read into metrics by its public face."""

from __future__ import annotations

from typing import Final

from millpond import KeyedPool, ResourcePool, Statistics
from millpond.metrics._families import Readings

LOCAL, KEYED, RESOURCES = "local", "keyed", "resources"
LENT: Final = ("free", "held")


def read_local(now: Statistics, readings: Readings) -> None:
    """Read a pool of threads, processes or coroutines."""
    pool = now.name, LOCAL
    add = readings.add
    add("millpond_up", pool, 1)
    add("millpond_queue_oldest_age_seconds", pool, now.queueing_delay or 0.0)
    add("millpond_queue_depth", pool, now.queued)
    add("millpond_running", pool, now.running)
    add("millpond_pool_limit", pool, now.max_workers)
    add("millpond_pool_paused", pool, now.state == "paused")
    add("millpond_pool_closed", pool, now.state in ("closed", "broken"))
    add("millpond_workers", (*pool, "idle"), now.idle)
    add("millpond_workers", (*pool, "busy"), max(0, now.workers - now.idle))
    add("millpond_jobs_submitted_total", pool, now.submitted)
    for outcome, number in (
        ("ok", max(0, now.completed - now.failed)),
        ("error", now.failed),
        ("cancelled", now.cancelled),
        ("rejected", now.rejected),
    ):
        add("millpond_jobs_finished_total", (*pool, outcome), number)


def read_keyed(face: KeyedPool, readings: Readings) -> None:
    """Read a keyed pool from its store."""
    now, workers = face.statistics(), face.workers()
    pool = face.name, KEYED
    add = readings.add
    add("millpond_up", pool, 1)
    add("millpond_queue_oldest_age_seconds", pool, now.oldest_age)
    add("millpond_queue_depth", pool, max(0, now.jobs - now.keys_running))
    add("millpond_running", pool, now.keys_running)
    add("millpond_pool_limit", pool, sum(each.concurrency for each in workers if each.lease_left > 0))
    add("millpond_pool_paused", pool, now.is_paused)
    add("millpond_pool_closed", pool, now.is_shut)
    for state in ("active", "draining", "lost"):
        add("millpond_workers", (*pool, state), 0)
    for each in workers:
        state = "lost" if each.lease_left <= 0 else "draining" if each.is_leaving else "active"
        add("millpond_workers", (*pool, state), 1)
    add("millpond_jobs_submitted_total", pool, now.dispatched_total)
    add("millpond_jobs_finished_total", (*pool, "ok"), now.done_total)
    add("millpond_jobs_finished_total", (*pool, "error"), now.dead_total)
    add("millpond_jobs_delayed", pool, now.delayed)
    add("millpond_dead_letters", pool, now.dead)
    add("millpond_job_retries_total", pool, now.retried_total)
    add("millpond_keys", (*pool, "ready"), now.keys_ready)
    add("millpond_keys", (*pool, "running"), now.keys_running)
    add("millpond_residents", pool, now.residents)
    add("millpond_slot_moves_total", pool, now.moved_total)
    add("millpond_keys_recovered_total", pool, now.recovered_total)


def read_resources(face: ResourcePool, readings: Readings) -> None:
    """Read a resource pool from its engine."""
    now = face.statistics()
    pool = face.name, RESOURCES
    add = readings.add
    add("millpond_up", pool, 1)
    add("millpond_queue_oldest_age_seconds", pool, now.oldest_wait)
    add("millpond_pool_limit", pool, now.units)
    add("millpond_pool_paused", pool, bool(now.paused))
    for state in LENT:
        add("millpond_resources", (*pool, state), 0)
    for each in face.resources():
        state = each.state if each.state != "active" else "free" if each.free else "held"
        add("millpond_resources", (*pool, state), 1)
    add("millpond_units", (*pool, "free"), now.free_units)
    add("millpond_units", (*pool, "held"), max(0, now.units - now.free_units))
    add("millpond_waiters", pool, now.waiting + now.away)
    add("millpond_holders", pool, now.held)
    add("millpond_suspects", pool, now.suspects)
    add("millpond_hold_oldest_age_seconds", pool, now.oldest_hold)
    add("millpond_grants_total", pool, now.grants_total)
