"""What an operator means, found in a pool: for the commands and for the page, which do the same by the same words."""

from __future__ import annotations

from collections.abc import Sequence

from millpond._words import who
from millpond.errors import NotFound
from millpond.keyed import KeyedPool
from millpond.resources import HolderView, ResourcePool


class Ambiguous(ValueError):
    """It could mean several things."""


def held(pool: ResourcePool, resource: str, token: int | None) -> HolderView:
    """Return who holds a resource, under this token or as the only one."""
    found = [one for one in pool.holders() if resource in one.resources and token in (None, one.token)]
    if len(found) > 1:
        tokens = ", ".join(f"{one.token} of {who(one.id, one.host, one.pid)}" for one in found)
        raise Ambiguous(f"{pool.name}/{resource} has {len(found)} holders: say which by its token ({tokens})")
    if found:
        return found[0]
    raise NotFound(f"nobody holds {pool.name}/{resource}" + (f" under token {token}" if token else ""))


def retrying(pool: KeyedPool, ids: Sequence[str], key: str | None) -> list[str]:
    """Return the keys whose first job waits for its next try: of these jobs, this one, or all."""
    if key is not None:
        return [key]
    if not ids:
        return [job.key for job in pool.jobs(state="retry", limit=None)]
    found = {one: [job.key for job in pool.jobs(id=one, state="retry")] for one in ids}
    for one, keys in found.items():
        if not keys:
            raise NotFound(f"no job {one!r} waits for its next try; see the jobs of {pool.name!r} in state 'retry'")
    return [keys[0] for keys in found.values()]


def letters(given: Sequence[str]) -> list[int | str]:
    """Return dead letters as their pool takes them: numbers where they are numbers, else ids of jobs."""
    return [int(one) if one.isascii() and one.isdigit() and len(one) < 16 else one for one in given]


def unknown_job(pool: KeyedPool, job: str) -> str:
    """Say that no worker knows a job, and which they know; nothing: one does, or there is no worker."""
    known = {one for worker in pool.workers() for one in worker.jobs}
    return f"no worker knows {job!r}: they know {', '.join(sorted(known))}" if known and job not in known else ""
