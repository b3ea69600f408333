"""The scripts: each is a file of `lua/`, after the pieces that it shares with others."""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import Final

from millpond._redis import Script

FORMAT: Final = 4
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
    "start": "common mail cancel_resident",
    "stop": "common drains mail cancel_resident",
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
    "paused": "common",
    "jobs": "common",
    "pauses": "common",
    "counts": "common",
    "oldest": "common",
}


@cache
def script(name: str) -> Script:
    """Return a script by its name."""
    pieces = [*_PIECES[name].split(), name]
    return Script(b"\n".join(pkgutil.get_data(__package__, f"lua/{piece}.lua") or b"" for piece in pieces))
