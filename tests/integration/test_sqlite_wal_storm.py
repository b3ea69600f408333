"""Writers, checkpoints and kill -9 at once: the file stays sound and no committed row is lost.

Each worker inserts rows (worker, sequence) and notes each number in a file of its own after the commit returned. A row
noted and missing is a lost commit; a gap in a worker's rows is a torn transaction.

The storm counts kills of workers that had committed something; now and then it kills one that may only be opening.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from millpond._sqlite import Database
from millpond._sqlite._process import read_stat
from waiting import until

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "sqlite"))
import sqlite_programs as programs

start = programs.start

TABLE = "CREATE TABLE IF NOT EXISTS row (worker INTEGER, sequence INTEGER, filler BLOB, PRIMARY KEY (worker, sequence))"

NURSERY = """
# Forks workers, so that a new one costs a millisecond and not a start of Python. It has no database open itself.
path, table = sys.argv[1], sys.argv[2]
def work(number):
    database = Database(path, tables=[table])
    note = os.open(f"{path}.note.{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    chance = random.Random(number)
    for sequence in range(1 << 30):
        with database.writing() as transaction:
            for half in (0, 1):
                transaction.execute("INSERT INTO row VALUES (?, ?, zeroblob(?))", (number, 2 * sequence + half, chance.randrange(300)))
                if chance.random() < 0.04:
                    time.sleep(0.001)  # that more are killed in the middle
        os.write(note, b"%d\\n" % (2 * sequence + 1))
        database.checkpoint_if_large(limit=chance.choice((20_000, 100_000, 400_000)))
        if chance.random() < 0.01:
            database.close()
            database = Database(path, tables=[table])
while command := hear():
    pid = os.fork()
    if pid == 0:
        work(int(command))
    say(pid)
"""


def storm(start: programs.Starter, path: Path, kills: int, processes: int, seed: int) -> None:
    chance = random.Random(seed)
    nursery = start(NURSERY, path, TABLE)
    workers: dict[int, int] = {}  # number: pid
    pids: list[int] = []

    def commits(number: int) -> list[str]:
        note = Path(f"{path}.note.{number}")
        return note.read_text().splitlines() if note.exists() else []

    counted = 0
    while counted < kills:
        while len(workers) < processes:
            pids.append(int(nursery.ask(str(len(pids) + 1))))
            workers[len(pids)] = pids[-1]
        time.sleep(chance.random() * 0.03)  # not to strike each at its first commit; nothing depends on it
        if chance.random() < 0.2:
            victim = chance.choice(list(workers))
        else:
            victim = chance.choice(
                until(lambda: [number for number in workers if commits(number)], "that a worker commits something")
            )
        counted += bool(commits(victim))
        os.kill(workers.pop(victim), signal.SIGKILL)
    for pid in workers.values():
        os.kill(pid, signal.SIGKILL)
    until(lambda: all(state is None or state.is_remains for state in map(read_stat, pids)), "that all are dead")
    database = Database(path, tables=[TABLE])
    with database.reading() as reader:
        assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found = dict(reader.execute("SELECT worker, max(sequence) FROM row GROUP BY worker"))
        gaps = reader.execute(
            "SELECT worker FROM row GROUP BY worker HAVING count(*) != max(sequence) + 1 OR count(*) % 2"
        ).fetchall()
    database.close()
    assert gaps == [], "a transaction was torn: these workers have half of one"
    noted = 0
    for number in range(1, len(pids) + 1):
        lines = commits(number)
        if lines:
            noted += len(lines)
            assert found.get(number, -1) >= int(lines[-1]), f"worker {number} lost a commit"
    print(f"{noted:,} transactions, {len(pids)} kills; SQLite {sqlite3.sqlite_version}")


def test_a_storm_of_writers_checkpoints_and_kills_loses_nothing(start, tmp_path):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    storm(start, tmp_path / "p.db", 100, 6, seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_long_storm_loses_nothing(start, tmp_path):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    storm(start, tmp_path / "p.db", 3000, 6, seed)
