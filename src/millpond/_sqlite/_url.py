"""What a `sqlite:` URL says."""

from __future__ import annotations

import os
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

Synchronous = Literal["NORMAL", "FULL"]


def parse(url: str) -> tuple[str, Synchronous]:
    """Return the real path of the file, and how durable its commits are to be."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite" or parts.netloc or not parts.path.startswith("/") or parts.path == "/":
        raise ValueError(
            f"{url!r} does not name a file: write sqlite:///relative/path.db or sqlite:////absolute/path.db"
        )
    synchronous: Synchronous = "NORMAL"
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key != "synchronous" or value.upper() not in ("NORMAL", "FULL"):
            raise ValueError(f"{url!r}: {key}={value} is not known; only synchronous=NORMAL or FULL is")
        synchronous = "FULL" if value.upper() == "FULL" else "NORMAL"
    return os.path.realpath(unquote(parts.path[1:])), synchronous
