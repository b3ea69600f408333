"""`millpond run --hold gpus:2 -- command`: run a command while holding resources, and free them whatever happens.

This process holds the grants; the command is its child. Signals are passed on, and so is the exit code. When the
command ends by itself, the resources are free, whatever it has left in the background. When a signal ended it, or what
it used was taken away, what it has left is ended as well. When this process is killed, the kernel kills the command,
and the resources are free when that is dead (see `tail`).
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from millpond._clock import elapsed
from millpond._person import user
from millpond._urls import shown
from millpond.cli import family, lending, words
from millpond.cli.lending import HELD, Hold, telling
from millpond.cli.place import UNAVAILABLE, Place
from millpond.cli.tail import Tails
from millpond.cli.wanted import Wanted
from millpond.errors import AcquireTimeout, EngineError, LeaseLost, PoolError
from millpond.resources import Grant, ResourcePool

TIMED_OUT: Final = 75
TAKEN_AWAY: Final = 76
SAY_EVERY: Final = 5.0
GRACE: Final = 10.0
"""Seconds that a command has to end when what it uses was taken away."""
PASSED_ON: Final = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGINT")
PRIVATE: Final = 0o077


@dataclass
class Options:
    """How to hold."""

    timeout: float | None = None
    lease: float | None = None
    priority: int = 0
    reason: str = ""
    create: bool = False
    is_quiet: bool = False


def run(place: Place, wanted: Sequence[Wanted], command: Sequence[str], options: Options) -> int:
    """Hold, run, free; return the exit code."""
    options.reason = options.reason or shlex.join(command)[:200]
    umask = os.umask(PRIVATE) if place.is_own else None
    try:
        return _Run(place, options, umask).run(wanted, command)
    except AcquireTimeout:
        return TIMED_OUT
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except EngineError as error:
        _say(str(error))
        return UNAVAILABLE
    except (PoolError, ValueError, OverflowError, OSError) as error:
        raise click.ClickException(words.plain(error)) from None


def _say(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"millpond: {words.plain(text)}", file=sys.stderr, flush=True)


def _quiet(text: str) -> None:
    """Say nothing."""


class _Run:
    """One run."""

    def __init__(self, place: Place, options: Options, umask: int | None) -> None:
        self._place = place
        self._options = options
        self._umask = umask
        self._say: Callable[[str], None] = _quiet if options.is_quiet else _say
        self._deadline = None if options.timeout is None else elapsed() + options.timeout
        self._lost = threading.Event()
        self._how_lost = ""
        self._tails = Tails(None if options.lease else place.file)
        self._pools: dict[str, ResourcePool] = {}
        self._grants: list[Grant] = []
        self._around = family.ancestors()

    def run(self, wanted: Sequence[Wanted], command: Sequence[str]) -> int:
        """Hold, run, free."""
        try:
            held = [
                self._hold(one) for one in sorted(wanted)
            ]  # all runs in the same order: no two wait for one another
            code = self._run(command, self._environment(held))
            for one in held:
                if not one.is_inner:
                    with contextlib.suppress(OSError):  # somebody has deleted the place
                        self._tails.wait_for_inner(one.pool, self._say)
            return code
        finally:
            self._free()

    def _free(self) -> None:
        """Free what is held; should that fail, the end of this process does it."""
        self._tails.unlock()
        for grant in reversed(self._grants):
            with contextlib.suppress(PoolError):
                grant.release()
        for pool in self._pools.values():
            with contextlib.suppress(PoolError):
                pool.close()

    # --- holding ------------------------------------------------------------------------------------------------------

    def _pool(self, name: str) -> ResourcePool:
        if name not in self._pools:
            self._pools[name] = ResourcePool(name, self._place.url, holder=user(), on_lost=self._take_note)
        return self._pools[name]

    def _take_note(self, grant: Grant) -> None:
        """Take note that a grant was taken away, and of what is said about it."""
        try:
            grant.check()
        except LeaseLost as error:
            self._how_lost = str(error).partition(" was lost: ")[2].partition(";")[0]
        self._lost.set()

    def _lender(self, pool: ResourcePool) -> ResourcePool:
        """Return what to ask: the pool, or one that avoids what a killed run has left something behind on."""
        free = [one.name for one in pool.resources() if not one.used]
        if len(free) > 1 and any(self._tails.left_behind(pool.name, name) for name in free):
            self._pools[f"{pool.name}/"] = pool = ResourcePool(
                pool.name,
                self._place.url,
                holder=user(),
                on_lost=self._take_note,
                placement=lambda found: self._tails.unused_first(pool.name, found),
            )
        return pool

    def _hold(self, wanted: Wanted) -> Hold:
        pool = self._pool(wanted.pool)
        around = lending.held_around(pool, self._place.url, wanted, self._around)
        if around is not None:
            around.resources = around.resources[: wanted.number]
            self._say(f"{wanted} is held already by the run around this one (pid {around.pid})")
            self._tails.share(wanted.pool, around.resources)
            return around
        may_create = self._place.is_own or self._options.create
        lending.ensure(pool, self._place.url, wanted, may_create=may_create, say=self._say)
        with self._saying(pool, wanted):
            try:
                grant = lending.acquire(
                    self._lender(pool),
                    self._place.url,
                    wanted,
                    timeout=None if self._deadline is None else max(0.0, self._deadline - elapsed()),
                    lease=self._options.lease,
                    priority=self._options.priority,
                    reason=self._options.reason,
                ).__enter__()
                self._grants.append(grant)
                capacities = {one.name: one.capacity for one in pool.resources()}
                alone = [name for name in grant.resources if capacities.get(name) == 1]
                self._tails.lock(wanted.pool, alone, self._say, self._deadline)
            except AcquireTimeout as error:
                _say(f"no {wanted} within {self._options.timeout:g} s: {in_the_way(error, wanted)}")
                raise
        return Hold(wanted.pool, list(grant.resources), grant.token, shown(self._place.url))

    @contextlib.contextmanager
    def _saying(self, pool: ResourcePool, wanted: Wanted) -> Iterator[None]:
        """Say now and then why one waits."""
        is_over = threading.Event()
        waits = threading.Event()
        before = len(self._grants)

        def is_granted() -> bool:
            return len(self._grants) > before

        def speak() -> None:
            patience = 0.5
            while not is_over.wait(patience):
                waits.set()
                patience = SAY_EVERY
                with contextlib.suppress(PoolError):
                    if not is_granted():
                        self._say(f"waiting for {wanted}: {_standing(pool, wanted)}")

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        try:
            yield
            if waits.is_set():
                self._say(f"{wanted} is yours")
        finally:
            is_over.set()
            thread.join()

    def _environment(self, held: Sequence[Hold]) -> dict[str, str]:
        """Return the environment of the command: where we are, what is held for it, and the GPUs that it may see."""
        names = [name for one in held for name in one.resources]
        environment = {
            **os.environ,
            **self._place.variables(),
            HELD: telling(held),
            "MILLPOND_RESOURCES": ",".join(names),
            "MILLPOND_RESOURCE": names[0],
            "MILLPOND_TOKEN": str(held[0].token),
        }
        for one in held:
            environment.update(lending.variables(self._pool(one.pool), one))
        return environment

    # --- running ------------------------------------------------------------------------------------------------------

    def _run(self, command: Sequence[str], environment: dict[str, str]) -> int:
        family.adopt_orphans()
        with _Signals() as signals:
            try:
                child = subprocess.Popen(
                    command,
                    env=environment,
                    pass_fds=self._tails.files,
                    preexec_fn=family.die_with_parent(),
                    umask=-1 if self._umask is None else self._umask,
                )
            except (FileNotFoundError, NotADirectoryError):
                _say(f"there is no command {command[0]!r}")
                return 127
            except OSError as error:
                _say(f"{command[0]!r} cannot be run: {error.strerror}")
                return 126
            try:
                signals.pass_on_to(child)
                self._watch(child)
            except BaseException:
                self._end(child)
                raise
        code = child.returncode
        if code < 0 or self._lost.is_set():
            self._end(child)
        if self._lost.is_set():
            return TAKEN_AWAY
        return code if code >= 0 else 128 - code

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        """Wait until the command has ended; tell it to, when what it uses was taken away."""
        told = 0.0
        while not _wait(child, 1.0):
            if told and elapsed() > told + GRACE:
                with contextlib.suppress(OSError):
                    child.kill()
            elif self._lost.is_set() and not told:
                told = elapsed()
                how = f" ({self._how_lost})" if self._how_lost else ""
                self._say(f"what the command uses was taken away{how}: it is told to end")
                with contextlib.suppress(OSError):
                    child.terminate()

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """End what is left of a command that did not end by itself; where that cannot be, it keeps what it uses."""
        if not family.end(GRACE):
            self._say("what the command has left behind cannot be ended: it keeps what it uses")
            self._tails.close()
        child.poll()


def in_the_way(error: AcquireTimeout, wanted: Wanted) -> str:
    """Say why one waited in vain, in a person's words: where nobody knows, programs are told which methods tell."""
    why = str(error).partition(": ")[2] or str(error)
    if why.startswith("waiters() and holders() tell"):
        return f"`millpond who {wanted.pool}` tells who is ahead and who holds what"
    return why


def _standing(pool: ResourcePool, wanted: Wanted) -> str:
    waiters = pool.waiters()
    us = (lending.host_of(pool.url), os.getpid())  # in containers many have one pid
    mine = [one for one in waiters if (one.host, one.pid) == us]
    labels = {one.name: one.labels for one in pool.resources()}
    holders = [one for one in pool.holders() if any(wanted.suits(name, labels.get(name, {})) for name in one.resources)]
    return words.line([one for one in holders if (one.host, one.pid) != us], waiters, mine[0] if mine else None)


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
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(timeout * 1000)
        finally:
            os.close(descriptor)
    return child.poll() is not None


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
        """Pass signals on to this process from now on, those that came early first."""
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
