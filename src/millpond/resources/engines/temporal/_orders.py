"""What a workflow has said to a pool, by a local activity."""

from __future__ import annotations

import msgspec
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from millpond.resources._rules.commands import Command


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command for a pool; `grace` is how long the workflow's work may go on after it closed, in microseconds.

    `but` are the requests that a later run of a workflow knows, `at` (microseconds): what else it had asked for before
    was left by earlier runs.
    """

    pool: str
    command: Command
    grace: int = 0
    at: int = 0
    but: tuple[str, ...] = ()

    def write(self) -> RawValue:
        """Return it as an argument."""
        return raw(msgspec.json.encode(self))


def raw(data: bytes) -> RawValue:
    """Return bytes as a payload that no converter touches: JSON if it is that, so that people can read it."""
    kind = b"json/plain" if data[:1] in (b"{", b"[", b'"') else b"binary/plain"
    return RawValue(Payload(metadata={"encoding": kind}, data=data))
