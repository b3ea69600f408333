"""Bad input gets one clear error, at the door."""

from __future__ import annotations

import math
from typing import Any


def check_callable(value: Any, name: str = "fn") -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise TypeError(
            f"{name} must be callable, not {value!r}; pass the function itself and its arguments after it: submit(f, x)"
        )


def check_count(name: str, value: Any, least: int) -> int:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


def check_seconds(name: str, value: Any) -> float | None:
    """Refuse what is not a number of seconds, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, not {value!r}")
    if not value >= 0 or math.isinf(value):
        raise ValueError(f"{name} must be 0 or more seconds (None for no limit), not {value!r}")
    return float(value)
