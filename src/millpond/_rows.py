"""Views and events as plain rows: what the commands print and the page's API answers, for people and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

DEEPEST = 20
"""Containers within containers that are shown of a job's arguments."""


def record(view: Any) -> dict[str, Any]:
    """Return a view as a plain dictionary."""
    return {field.name: plain(getattr(view, field.name)) for field in dataclasses.fields(view)}


def event_record(event: Any) -> dict[str, Any]:
    """Return an event as a plain dictionary."""
    return {"time": event.time, "event": event.name, "pool": event.pool, **plain(event.data)}


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as lists, dictionaries and what these hold; bytes as text."""
    if isinstance(value, Mapping | list | tuple) and depth > DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        return {str(key): plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, depth + 1) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value
