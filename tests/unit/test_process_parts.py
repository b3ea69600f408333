"""The parts of `ProcessPool`, one by one: frames, journal, batches, run times, recovery."""

from __future__ import annotations

import marshal
import multiprocessing
import os
import pickle
import random
import socket
import sys
import threading
import time
import types
from multiprocessing.heap import BufferWrapper
from pathlib import Path
from typing import Any

import pytest

from millpond import Task, WorkerDied
from millpond.local._queues import Fifo
from millpond.local._worker_queues import WorkerQueue
from millpond.local.processes._batch import MapBatch, TaskBatch
from millpond.local.processes._child import Child
from millpond.local.processes._dispatch import Dispatcher
from millpond.local.processes._frames import LENGTH, REPLY, ROOM, Inbox
from millpond.local.processes._io_thread import IoThread
from millpond.local.processes._journal import (
    BASE,
    FAILED,
    PICKLED,
    SIZE,
    SKIP,
    SKIPPED,
    STARTED,
    UNLOADABLE,
    Journal,
)
from millpond.local.processes._map import ProcessMap
from millpond.local.processes._recovery import conclude_recall, recover_calls
from millpond.local.processes._run_times import RunTimes
from millpond.local.processes._runner import ProcessRunner
from millpond.local.processes._worker import ProcessWorker
from millpond.local.processes._workers import WorkerRules

sys.path.insert(0, str(Path(__file__).parent))
import process_calls as calls


def fresh_journal() -> Journal:
    journal = Journal(BufferWrapper(SIZE))
    journal.clear()
    return journal


class FakeWorker:
    """A worker without a process: what recovery and the dispatcher look at."""

    def __init__(self) -> None:
        self.journal = fresh_journal()
        self.in_flight: list[TaskBatch] = []
        self.next_number = 1
        self.queue = WorkerQueue(None, Fifo())  # type: ignore[arg-type]
        self.recall_until: float | None = None
        self.recalled_at_position = (0, 0)
        self.recall_at: float | None = None
        self.late_at = time.monotonic() + 60
        self.ready_at = time.monotonic()
        self.memory = self.ended = 0
        self.is_ready, self.is_leaving, self.is_killed = True, False, False
        self.process = multiprocessing.current_process()

    @property
    def load(self) -> int:
        return sum(batch.open for batch in self.in_flight)

    @property
    def has_keys(self) -> bool:
        return bool(self.in_flight) and self.in_flight[0].is_keyed

    def skip_rest(self) -> None:
        self.journal.words[SKIP] = self.next_number

    def give(self, batch: TaskBatch, *_: Any) -> bool:
        batch.first = self.next_number
        self.next_number += batch.count
        self.in_flight.append(batch)
        return True

    def write(self, base: int, started: int, outcomes: list[Any]) -> None:
        """Leave a journal behind."""
        self.journal.words[BASE], self.journal.words[STARTED] = base, started
        records = b"".join(marshal.dumps(outcome) for outcome in outcomes)
        self.journal.records[: len(records)] = records


def make_runner(**rules: Any) -> ProcessRunner:
    runner = ProcessRunner(
        name="t",
        min_workers=0,
        max_workers=2,
        rules=WorkerRules(multiprocessing.get_context("spawn"), b"", **rules),
        make_queue=Fifo,
        make_io_thread=None,  # type: ignore[arg-type]
    )
    runner.io.is_waiting = False  # nobody is to be woken
    runner.is_interrupted = True  # nor waited for at exit
    return runner


def make_batch(runner: ProcessRunner, number: int, expected: float = 0.001) -> tuple[TaskBatch, list[Task[Any]]]:
    tasks: list[Task[Any]] = []
    for x in range(number):
        task: Task[Any] = Task()
        task._fn, task._args, task._owner = None, (x,), runner.owner
        tasks.append(task)
    return TaskBatch(runner, tasks, [calls.same], [(x,) for x in range(number)], expected), tasks


def values(tasks: list[Task[Any]]) -> list[Any]:
    return [task._value if task.done() else "open" for task in tasks]


# -- frames ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [[0, 1, 5], [ROOM - 9, ROOM - 8, ROOM - 7, ROOM], [3 * ROOM, 2, 3 * ROOM + 1], [10] * 500]
)
def test_an_inbox_gives_back_the_frames_however_they_are_cut(sizes):
    generator = random.Random(4)
    frames = [generator.randbytes(size) for size in sizes]
    stream = b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)
    ours, theirs = socket.socketpair()

    def send() -> None:
        at = 0
        while at < len(stream):
            step = generator.randint(1, ROOM)
            theirs.sendall(stream[at : at + step])
            at += step
        theirs.close()

    sender = threading.Thread(target=send)
    sender.start()
    inbox, found = Inbox(), []
    with ours:
        while (some := inbox.receive(ours)) is not None:
            found += [bytes(frame) for frame in some]
    sender.join()
    assert found == frames


# -- the child ---------------------------------------------------------------------------------------------------------


class Listener(Child):
    """A child that keeps its answers."""

    def __init__(self) -> None:
        self.journal = fresh_journal()
        self.ours, theirs = socket.socketpair()
        self.theirs = theirs
        super().__init__(theirs, self.journal, reports_memory=False)
        self.answers: list[tuple[Any, ...]] = []

    def send(self, message: tuple[Any, ...]) -> None:
        self.answers.append(message)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def child():
    child = Listener()
    yield child
    child.close()


def outcome(child: Listener) -> list[Any]:
    """What the child answered, put together: values, or the words of special outcomes."""
    found: dict[int, Any] = {}
    for word, base, some, specials, *_ in child.answers:
        assert word == REPLY
        found |= {base + at: value for at, value in enumerate(some)}
        found |= {base + at: special[0] + 100 for at, special in specials.items()}
    return [found[number] for number in sorted(found)]


def test_a_child_answers_once_for_a_quick_batch(child):
    child.run(1, 3, [(calls.square, (x,)) for x in (2, 3, 4)])
    assert len(child.answers) == 1 and outcome(child) == [4, 9, 16]


def test_a_child_skips_what_was_asked_back(child):
    child.journal.words[SKIP] = 3
    child.run(1, 4, [(calls.square, (x,)) for x in range(4)])
    assert outcome(child) == [100 + SKIPPED, 100 + SKIPPED, 4, 9]


def test_a_child_has_the_outcomes_of_ended_calls_in_its_journal_while_it_runs_the_next(child):
    seen = []

    def look() -> None:
        seen.append((child.journal.position(), child.journal.outcomes()))

    child.run(5, 4, [(calls.square, (3,)), (calls.same, ([1],)), (calls.fail, ()), (look, ())])
    (position, (base, found)) = seen[0]
    assert position == (8, 5) and base == 5
    assert found[0] == 9
    assert found[1] == (PICKLED, pickle.dumps([1], 5))
    assert found[2][0] == FAILED and "ValueError: bad" in found[2][2]


def test_a_child_answers_early_when_its_journal_is_full(child):
    child.run(1, 5, [(calls.blow_up, (b"x", 30_000))] * 5)
    assert len(child.answers) > 1 and [len(value) for value in outcome(child)] == [30_000] * 5


def test_a_child_says_so_when_it_does_not_understand_a_batch(child):
    assert child.load(memoryview(b"nonsense")) is None
    child.run(1, 2, [(calls.square, (2,)), (calls.square, (3,))])
    child.answers.clear()
    child.run(3, 2, None)
    assert outcome(child) == [100 + UNLOADABLE] * 2
    assert child.journal.outcomes()[1] == []


# -- recovery ----------------------------------------------------------------------------------------------------------


def test_after_a_death_ended_calls_keep_their_outcome_one_fails_and_the_rest_goes_back_in_place():
    runner, worker = make_runner(), FakeWorker()
    first, tasks = make_batch(runner, 5)
    second, more = make_batch(runner, 2)
    worker.give(first)
    worker.give(second)
    worker.write(1, 3, ["a", (PICKLED, pickle.dumps(["b"]))])
    recover_calls(runner, worker, "killed by SIGKILL")  # type: ignore[arg-type]
    assert values(tasks[:2]) == ["a", ["b"]]
    assert isinstance(tasks[2].exception(0), WorkerDied)
    assert list(runner.backlog.queue) == [*tasks[3:], *more] and all(
        task._fn is calls.same for task in runner.backlog.queue
    )
    assert (runner.records.completed, runner.records.failed) == (3, 1)


def test_after_a_death_between_two_calls_nobody_fails():
    runner, worker = make_runner(), FakeWorker()
    batch, tasks = make_batch(runner, 3)
    worker.give(batch)
    batch.settle(0, ["a"], {})  # answered; the journal still says that it was started last
    worker.write(1, 1, [])
    recover_calls(runner, worker, "gone")  # type: ignore[arg-type]
    assert list(runner.backlog.queue) == tasks[1:] and runner.records.failed == 0


def test_a_call_is_put_back_before_it_fails_when_there_are_tries_left():
    runner, worker = make_runner(retries=1), FakeWorker()
    batch, tasks = make_batch(runner, 2)
    worker.give(batch)
    worker.write(1, 1, [])
    recover_calls(runner, worker, "gone")  # type: ignore[arg-type]
    assert list(runner.backlog.queue) == tasks


def test_the_items_of_a_map_are_settled_though_the_consumer_empties_what_it_gets():
    runner, worker = make_runner(retries=1), FakeWorker()
    run: ProcessMap[Any] = ProcessMap(runner, calls.same, is_bare=True, chunksize=None, ordered=True)
    run.results.publish = lambda start, values, error: values.clear()  # type: ignore[method-assign]
    run.add(list(range(10)))
    batch = MapBatch(runner, run, *run.cut(8), 0.001)
    worker.give(batch)  # type: ignore[arg-type]
    worker.write(1, 4, [0, 1, 2])
    recover_calls(runner, worker, "gone")  # type: ignore[arg-type]
    assert batch.settled == 3
    assert [run.cut(4), run.cut(100)] == [(3, [3, 4, 5, 6]), (7, [7, 8, 9])]


def test_a_recall_of_a_stuck_worker_settles_what_ended_and_puts_back_what_waits():
    runner, worker = make_runner(), FakeWorker()
    batch, tasks = make_batch(runner, 5)
    worker.give(batch)
    worker.write(1, 3, ["a", "b"])
    worker.recall_until, worker.recalled_at_position = 0.0, (3, 1)
    conclude_recall(worker)  # type: ignore[arg-type]
    assert values(tasks) == ["a", "b", "open", "open", "open"]
    assert list(runner.backlog.queue) == tasks[3:] and tasks[2].running()
    ended, back = batch.settle(0, ["a", "b", "c", None, None], {3: (SKIPPED,), 4: (SKIPPED,)})
    assert ended == 1 and tasks[2].result(0) == "c" and batch.settled == batch.count and not back
    assert list(runner.backlog.queue) == tasks[3:]


def test_a_batch_keeps_no_task_alive_that_was_taken_back():
    runner, worker = make_runner(), FakeWorker()
    batch, tasks = make_batch(runner, 3)
    worker.give(batch)
    worker.write(1, 1, [])
    worker.recall_until, worker.recalled_at_position = 0.0, (1, 1)
    conclude_recall(worker)  # type: ignore[arg-type]
    assert list(runner.backlog.queue) == tasks[1:]
    assert tasks[0] in batch.tasks and not set(tasks[1:]) & set(batch.tasks)


def test_a_recall_of_a_worker_that_moves_leaves_what_it_may_have_started():
    runner, worker = make_runner(), FakeWorker()
    batch, tasks = make_batch(runner, 5)
    worker.give(batch)
    worker.recall_until, worker.recalled_at_position = 0.0, (1, 1)
    worker.write(1, 3, ["a", "b"])  # it has gone on since the recall was begun
    conclude_recall(worker)  # type: ignore[arg-type]
    assert list(runner.backlog.queue) == tasks[3:] and values(tasks[:3]) == ["open"] * 3
    ended, back = batch.settle(0, ["a", None, "c", None, None], {1: (SKIPPED,), 3: (SKIPPED,), 4: (SKIPPED,)})
    assert ended == 2 and values(tasks) == ["a", "open", "c", "open", "open"]
    assert back == [tasks[1]]
    batch.restore(back)
    assert list(runner.backlog.queue) == [tasks[1], *tasks[3:]]


def test_what_a_worker_skips_keeps_its_order_though_it_answers_batch_by_batch():
    runner, worker = make_runner(), FakeWorker()
    (batch, tasks), (ahead, later), (new, newest) = (make_batch(runner, number) for number in (2, 2, 1))
    worker.give(batch)
    worker.give(ahead)
    worker.skip_rest()  # and before it has answered, it gets more
    seen = worker.journal.words[SKIP]
    worker.give(new)
    worker.skip_rest()
    thread = IoThread(runner)
    try:
        thread._settle(worker, 1, [None, None], {0: (SKIPPED, seen), 1: (SKIPPED, seen)}, 0.0, 0)  # type: ignore[arg-type]
        assert list(runner.backlog.queue) == [*tasks, *later] and new.is_open(0)
        thread._settle(worker, 3, [None, None], {0: (SKIPPED, seen), 1: (SKIPPED, seen)}, 0.0, 0)  # type: ignore[arg-type]
        assert list(runner.backlog.queue) == [*tasks, *later] and list(worker.in_flight) == [new]
        thread._settle(worker, 5, ["new"], {}, 0.0, 0)  # type: ignore[arg-type]
        assert values(newest) == ["new"]
    finally:
        thread.close()


def test_a_worker_gets_nothing_during_a_recall_even_when_it_has_answered_all():
    runner, worker = make_runner(), FakeWorker()
    dispatcher = Dispatcher(runner)
    assert dispatcher.has_room(worker)  # type: ignore[arg-type]
    worker.recall_until = 0.0
    assert not dispatcher.has_room(worker)  # type: ignore[arg-type]


def test_a_worker_that_is_late_gets_nothing_in_advance():
    runner, worker = make_runner(), FakeWorker()
    dispatcher = Dispatcher(runner)
    worker.give(make_batch(runner, 2)[0])
    assert dispatcher.has_room(worker)  # type: ignore[arg-type]
    worker.late_at = 0.0
    assert not dispatcher.has_room(worker)  # type: ignore[arg-type]


def test_nothing_is_sent_in_advance_behind_tasks_with_a_key_and_they_are_not_asked_back():
    runner, worker = make_runner(), FakeWorker()
    batch, _ = make_batch(runner, 2)
    batch.is_keyed = True
    worker.give(batch)
    runner.workers.all.add(worker)  # type: ignore[arg-type]
    assert not Dispatcher(runner).has_room(worker)  # type: ignore[arg-type]
    runner.pause()
    assert worker.journal.words[SKIP] == 0


def test_pausing_asks_back_before_it_returns_what_is_not_started():
    runner, worker = make_runner(), FakeWorker()
    worker.give(make_batch(runner, 2)[0])
    runner.workers.all.add(worker)  # type: ignore[arg-type]
    runner.pause()
    assert worker.journal.words[SKIP] == worker.next_number


class FakeContext:
    """Starts no process: for a look at a worker that has none."""

    def get_start_method(self) -> str:
        return "spawn"

    def Process(self, **_: Any) -> Any:
        return types.SimpleNamespace(start=lambda: None, pid=os.getpid())


def test_a_worker_tells_its_load_while_a_batch_of_it_ends():
    """`statistics` and `pause` look from other threads than the one that settles: here it settles at every look."""
    worker = ProcessWorker(FakeContext(), "w", b"", WorkerQueue(None, Fifo()), reports_memory=False)  # type: ignore[arg-type]

    class Ending:
        def end(self) -> int:
            worker.in_flight.remove(self)  # type: ignore[arg-type]
            return 1

        open = is_keyed = property(end)

    worker.in_flight += [Ending(), Ending()]  # type: ignore[list-item]
    assert worker.load == 2
    assert not worker.load and not worker.has_keys
    worker.in_flight += [Ending()]  # type: ignore[list-item]
    assert worker.has_keys and not worker.in_flight
    worker.close()


# -- forming batches ---------------------------------------------------------------------------------------------------


def lined_up(runner: ProcessRunner, fn: Any, number: int) -> list[Task[Any]]:
    tasks = []
    for x in range(number):
        task: Task[Any] = Task.__new__(Task)
        task._status, task._watchers, task._owner, task._context, task._value = 0, None, runner.owner, None, None
        task._fn, task._args = fn, (x,)
        runner.put(task)
        tasks.append(task)
    return tasks


def test_a_function_not_met_before_travels_alone():
    runner, worker = make_runner(), FakeWorker()
    lined_up(runner, calls.same, 100)
    batch = Dispatcher(runner).form(worker, runner.backlog.queue)  # type: ignore[arg-type]
    assert batch is not None and batch.count == 1


def test_a_batch_is_as_long_as_its_target_its_share_and_its_size_allow():
    runner, worker = make_runner(), FakeWorker()
    dispatcher = Dispatcher(runner)
    batch, _ = make_batch(runner, 1)
    for seconds, size, want in ((1e-3, 0, 4), (1e-9, 0, 500), (1e-9, 1 << 16, 4), (1.0, 0, 1)):
        runner.run_times = RunTimes()
        runner.run_times.learn(batch.fns, 1, seconds)
        runner.run_times.learn_size(calls.same, size)
        runner.backlog.reset()
        runner.put = runner.backlog.put
        lined_up(runner, calls.same, 1000)
        formed = dispatcher.form(worker, runner.backlog.queue)  # type: ignore[arg-type]
        assert formed is not None and formed.count == want, seconds


def test_cancelled_tasks_are_left_out_of_a_batch():
    runner, worker = make_runner(), FakeWorker()
    runner.run_times.learn([calls.same], 1, 1e-6)
    tasks = lined_up(runner, calls.same, 40)
    assert all(task.cancel() for task in tasks[::2])
    batch = Dispatcher(runner).form(worker, runner.backlog.queue)  # type: ignore[arg-type]
    assert isinstance(batch, TaskBatch) and batch.tasks == tasks[1 : 2 * batch.count : 2]


def test_a_run_time_believes_slow_at_once_and_quick_by_half():
    runner = make_runner()
    batch, _ = make_batch(runner, 1)
    runner.run_times.learn(batch.fns, 10, 0.01)
    runner.run_times.learn(batch.fns, 1, 1.0)
    run_time = runner.run_times.of(calls.same)
    assert run_time is not None and run_time.seconds == 1.0
    runner.run_times.learn(batch.fns, 1, 0.0)
    assert run_time.seconds == 0.5
