"""What holding from outside of Python means: for `millpond run`, and for tests that are marked with what they hold.

A name that nobody has used so far becomes a lock, GPUs are found on this machine, and who asks for what a process
around it holds has it already: to wait for that would be to wait for itself.
"""

from __future__ import annotations

import difflib
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import click

from millpond import resources
from millpond._urls import shown
from millpond.cli import gpus
from millpond.cli.wanted import Wanted
from millpond.errors import Unsatisfiable
from millpond.resources import Grant, ResourcePool

NOT_THERE: Final = 66
HELD: Final = "MILLPOND_HELD"
"""The variable that tells a command, and runs inside it, what is held for it."""


class NotThere(click.ClickException):
    """What is wanted could not ever be had: there is no such pool, or nothing in it that would do."""

    exit_code = NOT_THERE


@dataclass
class Hold:
    """What is held of one pool."""

    pool: str
    resources: list[str]
    token: int
    url: str
    """Where, without a password: whoever uses it has the whole URL in MILLPOND_URL."""
    pid: int = field(default_factory=os.getpid)
    is_inner: bool = False
    """A process around this one holds it, or this one already."""

    @property
    def resource(self) -> str:
        """The first of them."""
        return self.resources[0]


def told() -> list[dict[str, Any]]:
    """Return what runs around this process hold, by the environment."""
    try:
        known = json.loads(os.environ.get(HELD, "[]"))
    except (ValueError, RecursionError):
        return []
    return [one for one in known if isinstance(one, dict)] if isinstance(known, list) else []


def telling(held: Sequence[Hold]) -> str:
    """Return what the variable says to those inside."""
    return json.dumps([*told(), *map(asdict, held)])


def host_of(url: str) -> str:
    """Return what the pools of a place call this machine."""
    return dict(parse_qsl(urlsplit(url).query)).get("machine") or socket.gethostname()


def held_around(pool: ResourcePool, url: str, wanted: Wanted, around: Mapping[int, int]) -> Hold | None:
    """Return what the processes `around` hold of what would do; refuse what is more than that.

    They are known by pid and by when they began: another pid namespace has the same pids.
    """
    where = shown(url)
    tokens = {one.get("token") for one in told() if (one.get("pool"), one.get("url")) == (pool.name, where)}
    here = host_of(url)
    for holder in pool.holders():
        is_around = holder.host == here and holder.pid in around and around[holder.pid] in (0, holder.started)
        if holder.token not in tokens and not is_around:
            continue
        labels = {each.name: each.labels for each in pool.resources()}
        fitting = [name for name in holder.resources if wanted.suits(name, labels.get(name, {}))]
        if len(fitting) < wanted.number:
            raise NotThere(
                f"the run around this one (pid {holder.pid}) holds {', '.join(holder.resources)} of {pool.name!r}, "
                f"and {wanted} is more than that: waiting for the rest could be waiting for ourselves, so ask for "
                "all of it there"
            )
        return Hold(pool.name, fitting, holder.token, where, holder.pid, is_inner=True)
    return None


def ensure(
    pool: ResourcePool, url: str, wanted: Wanted, *, may_create: bool, say: Callable[[str], None] | None = None
) -> None:
    """Make a lock of a name that nobody has used so far; or GPUs, of those that are here."""
    if there := pool.resources():
        if wanted.pool == gpus.POOL:
            _insist_on_index({one.name: one.labels for one in there if wanted.suits(one.name, one.labels)}, url)
        return
    if wanted.pool == gpus.POOL:
        found = gpus.discover()
        if not found:
            raise NotThere("there are no GPUs here: neither nvidia-smi nor rocm-smi knows of one")
        for one in found:
            pool.add(one.name, labels=one.labels, exist_ok=True)
    elif wanted.labels or wanted.number > 1:  # no lock is that: somebody is in the wrong place, or has added nothing
        raise NotThere(
            f"there is no {wanted.pool!r} at {shown(url)}, so nothing could ever satisfy {wanted}: add what it has "
            f"with {_adding(wanted)}, or say where it is with --url or MILLPOND_URL"
        )
    elif not may_create:
        raise NotThere(
            f"there is no {wanted.pool!r} at {shown(url)}: say --create to make it a lock, or add what "
            f"it has with {_adding(wanted)}"
        )
    else:
        pool.add(wanted.name or wanted.pool, exist_ok=True)
        if say is not None:
            others = [one for one in resources.pools(url) if one != wanted.pool]
            near = " and ".join(map(repr, difflib.get_close_matches(wanted.pool, others, 2)))
            say(f"{wanted.pool!r} is new: a lock of its own" + (f" (there is {near})" if near else ""))


def _insist_on_index(labels: Mapping[str, Mapping[str, str]], url: str) -> None:
    """Refuse GPUs that no variable could name: the command would see all of them, and so use those of others."""
    for name, has in labels.items():
        if "index" not in has:
            full = f"{gpus.POOL}/{name}"
            raise NotThere(
                f"{full} has no label `index`, from which CUDA_VISIBLE_DEVICES is set (at {shown(url)}): "
                f"`millpond remove {full}`, and when none is left `millpond run --gpus 1 -- true` adds the GPUs that "
                f"are here with their labels; or `millpond add {gpus.POOL} gpu-0 --label index=0`"
            )


def _adding(wanted: Wanted) -> str:
    """Return the command that would add what is wanted."""
    labels = "".join(f" --label {key}={value}" for key, value in wanted.labels)
    return f"`millpond add {wanted.pool} {wanted.name or 'NAME'}{labels}`"


def acquire(pool: ResourcePool, url: str, wanted: Wanted, **options: Any) -> Grant:
    """Wait for what is wanted, and return it; use it in a `with` block."""
    selector = gpus.allowed(wanted.labels) if wanted.pool == gpus.POOL else dict(wanted.labels) or None
    try:
        return pool.acquire(selector, name=wanted.name, count=wanted.number, **options)
    except Unsatisfiable:
        outer = gpus.limit() if wanted.pool == gpus.POOL else None
        within = f"{outer[0]} is {outer[1]} here, and allows no others; " if outer else ""
        raise NotThere(
            f"nothing of {pool.name!r} at {shown(url)} could ever satisfy {wanted}: {within}`millpond ls {pool.name}` "
            f"lists what there is, {_adding(wanted)} adds to it"
        ) from None


def variables(pool: ResourcePool, held: Hold) -> dict[str, str]:
    """Return the variables that let a program see the GPUs only that are held."""
    if held.pool != gpus.POOL:
        return {}
    labels = {each.name: dict(each.labels) for each in pool.resources()}
    mine = {name: labels.get(name, {}) for name in held.resources}
    _insist_on_index(mine, held.url)
    return gpus.variables(list(mine.values()))
