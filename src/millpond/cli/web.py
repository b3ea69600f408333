"""`millpond web`: the page, in a process of its own."""

from __future__ import annotations

import importlib
import os
import stat
from pathlib import Path
from typing import Any

import click

from millpond.cli.place import Place
from millpond.cli.report import write
from millpond.cli.words import plain

VARIABLE = "MILLPOND_WEB_TOKEN"


def run(url: str | None, *, token_file: str | None, **options: Any) -> int:
    """Serve the page until Ctrl-C or SIGTERM."""
    try:
        server: Any = importlib.import_module("millpond.web._serve")
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    place = Place(url)
    place.check()
    try:
        token = _token(token_file)
        server.run(
            place.url, token=token, say=lambda at: write(f"millpond: the page is at {at} (Ctrl-C ends it)"), **options
        )
    except (ValueError, TypeError, OSError) as error:
        raise click.ClickException(plain(error)) from None
    return 0


def _token(file: str | None) -> str | None:
    """Return the token; not from the command line, which everybody sees."""
    if file is None:
        return os.environ.get(VARIABLE) or None
    path = Path(file)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        click.echo(f"millpond: others may read {file}: chmod 600 it", err=True)
    token = path.read_text(errors="replace").strip()
    if not token:
        raise click.ClickException(f"{file} is empty: it should have the token")
    return token
