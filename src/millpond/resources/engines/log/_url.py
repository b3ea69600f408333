"""What a URL of a log engine may say. Checked in the user's process, before a companion is asked for anything."""

from __future__ import annotations

import importlib
import importlib.util

from millpond._redis._address import Address
from millpond._urls import shown


def check(url: str) -> str:
    """Refuse a URL that cannot work, or whose extra is missing; return the name that it gives to this machine."""
    if not url.partition(":")[0].startswith("postgres"):
        return Address(url).machine
    if importlib.util.find_spec("psycopg") is None:
        raise ModuleNotFoundError(f'{shown(url)!r} needs psycopg: pip install "millpond[postgres]"', name="psycopg")
    reader = importlib.import_module("millpond.resources.engines.log._postgres_url")
    machine: str = reader.read_postgres(url).machine
    return machine
