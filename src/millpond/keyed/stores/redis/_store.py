"""A keyed pool in Redis: the verbs of `_store.Store`, each a script (or a few, where a verb names many slots).

Every purpose has its own connection, so that a long reading never holds up a heartbeat or a dispatch.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, cast

import msgspec

from millpond._clock import elapsed
from millpond._redis import Address, check_server, read_info
from millpond.errors import EngineError
from millpond.keyed.rules import commands
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.commands import Command
from millpond.keyed.rules.questions import A, Question
from millpond.keyed.rules.records import (
    KEPT_ACTS,
    Batch,
    Claimed,
    Joiner,
    Moves,
    Order,
    PoolState,
    Report,
    Settings,
    Signal,
    Take,
    Verdicts,
    Work,
)
from millpond.keyed.stores.base import Opened, PoolGone, Subscription
from millpond.keyed.stores.redis._connection import Link, forbidden
from millpond.keyed.stores.redis._listener import Listener
from millpond.keyed.stores.redis._outer_heart import OuterHeart
from millpond.keyed.stores.redis._reads import CHUNK, answer_to, beat_of, chunks, searched
from millpond.keyed.stores.redis._scripts import FORMAT, script

_Arg: TypeAlias = str | bytes | int
_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode
_tuple: Final = tuple.__new__  # a NamedTuple in half the time

_FOR_SCRIPTS: Final = ("slots", "lease", "drain", "max_jobs", "max_per_key", "max_dead", "max_losses", "unknown")
_PLAIN: Final[tuple[_Arg, ...]] = ("", "", 0, 0, "queue", 0)


class RedisStore:
    """A pool in a Redis server."""

    is_shared = True
    proves_death = False
    hands_over = True

    def __init__(self, url: str, pool: str) -> None:
        self.url = url
        self.skew = 0
        self._pool = pool
        self._address = Address(url)
        quoted = pool.replace("%", "%25").replace("{", "%7B").replace("}", "%7D") or "%"
        self._base = f"{self._address.prefix}{{{quoted}}}:".encode()
        self._dispatch_link = Link(self._address, self._base)
        self._work_link = Link(self._address, self._base)
        self._heartbeat_link = Link(self._address, self._base)
        self._move_link = Link(self._address, self._base)
        self._other_link = Link(self._address, self._base)
        self._listener = Listener(self._address, self._base)

    # -- the pool as a whole ------------------------------------------------------------------------------------------

    def open(self, settings: Settings) -> Opened:
        self._check_server()
        while True:
            found = self._other_link.run("open", [FORMAT, secrets.token_hex(8), *_kept(settings)])
            if len(found) == 3:
                break
            self._sweep(found[0])  # somebody began to drop it
        if found[2] != b"%d" % FORMAT:
            raise self._unreadable(found[2])
        known = msgspec.json.decode(found[0])
        settings = Settings(**{name: value for name, value in known.items() if name in Settings._fields})
        return Opened(settings, found[1].decode())

    def _check_server(self) -> None:
        self._other_link.command("EXISTS", self._base + b"meta")  # a cluster sends us to the node that has it
        check_server(self._other_link, self._address, "keyed", "jobs")
        for problem in self._other_link.run("probe", []):
            raise forbidden(problem.decode(), self._address)

    def exists(self) -> bool:
        """Return whether there is a pool of this name."""
        return bool(self._other_link.command("EXISTS", self._base + b"meta"))

    def drop(self) -> None:
        found = self._other_link.run("mark", [])
        if found:
            self._sweep(found[0])

    def _sweep(self, incarnation: bytes) -> None:
        """Delete all keys of a pool that is being dropped; others may do so at the same time."""
        pattern = b"".join(b"\\" + bytes((one,)) if one in b"*?[]\\^" else bytes((one,)) for one in self._base) + b"*"
        cursor: _Arg = 0
        while True:
            cursor, keys = self._other_link.command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            names = [key[len(self._base) :] for key in keys if key != self._base + b"meta"]
            is_last = int(cursor) == 0
            if not self._other_link.run("sweep", [incarnation, int(is_last), *names])[0] or is_last:
                return

    def close(self) -> None:
        self._listener.close()
        for link in (self._dispatch_link, self._work_link, self._heartbeat_link, self._move_link, self._other_link):
            link.close()

    def _run(self, link: Link, name: str, args: list[_Arg]) -> list[Any]:
        """Run a script of a pool that is there."""
        answer = link.run(name, [self.skew, *args])
        if not isinstance(answer, list):
            if answer in (b"gone", b"dropped"):
                raise PoolGone(
                    f"redis at {self._address.name} has no pool {self._pool!r} any more: it was dropped, or the server "
                    "lost its data; open it again"
                )
            raise self._unreadable(answer)
        return answer

    def _unreadable(self, found: bytes) -> EngineError:
        return EngineError(
            f"the pool {self._pool!r} in redis at {self._address.name} has format {found.decode()}, and this millpond "
            f"reads format {FORMAT}; use the version of millpond that wrote it, or drop the pool"
        )

    def do(self, command: Command[A]) -> A:
        one: Command[Any] = command
        match one:
            case commands.Dispatch(batch, orders):
                answer: Any = self.dispatch(batch, orders)
            case commands.Work(worker, call, reports, want, per, residents, heard, spare):
                answer = self.work(worker, call, reports, want, per, residents, heard, spare)
            case commands.Renew(worker, leaving, version):
                answer = self.renew(worker, leaving=leaving, version=version)
            case commands.Claim():
                answer = self.claim(*one)
            case commands.Give():
                answer = self.give(*one)
            case commands.Join():
                answer = self.join(*one)
            case commands.Leave():
                answer = self.leave(*one)  # type: ignore[func-returns-value]
            case _:
                answer = self.apply(one)
        return cast(A, answer)

    # -- producers ----------------------------------------------------------------------------------------------------

    def time_at(self, moment: int) -> int:
        return moment  # the server's clock is the time of day

    def dispatch(self, batch: Batch, orders: Sequence[Order]) -> Verdicts:
        args: list[_Arg] = [*batch]
        name = "dispatch"
        for slot, mailbox, body, special in orders:
            if special is not None:
                name = "dispatch_special"
                break
            args += (slot, mailbox, body)
        if name == "dispatch_special":
            args = [*batch]
            for slot, mailbox, body, special in orders:
                args += (slot, mailbox, body, *(_PLAIN if special is None else special))
        answer = self._run(self._dispatch_link, name, args)
        if not answer:
            return {}
        return {index: verdict.decode() for index, verdict in zip(answer[::2], answer[1::2], strict=True)}

    def apply(self, command: Command[Any]) -> str:
        name: str
        args: list[_Arg]
        match command:
            case commands.Start() | commands.Stop() | commands.Notify() | commands.Purge() | commands.Retry():
                name, args = type(command).__name__.lower(), [*command]
            case commands.Cancel():
                return searched(partial(self._run, self._other_link), "cancel", [*command])
            case commands.Log():
                name, args = "log", [KEPT_ACTS, *command]
            case commands.Pause():
                name, args = "switch", ["pause", *command]
            case commands.Resume():
                name, args = "switch", ["resume", *command]
            case commands.Shut():
                name, args = "switch", ["shut", 0, ""]
            case commands.Gone():
                return "noted" if self._run(self._other_link, "gone", [*command]) else "unknown"
            case commands.Replay() | commands.Drop():
                return str(self._letters(command))
            case commands.Configure():
                name, args = "configure", [part for change in command.changes for part in change]
        answer: str = self._run(self._other_link, name, args)[0].decode()
        return answer

    def _letters(self, command: commands.Replay | commands.Drop) -> int:
        verb = "replay" if isinstance(command, commands.Replay) else "drop"
        numbers = sorted(set(command.numbers))
        return sum(int(self._run(self._other_link, "letters", [verb, *some])[0]) for some in chunks(numbers) or [()])

    # -- workers ------------------------------------------------------------------------------------------------------

    def join(self, joiner: Joiner) -> PoolState:
        about = _pack((joiner.label, joiner.weight, joiner.concurrency, joiner.names))
        return beat_of(self._run(self._heartbeat_link, "join", [joiner.id, about]))

    def renew(self, worker: str, *, leaving: bool = False, version: int = 0) -> PoolState | None:
        answer = self._run(self._heartbeat_link, "renew", [worker, int(leaving), version])
        return beat_of(answer) if answer else None

    def outer_heart(self, lease: float, stall: float, *, renews: bool) -> OuterHeart | None:
        keep, gone = script("keep"), script("gone")
        return OuterHeart(
            {
                "pid": os.getpid(),
                "address": self._address.for_programs(),
                "base": self._base,
                "keep": (keep.sha, keep.source),
                "gone": (gone.sha, gone.source),
                "lease": lease,
                "stall": stall,
                "renews": renews,
            }
        )

    def leave(self, worker: str) -> None:
        while self._run(self._heartbeat_link, "leave", [worker, CHUNK])[0]:
            pass

    def give(self, worker: str, moves: Moves, why: str) -> int:
        given = 0
        for some in chunks(moves) or [()]:
            given += self._run(self._move_link, "give", [worker, why, *(part for move in some for part in move)])[0]
        return given

    def claim(
        self,
        worker: str,
        slots: Sequence[int],
        dead: Mapping[str, int],
        known: Iterable[int] | None = None,
        call: int = 0,
        heard: int = 0,
    ) -> Claimed:
        args: list[_Arg] = [worker, call, heard]
        if known is None:
            args.append(-1)
        else:
            tokens = set(known)
            args += (len(tokens), *tokens)
        args.append(len(dead))
        for one, end in dead.items():
            args += (one, end)
        got: list[int] = []
        contested: list[int] = []
        recovered = 0
        for some in chunks(slots) or [()]:
            answer = self._run(self._move_link, "claim", [*args, *some])
            got += map(int, answer[0])
            contested += map(int, answer[1])
            recovered += answer[2]
            if answer[3]:
                return Claimed(tuple(got), tuple(contested), recovered, is_gone=True)
        return Claimed(tuple(got), tuple(contested), recovered, is_gone=False)

    def work(
        self,
        worker: str,
        call: int,
        settles: Sequence[Report],
        want: int,
        per: int,
        want_residents: int = 0,
        heard: int = 0,
        spare: int = 0,
    ) -> Work:
        args: list[_Arg] = [worker, call, want, per, want_residents, heard, spare, len(settles)]
        for slot, mailbox, token, done, how, delay, failures, reason, outcomes, notes in settles:
            if outcomes or delay or failures or reason or notes:
                args += (slot, mailbox, token, done, how, len(outcomes), delay, failures, reason, notes)
                for outcome in outcomes:
                    args += outcome[:5]
            else:
                args += (slot, mailbox, token, done, how, "")
        stale, token, takes, signals, gone, more, due, now, version = self._run(self._work_link, "work", args)
        return Work(
            tuple(stale),
            _takes(takes, int(token)) if takes else (),
            tuple(map(_signal, signals)),
            bool(gone),
            bool(more),
            int(due),
            int(now),
            int(version),
        )

    # -- looking in ---------------------------------------------------------------------------------------------------

    def ask(self, question: Question[A]) -> A:
        link = self._move_link if isinstance(question, about.Members | about.Owners) else self._other_link
        answer: A = answer_to(question, lambda name, args: self._run(link, name, args))
        return answer

    # -- hints --------------------------------------------------------------------------------------------------------

    def listen(
        self, name: str, heard: Callable[[], None], handed: Callable[[int, Signal], None] | None = None
    ) -> Subscription:
        return self._listener.listen(name, heard, handed)


def pools(url: str) -> list[str]:
    """Return the pools of a server, by name; of a cluster, those of the node that the URL names."""
    address = Address(url)
    link = Link(address, b"")
    names, cursor = set(), b"0"
    try:
        while True:
            pattern = f"{address.prefix}{{*}}:meta"
            cursor, keys = link.command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            for key in keys:
                quoted = key.decode().removeprefix(address.prefix).removesuffix(":meta")[1:-1]
                names.add(quoted.replace("%7B", "{").replace("%7D", "}").replace("%25", "%"))
            if int(cursor) == 0:
                return sorted("" if name == "%" else name for name in names)
    finally:
        link.close()


def has(url: str, pool: str) -> bool:
    """Return whether a server has a pool of that name, without looking at all its keys."""
    store = RedisStore(url, pool)
    try:
        return store.exists()
    finally:
        store.close()


def examine(url: str) -> tuple[dict[str, str], list[float], float]:
    """Return what a server says of itself, the seconds of some answers, and its time."""
    link = Link(Address(url), b"")
    try:
        info = read_info(link)
        took = []
        for _ in range(20):
            began = elapsed()
            link.command("PING")
            took.append(elapsed() - began)
        seconds, micro = link.command("TIME")
    finally:
        link.close()
    return info, took, int(seconds) + int(micro) / 1e6


def _takes(answer: list[Any], token: int) -> tuple[Take, ...]:
    takes = []
    for index in range(0, len(answer), 4):
        slot, mailbox, jobs, extra = answer[index : index + 4]
        if extra:
            failures, losses, pairs = extra
            notes = tuple((int(number), data) for number, data in zip(pairs[::2], pairs[1::2], strict=True))
            takes.append(Take(int(slot), mailbox.decode(), token, tuple(jobs), failures, losses, notes))
        else:
            takes.append(_tuple(Take, (int(slot), mailbox.decode(), token, tuple(jobs), 0, 0, ())))
    return tuple(takes)


def _signal(answer: list[Any]) -> Signal:
    number, kind, mailbox, job, note, data, *slot = answer
    return Signal(number, kind.decode(), mailbox.decode(), job.decode(), int(note), data, *map(int, slot))


def _kept(settings: Settings) -> list[_Arg]:
    """Return settings as they are given back, and then those that scripts read: a name and a value each."""
    kept: _Arg = msgspec.json.encode(settings._asdict())
    return [kept, *(part for name in _FOR_SCRIPTS for part in (name, getattr(settings, name)))]
