"""Writers, checkpoints and kill -9 at once: the file stays sound and no committed row is lost.

Each worker inserts rows (worker, sequence) and notes each number in a file of its own after the commit returned. A row
noted and missing is a lost commit; a gap in a worker's rows is a torn transaction.
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


def storm(start: programs.Starter, path: Path, seconds: float, processes: int, seed: int) -> None:
    chance = random.Random(seed)
    nursery = start(NURSERY, path, TABLE)
    workers: list[int] = []
    started = 0
    kills = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        while len(workers) < processes:
            started += 1
            workers.append(int(nursery.ask(str(started))))
        time.sleep(chance.random() * 0.05)
        os.kill(workers.pop(chance.randrange(len(workers))), signal.SIGKILL)
        kills += 1
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    nursery.process.kill()  # its children are dead or dying, and the kernel lets go of their locks
    database = Database(path, tables=[TABLE])
    with database.reading() as reader:
        assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found = dict(reader.execute("SELECT worker, max(sequence) FROM row GROUP BY worker"))
        gaps = reader.execute(
            "SELECT worker FROM row GROUP BY worker HAVING count(*) != max(sequence) + 1 OR count(*) % 2"
        ).fetchall()
    database.close()
    assert gaps == []
    noted = 0
    for number in range(1, started + 1):
        note = Path(f"{path}.note.{number}")
        lines = note.read_text().splitlines() if note.exists() else []
        if lines:
            noted += len(lines)
            assert found.get(number, -1) >= int(lines[-1]), f"worker {number} lost a commit"
    print(
        f"{noted:,} transactions in {seconds} s, {kills + processes} kills, {started} workers; SQLite {sqlite3.sqlite_version}"
    )
    assert noted > 100 * seconds


def test_a_storm_of_writers_checkpoints_and_kills_loses_nothing(start, tmp_path):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    storm(start, tmp_path / "p.db", 3.0, 6, seed)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_long_storm_loses_nothing(start, tmp_path):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    storm(start, tmp_path / "p.db", 120.0, 6, seed)
