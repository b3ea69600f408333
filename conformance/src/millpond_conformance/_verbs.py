"""The commands of a store as verbs, for scripts and checks: `verbs.work("a", 1, …)` is `store.do(Work("a", 1, …))`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from millpond.keyed.rules import commands as do
from millpond.keyed.rules.commands import Command
from millpond.keyed.rules.questions import A, Question
from millpond.keyed.rules.records import (
    Batch,
    Claimed,
    Joiner,
    Moves,
    Order,
    PoolState,
    Report,
    Settings,
    Signal,
    Verdicts,
    Work,
)
from millpond.keyed.stores.base import Opened, Store, Subscription


class Verbs:
    """A store, with a method for each command."""

    def __init__(self, store: Store) -> None:
        self.__dict__["inner"] = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["inner"], name, value)

    def open(self, settings: Settings) -> Opened:
        opened: Opened = self.inner.open(settings)
        return opened

    def do(self, command: Command[A]) -> A:
        answer: A = self.inner.do(command)
        return answer

    def ask(self, question: Question[A]) -> A:
        answer: A = self.inner.ask(question)
        return answer

    def listen(
        self, name: str, heard: Callable[[], None], handed: Callable[[int, Signal], None] | None = None
    ) -> Subscription:
        subscription: Subscription = self.inner.listen(name, heard, handed)
        return subscription

    def drop(self) -> None:
        self.inner.drop()

    def close(self) -> None:
        self.inner.close()

    def dispatch(self, batch: Batch, orders: Sequence[Order]) -> Verdicts:
        return self.do(do.Dispatch(batch, orders))

    def apply(self, command: Command[str]) -> str:
        return self.do(command)

    def join(self, joiner: Joiner) -> PoolState:
        return self.do(do.Join(joiner))

    def renew(self, worker: str, *, leaving: bool = False, version: int = 0) -> PoolState | None:
        return self.do(do.Renew(worker, leaving, version))

    def leave(self, worker: str) -> None:
        self.do(do.Leave(worker))

    def give(self, worker: str, moves: Moves, why: str) -> int:
        return self.do(do.Give(worker, moves, why))

    def claim(
        self,
        worker: str,
        slots: Sequence[int],
        dead: Mapping[str, int],
        known: Iterable[int] | None = None,
        call: int = 0,
        heard: int = 0,
    ) -> Claimed:
        return self.do(do.Claim(worker, slots, dead, known, call, heard))

    def work(
        self,
        worker: str,
        call: int,
        reports: Sequence[Report],
        want: int,
        per: int,
        want_residents: int = 0,
        heard: int = 0,
        spare: int = 0,
    ) -> Work:
        return self.do(do.Work(worker, call, reports, want, per, want_residents, heard, spare))
