"""What `--hold` says: `gpus`, `gpus:2`, `gpus{model=a100}`, `gpus/gpu-0`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import click

_SHAPE = re.compile(r"(?P<pool>[^:{}/=\s]+)(/(?P<name>[^:{}\s]+))?(:(?P<count>\d+))?(\{(?P<labels>[^{}]*)\})?")


class Wanted(NamedTuple):
    """Resources of one pool."""

    pool: str
    name: str | None = None
    number: int = 1
    labels: tuple[tuple[str, str], ...] = ()

    def suits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a resource of the pool would do."""
        return self.name in (None, name) and all(labels.get(key) == value for key, value in self.labels)

    def __str__(self) -> str:
        name = f"/{self.name}" if self.name else ""
        count = f":{self.number}" if self.number > 1 else ""
        labels = "{" + ",".join(f"{key}={value}" for key, value in self.labels) + "}" if self.labels else ""
        return f"{self.pool}{name}{count}{labels}"


def parse(text: str) -> Wanted:
    """Read what somebody wants to hold."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not NAME[/RESOURCE][:COUNT][{{LABEL=VALUE,...}}]", param_hint="--hold")
    count = int((match["count"] or "1")[:9])
    labels = []
    for part in (match["labels"] or "").split(",") if match["labels"] else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{part!r} in {text!r} is not LABEL=VALUE", param_hint="--hold")
        labels.append((key.strip(), value.strip()))
    if count < 1:
        raise click.BadParameter(f"{text!r} asks for nothing", param_hint="--hold")
    if match["name"] and (count > 1 or labels):
        raise click.BadParameter(f"{text!r} names one resource: leave count and labels out", param_hint="--hold")
    return Wanted(match["pool"], match["name"], count, tuple(labels))
