"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from millpond.cli.words import plain

F = TypeVar("F", bound=Callable[..., Any])
OUTPUTS = ("table", "json", "jsonl")


def output_option(function: F) -> F:
    """Give a command `-o table|json|jsonl`."""
    option = click.option("-o", "--output", type=click.Choice(OUTPUTS), default="table", help="How to print it.")
    return option(function)


def emit(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Callable[[Any], str]], output: str) -> None:
    """Print rows: all that they have as JSON, or these columns as a table."""
    if output == "json":
        write(json.dumps(rows, indent=2, default=str))
    elif output == "jsonl":
        for row in rows:
            write(json.dumps(row, default=str))
    else:
        write(table([[show(row) for show in columns.values()] for row in rows], list(columns)))


def write(text: str) -> None:
    """Print text, whatever the terminal can show of it."""
    if sys.stdout is None:
        return
    coding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(coding, "backslashreplace").decode(coding), flush=True)


def table(rows: Iterable[Sequence[str]], titles: Sequence[str]) -> str:
    """Return rows below their titles; the last column is cut where the terminal ends."""
    lines = [list(titles), *[[plain(cell.partition("\n")[0]) for cell in row] for row in rows]]
    widths = [max(len(line[index]) for line in lines) for index in range(len(titles))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    if sys.stdout is not None and sys.stdout.isatty():
        wide = shutil.get_terminal_size().columns
        text = [one if len(one) <= wide else one[: wide - 1] + "…" for one in text]
    return "\n".join(text)
