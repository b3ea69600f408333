"""Logs in Redis or Valkey: one hash, one stream, one list and one string per pool, and two hashes for its sessions.

All keys of a pool have one hash tag, so a pool lives on one node of a cluster. Each verb is one script; hints are
published, and nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from millpond._redis import Address, Client, Subscription, check_server
from millpond._redis._client import Script
from millpond.errors import EngineError
from millpond.resources._rules.replica import HISTORY
from millpond.resources.engines.log._log import (
    FORMAT,
    GATE,
    Appended,
    Orphan,
    Synced,
    Witness,
    decode_witness,
    encode,
)


@cache
def _script(name: str) -> Script:
    return Script((files(__package__) / "lua" / f"{name}.lua").read_bytes())


class _Keys:
    """The keys of one pool."""

    def __init__(self, prefix: str, pool: str) -> None:
        quoted = pool.replace("%", "%25").replace("{", "%7B").replace("}", "%7D") or "%"
        base = f"{prefix}resources:{{{quoted}}}:"
        self.log = [base + part for part in ("meta", "log", "inbox", "snapshot")]
        self.sessions = [base + part for part in ("sessions", "beats")]


class RedisLog:
    """All pools of one server or cluster."""

    def __init__(self, url: str) -> None:
        self._address = Address(url)
        self._prefix = self._address.prefix
        self._names = f"{self._prefix}resources"
        self._channels = f"{self._prefix}resources:"
        self._client = Client(self._address)
        self._registry = Client(Address(url))  # on a cluster the list of pools is on another node than the pools
        self._subscription = Subscription(Address(url))
        self._keys: dict[str, _Keys] = {}
        self._listed: set[str] = set()

    def check(self) -> None:
        """Refuse a server that is too old, read-only, or would throw keys away."""
        check_server(self._client, self._address, "resource", "locks")

    def sync(self, pool: str, me: str, seq: int, tip: bytes, posts: Sequence[bytes], *, wants_gate: bool) -> Synced:
        """Post parcels, take the gate if it is wanted and free, and return what is new."""
        found = self._client.run(
            _script("sync"),
            self._of(pool).log,
            (me, int(wants_gate), GATE, seq, tip, self._channels, pool, FORMAT, *posts),
        )
        if isinstance(found, bytes):
            raise EngineError(
                f"pool {pool!r} in redis at {self._address.name} has format {found.decode()}, and this millpond reads "
                f"format {FORMAT}; use the version of millpond that wrote it, or drop the pool"
            )
        now, epoch, last, last_tip, base, items, snapshot, inbox = found
        if not last:
            self._listed.discard(pool)  # it is new, or was dropped, or the server has forgotten everything
        return Synced(
            int(now),
            epoch,
            last,
            last_tip,
            [(int(place.partition(b"-")[0]), mark, body) for place, mark, body in items],
            snapshot,
            base,
            [(0, body) for body in inbox],
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
        """Append an item, if the gate is still ours."""
        if item is not None and pool not in self._listed:
            self._registry.command("SADD", self._names, pool)
            self._listed.add(pool)
        seq, tip, body = item or (0, b"", b"")
        found = self._client.run(
            _script("append"),
            self._of(pool).log,
            (epoch, previous, seq, tip, body, len(taken), snapshot or b"", HISTORY, self._channels, pool, *hints),
        )
        if not found[0]:
            return Appended(False, int(found[1]), [])
        return Appended(True, int(found[1]), [(0, body) for body in found[2]])

    def leave(self, pool: str, epoch: int) -> None:
        """Give up the gate, if it is still ours."""
        self._client.run(_script("leave"), self._of(pool).log[:1], (epoch,))

    def beat(self, pool: str, me: str, lost_after: int) -> list[Orphan]:
        """Note that this companion lives; tell of those that have long been silent."""
        self._subscription.ping()
        found = self._client.run(_script("beat"), self._of(pool).sessions, (me, lost_after))
        return [
            Orphan(one.decode(), decode_witness(who), int(silent) / 1e6, int(beat)) for one, who, silent, beat in found
        ]

    def register(self, pool: str, me: str, session: str, witness: Witness) -> None:
        """Note who watches over a session."""
        self._client.run(_script("beat"), self._of(pool).sessions, (me, 0, session, encode(witness)))

    def unregister(self, pool: str, sessions: Sequence[str]) -> None:
        """Forget sessions that are over."""
        for start in range(0, len(sessions), 1000):  # Lua takes no more than some thousands at once
            self._client.run(_script("unregister"), self._of(pool).sessions, sessions[start : start + 1000])

    def sessions(self, pool: str) -> dict[str, Witness]:
        """Return all sessions of a pool."""
        found: list[Any] = self._client.command("HGETALL", self._of(pool).sessions[0])
        pairs = zip(found[::2], found[1::2], strict=True)
        return {session.decode(): decode_witness(value.partition(b"\n")[2]) for session, value in pairs}

    def pools(self) -> list[str]:
        """Return the names of all pools."""
        return sorted(name.decode() for name in self._registry.command("SMEMBERS", self._names))

    def drop(self, pool: str) -> None:
        """Delete a pool."""
        keys = self._of(pool)
        self._registry.command("SREM", self._names, pool)
        self._listed.discard(pool)
        self._client.command("DEL", *keys.log, *keys.sessions)

    def subscribe(self, names: Iterable[str]) -> None:
        """Listen for hints to companions and sessions (`to:…`), or of everything in a pool (`all:…`)."""
        self._subscription.subscribe(f"{self._channels}{name}" for name in names)

    def fileno(self) -> int:
        """Return the descriptor of the subscription."""
        return self._subscription.fileno()

    def hints(self) -> set[str] | None:
        """Return the pools that hints were about."""
        found = self._subscription.messages()
        return None if found is None else {one.decode() for one in found}

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._registry.close()
        self._subscription.close()

    def _of(self, pool: str) -> _Keys:
        keys = self._keys.get(pool)
        if keys is None:
            keys = self._keys[pool] = _Keys(self._prefix, pool)
        return keys
