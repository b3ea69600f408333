"""How a person acts from a shell: with a reason, being asked before, or only to see what would happen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from millpond.cli.report import write
from millpond.cli.words import plain

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Manner:
    """How to act."""

    reason: str
    is_sure: bool = False
    is_trial: bool = False

    def go(self, what: str, done: Callable[[], object], *, none: str = "") -> None:
        """Do it, unless this is a trial or a person says no; `none`: what is wrong when nothing was to be done."""
        what = plain(what)
        if self.is_trial:
            write(f"would {what}")
            return
        if not self.is_sure and _is_somebody_there():
            click.confirm(f"{what}?", abort=True)
        elif not self.is_sure:
            raise click.UsageError(f"say --yes to {what}: there is no terminal to ask at")
        answer = done()
        if none and answer == 0:
            raise click.ClickException(none)
        write(f"done: {what}" if answer is None else f"done: {what} ({answer})")


def _is_somebody_there() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def manner_options(function: F) -> F:
    """Give a command `--reason`, `--yes` and `--dry-run`."""
    for option in (
        click.option("--reason", default="", help="Why: it is kept with what was done."),
        click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask."),
        click.option("--dry-run", "is_trial", is_flag=True, help="Say what would be done."),
    ):
        function = option(function)
    return function
