"""Where pools live when a person asks from a shell: one file of the user, unless somebody says otherwise."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import click

VARIABLE = "MILLPOND_URL"
UNAVAILABLE = 69


class NoPlace(click.ClickException):
    """There is no place for pools."""

    exit_code = UNAVAILABLE


def default_file() -> Path:
    """Return the file of this user, by the rules of XDG."""
    for variable, rest in (("XDG_STATE_HOME", ()), ("HOME", (".local", "state"))):
        base = os.environ.get(variable, "")
        if os.path.isabs(base):
            return Path(base, *rest, "millpond", "pools.db")
    try:
        return Path(Path.home(), ".local", "state", "millpond", "pools.db").absolute()
    except RuntimeError:
        raise NoPlace(f"there is no home folder to keep pools in: say where with --url or {VARIABLE}") from None


class Place:
    """A URL that says the same in every folder, and whether it is the user's own file."""

    def __init__(self, given: str | None) -> None:
        url = given or os.environ.get(VARIABLE) or ""
        self.is_own = not url
        self.file: Path | None = None
        """Where it is a file."""
        if self.is_own:
            self.file = default_file()
            self._make_folder(self.file.parent)
            self.url = f"sqlite:///{quote(str(self.file))}"
            return
        if url.startswith("memory:"):
            raise click.UsageError("memory: is seen by one process only, so there is nothing to share: name a file")
        self.url = url
        if url.startswith("sqlite:///") and url != "sqlite:///":
            rest = url.partition("?")[2]
            self.file = Path(os.path.realpath(unquote(urlsplit(url).path[1:])))
            self.url = f"sqlite:///{quote(str(self.file))}" + (f"?{rest}" if rest else "")

    def variables(self) -> dict[str, str]:
        """Return what lets a command use the same place: the URL as a whole, since it may need the password."""
        return {} if self.is_own else {VARIABLE: self.url}  # it finds the user's own file by itself, and may make locks

    @property
    def has_resources(self) -> bool:
        """Whether resource pools can live there."""
        return True

    @property
    def has_keys(self) -> bool:
        """Whether keyed pools can live there."""
        return not self.url.startswith(("temporal", "postgres"))

    def _make_folder(self, folder: Path) -> None:
        """Make a folder for its owner only."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if stat.S_IMODE(folder.stat().st_mode) & 0o077 and folder.stat().st_uid == os.geteuid():
                folder.chmod(0o700)
        except OSError as error:
            raise NoPlace(f"there is no place for pools: {error}; say where with --url or {VARIABLE}") from None

    def check(self) -> None:
        """Refuse to look at a file that is not there: looking must not make one."""
        if self.file is not None and not self.is_own and not self.file.exists():
            raise NoPlace(f"there is no file {str(self.file)!r}")


url_option = click.option(
    "--url", metavar="URL", help=f"Where the pools live; else {VARIABLE}, else a file of your own."
)
