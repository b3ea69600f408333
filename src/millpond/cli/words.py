"""What is told of holders and waiters, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millpond._words import duration, who

if TYPE_CHECKING:
    from millpond.resources import HolderView, WaiterView


def plain(text: object) -> str:
    """Return text in one line, without what would move a terminal."""
    return "".join(one if one.isprintable() else " " for one in str(text))


def person(view: HolderView | WaiterView) -> str:
    """Return who that is: a name, and the process."""
    return plain(who(view.id, view.host, view.pid))


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
