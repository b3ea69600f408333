"""What a pool tells of itself: counts, a line of text, and a small picture for notebooks."""

from __future__ import annotations

import html
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of a pool's counts.

    Everything is derived from what the pool holds anyway, so reading it costs a little and keeping it nothing; the
    counts are exact when the pool is at rest and may be off by the tasks in motion while it works.
    """

    name: str
    """The name of the pool."""
    kind: str
    """`"threads"`, `"processes"`, `"asyncio"` or `"subpool"`."""
    max_workers: int
    """The most workers there may be."""
    workers: int
    """Workers alive now."""
    idle: int
    """Workers without a task."""
    queued: int
    """Tasks that wait."""
    running: int
    """Tasks that run."""
    submitted: int
    """Tasks taken in: those queued, running, completed and cancelled. One just ended may count twice for a moment."""
    completed: int
    """Tasks that returned or raised."""
    failed: int
    """Those of `completed` that raised."""
    cancelled: int
    """Tasks cancelled before they started, dropped ones included."""
    rejected: int
    """Tasks turned away because the pool was full (raised or dropped)."""
    waiting_submitters: int
    """Callers that wait for room in `submit`."""
    largest: int
    """The most workers there ever were at once."""
    state: str
    """`"open"`, `"paused"`, `"closed"` or `"broken"`."""
    abandoned: int = 0
    """Threads that still run a task past its time limit; they count as workers no more."""
    queueing_delay: float | None = None
    """Seconds that a task waited before it started, as last measured: 0.0 when none waits, None before the first time.

    `statistics()` measures it by sending an empty entry through the queue, so ask now and then, as a monitor does.
    """


def describe(now: Statistics) -> str:
    state = "" if now.state == "open" else f", {now.state}"
    busy = f"{now.running}/{now.max_workers} busy"
    failed = f" ({now.failed} failed)" if now.failed else ""
    return f"<{_CLASS[now.kind]} {now.name!r} {busy}, {now.queued} queued, {now.completed} done{failed}{state}>"


_CLASS = {"threads": "ThreadPool", "processes": "ProcessPool", "asyncio": "AsyncPool", "subpool": "SubPool"}


def to_html(now: Statistics) -> str:
    width, height = 240, 14
    unit = width / max(1, now.max_workers)
    busy, alive = unit * now.running, unit * now.workers
    cells = "".join(
        f"<td style='padding:0 .8em 0 0'>{label}<br><b>{value:,}</b></td>"
        for label, value in (
            ("queued", now.queued),
            ("running", now.running),
            ("completed", now.completed),
            ("failed", now.failed),
            ("cancelled", now.cancelled),
        )
    )
    title = html.escape(f"{_CLASS[now.kind]} {now.name}")
    return (
        f"<div style='font-family:sans-serif;font-size:13px'><b>{title}</b> &middot; {now.state} &middot; "
        f"{now.workers} of {now.max_workers} workers alive"
        f"<svg role='img' aria-label='{now.running} of {now.max_workers} workers busy' "
        f"width='{width}' height='{height}' style='display:block;margin:4px 0'>"
        f"<rect width='{width}' height='{height}' fill='#e5e7eb'/>"
        f"<rect width='{alive:.1f}' height='{height}' fill='#93c5fd'/>"
        f"<rect width='{busy:.1f}' height='{height}' fill='#2563eb'/></svg>"
        f"<table><tr>{cells}</tr></table></div>"
    )
