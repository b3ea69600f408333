"""The gate under load: exclusion, fairness, kills, deletion and false deadlocks, with real processes."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path

from millpond._sqlite import Gate

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "sqlite"))
import sqlite_programs as programs

start = programs.start

COUNTER = """
gate, path, seconds = Gate(sys.argv[1]), sys.argv[2], float(sys.argv[3])
say("ready")
hear()
file = os.open(path, os.O_RDWR)
mine, longest = 0, 0.0
end = time.monotonic() + seconds
while time.monotonic() < end:
    began = time.monotonic()
    with gate:
        longest = max(longest, time.monotonic() - began)
        count = int(os.pread(file, 20, 0))          # read, change, write: a second one inside would lose a step
        os.pwrite(file, b"%020d" % (count + 1), 0)
    mine += 1
say(mine, round(longest * 1000))
"""


def counters(start: programs.Starter, tmp_path: Path, processes: int, seconds: float) -> list[programs.Program]:
    (tmp_path / "counter").write_text(f"{0:020d}")
    programs = [start(COUNTER, tmp_path / "p.db", tmp_path / "counter", seconds) for _ in range(processes)]
    for program in programs:
        assert program.line() == "ready"
    for program in programs:
        program.tell()
    return programs


def test_eight_processes_never_meet_inside_and_get_their_share(start, tmp_path):
    programs = counters(start, tmp_path, 8, 1.5)
    results = [tuple(map(int, program.line().split())) for program in programs]
    counts = [count for count, _ in results]
    print(
        f"gate storm: {sum(counts) / 1.5:,.0f} entries/s, max/min per process {max(counts) / min(counts):.2f}, "
        f"longest wait {max(longest for _, longest in results)} ms"
    )
    assert int((tmp_path / "counter").read_text()) == sum(counts)
    assert max(counts) < 10 * min(counts)  # SQLite's own lock: thousands to one


def test_a_gate_file_that_is_deleted_again_and_again_lets_no_two_in(start, tmp_path):
    (tmp_path / "p.db-wal").write_text("")  # a database in use
    programs = counters(start, tmp_path, 4, 2.0)
    for _ in range(4):
        time.sleep(0.4)
        os.unlink(tmp_path / "p.db-gate")
    counts = [int(program.line().split()[0]) for program in programs]
    print(f"with 4 deletions: {sum(counts):,} entries")
    assert int((tmp_path / "counter").read_text()) == sum(counts)
    assert min(counts) > 0


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
        killed_inside = 0
        for _ in range(100):
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
            gate.enter()
            os.pwrite(mark, b"%010d" % 0, 0)
            gate.leave()
        for each in workers:
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)
        gate.enter()
        say(killed_inside)
        """,
        tmp_path / "p.db",
        seed,
    )
    inside = int(program.line())
    print(f"100 kills, {inside} of them surely inside")
    assert inside > 5


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
        wanted.enter()
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
    while Path(f"/proc/{one.pid}/task").exists() and not _waits_in_fcntl(one.pid):
        time.sleep(0.001)
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
    programs = counters(start, tmp_path, 2, 0.7)
    file = os.open(tmp_path / "counter", os.O_RDWR)
    mine = [0, 0, 0]

    def count(which: int) -> None:
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            with gate:
                os.pwrite(file, b"%020d" % (int(os.pread(file, 20, 0)) + 1), 0)
            mine[which] += 1

    threads = [threading.Thread(target=count, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    theirs = [int(program.line().split()[0]) for program in programs]
    os.close(file)
    gate.close()
    print(f"threads {mine}, processes {theirs}")
    assert int((tmp_path / "counter").read_text()) == sum(mine) + sum(theirs)
    assert min(mine + theirs) > 0
