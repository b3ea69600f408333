"""What a URL of a log engine may say. Checked in the user's process, before a companion is asked for anything."""

from __future__ import annotations

import importlib.util
from urllib.parse import parse_qsl, urlsplit

from millpond._redis._address import Address
from millpond._urls import shown


def check(url: str) -> str:
    """Refuse a URL that cannot work, or whose extra is missing; return the name that it gives to this machine."""
    if url.partition(":")[0].startswith("postgres"):
        if importlib.util.find_spec("psycopg") is None:
            raise ModuleNotFoundError(f"{shown(url)!r} needs psycopg: pip install 'millpond[postgres]'", name="psycopg")
        return dict(parse_qsl(urlsplit(url).query)).get("machine", "")
    return Address(url).machine
