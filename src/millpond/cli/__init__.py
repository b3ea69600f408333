"""The `millpond` command. It uses the public names only, like any other program."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

import millpond


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(millpond.__version__, prog_name="millpond")
def main() -> None:
    """Pools for Python, from one thread to a fleet."""


@main.command()
@click.option("--seconds", type=click.FloatRange(min=0.5), help="How long; 20 on a terminal, 6 elsewhere.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="What to print at the end.")
@click.option("--record", type=click.Path(dir_okay=False, writable=True), help="Save the last picture as an SVG file.")
def demo(seconds: float | None, output: str, record: str | None) -> None:
    """See the pools at work: threads, processes that are killed, coroutines. Needs no server."""
    show: Any = importlib.import_module("millpond.cli.demo")
    is_terminal = sys.stdout.isatty()
    raise SystemExit(show.run(seconds or (20.0 if is_terminal else 6.0), output=output, record=record))


@main.command()
@click.argument("target", metavar="MODULE:POOL")
@click.option("--concurrency", type=click.IntRange(min=1), default=100, show_default=True, help="Keys at a time.")
@click.option("--weight", type=click.IntRange(1, 1000), default=1, show_default=True, help="Share beside others.")
@click.option(
    "--grace", type=click.FloatRange(min=0), help="Seconds to end what runs; as the pool's drain if not given."
)
@click.option("--strict", is_flag=True, help="End the process, should it lose its lease.")
@click.option(
    "--stall",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds for which it may compute without a sign of life.",
)
def worker(target: str, concurrency: int, weight: int, grace: float | None, strict: bool, stall: float) -> None:
    """Be a worker of a keyed pool until SIGTERM or Ctrl-C: `millpond worker app:tenants`."""
    load: Any = importlib.import_module("millpond.cli.worker")
    load.run(target, concurrency=concurrency, weight=weight, grace=grace, strict=strict, stall=stall)
