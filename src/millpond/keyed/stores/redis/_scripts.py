"""The scripts: each is a file of `lua/`, after the pieces that it shares with others."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final, NamedTuple

FORMAT: Final = 2
"""Of the data; `common.lua` names it, too."""

_PIECES: Final = {
    "probe": "",
    "open": "",
    "mark": "",
    "sweep": "",
    "dispatch": "common batch hand",
    "dispatch_special": "common mail batch hand",
    "work": "common drains mail",
    "claim": "common drains mail members",
    "give": "common drains members",
    "leave": "common drains members",
    "join": "common drains members",
    "renew": "common drains members",
    "keep": "common drains",
    "gone": "common drains",
    "beat": "common members",
    "start": "common mail doom",
    "stop": "common drains mail doom",
    "notify": "common mail",
    "cancel": "common drains mail find",
    "purge": "common drains mail",
    "retry": "common drains mail",
    "log": "common",
    "acts": "common",
    "switch": "common drains mail",
    "configure": "common drains",
    "letters": "common drains mail",
    "outcomes": "common",
    "where": "common mail find",
    "owners": "common",
    "dead": "common",
    "names": "common",
    "keys": "common mail",
    "waiting": "common",
    "held": "common",
    "jobs": "common",
    "pauses": "common",
    "counts": "common",
    "oldest": "common",
}


class Script(NamedTuple):
    """A script, and the name by which the server knows it once it was loaded."""

    name: str
    source: bytes
    sha: bytes


@cache
def script(name: str) -> Script:
    """Return a script by its name."""
    folder = files(__package__) / "lua"
    pieces = [*_PIECES[name].split(), name]
    source = b"\n".join((folder / f"{piece}.lua").read_bytes() for piece in pieces)
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest().encode())
