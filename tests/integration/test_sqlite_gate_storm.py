"""The gate under load: exclusion, fairness, kills, deletion and false deadlocks, with real processes."""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path

from millpond._sqlite import Gate
from waiting import HANG, until

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "sqlite"))
import sqlite_programs as programs

start = programs.start

COUNTER = """
gate, file, slot = Gate(sys.argv[1]), os.open(sys.argv[2], os.O_RDWR), int(sys.argv[3])
say("ready")
hear()
mine = 0
while os.pread(file, 1, 0) == b"0":
    with gate:
        count = int(os.pread(file, 20, 1))          # read, change, write: a second one inside would lose a step
        os.pwrite(file, b"%020d" % (count + 1), 1)
    mine += 1
    os.pwrite(file, b"%020d" % mine, slot)
say(mine)
"""


class Counters:
    """Processes that count behind the gate until they are told to stop.

    Their file: "0" or, to stop, "1"; what they have counted together; what each has counted for itself.
    """

    def __init__(self, start: programs.Starter, tmp_path: Path, processes: int) -> None:
        self.path = tmp_path / "counter"
        self.path.write_text("0" + f"{0:020d}" * (1 + processes))
        slots = range(21, 21 + 20 * processes, 20)
        self.programs = [start(COUNTER, tmp_path / "p.db", self.path, slot) for slot in slots]
        for program in self.programs:
            assert program.line() == "ready"
        for program in self.programs:
            program.tell()

    def progress(self) -> list[int]:
        text = self.path.read_text()
        return [int(text[at : at + 20]) for at in range(21, len(text), 20)]

    def wait_until_all_enter(self, times: int) -> None:
        """Wait until each has entered so many times more."""
        before = self.progress()
        until(
            lambda: all(now >= then + times for now, then in zip(self.progress(), before, strict=True)),
            f"that each enters {times} times more",
        )

    def stop(self) -> list[int]:
        """Stop them, and return what each has counted."""
        with open(self.path, "r+") as file:
            file.write("1")
        return [int(program.line()) for program in self.programs]

    def check(self, others: int = 0) -> list[int]:
        """Stop them, see that no two were inside at once, `others` among them, and return what each has counted."""
        counts = self.stop()
        total = int(self.path.read_text()[1:21])
        assert total == sum(counts) + others, (
            f"two were inside at once: {sum(counts) + others} entries, {total} counted"
        )
        return counts


def test_eight_processes_never_meet_inside_and_none_is_left_behind(start, tmp_path):
    """With SQLite's own lock one of them would enter once while another enters thousands of times."""
    counters = Counters(start, tmp_path, 8)
    counters.wait_until_all_enter(3000)
    counts = counters.check()
    print(f"gate storm: {sum(counts):,} entries, max/min per process {max(counts) / min(counts):.2f}")


def test_a_gate_file_that_is_deleted_again_and_again_lets_no_two_in(start, tmp_path):
    """It is deleted by one who is inside, so that nobody else can be, however long the machine stands still."""
    (tmp_path / "p.db-wal").write_text("")  # a database in use
    gate = Gate(tmp_path / "p.db")
    counters = Counters(start, tmp_path, 4)
    for _ in range(4):
        counters.wait_until_all_enter(100)
        with gate:
            os.unlink(gate.path)
    counters.wait_until_all_enter(100)
    counts = counters.check()
    gate.close()
    print(f"with 4 deletions: {sum(counts):,} entries")


def test_a_hundred_kills_never_leave_it_stuck(start, tmp_path):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    program = start(
        """
        chance = random.Random(int(sys.argv[2]))
        gate = Gate(sys.argv[1])
        mark = os.open(sys.argv[1] + ".inside", os.O_RDWR | os.O_CREAT)
        def worker():
            pid = os.fork()
            if pid:
                return pid
            while True:
                with gate:
                    os.pwrite(mark, b"%010d" % os.getpid(), 0)
                    for _ in range(chance.randrange(2000)): pass
                    os.pwrite(mark, b"%010d" % 0, 0)
        workers = [worker() for _ in range(4)]
        def stuck(*_):
            say("it is stuck")
            os._exit(1)
        signal.signal(signal.SIGALRM, stuck)
        kills = killed_inside = 0
        while kills < 100 or killed_inside < 10:
            kills += 1
            time.sleep(chance.random() * 0.004)
            victim = chance.choice(workers)
            workers.remove(victim)
            inside = int(os.pread(mark, 10, 0) or 0)
            if inside in workers:                   # rather one who is inside
                workers.append(victim)
                workers.remove(inside)
                victim = inside
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            killed_inside += int(os.pread(mark, 10, 0) or 0) == victim
            workers.append(worker())
            signal.alarm(int(sys.argv[3]))
            gate.enter()
            signal.alarm(0)
            os.pwrite(mark, b"%010d" % 0, 0)
            gate.leave()
        for each in workers:
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)
        signal.alarm(int(sys.argv[3]))
        gate.enter()
        say(kills, killed_inside)
        """,
        tmp_path / "p.db",
        seed,
        int(HANG),
    )
    said = program.line()
    assert said != "it is stuck"
    kills, inside = said.split()
    print(f"{kills} kills, {inside} of them surely inside")


def test_what_the_kernel_takes_for_a_deadlock_between_processes_is_none_between_threads(start, tmp_path):
    """A holds gate 1 and waits for gate 2 in another thread; B holds gate 2 and waits for gate 1 in another thread."""
    script = """
    from millpond._sqlite._lockfile import LockFile
    honest = LockFile.lock
    def lock(self, byte):
        try:
            honest(self, byte)
        except OSError as error:
            say("refused", error.errno == 35)
            raise
    LockFile.lock = lock
    held, wanted = Gate(sys.argv[1]), Gate(sys.argv[2])
    held.enter()
    say("holds")
    hear()
    def want():
        try:
            wanted.enter()
        except OSError:
            say("it was an error")
            return
        say("entered")
        wanted.leave()
    thread = threading.Thread(target=want)
    thread.start()
    say("waits")
    hear()
    held.leave()
    thread.join()
    say("over")
    """
    one = start(script, tmp_path / "1.db", tmp_path / "2.db")
    two = start(script, tmp_path / "2.db", tmp_path / "1.db")
    assert one.line() == two.line() == "holds"
    assert one.ask() == "waits"
    until(lambda: _waits_in_fcntl(one.pid))
    two.tell()
    assert {two.line(), two.line()} == {"waits", "refused True"}
    one.tell()
    assert two.line() == "entered"
    two.tell()
    assert {one.line(), one.line()} == {"entered", "over"}
    assert two.line() == "over"


def _waits_in_fcntl(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return any((task / "syscall").read_text().split()[0] in ("72", "25") for task in tasks)


def test_threads_of_one_process_and_other_processes_share_the_gate(start, tmp_path):
    gate = Gate(tmp_path / "p.db")
    counters = Counters(start, tmp_path, 2)
    file = os.open(counters.path, os.O_RDWR)
    mine = [0, 0, 0]
    enough = threading.Event()

    def count(which: int) -> None:
        while not enough.is_set():
            with gate:
                os.pwrite(file, b"%020d" % (int(os.pread(file, 20, 1)) + 1), 1)
            mine[which] += 1

    threads = [threading.Thread(target=count, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: min(mine) >= 500)
        counters.wait_until_all_enter(500)
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    print(f"threads {mine}, processes {counters.check(others=sum(mine))}")
    os.close(file)
    gate.close()
