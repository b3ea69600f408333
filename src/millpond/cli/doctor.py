"""`millpond doctor`: what this machine and a place are like, and what to do where something is wrong."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millpond import keyed, resources
from millpond._clock import elapsed
from millpond._urls import shown
from millpond.cli.place import Place
from millpond.cli.report import emit
from millpond.errors import PoolError

EXTRAS = {
    "hiredis": ("redis", "pools on Redis or Valkey in a fraction of the time"),
    "psycopg": ("postgres", "resource pools on PostgreSQL"),
    "temporalio": ("temporal", "resource pools on Temporal"),
    "uvicorn": ("web", "`millpond web`, the page and its JSON API"),
    "prometheus_client": ("metrics", "metrics for Prometheus"),
    "opentelemetry": ("otel", "traces"),
    "cloudpickle": ("pickle", "lambdas and local functions in process pools"),
}
FAR_AWAY = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "ceph", "glusterfs", "lustre", "afs")
SLOW = 0.02
"""Seconds that an answer may take."""


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is (`good`, `note` or `bad`), and what to do."""

    what: str
    state: str
    found: str
    remedy: str = ""


def run(place: Place, output: str) -> int:
    """Look at everything; return 1 if something is bad."""
    found = [*_python(), *_machine(), *_extras(), *_place(place)]
    columns: dict[str, Callable[[Any], str]] = {
        "what": lambda row: row["what"],
        "state": lambda row: row["state"],
        "found": lambda row: row["found"] + (f": {row['remedy']}" if row["remedy"] else ""),
    }
    emit([asdict(one) for one in found], columns, output)
    return int(any(one.state == "bad" for one in found))


def _python() -> Iterator[Finding]:
    version, is_old = platform.python_version(), sys.version_info < (3, 11)
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    is_early = not has_gil and sys.version_info < (3, 14)
    yield Finding(
        "Python",
        "bad" if is_old else "note" if is_early else "good",
        f"{platform.python_implementation()} {version}" + ("" if has_gil else ", without the GIL"),
        "use 3.11 or newer" if is_old else "use 3.14 or newer for that" if is_early else "",
    )
    old = sqlite3.sqlite_version_info < (3, 35)
    yield Finding(
        "SQLite", "bad" if old else "good", sqlite3.sqlite_version, "use a Python with 3.35 or newer" if old else ""
    )


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup("cpu.max")
    allowed = f"{cores} cores"
    if quota and quota.split()[0].isdigit():
        share = int(quota.split()[0]) / int(quota.split()[1])
        allowed += f", of which a limit of this container allows {share:g}"
        if share < cores:
            yield Finding("cores", "note", allowed, f"give pools {max(1, round(share))} workers, not {cores}")
        else:
            yield Finding("cores", "good", allowed)
    else:
        yield Finding("cores", "good", allowed)
    memory = _cgroup("memory.max")
    if memory.isdigit():
        yield Finding("memory", "note", f"a limit of this container allows {int(memory) / (1 << 30):.1f} GiB")


def _cgroup(name: str) -> str:
    try:
        return Path("/sys/fs/cgroup", name).read_text().strip()
    except OSError:
        return ""


def _extras() -> Iterator[Finding]:
    for module, (extra, use) in EXTRAS.items():
        if importlib.util.find_spec(module) is not None:
            version = getattr(importlib.import_module(module), "__version__", "") if module != "temporalio" else ""
            yield Finding(module, "good", f"installed {version}".strip())
        else:
            yield Finding(module, "note", "not installed; optional", f'pip install "millpond[{extra}]" for {use}')


def _place(place: Place) -> Iterator[Finding]:
    where = shown(place.url)
    if place.file is not None:
        yield from _file(place)
        if not place.is_own and not place.file.exists():
            yield _absent(place.file)
            return
    started = elapsed()
    is_redis = place.url.startswith(("redis", "unix", "valkey"))
    try:
        first, second = (keyed, resources) if is_redis else (resources, keyed)  # the quick one first: it is timed
        names = first.pools(place.url)
        took = elapsed() - started
        names += second.pools(place.url) if place.has_keys else ()
    except (PoolError, ValueError, ModuleNotFoundError, OSError) as error:
        yield Finding("place", "bad", str(error))
        return
    yield Finding("place", "good", f"{where} answers in {1e3 * took:.1f} ms, has {len(names)} pools")
    if is_redis:
        yield from _redis(place.url)


def _absent(file: Path) -> Finding:
    """Return what stands in the way of a file that is to be made; it is not made here, the name may be a slip."""
    if not file.parent.is_dir():
        return Finding("place", "bad", f"there is no folder {file.parent}", "make it first, or correct the URL")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        return Finding(
            "place", "bad", f"you may not write to {file.parent}", "choose another folder, or get the right to"
        )
    return Finding(
        "place", "note", f"there is no file {file}", "the first pool makes it; correct the URL if you expected one"
    )


def _file(place: Place) -> Iterator[Finding]:
    assert place.file is not None
    kind = _file_system(place.file.parent)
    if kind in FAR_AWAY:
        yield Finding(
            "file system",
            "bad",
            f"{place.file} is on {kind}",
            "locks and WAL of SQLite do not hold there: use a local disk, or redis:// between machines",
        )
    else:
        yield Finding("file system", "good", f"{place.file} is on {kind or 'a local disk'}")


def _file_system(folder: Path) -> str:
    best, found = -1, ""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, mount, kind, *_ = line.split(" ")
        root = mount.encode().decode("unicode_escape")
        is_around = str(folder) == root or str(folder).startswith(root.rstrip("/") + "/")
        if is_around and len(root) > best:
            best, found = len(root), kind
    return found


def _redis(url: str) -> Iterator[Finding]:
    info, took, clock = importlib.import_module("millpond.keyed.stores.redis").examine(url)
    version = str(info.get("valkey_version") or info.get("redis_version"))
    yield Finding("server", "good", f"{'Valkey' if 'valkey_version' in info else 'Redis'} {version}")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    is_lossy = int(info.get("maxmemory", 0)) > 0 and policy != "noeviction"
    remedy = "set maxmemory-policy noeviction" if is_lossy else ""
    yield Finding("eviction", "bad" if is_lossy else "good", policy, remedy)
    is_log = info.get("aof_enabled") == "1"
    yield Finding(
        "persistence",
        "good" if is_log else "note",
        "append-only file" if is_log else "snapshots, or none",
        "" if is_log else "after a crash of the server the last jobs are gone: set appendonly yes",
    )
    median = statistics.median(took)
    slow = "workers and producers should be nearer" if median > SLOW else ""
    yield Finding("latency", "note" if slow else "good", f"{1e3 * median:.2f} ms", slow)
    apart = abs(time.time() - clock)
    late = "set the clocks by NTP: at= means the clock of the server" if apart > 1 else ""
    yield Finding("clock", "note" if late else "good", f"{apart:.2f} s apart from this machine", late)
