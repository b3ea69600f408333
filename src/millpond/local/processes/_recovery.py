"""What became of the calls of a worker that died, or is stuck.

Both read the worker's journal (`_journal` has the rules). A call of a dead worker has either ended (its outcome was
sent or is in the journal), or was running (it fails with `WorkerDied`, or is tried again), or had not started (it goes
back to its place in its queue). A stuck worker keeps the call it runs; the rest goes back to its queue.
"""

from __future__ import annotations

from typing import Any

from millpond.errors import WorkerDied
from millpond.local.processes._batch import Batch, Specials
from millpond.local.processes._journal import SKIPPED, STARTED
from millpond.local.processes._runner import ProcessRunner
from millpond.local.processes._worker import ProcessWorker


def recover_calls(runner: ProcessRunner, worker: ProcessWorker, how: str) -> None:
    witness, back = settle_from_journal(worker)
    started = worker.journal.words[STARTED]
    for batch in reversed(worker.in_flight):
        position = started - batch.first
        batch.requeue(position + 1, batch.count)
        for lost in reversed(range(max(0, min(position + 1, batch.count)))):
            if batch.is_open(lost):  # the one it was running (and outcomes that it spoilt as it died)
                _lose(runner, worker, batch, lost, how)
        if batch is witness:
            batch.restore(back)
    worker.in_flight.clear()


def _lose(runner: ProcessRunner, worker: ProcessWorker, batch: Batch, position: int, how: str) -> None:
    """Try a call again that has lost its worker, if the pool's policy says so; else fail it."""
    who, tries = batch.identity(position), runner.records.tries
    tried = tries.pop(who, 0)
    if tried < runner.workers.rules.retries:
        tries[who] = tried + 1
        batch.requeue(position, position + 1)
        return
    text = (
        f"worker process {worker.process.pid} of pool {runner.name!r} died while it ran {batch.name(position)} "
        f"({how}); look for a crash or for want of memory, or let retries= try such tasks again"
    )
    batch.fail(position, WorkerDied(text))


def settle_from_journal(worker: ProcessWorker) -> tuple[Batch | None, list[Any]]:
    """Settle the calls whose outcomes are in the journal.

    Returns the batch it was about, and those of its entries that are to be put back in their queue.
    """
    before = worker.journal.position()
    base, outcomes = worker.journal.outcomes()
    if worker.journal.position() != before:
        return None, []  # the worker goes on just now, and may have written over what was read
    for batch in worker.in_flight if outcomes else ():
        low = base - batch.first
        if 0 <= low < batch.count:
            values: list[Any] = [None if type(outcome) is tuple else outcome for outcome in outcomes]
            specials = {at: outcome for at, outcome in enumerate(outcomes) if type(outcome) is tuple}
            if low + len(values) <= batch.count and low <= batch.settled:
                ended, back = batch.settle(low, values, specials)
                worker.ended += ended
                return batch, back
    return None, []


def conclude_recall(worker: ProcessWorker) -> None:
    """Put back in their queue the calls that a worker has not started, now that it is sure not to start them."""
    worker.recall_until = None
    worker.late_at = 0.0
    witness: Batch | None = None
    back: list[Any] = []
    now = worker.journal.position()
    if now == worker.recalled_at_position:  # it has been in one call all the time: what ended before need not wait
        witness, back = settle_from_journal(worker)
    for batch in reversed(worker.in_flight):
        batch.requeue(now[0] + 1 - batch.first, batch.count)
        if batch is witness:
            batch.restore(back)


def take_back(worker: ProcessWorker, answered: int, specials: Specials) -> None:
    """Put back in their queue the calls after number `answered` that a worker will not start, as its answer tells.

    It skipped some, so it will skip all up to the number that it was asked to. Were they put back when they are
    answered for, each batch would come before the one that was sent ahead of it.
    """
    recalled = max([special[1] for special in specials.values() if special[0] == SKIPPED], default=0)
    for batch in reversed(worker.in_flight) if recalled else ():
        batch.requeue(answered + 1 - batch.first, min(batch.count, recalled - batch.first))
