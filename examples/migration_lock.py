"""Start five programs at once that all want to migrate a database: one does, the others find it done."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import time

from millpond import ResourcePool, StaleToken
from millpond.resources.fences import SqlFence

TARGET = 2
MIGRATION = (
    "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    "INSERT INTO users (name) VALUES ('ann'), ('bob')",
    f"PRAGMA user_version = {TARGET}",
)
fence = SqlFence()


def deploy(folder: str) -> None:
    """Run as one of the five: migrate, unless somebody has."""
    with ResourcePool("locks", f"sqlite:///{folder}/locks.db") as locks:
        locks.add("schema", exist_ok=True)
        with locks.acquire(name="schema", timeout=30, reason="migration") as grant:
            print(migrate(folder, grant.token))


def migrate(folder: str, token: int) -> str:
    """Bring the schema up to date in one transaction, and let the database itself refuse who is late."""
    connection = sqlite3.connect(f"{folder}/app.db")
    try:
        with connection:  # one transaction: check and writes are committed together, or none of them
            fence.create(connection)
            fence.check(connection, "schema", token)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == TARGET:
                return "found it done"
            for statement in MIGRATION:
                connection.execute(statement)
                time.sleep(0.05)  # stands for the hours that this takes on a large table
            return f"migrated from {version} to {TARGET} under token {token}"
    finally:
        connection.close()


def main(folder: str) -> None:
    command = [sys.executable, __file__, folder]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    told = [child.communicate()[0].strip() for child in children]
    [done] = [line for line in told if line.startswith("migrated")]
    print(done.partition(" under")[0])
    print(f"{told.count('found it done')} others found it done")

    # One that held the lock, was paused or robbed of it, and wakes up now, is told so by the database:
    late = int(done.rpartition(" ")[2])
    try:
        print(migrate(folder, late))
    except StaleToken as error:
        print(f"one that comes late: {error}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        deploy(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
