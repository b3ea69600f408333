"""Who asks and holds, as a pool's workflow writes it.

| session                    | who                                                  | how it is told                |
|----------------------------|------------------------------------------------------|-------------------------------|
| `w:<workflow id>/<chain>`  | a workflow; the chain is the id of its first run     | signal `millpond`             |
| `s:<workflow id>/`         | one that speaks as Temporal's resource_pool sample   | `assign_resource_<pool's id>` |
| `l:<workflow id>/<run>`    | one that speaks as its resource_locking sample did   | `assign_resource`             |
| `p:<anything>`             | a process                                            | it reads the pool's history   |

A chain outlives continue-as-new, retries, cron and reset: all of these keep the id of the first run.
"""

from __future__ import annotations


def of_workflow(workflow_id: str, chain: str, kind: str = "w") -> str:
    """Return the session of a workflow."""
    return f"{kind}:{workflow_id}/{chain}"


def is_workflow(session: str) -> bool:
    """Return whether a session is a workflow's, so that its end can be proved."""
    return session[:2] in ("w:", "s:", "l:")


def is_process(session: str) -> bool:
    """Return whether a session is a process's, of which nobody can prove anything."""
    return session.startswith("p:")


def workflow_of(session: str) -> tuple[str, str]:
    """Return a workflow's id and chain."""
    workflow_id, _, chain = session[2:].rpartition("/")
    return workflow_id, chain
