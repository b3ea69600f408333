"""Durations and people, as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.resources import HolderView, WaiterView


def plain(text: object) -> str:
    """Return text in one line, without what would move a terminal."""
    return "".join(one if one.isprintable() else " " for one in str(text))


def duration(seconds: float) -> str:
    """Return `4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    for size, name, rest_size, rest_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // rest_size
            return f"{whole // size} {name}" + (f" {rest} {rest_name}" if rest else "")
    return f"{whole} s"


def person(view: HolderView | WaiterView) -> str:
    """Return who that is: a name, and the process."""
    process = f"pid {view.pid} on {view.host}" if view.pid else view.host
    is_named = view.id and view.id not in (f"{view.host}:{view.pid}", str(view.pid))
    if not is_named:
        return plain(process)
    return plain(f"{view.id} ({process})" if process else view.id)


def held(view: HolderView) -> str:
    """Return who holds something, since when, and why."""
    reason = f": {view.reason}" if view.reason else ""
    suspect = f", suspect: {view.suspect}" if view.suspect else ""
    return plain(f"{person(view)} has {', '.join(view.resources)} since {duration(view.held_for)}{reason}{suspect}")


def line(holders: Sequence[HolderView], waiters: Sequence[WaiterView], mine: WaiterView | None) -> str:
    """Return why one waits: who holds it, how many are ahead, or what else is in the way."""
    parts = [held(one) for one in holders[:3]]
    if len(holders) > 3:
        parts.append(f"and {len(holders) - 3} more hold something")
    if not holders and mine is not None:
        parts.append(plain(mine.why))
    ahead = len(waiters) if mine is None else sum(one.position < mine.position for one in waiters)
    parts.append("you are next" if not ahead else f"{ahead} {'is' if ahead == 1 else 'are'} ahead of you")
    return "; ".join(parts)
