"""A whole pool at rest, as it is stored and sent. New trailing fields may be added."""

from __future__ import annotations

from msgspec import Struct

from millpond.resources._rules.changes import Act
from millpond.resources._rules.records import Ending, Group, Request, Resource, Settings


class Image(Struct, array_like=True):
    """A whole pool at rest."""

    seq: int
    token: int
    turn: int
    settings: Settings
    resources: list[Resource]
    requests: list[Request]
    groups: list[Group]
    endings: list[Ending]
    marks: dict[str, int]  # always empty; older versions expect it
    grants: int = 0
    used: list[Ending] = []
    acts: list[Act] = []
