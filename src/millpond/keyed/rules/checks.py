"""Checks of what users give, at the door: what gets past them must be good for every store."""

from __future__ import annotations

import datetime
import math
from typing import Any, Final

AGES: Final = 1e9
"""Seconds that are as good as for ever: three decades."""
LAST: Final = 1e11
"""The last moment, in seconds since the epoch."""


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


def check_timeout(value: Any) -> float | None:
    """Return for how many seconds to wait, None for as long as it takes; 0 when the time is over."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf <= value:
        raise ValueError(
            f"timeout= must be a number of seconds, or None to wait for as long as it takes, not {value!r}"
        )
    return None if value > AGES else max(0.0, value)


def check_seconds(value: Any, what: str, least: float = 0.0, most: float = AGES) -> float:
    """Return `value` if it is a number of seconds within these limits; else say what is wrong."""
    if not isinstance(value, bool) and isinstance(value, int | float) and least <= value <= most:
        return float(value) if value <= LAST else math.inf  # 10**400 is a whole number, too
    hint = "; write .total_seconds()" if isinstance(value, datetime.timedelta) else ""
    limits = f"from {least:g} on" if most >= AGES else f"from {least:g} to {most:,.0f}"
    raise ValueError(f"{what} must be a number of seconds, {limits}, not {value!r}{hint}")


def check_moment(value: Any, what: str) -> float:
    """Return a moment as seconds since the epoch, from a datetime that has a time zone, or from that number itself."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            raise ValueError(f"{what} needs a time zone, {value!r} has none: use datetime.now(timezone.utc) + ...")
        value = value.timestamp()
    if not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= LAST:
        return float(value)
    raise ValueError(
        f"{what} must be a datetime with a time zone, or seconds since the epoch, not {value!r}: "
        "for example datetime.now(timezone.utc) + timedelta(hours=1)"
    )
