"""What a `sqlite:` URL says."""

from __future__ import annotations

import os
import re
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from millpond._sqlite._files import OWNER_ONLY
from millpond._urls import shown

Synchronous = Literal["NORMAL", "FULL"]


class Place(NamedTuple):
    """A database file: where it is, how durable its commits are, and who may use it once it is made."""

    path: str
    synchronous: Synchronous = "NORMAL"
    mode: int = OWNER_ONLY


def parse(url: str) -> Place:
    """Read `sqlite:///path?synchronous=FULL&mode=660`; the path is the real one."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite" or parts.netloc or not parts.path.startswith("/") or parts.path == "/":
        raise ValueError(
            f"{shown(url)!r} does not name a file: write sqlite:///relative/path.db or sqlite:////absolute/path.db"
        )
    place = Place(os.path.realpath(unquote(parts.path[1:])))
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key == "synchronous" and value.upper() in ("NORMAL", "FULL"):
            place = place._replace(synchronous="FULL" if value.upper() == "FULL" else "NORMAL")
        elif key == "mode" and re.fullmatch("0?6[06][06]", value):
            place = place._replace(mode=int(value, 8))
        else:
            raise ValueError(
                f"{shown(url)!r}: {key}= is not known, or not that value; use synchronous=NORMAL or FULL, and mode=600 "
                "(the default), 660 (for the group) or 666"
            )
    return place
