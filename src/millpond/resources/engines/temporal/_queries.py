"""A pool as people see it through Temporal's own tools, and a request in the words of its samples."""

from __future__ import annotations

from typing import Any, Final

from millpond.resources import _views
from millpond.resources._rules import commands
from millpond.resources._rules.records import HELD, Holder, Want
from millpond.resources._rules.replica import Replica

ROWS: Final = 20
"""Holders that the details in Temporal's UI show."""


def holders(replica: Replica, now: int) -> dict[str, Any]:
    """Return who holds each resource: null, one holder, or a list if it can have several."""
    state = replica.state
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in state.resources}
    for one in _views.holders(replica, now):
        told: dict[str, Any] = {"release_key": str(one.token), "token": one.token, "holder": one.id or one.host}
        if one.kind == "workflow":
            told |= {"workflow_id": one.id, "run_id": one.host}
        else:
            told |= {"host": one.host, "pid": one.pid}
        told |= {"state": one.state, "held_for": round(one.held_for, 3), "reason": one.reason}
        if one.suspect:
            told["suspect"] = one.suspect
        for name, units in one.units.items():
            found[name].append({**told, "units": units})
    return {
        name: hands if state.resources[name].capacity > 1 else (hands[0] if hands else None)
        for name, hands in found.items()
    }


def waiters(replica: Replica, now: int, first: int) -> list[dict[str, Any]]:
    """Return who waits, in the order of service: the first ones."""
    return [
        {
            "position": one.position,
            "holder": str(one),
            "asks_for": list(one.selectors),
            "request": one.request_id,
            "waiting_for": round(one.waiting_for, 3),
            "reason": one.reason,
            "why": one.why,
        }
        for one in _views.waiters(replica, now, first)
    ]


def details(replica: Replica) -> str:
    """Return a table of holders, as Markdown."""
    state = replica.state
    held = [one for one in state.requests.values() if one.state == HELD][:ROWS]
    rows = [f"| {', '.join(name for name, _ in one.shares)} | {one.holder} | {one.reason} |" for one in held]
    head = [f"{len(state.resources)} resources, {len(state.requests)} requests", ""]
    return "\n".join([*head, "| resource | holder | reason |", "|-|-|-|", *rows])


def sample_request(request: str, session: str, workflow_id: str, run_id: str) -> commands.Acquire:
    """Return the command for a request in the words of Temporal's samples."""
    holder = Holder("workflow", workflow_id, run_id)
    return commands.Acquire(request, session, 0, holder, (Want(),), sure=True, patient=True)
