"""The `millpond` command. It uses the public names only, like any other program."""

from __future__ import annotations

import importlib
import math
import os
from importlib import resources
from typing import Any

import click

import millpond
from millpond.cli.verbs import verbs

SECTIONS = {
    "Hold": "run",
    "See": "who ls show events pools workers keys jobs dead paused residents top doctor",
    "Act on resources": "add cordon uncordon quarantine drain remove reserve release steal",
    "Act on jobs": "dispatch cancel retry replay discard purge",
    "Act on pools": "pause resume configure",
    "Work, and more": "worker web demo schema completion",
}
"""The commands, by what they are for."""


class Main(click.Group):
    """The command, which shows no traceback: what nobody has thought of is said in a line, too."""

    def invoke(self, context: click.Context) -> Any:
        """Carry out a command."""
        try:
            return super().invoke(context)
        except (click.ClickException, click.exceptions.Exit, click.Abort, KeyboardInterrupt, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("MILLPOND_TRACEBACK"):
                raise
            kind = type(error).__name__
            click.echo(f"millpond: {kind}: {error} (MILLPOND_TRACEBACK=1 shows where)", err=True)
            raise SystemExit(70) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by what they are for."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                commands = [(name, self.commands[name]) for name in names.split()]
                formatter.write_dl([(name, command.get_short_help_str(80)) for name, command in commands])


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(millpond.__version__, prog_name="millpond")
def main() -> None:
    """Hold locks, devices and GPUs; run, see and operate pools and their jobs."""


@main.command()
@click.option("--seconds", type=click.FloatRange(min=0.5), help="How long; until you quit on a terminal, else 8.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="What to print at the end.")
@click.option("--record", type=click.Path(dir_okay=False, writable=True), help="Write an animated picture: FILE.svg.")
def demo(seconds: float | None, output: str, record: str | None) -> None:
    """See workers killed and nothing lost. Needs no server.

    Real processes on one SQLite file: keys move when their worker is killed, a GPU goes to the next in line. Single
    keys kill, drain, join and steal. Without a terminal it plays for some seconds, prints what it counted, and exits
    with 0 if nothing was lost.
    """
    if seconds is not None and math.isnan(seconds):
        raise click.BadParameter("nan is no number of seconds.", param_hint="'--seconds'")
    if record is not None and not (record and os.access(os.path.dirname(record) or ".", os.W_OK)):
        raise click.BadParameter(
            f"'{record}' cannot be written: its folder must be there, and writable.", param_hint="'--record'"
        )
    show: Any = importlib.import_module("millpond.cli.demo.show")
    raise SystemExit(show.run(seconds, output=output, record=record))


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
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="How to write the log.")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Workers, each a process.")
@click.option("--reload", is_flag=True, help="Start anew when a .py file below this folder changes.")
@click.option(
    "--health-port", type=click.IntRange(0, 65535), help="Serve /healthz, /readyz, /metrics; one process only."
)
@click.option("--health-host", default="127.0.0.1", show_default=True, help="Where: 0.0.0.0 in a container.")
@click.option("--health-file", metavar="PATH", help="Touch this file every second while it is a member; likewise.")
@click.option("--check", is_flag=True, hidden=True, help="Only see whether the pool is there.")
@click.option("--supervised", type=int, hidden=True, help="The process that looks after this one.")
def worker(
    target: str,
    log_format: str,
    processes: int,
    reload: bool,
    check: bool,
    supervised: int | None,
    **options: Any,
) -> None:
    """Run a worker of a keyed pool, until SIGTERM or Ctrl-C.

    It then ends what it runs, and hands over the rest (graceful shutdown). For instance `millpond worker app:tenants`.
    """
    load: Any = importlib.import_module("millpond.cli.worker")
    port, host, file = (options.pop(f"health_{name}") for name in ("port", "host", "file"))
    if port is not None and file is not None:
        raise click.UsageError("--health-port or --health-file, not both")
    health = file if port is None else f"{host}:{port}"
    if check:
        load.find(target)
    elif processes == 1 and not reload:
        raise SystemExit(load.run(target, log_format, supervised, health=health, **options))
    elif health is not None:
        raise click.UsageError("health is told of one process: leave --processes and --reload out")
    else:
        raise SystemExit(load.run_many(target, processes, log_format, reload=reload, **options))


@main.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--hold",
    "wanted",
    multiple=True,
    metavar="NAME[/RESOURCE][:COUNT][{LABEL=VALUE}]",
    help="What to hold: a lock, one of a pool, this one, several, one with a label; repeatable.",
)
@click.option("--gpus", type=click.IntRange(min=1), help="Hold so many GPUs, and let the command see those only.")
@click.option("--url", metavar="URL", help="Where the pools live; else MILLPOND_URL, else a file of your own.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds to wait; then exit with 75.")
@click.option("--lease", type=click.FloatRange(min=0.05), help="Seconds after which it ends unless renewed: no lock.")
@click.option("--priority", type=int, default=0, help="Higher goes first.")
@click.option("--reason", default="", help="Why, for those who wait; else the command.")
@click.option("--create", is_flag=True, help="Make a lock of an unknown name, also in a shared place.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing while waiting.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    wanted: tuple[str, ...],
    gpus: int | None,
    url: str | None,
    timeout: float | None,
    lease: float | None,
    priority: int,
    reason: str,
    create: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run a command while holding a lock, devices or GPUs.

    For instance `millpond run --hold build -- make -j8`.

    It waits its turn, says who is in the way, passes signals and the exit code on, and frees what it held whatever
    happens. An unknown name is a lock of its own. Exit codes of its own: 75 not granted in time, 76 taken away while
    the command ran, 66 there is nothing of the kind, 69 the place cannot be used, 126 and 127 the command cannot be
    run, 128 + n ended by signal n.
    """
    hold: Any = importlib.import_module("millpond.cli.hold")
    place: Any = importlib.import_module("millpond.cli.place")
    parse: Any = importlib.import_module("millpond.cli.wanted").parse
    asked = [parse(one) for one in wanted] + ([parse(f"gpus:{gpus}")] if gpus else [])
    if not asked:
        raise click.UsageError("say what to hold, before the command: --hold NAME, or --gpus COUNT")
    if len({one.pool for one in asked}) < len(asked):
        raise click.UsageError("hold several of one pool by one --hold NAME:COUNT")
    options = hold.Options(timeout, lease, priority, reason, create, quiet)
    raise SystemExit(hold.run(place.Place(url), asked, command, options))


@main.command()
def schema() -> None:
    """Print the SQL that resource pools need in PostgreSQL.

    Millpond runs it by itself where it may. Where it may not, an owner runs it once: `millpond schema | psql DATABASE`.
    """
    click.echo((resources.files("millpond.resources.engines.log") / "sql" / "postgres.sql").read_text(), nl=False)


@main.command()
@click.option("--url", metavar="URL", help="Where the pools live; else MILLPOND_URL, else a file of your own.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; elsewhere it needs a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8321, show_default=True, help="0: any that is free.")
@click.option("--token-file", type=click.Path(dir_okay=False), help="Has the token; else MILLPOND_WEB_TOKEN.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name it is asked for by; repeatable.")
@click.option("--root-path", default="", metavar="PATH", help="Where a proxy shows it, if not at /.")
@click.option("--read-only", is_flag=True, help="Show only: no actions.")
@click.option("--show-payloads", is_flag=True, help="Show the arguments of jobs.")
def web(url: str | None, **options: Any) -> None:
    """Watch and operate all pools of a place in a browser.

    The same is there as a JSON API. Needs `pip install "millpond[web]"`.
    """
    page: Any = importlib.import_module("millpond.cli.web")
    raise SystemExit(page.run(url, **options))


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    For instance, in `~/.bashrc`: `eval "$(millpond completion bash)"`.
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415  (only here)

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(main, {}, "millpond", "_MILLPOND_COMPLETE").source())


for _verb in verbs:
    main.add_command(_verb)
