"""The settings of a pool, as people give them: checked, and in the units of the store."""

from __future__ import annotations

from typing import Any, Final

from millpond.keyed.rules.checks import check_seconds
from millpond.keyed.rules.records import SECOND

FIXED: Final = ("slots", "placement")
"""What cannot be changed once a pool was made: they say where every key stands."""
LIFTED: Final = ("max_jobs", "max_per_key", "max_dead")
"""The limits that a pool may do without."""
AGREED: Final = (*FIXED, "lease", "drain")
"""What a program that uses a pool must agree with, if it says anything: its workers go by it."""

_WHOLE: Final = {
    "slots": (1, 1 << 16),
    "payload_limit": (1, 512 << 20),
    "max_jobs": (1, 1 << 40),
    "max_per_key": (1, 1 << 40),
    "max_dead": (1, 1 << 40),
    "max_losses": (1, 1 << 20),
}
_SECONDS: Final = {"lease": 0.1, "drain": 0.0}


def checked_settings(lifted: tuple[str, ...] = (), **given: Any) -> dict[str, int]:
    """Return what was given, as the store keeps it; raise ValueError for what does not do.

    0 stands for no limit with those that may be `lifted`.
    """
    found = {name: value for name, value in given.items() if value is not None}
    return {name: 0 if name in lifted and value == 0 else _checked(name, value) for name, value in found.items()}


def shown_setting(name: str, value: Any) -> str:
    """Return a setting as people give it."""
    return f"{value / SECOND:g}" if name in _SECONDS else str(value)


def _checked(name: str, value: Any) -> int:
    if name in _SECONDS:
        return round(check_seconds(value, name, _SECONDS[name], 1e6) * SECOND)
    least, most = _WHOLE[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value
