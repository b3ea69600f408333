"""The commands that look and act, as a shell sees them: what they take. What they do is in `look` and `act`."""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from millpond._person import user_and_host
from millpond.cli.manner import Manner, manner_options
from millpond.cli.place import Place, url_option
from millpond.cli.report import output_option
from millpond.cli.words import plain

F = TypeVar("F", bound=Callable[..., Any])
UNAVAILABLE = 69
STATES = ("waiting", "running", "retry", "paused", "parked", "delayed", "dead")
verbs: list[click.Command] = []
"""All of them, for the group."""


def verb(function: F) -> F:
    """Make a command, which says what went wrong in one line."""
    errors: Any = importlib.import_module("millpond.errors")

    @url_option
    @functools.wraps(function)
    def guarded(url: str | None, **options: Any) -> None:
        try:
            function(Place(url), **options)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever read it has seen enough
            raise SystemExit(0) from None
        except errors.EngineError as error:
            click.echo(f"millpond: {plain(error)}", err=True)
            raise SystemExit(UNAVAILABLE) from None
        except (errors.PoolError, ValueError, TypeError, OverflowError, OSError) as error:
            raise click.ClickException(plain(error)) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None

    verbs.append(click.command()(guarded))
    return function


def _look() -> Any:
    return importlib.import_module("millpond.cli.look")


def _act() -> Any:
    return importlib.import_module("millpond.cli.act")


def page_options(function: F) -> F:
    """Give a command `--after` and `--limit`."""
    function = click.option("--after", default="", help="Where the last page ended.")(function)
    return click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)(function)


# --- looking ----------------------------------------------------------------------------------------------------------


@verb
@click.argument("name", metavar="[POOL[/RESOURCE]]", required=False)
@click.option("--watch", is_flag=True, help="Look again every second.")
@output_option
def who(place: Place, name: str | None, output: str, watch: bool) -> None:
    """Show who holds what, since when and why, and who is next."""
    _look().who(place, name, output, watch=watch)


@verb
@click.argument("name", metavar="[POOL]", required=False)
@output_option
def ls(place: Place, name: str | None, output: str) -> None:
    """List what there is to hold, and how much of it is free."""
    _look().ls(place, name, output)


@verb
@click.argument("name", metavar="POOL[/RESOURCE]")
@output_option
def show(place: Place, name: str, output: str) -> None:
    """Show the state and the history of one resource."""
    _look().show(place, name, output)


@verb
@click.argument("name", metavar="POOL")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens.")
@output_option
def events(place: Place, name: str, output: str, follow: bool) -> None:
    """List what happened in a pool, and who did it.

    Of a resource pool: all that happened to its resources. Of a keyed pool: what people did to it.
    """
    _look().events(place, name, output, follow=follow)


@verb
@output_option
def pools(place: Place, output: str) -> None:
    """List all pools of a place."""
    _look().pools(place, output)


@verb
@click.argument("name", metavar="POOL")
@output_option
def workers(place: Place, name: str, output: str) -> None:
    """List the workers of a keyed pool."""
    _look().workers(place, name, output)


@verb
@click.argument("name", metavar="POOL")
@page_options
@output_option
def keys(place: Place, name: str, output: str, after: str, limit: int) -> None:
    """List the keys of a keyed pool that have jobs.

    For each: how many jobs, since when, and where it is and why.
    """
    _look().keys(place, name, output, after=after, limit=limit)


@verb
@click.argument("name", metavar="POOL")
@click.option("--id", "job", help="The job of this id.")
@click.option("--key", help="Jobs of this key.")
@click.option("--name", "kind", help="Jobs of this name.")
@click.option("--state", type=click.Choice(STATES), help="Jobs in this state.")
@page_options
@output_option
def jobs(
    place: Place,
    name: str,
    output: str,
    job: str | None,
    key: str | None,
    kind: str | None,
    state: str | None,
    after: str,
    limit: int,
) -> None:
    """List jobs of a keyed pool.

    Find them by id, key, name and state; for each: where it is, and how it failed.
    """
    wanted = {"id": job, "key": key, "name": kind, "state": state}
    _look().jobs(place, name, output, wanted, after=after, limit=limit)


@verb
@click.argument("name", metavar="POOL")
@click.option("--key", help="Those of this key.")
@page_options
@output_option
def dead(place: Place, name: str, output: str, key: str | None, after: str, limit: int) -> None:
    """List the dead letters: jobs that failed for good."""
    _look().dead(place, name, output, key=key, after=after, limit=limit)


@verb
@click.argument("name", metavar="POOL")
@page_options
@output_option
def paused(place: Place, name: str, output: str, after: str, limit: int) -> None:
    """List the keys of a keyed pool that are paused.

    For each: since when, by whom and why. The whole pool comes first, if it is paused.
    """
    _look().paused(place, name, output, after=after, limit=limit)


@verb
@click.argument("name", metavar="POOL")
@page_options
@output_option
def residents(place: Place, name: str, output: str, after: str, limit: int) -> None:
    """List the residents of a keyed pool: where each runs, and how.

    A resident is a job that stays: it runs on one worker until it is stopped.
    """
    _look().residents(place, name, output, after=after, limit=limit)


@verb
@click.option("--every", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--frames", type=click.IntRange(min=1), help="How often to look; for ever on a terminal, else once.")
def top(place: Place, every: float, frames: int | None) -> None:
    """Watch all pools of a place on one screen, until Ctrl-C."""
    screen: Any = importlib.import_module("millpond.cli.top")
    screen.run(place, every, frames)


@verb
@output_option
@click.option("--json", "is_json", is_flag=True, help="The same as -o json.")
def doctor(place: Place, output: str, is_json: bool) -> None:
    """Check this machine and the place where pools live.

    Each finding comes with what to do. Exits with 1 if something is bad.
    """
    found: Any = importlib.import_module("millpond.cli.doctor")
    raise SystemExit(found.run(place, "json" if is_json else output))


# --- acting on resources ----------------------------------------------------------------------------------------------


@verb
@click.argument("name", metavar="POOL")
@click.argument("resources", metavar="[RESOURCE]...", nargs=-1)
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="What can be asked for; repeatable.")
@click.option("--capacity", type=click.IntRange(min=1), default=1, show_default=True, help="Units, for sharing.")
@click.option("--exist-ok", is_flag=True, help="Leave those as they are that are there.")
@click.option("--dry-run", "is_trial", is_flag=True, help="Say what would be done.")
def add(
    place: Place,
    name: str,
    resources: tuple[str, ...],
    labels: tuple[str, ...],
    capacity: int,
    exist_ok: bool,
    is_trial: bool,
) -> None:
    """Add resources to a pool."""
    pairs = _pairs("--label", labels)
    _act().add(place, name, resources, pairs, capacity, exist_ok=exist_ok, is_trial=is_trial)


def _on_resource(name: str, words: str) -> None:
    @click.argument("resource", metavar="POOL[/RESOURCE]")
    @manner_options
    def command(place: Place, resource: str, reason: str, is_sure: bool, is_trial: bool) -> None:
        _act().on_resource(place, name, resource, Manner(reason, is_sure, is_trial))

    command.__name__, command.__doc__ = name, words
    verb(command)


_on_resource("cordon", "Stop lending a resource; its holder keeps it.")
_on_resource("uncordon", "Lend a resource again: undo cordon, drain or quarantine.")
_on_resource("quarantine", "Take a broken resource out of use.")
_on_resource("remove", "Remove a resource; when it is held, as soon as it is given back.")


@verb
@click.argument("resource", metavar="POOL[/RESOURCE]")
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds to wait until it is given back.")
@manner_options
def drain(place: Place, resource: str, timeout: float | None, reason: str, is_sure: bool, is_trial: bool) -> None:
    """Stop lending a resource, and wait until it is given back."""
    _act().on_resource(place, "drain", resource, Manner(reason, is_sure, is_trial), timeout=timeout)


@verb
@click.argument("resource", metavar="POOL[/RESOURCE]")
@click.option("--if-token", "token", type=int, help="Only if it is still held under this token.")
@manner_options
def release(place: Place, resource: str, token: int | None, reason: str, is_sure: bool, is_trial: bool) -> None:
    """Take a resource away from its holder.

    The next one in line gets it.
    """
    _act().on_resource(place, "release", resource, Manner(reason, is_sure, is_trial), token=token)


@verb
@click.argument("resource", metavar="POOL[/RESOURCE]")
@click.option("--for", "holder", default="", help="Who gets it; else you.")
@click.option("--lease", type=click.FloatRange(min=0.05), help="Seconds after which it is free again.")
@manner_options
def reserve(
    place: Place, resource: str, holder: str, lease: float | None, reason: str, is_sure: bool, is_trial: bool
) -> None:
    """Reserve a resource for a person.

    Until it is released, or the lease ends.
    """
    manner = Manner(reason, is_sure, is_trial)
    _act().on_resource(place, "reserve", resource, manner, holder=holder or user_and_host(), lease=lease)


@verb
@click.argument("resource", metavar="POOL[/RESOURCE]")
@click.option("--for", "holder", default="", help="Who gets it; else you.")
@click.option("--if-token", "token", type=int, help="Only if it is still held under this token.")
@click.option("--lease", type=click.FloatRange(min=0.05), help="Seconds after which it is free again.")
@manner_options
def steal(
    place: Place,
    resource: str,
    holder: str,
    token: int | None,
    lease: float | None,
    reason: str,
    is_sure: bool,
    is_trial: bool,
) -> None:
    """Take a resource away from its holder, and reserve it for a person."""
    manner = Manner(reason, is_sure, is_trial)
    _act().on_resource(place, "steal", resource, manner, holder=holder or user_and_host(), token=token, lease=lease)


# --- acting on keyed pools --------------------------------------------------------------------------------------------


@verb
@click.argument("pool", metavar="POOL")
@click.argument("job", metavar="JOB")
@click.argument("key", metavar="KEY")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1)
@click.option("--set", "named", multiple=True, metavar="NAME=VALUE", help="An argument by its name; repeatable.")
@click.option("--id", "job_id", help="Of the job: the same one is not dispatched twice.")
@click.option("--delay", type=click.FloatRange(min=0), help="Seconds after which it may run.")
@click.option("--wait", type=click.FloatRange(min=0), help="Seconds to wait for its result, which is printed as JSON.")
@click.option("--force", "is_forced", is_flag=True, help="Also a job that no worker knows.")
@click.option("--reason", default="", help="Why: it is kept with what was done.")
@click.option("--dry-run", "is_trial", is_flag=True, help="Say what would be done.")
def dispatch(
    place: Place,
    pool: str,
    job: str,
    key: str,
    arguments: tuple[str, ...],
    named: tuple[str, ...],
    job_id: str | None,
    delay: float | None,
    wait: float | None,
    is_forced: bool,
    reason: str,
    is_trial: bool,
) -> None:
    """Dispatch a job by its name.

    Arguments are JSON, or text where they are not: 5 is a number, '"5"' is text.
    """
    pairs = {name: _value(value) for name, value in _pairs("--set", named).items()}
    options = {"id": job_id, "delay": delay, "wait": wait, "named": pairs, "is_forced": is_forced}
    options.update(reason=reason, is_trial=is_trial)
    _act().dispatch(place, pool, job, key, [_value(one) for one in arguments], options)


def _pairs(what: str, given: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE."""
    found = [one.partition("=") for one in given]
    for name, equals, _ in found:
        if not equals or not name:
            raise click.UsageError(f"{what} {name} is not NAME=VALUE")
    return {name: value for name, _, value in found}


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _refuse_constant(text: str) -> Any:
    """Take NaN and Infinity for text: they are no JSON."""
    raise ValueError(text)


@verb
@click.argument("pool", metavar="POOL")
@click.argument("changes", metavar="[SETTING=VALUE]...", nargs=-1)
@manner_options
def configure(place: Place, pool: str, changes: tuple[str, ...], reason: str, is_sure: bool, is_trial: bool) -> None:
    """Change settings of a pool, or show them.

    For instance `millpond configure tenants max_jobs=10000 lease=10`; null lifts a limit.
    """
    wanted = {name: _value(value) for name, value in _pairs("a setting", changes).items()}
    _act().configure(place, pool, Manner(reason, is_sure, is_trial), wanted)


def _on_key(name: str, words: str) -> None:
    @click.argument("pool", metavar="POOL")
    @click.option("--key", help="Of a keyed pool: this key only.")
    @manner_options
    def command(place: Place, pool: str, key: str | None, reason: str, is_sure: bool, is_trial: bool) -> None:
        _act().on_key(place, name, pool, Manner(reason, is_sure, is_trial), key)

    command.__name__, command.__doc__ = name, words
    verb(command)


_on_key("pause", "Pause a key or a whole pool: nothing more begins or is granted.")
_on_key("resume", "Resume a key or a pool that is paused.")


def _on_jobs(name: str, words: str) -> None:
    @click.argument("pool", metavar="POOL")
    @click.argument("ids", metavar="[ID]...", nargs=-1)
    @click.option("--key", help="Those of this key.")
    @click.option("--all", "is_all", is_flag=True, help="All of them.", hidden=name in ("cancel", "purge"))
    @manner_options
    def command(
        place: Place,
        pool: str,
        ids: tuple[str, ...],
        key: str | None,
        is_all: bool,
        reason: str,
        is_sure: bool,
        is_trial: bool,
    ) -> None:
        _act().on_jobs(place, name, pool, Manner(reason, is_sure, is_trial), ids=ids, key=key, is_all=is_all)

    command.__name__, command.__doc__ = name, words
    verb(command)


_on_jobs("cancel", "Cancel jobs by id; one that runs is asked to stop.")
_on_jobs("retry", "Retry failed jobs now, not when their next try is due.\n\nBy id, of a key, or all.")
_on_jobs("replay", "Run dead letters again.\n\nBy id or number, of a key, or all.")
_on_jobs("discard", "Delete dead letters.\n\nBy id or number, of a key, or all.")
_on_jobs("purge", "Delete the jobs of a key that have not begun.")
