"""From what a user says to what the core understands: every argument is checked here, with an error that guides.

What passes is of the plain types `str`, `int` and `bool`, and can be written by every engine: a subclass, or a number
in the place of a flag, would be kept, and make the pool unreadable for everybody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from millpond.resources._rules import selectors
from millpond.resources._rules.placement import POLICIES
from millpond.resources._rules.records import ALL, Want
from millpond.resources._rules.selectors import Labels, Selector

REASON: Final = 1000
"""Characters of a reason; more is cut off."""
NAME: Final = 1000
"""Characters of a name; more is refused."""
PRIORITY: Final = 1_000_000
"""The highest priority, and below zero the lowest."""
MOST: Final = 2**53
"""The largest whole number that every engine can keep."""
AGES: Final = 1e10
"""Seconds that are as good as for ever: three centuries."""
_ONE: Final = Want()
Units = int | Literal["all"]


def want(selector: Selector | None = None, /, *, name: str | None = None, count: int = 1, units: Units = 1) -> Want:
    """Describe one part of a bundle: `count` different resources that match, `units` of each ("all": the whole)."""
    text = _readable(selectors.write(selector, name=name), "a selector")
    if units == "all":
        units = ALL
    elif not _is_whole(units) or not 1 <= units <= MOST:
        raise ValueError(f"units must be a whole number from 1 on, or 'all', not {units!r}")
    if not _is_whole(count) or not 1 <= count <= MOST:
        raise ValueError(f"count must be a whole number from 1 on, not {count!r}")
    if name is not None and count > 1:
        raise ValueError(f"count={count} of the one resource {name!r}: use units= for several units of one resource")
    return Want(text, int(count), int(units))


def bundle(parts: Iterable[Selector | Want]) -> tuple[Want, ...]:
    """Return the wants of a bundle."""
    if isinstance(parts, str | Mapping):
        raise TypeError(f"acquire_all takes a list of selectors, not {parts!r}: put it into a list, or use acquire")
    wants = tuple(one if isinstance(one, Want) else want(one) for one in parts)
    if not wants:
        raise ValueError("acquire_all needs at least one selector")
    return wants


def microseconds(value: float | None, name: str, least: float = 0.0) -> int:
    """Return a duration as whole microseconds, 0 for None and for ages."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be seconds as a number, or None, not {value!r}")
    if math.isnan(value) or value < least:
        raise ValueError(f"{name} must be at least {least:g} seconds, not {value!r}")
    return 0 if value > AGES else max(1, int(value * 1_000_000))


def text(value: str | None, name: str) -> str:
    """Return a text, "" for None."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {value!r}")
    return value[:REASON].encode(errors="backslashreplace").decode()


def why(value: object) -> str:
    """Return the reason for what an operator does, which must be given."""
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"reason= must say why, in a few words that others will read, not {value!r}")
    return text(value, "reason")


def name(value: object, what: str) -> str:
    """Return a name, which must not be empty."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"{what} must be a non-empty string, not {value!r}")
    if len(value) > NAME:
        raise ValueError(f"{what} must have at most {NAME} characters, not {len(value)}: {value[:40]!r}...")
    return _readable(value, what)


def labels(value: Labels | None) -> dict[str, str]:
    """Return labels as text to text."""
    found = selectors.labels_of(value)
    return {_readable(key, "a label"): _readable(one, "a label") for key, one in found.items()}


def chosen_id(value: object) -> str:
    """Return a request id that the user chose."""
    if isinstance(value, str) and value.startswith("#"):
        raise ValueError(f"request_id must not begin with '#', as {value!r} does: ids made by Millpond do")
    return name(value, "request_id")


def whole(value: int, name: str, least: int | None = None) -> int:
    """Return a whole number."""
    if not _is_whole(value):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, not {value!r}")
    if abs(value) > MOST:
        raise ValueError(f"{name} must be at most {MOST}, not {value!r}")
    return int(value)


def priority(value: int) -> int:
    """Return a priority. It is bounded: with ageing it is multiplied by microseconds, and an operator goes first."""
    if abs(whole(value, "priority")) > PRIORITY:
        raise ValueError(f"priority must be between {-PRIORITY} and {PRIORITY}, not {value!r}")
    return int(value)


def flag(value: object, name: str) -> bool:
    """Return a flag: True or False, and nothing that is merely as good as one."""
    if value is not True and value is not False:
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def policy(placement: object, *, registered: bool = False) -> str:
    """Return the name of a placement policy; of any, if the pool has some of its own."""
    if not isinstance(placement, str) or not (placement in POLICIES or (registered and placement)):
        raise ValueError(f"placement {placement!r} is not known: use a callable or one of {', '.join(POLICIES)}")
    return _readable(placement, "placement")


def _readable(value: str, what: str) -> str:
    """Return plain text; refuse what cannot be written as UTF-8, such as a file's name in another encoding."""
    if type(value) is not str:
        value = str.__str__(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{what} must be plain Unicode, without lone surrogates, not {value!r}") from None
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
