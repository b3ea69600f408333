"""Durations and people, as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.resources import HolderView, WaiterView


def duration(seconds: float) -> str:
    """Return `4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    for size, name, rest_size, rest_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // rest_size
            return f"{whole // size} {name}" + (f" {rest} {rest_name}" if rest else "")
    return f"{whole} s"


def person(view: HolderView | WaiterView) -> str:
    """Return who that is: a name, and the process."""
    process = f"pid {view.pid} on {view.host}" if view.pid else view.host
    is_named = view.id and view.id not in (f"{view.host}:{view.pid}", str(view.pid))
    return f"{view.id} ({process})" if is_named else process


def held(view: HolderView) -> str:
    """Return who holds something, since when, and why."""
    reason = f": {view.reason}" if view.reason else ""
    suspect = f", suspect: {view.suspect}" if view.suspect else ""
    return f"{person(view)} has {', '.join(view.resources)} since {duration(view.held_for)}{reason}{suspect}"


def line(holders: Sequence[HolderView], waiters: Sequence[WaiterView], mine: int) -> str:
    """Return why one waits: who holds it, and how many are ahead."""
    ahead = sum(1 for one in waiters if one.position < mine) if mine else len(waiters)
    parts = [held(one) for one in holders[:3]]
    if len(holders) > 3:
        parts.append(f"and {len(holders) - 3} more hold something")
    parts.append("you are next" if not ahead else f"{ahead} {'is' if ahead == 1 else 'are'} ahead of you")
    return "; ".join(parts)
