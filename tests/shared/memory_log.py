"""A store of logs in this process, whose calls can fail before or after they took effect: for tests of who uses one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millpond.errors import EngineUnavailable
from millpond.resources.engines.log._log import GATE, Appended, Synced, Witness


class Pool:
    def __init__(self) -> None:
        self.epoch = 0
        self.decider = ""
        self.active = 0
        self.seq = 0
        self.tip = b""
        self.base = 0
        self.snapshot: bytes | None = None
        self.items: list[tuple[int, bytes, bytes]] = []
        self.inbox: list[tuple[int, bytes]] = []


class MemoryLog:
    """The `Log` of one test, shared by its companions. `fail` says how the next call fails: "before", "after" or ""."""

    def __init__(self) -> None:
        self.pools_by_name: dict[str, Pool] = {}
        self.now = 1_000_000
        self.fail = ""
        self.posted = 0
        self.kept = 5
        self.registered: dict[str, Witness] = {}

    def pool(self, name: str) -> Pool:
        return self.pools_by_name.setdefault(name, Pool())

    def _before(self) -> None:
        self.now += 1
        if self.fail == "before":
            self.fail = ""
            raise EngineUnavailable("lost on the way there")

    def _after(self) -> None:
        if self.fail == "after":
            self.fail = ""
            raise EngineUnavailable("lost on the way back")

    def check(self) -> None:
        pass

    def sync(self, pool: str, me: str, seq: int, tip: bytes, posts: Sequence[bytes], *, wants_gate: bool) -> Synced:
        self._before()
        here = self.pool(pool)
        for body in posts:
            self.posted += 1
            here.inbox.append((self.posted, body))
        if (wants_gate or here.inbox) and (here.decider in (me, "") or self.now - here.active >= GATE):
            if here.decider != me:
                here.epoch += 1
            here.decider, here.active = me, self.now
        self._after()
        items = [one for one in here.items if one[0] > seq] if (seq, tip) != (here.seq, here.tip) else []
        is_mine = here.decider == me
        return Synced(
            self.now,
            here.epoch if is_mine else 0,
            here.seq,
            here.tip,
            items,
            here.snapshot if seq < 0 else None,
            here.base,
            list(here.inbox) if is_mine else [],
        )

    def append(
        self,
        pool: str,
        epoch: int,
        previous: bytes,
        item: tuple[int, bytes, bytes] | None,
        taken: Sequence[int],
        snapshot: bytes | None,
        hints: Iterable[str],
    ) -> Appended:
        self._before()
        here = self.pool(pool)
        if here.epoch != epoch or here.tip != previous:
            self._after()
            return Appended(False, self.now, [])
        here.active = self.now
        if item is not None:
            assert item[0] == here.seq + 1
            here.items.append(item)
            here.seq, here.tip = item[0], item[1]
            if snapshot is not None:
                here.snapshot, here.base = snapshot, here.seq
                here.items = [one for one in here.items if one[0] > here.seq - self.kept]
        here.inbox = [one for one in here.inbox if one[0] not in taken]
        self._after()
        return Appended(True, self.now, list(here.inbox))

    def leave(self, pool: str, epoch: int) -> None:
        self._before()
        if self.pool(pool).epoch == epoch:
            self.pool(pool).decider = ""

    def register(self, pool: str, me: str, session: str, witness: Witness) -> None:
        self._before()
        self.registered[session] = witness

    def unregister(self, pool: str, sessions: Sequence[str]) -> None:
        self._before()
        for session in sessions:
            self.registered.pop(session, None)
