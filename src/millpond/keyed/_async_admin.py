"""Operators' verbs of a keyed pool.

The synchronous twin, `_admin.py`, is generated from this file by `tools/twins.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from millpond.errors import NotFound
from millpond.keyed import _commands as do
from millpond.keyed import _views
from millpond.keyed._async_port import AsyncPort
from millpond.keyed._settings import LIFTED, checked_settings
from millpond.keyed._views import DeadLetterView

CHUNK = 500
Letters: TypeAlias = Iterable[DeadLetterView | int | str]
"""Dead letters: as they are, by number, or by the id of their job."""


class AsyncKeyedAdmin:
    """What an operator may do to a pool. Nothing here is needed by programs that use it."""

    def __init__(self, port: AsyncPort) -> None:
        self._port = port

    async def pause(self, key: str | None = None) -> None:
        """Let no job of this key begin; without a key, nothing in the whole pool. What runs goes on."""
        await self._port.open()
        command = do.Pause() if key is None else do.Pause(*self._port.home.address(key))
        await self._port.ask(lambda store: store.apply(command))

    async def resume(self, key: str | None = None) -> None:
        """Undo `pause`; without a key also `shutdown`."""
        await self._port.open()
        command = do.Resume() if key is None else do.Resume(*self._port.home.address(key))
        await self._port.ask(lambda store: store.apply(command))

    async def purge(self, key: str) -> int:
        """Drop the jobs of a key that have not begun, delayed ones included; return how many."""
        await self._port.open()
        command = do.Purge(*self._port.home.address(key))
        return int(await self._port.ask(lambda store: store.apply(command)))

    async def configure(
        self,
        *,
        lease: float | None = None,
        drain: float | None = None,
        payload_limit: int | None = None,
        max_jobs: int | None = None,
        max_per_key: int | None = None,
        max_dead: int | None = None,
        max_losses: int | None = None,
    ) -> None:
        """Change settings of the pool; what is left out stays. 0 for `max_jobs`, `max_per_key`, `max_dead`: no limit.

        Limits hold at once, `payload_limit` in programs that open the pool from now on. `lease` and `drain` can only be
        changed while the pool has no workers: raise ValueError else. The number of slots cannot be changed.
        """
        wanted: dict[str, Any] = checked_settings(
            LIFTED,
            lease=lease,
            drain=drain,
            payload_limit=payload_limit,
            max_jobs=max_jobs,
            max_per_key=max_per_key,
            max_dead=max_dead,
            max_losses=max_losses,
        )
        await self._port.open()
        home = self._port.home
        command = do.Configure(tuple(wanted.items()))
        if await self._port.ask(lambda store: store.apply(command)) == "busy":
            raise ValueError(
                f"pool {home.name!r} has workers, which go by the lease and drain that they joined with: end them first"
            )
        home.want(wanted)
        await self._port.ask(home.agree)

    async def shutdown(self) -> None:
        """End the whole pool: dispatches are refused, all workers drain and end. Jobs that wait are kept."""
        await self._port.ask(lambda store: store.apply(do.Shut()))

    async def dead_letters(self, key: str | None = None) -> list[DeadLetterView]:
        """Return the jobs that will not be run any more, the oldest first."""
        found = _views.dead_letters(await self._port.ask(lambda store: store.dead_letters()))
        return [each for each in found if key is None or each.key == key]

    async def replay(self, letters: Letters | None = None, *, key: str | None = None) -> int:
        """Put dead letters back into the mailboxes of their keys: these, those of a key, or all; return how many."""
        numbers = await self._chosen(letters, key)
        total = 0
        for start in range(0, len(numbers), CHUNK):
            part = do.Replay(tuple(numbers[start : start + CHUNK]))
            total += int(await self._port.ask(lambda store, part=part: store.apply(part)))  # type: ignore[misc]
        return total

    async def discard(self, letters: Letters | None = None, *, key: str | None = None) -> int:
        """Forget dead letters: these, those of a key, or all; return how many."""
        numbers = await self._chosen(letters, key)
        total = 0
        for start in range(0, len(numbers), CHUNK):
            part = do.Drop(tuple(numbers[start : start + CHUNK]))
            total += int(await self._port.ask(lambda store, part=part: store.apply(part)))  # type: ignore[misc]
        return total

    async def _chosen(self, letters: Letters | None, key: str | None) -> list[int]:
        """Return the numbers of dead letters that were given as they are, by number, or by the id of their job."""
        if letters is None:
            return [each.number for each in await self.dead_letters(key)]
        if key is not None:
            raise ValueError("give the letters or a key, not both")
        if isinstance(letters, str):
            raise TypeError(f"give a list of letters, numbers or ids, not the text {letters!r}")
        chosen = list(letters)
        for each in chosen:
            if isinstance(each, bool) or not isinstance(each, int | str | DeadLetterView):
                raise TypeError(
                    f"a dead letter is given as it is, by its number, or by the id of its job, not {each!r}"
                )
        ids = {each for each in chosen if isinstance(each, str)}
        named = await self.dead_letters() if ids else []
        unknown = ids - {each.id for each in named}
        if unknown:
            raise NotFound(f"no dead letter has the id {min(unknown)!r}")
        numbers = {each if isinstance(each, int) else each.number for each in chosen if not isinstance(each, str)}
        return sorted(numbers | {each.number for each in named if each.id in ids})

    async def drop(self, *, force: bool = False) -> None:
        """Forget the pool, with everything that it knows. Refused while it has workers or jobs, unless `force`."""
        if not force:
            counts = await self._port.ask(lambda store: store.counts())
            beat = await self._port.ask(lambda store: store.beat())
            if counts.jobs or counts.delayed or counts.residents or counts.dead or beat.members:
                raise ValueError(
                    f"pool {self._port.home.name!r} has {counts.jobs} jobs, {counts.delayed} delayed ones, "
                    f"{counts.residents} residents, {counts.dead} dead letters and {len(beat.members)} workers: "
                    "drop(force=True) forgets them"
                )
        await self._port.ask(lambda store: store.drop())
