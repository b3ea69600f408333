"""Millpond's pools on Temporal, used by workflows: the counterpart of `peers_temporal`. Not a benchmark itself."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from peers_temporal import Notes, now

    from millpond.resources import temporal


@workflow.defn(name="MillpondRequester")
class MillpondRequester:
    """Acquires and gives back at once, again and again."""

    def __init__(self) -> None:
        self.seen = Notes()

    @workflow.query
    def notes(self) -> Notes:
        return self.seen

    @workflow.run
    async def run(self, pool: str, cycles: int) -> Notes:
        for _ in range(cycles):
            asked = now()
            async with temporal.acquire(pool) as grant:
                got = now()
                self.seen.cycles.append((grant.resource, asked, got, now()))
            self.seen.replayed |= workflow.unsafe.is_replaying()
        return self.seen
