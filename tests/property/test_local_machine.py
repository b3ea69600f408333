"""Random orders of verbs on real pools. Tasks keep a journal of their own; in the end it is compared with the futures and
with `statistics()`: every task ended once, in the way its future says; none is lost, and none ran that was cancelled."""

from __future__ import annotations

import tempfile
from collections import Counter
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from local_pools import Handle, local_pool
from millpond import CancelToken, PoolFull
from pool_calls import Gate, Journal, hold, note
from waiting import until

LIMIT = 20.0
"""Seconds that an end may take here: what hangs, hangs in many examples."""
BOUNDS = [(None, "block"), (0, "raise"), (2, "raise"), (1, "drop"), (2, "drop_oldest"), (2, "caller_runs")]


@dataclass
class Submitted:
    number: int
    handle: Handle
    fails: bool
    key: str | None


class PoolMachine(RuleBasedStateMachine):
    kind = ""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.folder = folder
        self.journal = Journal(folder / "journal")
        self.gates = [Gate(folder, "gate-0")]
        self.tasks: list[Submitted] = []
        self.maps: list[Any] = []
        self.items = 0
        self.numbers = 0
        self.rejected = 0
        self.purged = 0
        self.token = CancelToken()
        self.events: Counter[str] = Counter()
        self.is_paused = False

    @initialize(bound=st.sampled_from(BOUNDS), max_workers=st.integers(1, 3), is_observed=st.booleans())
    def begin(self, bound: tuple[int | None, str], max_workers: int, is_observed: bool) -> None:
        options: dict[str, Any] = {} if bound[0] is None else {"max_queued": bound[0], "when_full": bound[1]}
        if is_observed:
            options["on_event"] = lambda event: self.events.update([event.name])
        self.is_observed = is_observed
        self.word = bound[1]
        self.pool = self.stack.enter_context(local_pool(self.kind, max_workers, **options))

    # -- submitting ---------------------------------------------------------------------------------------------------

    @rule(
        fails=st.booleans(),
        key=st.sampled_from([None, None, "a", "b"]),
        has_token=st.booleans(),
        is_trying=st.booleans(),
    )
    def submit(self, fails: bool, key: str | None, has_token: bool, is_trying: bool) -> None:
        if self.word == "caller_runs":
            key = None  # what is in order and what the caller runs at once cannot both be
        options: dict[str, Any] = {} if key is None else {"key": key}
        if has_token:
            options["cancel"] = self.token
        self._submit(note, (self.journal.path, self.numbers, "bad" if fails else ""), options, fails, key, is_trying)

    @rule()
    def submit_one_that_waits(self) -> None:
        self._submit(hold, (self.gates[-1].path, self.numbers), {}, False, None, True)

    def _submit(
        self, fn: Any, args: tuple[Any, ...], options: dict[str, Any], fails: bool, key: str | None, is_trying: bool
    ) -> None:
        source = self.pool.options(**options) if options else self.pool
        dropped = self._cancelled()
        try:
            handle = source.try_submit(fn, *args) if is_trying else source.submit(fn, *args)
        except PoolFull:
            handle = None
        if handle is None:
            self.rejected += 1
        else:
            self.tasks.append(Submitted(self.numbers, handle, fails, key))
            if not is_trying:  # what it dropped, this one or an older one
                self.rejected += self._cancelled() - dropped
        self.numbers += 1

    def _cancelled(self) -> int:
        return sum(task.handle.cancelled() for task in self.tasks)

    @rule(number=st.integers(0, 8))
    def map(self, number: int) -> None:
        numbers = range(self.numbers, self.numbers + number)
        self.maps.append(self.pool.map(note, [self.journal.path] * number, numbers))
        self.numbers += number
        self.items += number

    # -- ending -------------------------------------------------------------------------------------------------------

    @rule(back=st.integers(0, 9))
    def cancel(self, back: int) -> None:
        if not self.tasks:
            return
        task = self.tasks[-1 - back % len(self.tasks)].handle
        was_done = task.done()
        if task.cancel() and not was_done:
            until(task.done)
            assert task.cancelled()

    @rule()
    def cancel_the_token(self) -> None:
        self.token.cancel()
        self.token = CancelToken()

    @rule()
    def purge(self) -> None:
        assert self.pool.purge() >= 0
        assert self.pool.statistics().queued == 0 or self.kind == "processes"

    @rule()
    def open_the_gate(self) -> None:
        self.gates[-1].open()
        self.gates.append(Gate(self.folder, f"gate-{len(self.gates)}"))

    # -- managing -----------------------------------------------------------------------------------------------------

    @rule()
    def pause(self) -> None:
        self.pool.pause()
        self.is_paused = True

    @rule()
    def resume(self) -> None:
        self.pool.resume()
        self.is_paused = False

    @rule(number=st.integers(1, 4))
    def resize(self, number: int) -> None:
        self.pool.resize(number)
        assert self.pool.statistics().max_workers == number

    @rule()
    def drain(self) -> None:
        self.open_the_gate()
        self.resume()
        assert self.pool.drain(LIMIT)
        assert all(task.handle.done() for task in self.tasks)

    @rule(cancels=st.booleans())
    def close_and_open_again(self, cancels: bool) -> None:
        self.open_the_gate()
        assert self.pool.shutdown(cancel_futures=cancels, timeout=LIMIT)
        assert all(task.handle.done() for task in self.tasks)
        self.pool.restart()
        self.is_paused = False

    @invariant()
    def counts_add_up(self) -> None:
        if not hasattr(self, "pool"):
            return
        now = self.pool.statistics()
        assert min(now.queued, now.running, now.completed, now.cancelled, now.failed, now.rejected) >= 0
        assert now.submitted == now.queued + now.running + now.completed + now.cancelled
        assert (now.state == "paused") is self.is_paused

    # -- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if hasattr(self, "pool"):
                self.drain()
                self.check_tasks()
                self.check_keys()
                self.check_counts()
        finally:
            for gate in self.gates:
                gate.open()
            self.stack.close()

    def check_tasks(self) -> None:
        noted, held = self.journal.of("begin"), self._held()
        assert len({*noted, *held}) == len(noted) + len(held), "none ran twice"
        failed = set(self.journal.of("fail"))
        for task in self.tasks:
            number = str(task.number)
            if task.handle.cancelled():
                assert number not in noted, f"{number} ran, though it is cancelled"
                assert number not in held or self.kind == "asyncio", "only a coroutine can be cancelled while it waits"
            else:
                assert number in noted or number in held, f"{number} never ran"
                assert (task.handle.exception(0) is not None) is task.fails is (number in failed)

    def _held(self) -> list[str]:
        """Return the tasks that came into a gate."""
        return [each for gate in self.gates for each in gate.journal.of("begin")]

    def check_keys(self) -> None:
        for key in ("a", "b"):
            numbers = {str(task.number) for task in self.tasks if task.key == key}
            lines = [line for line in self.journal.lines() if line[1] in numbers]
            order = [line[1] for line in lines if line[0] == "begin"]
            assert order == sorted(order, key=int), "in the order of their submits"
            assert [line[1] for line in lines] == [each for each in order for _ in range(2)], "one at a time"

    def check_counts(self) -> None:
        until(lambda: not self.pool.statistics().running)
        now = self.pool.statistics()
        gone = {str(task.number) for task in self.tasks if task.handle.cancelled()}
        assert now.completed == len(self.journal.of("begin")) + len([each for each in self._held() if each not in gone])
        assert now.failed == len(self.journal.of("fail"))
        assert now.submitted == len(self.tasks) + self.items == now.completed + now.cancelled
        assert now.cancelled >= len(gone)
        assert now.rejected == self.rejected
        assert now.queued == 0
        if self.is_observed and not self.maps:
            ended = ("task_finished", "task_failed")
            until(lambda: sum(self.events[each] for each in ended) == now.completed, str(self.events))
            assert self.events["task_failed"] == now.failed
            assert self.events["task_rejected"] == now.rejected
        results = [value for each in self.maps for value in _taken(each)]
        assert sorted(map(str, results)) == sorted(set(map(str, results)))
        assert set(map(str, results)) <= set(self.journal.of("end"))


def _taken(results: Any) -> list[Any]:
    """Return the results of a map, as far as it was not cancelled."""
    taken = []
    try:
        for value in results:
            taken.append(value)  # noqa: PERF402  (what came before the error counts)
    except CancelledError:
        pass
    return taken


class ThreadMachine(PoolMachine):
    kind = "threads"


class ProcessMachine(PoolMachine):
    kind = "processes"


class LoopMachine(PoolMachine):
    kind = "asyncio"


def run(machine: type[PoolMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            phases=[Phase.generate],  # threads fail when they like: the steps as they were tell more than fewer of them
            report_multiple_bugs=False,
        ),
    )


def test_every_task_of_a_thread_pool_ends_once_and_is_counted_once():
    run(ThreadMachine, 200, 40)


def test_every_task_of_an_async_pool_ends_once_and_is_counted_once():
    run(LoopMachine, 80, 40)


def test_every_task_of_a_process_pool_ends_once_and_is_counted_once():
    run(ProcessMachine, 10, 30)
