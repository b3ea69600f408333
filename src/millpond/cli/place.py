"""Where pools live when a person asks from a shell: one file of the user, unless somebody says otherwise."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import click

VARIABLE = "MILLPOND_URL"


def default_file() -> Path:
    """Return the file of this user, by the rules of XDG; its folder is for its owner only."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return base / "millpond" / "pools.db"


class Place:
    """A URL, and whether it is the user's own file."""

    def __init__(self, given: str | None) -> None:
        url = given or os.environ.get(VARIABLE) or ""
        self.is_own = not url
        if self.is_own:
            file = default_file()
            try:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise click.ClickException(
                    f"there is no place for pools: {error}; say where with --url or {VARIABLE}"
                ) from None
            url = f"sqlite:///{quote(str(file))}"
        self.url = url


url_option = click.option(
    "--url", metavar="URL", help=f"Where the pools live; else {VARIABLE}, else a file of your own."
)
