"""Checks of what users give, at the door: what gets past them must be good for every store."""

from __future__ import annotations

from typing import Any


def check_text(value: Any, what: str, longest: int, *, empty: bool = False) -> str:
    """Return `value` as a plain string if it is a text of 1 to `longest` characters; else say what is wrong."""
    if type(value) is str and value.isascii() and 0 < len(value) <= longest:
        return value  # as nearly all are
    if not isinstance(value, str):
        raise TypeError(f"{what} is a string, not {value!r}; use str() or a stable text of it")
    if (not value and not empty) or len(value) > longest:
        raise ValueError(f"{what} has {0 if empty else 1} to {longest} characters, not {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be text that UTF-8 can write, not {value!r}") from None
    return value if type(value) is str else str.__str__(value)


def check_seconds(value: Any, what: str, least: float = 0.0, most: float = 1e9) -> float:
    """Return `value` if it is a number of seconds within these limits; else say what is wrong."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{what} must be seconds from {least:g} to {most:g}, not {value!r}")
    return float(value)
