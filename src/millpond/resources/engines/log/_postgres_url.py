"""What a URL of PostgreSQL says, as libpq reads it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from millpond._urls import shown


class PostgresUrl(NamedTuple):
    """A URL of PostgreSQL, read: what libpq takes, what people may see of it, and the name of this machine."""

    url: str
    shown: str
    machine: str


def read_postgres(url: str) -> PostgresUrl:
    """Read a URL of PostgreSQL as libpq does; our own option is cut out, the rest stays as it is written."""
    head, mark, query = url.partition("?")
    options = query.split("&") if mark else []
    rest = [one for one in options if not one.startswith("machine=")]
    machine = next((unquote(one[8:]) for one in options if one.startswith("machine=")), "")
    plain = f"{head}?{'&'.join(rest)}" if rest else head
    try:
        found = conninfo_to_dict(plain)
        host = str(found.get("host") or found.get("hostaddr") or "localhost")
        ports = str(found.get("port") or "5432")
        authority, _, path = head.partition("://")[2].partition("/")
        if authority.count("@") > 1 or "@" in path or not all(one.isdecimal() for one in ports.split(",") if one):
            raise ValueError
    except (ProgrammingError, ValueError):  # its words may show a password
        raise ValueError(
            f"{shown(url)!r} is no URL of PostgreSQL: write postgresql://user:password@host:5432/database, odd "
            "characters of the password as %2F and the like, and after ? only options that libpq knows, and machine"
        ) from None
    return PostgresUrl(plain, f"{host}:{ports}/{found.get('dbname') or ''}", machine)
