"""`millpond run --hold gpus:2 -- command`: run a command while holding resources, and free them whatever happens.

This process holds the grants; the command is its child. Signals are passed on, and so is the exit code. When the
command ends, the resources are free; when this process is killed, the kernel kills the command, and the resources are
free when that is dead (see `tail`). What the command started in the background counts for nothing in the first case,
and holds the resource in the second.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click

from millpond.cli import gpus, words
from millpond.cli.place import Place
from millpond.cli.tail import Tails
from millpond.cli.wanted import Wanted
from millpond.errors import AcquireTimeout, EngineError, LeaseLost, PoolError
from millpond.resources import Grant, ResourcePool

HELD: Final = "MILLPOND_HELD"
"""The variable that tells a command, and runs inside it, what is held for it."""
TIMED_OUT: Final = 75
TAKEN_AWAY: Final = 76
UNAVAILABLE: Final = 69
SAY_EVERY: Final = 5.0
GRACE: Final = 10.0
"""Seconds that a command has to end when what it uses was taken away."""
PASSED_ON: Final = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGINT")


@dataclass
class Options:
    """How to hold."""

    timeout: float | None = None
    lease: float | None = None
    priority: int = 0
    reason: str = ""
    create: bool = False
    is_quiet: bool = False


@dataclass
class Hold:
    """What a run holds of one pool."""

    pool: str
    resources: tuple[str, ...]
    token: int
    pid: int = field(default_factory=os.getpid)
    url: str = ""

    def about(self) -> dict[str, Any]:
        """Return it as it stands in the environment of the command."""
        return {
            "pool": self.pool,
            "resources": list(self.resources),
            "token": self.token,
            "pid": self.pid,
            "url": self.url,
        }


def run(place: Place, wanted: Sequence[Wanted], command: Sequence[str], options: Options) -> int:
    """Hold, run, free; return the exit code."""
    say: Callable[[str], None] = _quiet if options.is_quiet else _say
    lost = threading.Event()
    options.reason = options.reason or shlex.join(command)[:200]
    try:
        with contextlib.ExitStack() as after:
            tails = Tails(place.url)
            after.callback(tails.unlock)
            held = [
                _hold(place, one, options, say, after, tails, lost)
                for one in sorted(wanted)  # all runs in the same order, so that no two wait for one another
            ]
            return _run(command, _environment(held), tails.files, lost, say)
    except AcquireTimeout:
        return TIMED_OUT
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except EngineError as error:
        _say(str(error))
        return UNAVAILABLE
    except PoolError as error:
        raise click.ClickException(str(error)) from None


def _say(text: str) -> None:
    print(f"millpond: {text}", file=sys.stderr, flush=True)


def _quiet(text: str) -> None:
    """Say nothing."""


# --- holding ----------------------------------------------------------------------------------------------------------


def _hold(
    place: Place,
    wanted: Wanted,
    options: Options,
    say: Callable[[str], None],
    after: contextlib.ExitStack,
    tails: Tails,
    lost: threading.Event,
) -> Hold:
    inherited = _inherited(place, wanted)
    if inherited is not None:
        say(f"{wanted} is held already by the run around this one (pid {inherited.pid})")
        return inherited
    pool = after.enter_context(ResourcePool(wanted.pool, place.url, on_lost=lambda grant: lost.set()))
    known = {one.name: one for one in pool.resources()}
    if not known:
        known = _create(pool, place, wanted, options)
    with _saying(pool, wanted, say):
        try:
            grant = pool.acquire(
                dict(wanted.labels) or None,
                name=wanted.name,
                count=wanted.number,
                timeout=options.timeout,
                lease=options.lease,
                priority=options.priority,
                reason=options.reason,
            ).__enter__()
        except AcquireTimeout:
            _say(f"no {wanted} within {options.timeout:g} s: {_standing(pool, wanted)}")
            raise
    after.callback(_release, grant)
    tails.lock(wanted.pool, [one for one in grant.resources if known[one].capacity == 1], say)
    return Hold(wanted.pool, grant.resources, grant.token, url=place.url)


def _release(grant: Grant) -> None:
    with contextlib.suppress(LeaseLost):  # it was taken away, which was said
        grant.release()


def _create(pool: ResourcePool, place: Place, wanted: Wanted, options: Options) -> dict[str, Any]:
    """Make a lock of a name that nobody has used so far."""
    if wanted.pool == gpus.POOL and (found := gpus.discover()):
        for one in found:
            pool.add(one.name, labels=one.labels, exist_ok=True)
    elif not place.is_own and not options.create:
        raise click.ClickException(
            f"there is no {wanted.pool!r} at {place.url}: say --create to make it a lock, or add what it has with "
            f"`millpond add {wanted.pool} NAME`"
        )
    else:
        pool.add(wanted.name or wanted.pool, exist_ok=True)
    return {one.name: one for one in pool.resources()}


@contextlib.contextmanager
def _saying(pool: ResourcePool, wanted: Wanted, say: Callable[[str], None]) -> Iterator[None]:
    """Say now and then why one waits."""
    is_over = threading.Event()
    waits = threading.Event()

    def speak() -> None:
        patience = 0.5
        while not is_over.wait(patience):
            waits.set()
            patience = SAY_EVERY
            with contextlib.suppress(PoolError):
                say(f"waiting for {wanted}: {_standing(pool, wanted)}")

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
        if waits.is_set():
            say(f"{wanted} is yours")
    finally:
        is_over.set()
        thread.join()


def _standing(pool: ResourcePool, wanted: Wanted) -> str:
    mine = [one.position for one in pool.waiters() if one.pid == os.getpid()]
    holders = [one for one in pool.holders() if wanted.name is None or wanted.name in one.resources]
    return words.line(holders, pool.waiters(), mine[0] if mine else 0)


def _inherited(place: Place, wanted: Wanted) -> Hold | None:
    """Return what a run around this one holds, if that will do: to wait for it would be to wait for ourselves."""
    try:
        known = json.loads(os.environ.get(HELD, "[]"))
        holds = [Hold(one["pool"], tuple(one["resources"]), one["token"], one["pid"], one["url"]) for one in known]
    except (ValueError, TypeError, KeyError):
        return None
    around = set(_ancestors())
    for one in holds:
        if one.pool != wanted.pool or one.url != place.url or one.pid not in around:
            continue
        with ResourcePool(one.pool, place.url) as pool:
            is_held = any(holder.token == one.token for holder in pool.holders())
            labels = {each.name: each.labels for each in pool.resources()}
        if not is_held:
            continue
        fitting = [
            name
            for name in one.resources
            if (wanted.name in (None, name))
            and all(labels.get(name, {}).get(key) == value for key, value in wanted.labels)
        ]
        if len(fitting) >= wanted.number:
            return one
        raise click.ClickException(
            f"the run around this one (pid {one.pid}) holds {', '.join(one.resources)} of {one.pool!r}, and {wanted} "
            "is more than that: waiting for the rest could be waiting for ourselves, so ask for all of it there"
        )
    return None


def _ancestors() -> Iterator[int]:
    """Return the processes around this one, as far as the system tells."""
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            found = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=False)
            pid = int(found.stdout.strip() or 0)


def _environment(held: Sequence[Hold]) -> dict[str, str]:
    """Return the environment of the command: what is held for it, and the GPUs that it may see."""
    names = [name for one in held for name in one.resources]
    environment = {
        **os.environ,
        HELD: json.dumps([one.about() for one in held]),
        "MILLPOND_RESOURCES": ",".join(names),
        "MILLPOND_RESOURCE": names[0],
        "MILLPOND_TOKEN": str(held[0].token),
    }
    for one in held:
        if one.pool == gpus.POOL:
            with ResourcePool(one.pool, one.url) as pool:
                labels = {each.name: dict(each.labels) for each in pool.resources()}
            environment.update(gpus.variables([labels.get(name, {}) for name in one.resources]))
    return environment


# --- running ----------------------------------------------------------------------------------------------------------


def _run(
    command: Sequence[str],
    environment: dict[str, str],
    files: Sequence[int],
    lost: threading.Event,
    say: Callable[[str], None],
) -> int:
    with _Signals() as signals:
        try:
            child = subprocess.Popen(command, env=environment, pass_fds=files, preexec_fn=_die_with_parent())
        except FileNotFoundError:
            _say(f"there is no command {command[0]!r}")
            return 127
        except PermissionError as error:
            _say(f"{command[0]!r} cannot be run: {error.strerror}")
            return 126
        signals.pass_on_to(child)
        is_told = False
        while not _wait(child, 1.0 if not is_told else GRACE):
            if is_told:
                child.kill()
            elif lost.is_set():
                is_told = True
                say(f"what {command[0]} uses was taken away: it is told to end")
                child.terminate()
    code = child.returncode
    if lost.is_set():
        return TAKEN_AWAY
    return code if code >= 0 else 128 - code


def _wait(child: subprocess.Popen[bytes], timeout: float) -> bool:
    """Wait for a child to end; return whether it has."""
    if child.poll() is not None:
        return True
    try:
        descriptor = os.pidfd_open(child.pid)
    except (AttributeError, OSError):
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout)
    else:
        try:
            select.select([descriptor], [], [], timeout)
        finally:
            os.close(descriptor)
    return child.poll() is not None


def _die_with_parent() -> Callable[[], None] | None:
    """Return what lets the kernel kill the command when this process is killed (Linux)."""
    if sys.platform != "linux":
        return None
    import ctypes  # noqa: PLC0415  (10 ms, and only here)

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def promise() -> None:
        prctl(1, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)

    return promise


class _Signals:
    """Passes signals on to the command. What a terminal sends, it sends to both; what is ignored here is there, too."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        """What came before the command was there."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for name in PASSED_ON:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def pass_on_to(self, child: subprocess.Popen[bytes]) -> None:
        """Let this be the command."""
        self._child = child
        while self._early:
            self._handle(self._early.pop(0), None)

    def _handle(self, number: int, _: object) -> None:
        if self._child is None:
            self._early.append(number)
        elif number not in (signal.SIGINT, signal.SIGQUIT) or not _is_in_foreground():
            with contextlib.suppress(OSError):
                self._child.send_signal(number)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
