"""Break the product on purpose, one way at a time, and see that the storms notice: `python tests/chaos/mutants.py`.

Each mutant is the last commit in a folder of its own, with one promise broken, and is tried on the storm that is for it.
A storm that stays green is printed as MISSED; one that fails, but says nothing of the broken promise, as ASTRAY. Words
after the program choose storms and mutants, `--times 5` tries each five times.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent


class Mutant(NamedTuple):
    name: str
    tests: str
    """Which tests of the storm's file are to see it, as `pytest -k` has it."""
    says: str
    """What they say of it: a regular expression. An empty one: whatever they say."""
    changes: tuple[tuple[str, str], ...]
    """What stands somewhere in the product, once, and what stands there instead."""


class Storm(NamedTuple):
    name: str
    file: str
    product: tuple[str, ...]
    """The folders of `src/millpond` that it storms."""
    mutants: tuple[Mutant, ...]


KEYED = Storm(
    "keyed pools",
    "tests/chaos/test_keyed_chaos.py",
    ("keyed",),
    (
        Mutant(
            "redis: a claim forgets running keys",
            "kills_among and redis",
            "",
            (("      recover(slot, take.mailbox, is_lost, worker)\n", ""),),
        ),
        Mutant(
            "sqlite: a claim forgets running keys",
            "kills_among and sqlite",
            "",
            (("        if box.depth:\n            self.make_ready(box, first=True)\n", ""),),
        ),
        Mutant(
            "redis: a claim ignores the lease, now and then",
            "kills_among and redis",
            "",
            (
                (
                    "if not (now < lease and lease <= now + length) then dismiss(worker) end",
                    "dismiss(worker)",
                ),
                (
                    "if each.is_dead or (is_over",
                    "if hash((end, each.id)) % 20 == 0 or each.is_dead or (is_over",
                ),
            ),
        ),
        Mutant(
            "redis: work ignores the token, and there is no dead-man's switch",
            "past_its_lease or kills_among",
            "",
            (
                ("if not run or sub(run, 1, #token + 1) ~= token .. ':' then", "if not run then"),
                ("\n                self._lost(", "\n                print("),
                ("return not self.is_over and self.left() > 0", "return not self.is_over"),
            ),
        ),
        Mutant(
            "no dead-man's switch",
            "connections",
            "",
            (
                ("\n                self._lost(", "\n                print("),
                ("return not self.is_over and self.left() > 0", "return not self.is_over"),
            ),
        ),
        Mutant(
            "a worker that lost its lease lets its handlers run on",
            "past_its_lease",
            "",
            (("        self._runner.give_up(", "        print("),),
        ),
        Mutant(
            "a worker that lost its lease does not join again",
            "past_its_lease",
            "",
            (("                elif self.is_leaving:\n", "                elif True:\n"),),
        ),
        Mutant(
            "redis: a dispatch that comes twice is done twice",
            "connections",
            "",
            (("if before and tonumber(sub(before, 1, 16)) > now and", "if false and"),),
        ),
        Mutant(
            "redis: jobs enter at the front",
            "kills_among and redis",
            "",
            (
                (
                    "    local length = call('RPUSH', boxes .. mailbox, stamp",
                    "    local length = call('LPUSH', boxes .. mailbox, stamp",
                ),
            ),
        ),
        Mutant(
            "redis: a late claim recovers what runs",
            "connections",
            "",
            (("if known >= 0 and number >= tonumber(mine[2]) then", "if known >= 0 then"),),
        ),
        Mutant(
            "a worker leaves without waiting for its handlers",
            "rolling",
            "",
            (("is_idle = await runner.idle(grace)\n", "is_idle = await runner.idle(0.0)\n"),),
        ),
        Mutant(
            "strict does not end the process",
            "strict",
            "",
            (("signal.setitimer(signal.ITIMER_REAL, left)", "pass"),),
        ),
    ),
)

RESOURCES = Storm(
    "resource pools",
    "tests/chaos/test_resource_chaos.py",
    ("resources", "_sqlite"),
    (
        Mutant(
            "sqlite: what the dead held is never lent again",
            "forty_kills",
            "that a worker uses a grant|after 60 s it is",
            (("self._decide(pool, Bury(str(number)))", "pass"),),
        ),
        Mutant(
            "sqlite: who is stopped is taken for dead",
            "forty_kills",
            "in use by another|lost a lock|ended without a grant: died",
            (("stat.start != start or stat.is_remains", "stat.start != start or stat.is_remains or stat.is_stopped"),),
        ),
        Mutant(
            "sqlite: a lock that was accepted by its byte lapses",
            "forty_kills",
            "in use by another process|lost a lock",
            (
                (
                    "return token in self.offers or self._session.live.is_locked(",
                    "return token in self.offers and bool(",
                ),
            ),
        ),
        Mutant(
            "a grant beyond capacity",
            "forty_kills",
            "in use by|units given to",
            (
                (
                    "free = active and not resource.delayed and resource.used < resource.capacity",
                    "free = active and not resource.delayed",
                ),
            ),
        ),
        Mutant(
            "who asked last is served first",
            "forty_kills",
            "was served before",
            (
                (
                    "heapq.heappush(self.heap, (order, seq, request))",
                    "heapq.heappush(self.heap, (order, -seq, request))",
                ),
            ),
        ),
        Mutant(
            "a token does not grow",
            "forty_kills",
            r"token \d+ after \d+",
            (("max(self.state.token + 1, self.now, seen + 1)", "max(self.state.token, self.now, seen + 1)"),),
        ),
        Mutant(
            "between machines: who lives is taken for dead when their companion dies",
            "three_machines",
            "in use by another process|lost a lock|the call came too late",
            (("seen_from(witness, self._here) is True", "seen_from(witness, self._here) is not None"),),
        ),
        Mutant(
            "between machines: who dies while no companion watches is never buried",
            "three_machines",
            "after 60 s it is",
            (
                ("if is_over and session not in self._sessions:", "if False:"),
                ("        if gone:\n", "        if gone and False:\n"),
            ),
        ),
        Mutant(
            "redis: who decides and falls silent goes on deciding",
            "three_machines and redis",
            "that another companion decides",
            (("now - active >= lease or ", ""),),
        ),
        Mutant(
            "postgres: who decides and falls silent goes on deciding",
            "three_machines and postgres",
            "that another companion decides",
            (("now_ - found.active >= lease_ OR ", ""),),
        ),
    ),
)

TEMPORAL = Storm(
    "resource pools on Temporal",
    "tests/chaos/test_temporal_chaos.py",
    ("resources",),
    (
        Mutant(
            "the end of a workflow is not noticed",
            "a_storm_of_kills",
            "still runs|it is .*Holder|nothing goes on",
            (
                (
                    'return _messages.Death(session, _micro(found.close_time), f"its workflow is closed: {how}")',
                    "return None",
                ),
            ),
        ),
        Mutant(
            "a workflow that is continued as new is taken for dead, and buried at once",
            "a_storm_of_kills",
            "is used under|cycle-\\d+ failed: .*grant|still runs",
            (
                ("await self._first_run(found) != chain", "found.run_id != chain"),
                ("        if at + grace <= self.now:\n", "        if True:\n"),
            ),
        ),
        Mutant(
            "a lease ends before its time",
            "a_storm_of_kills",
            "lost before its time|is used under",
            (
                ("request.until = now + command.lease if", "request.until = now + command.lease // 500 if"),
                (
                    "self.now + request.lease if request.lease else 0",
                    "self.now + request.lease // 500 if request.lease else 0",
                ),
                (
                    "changes.Claimed(known, turn.now + request.lease if",
                    "changes.Claimed(known, turn.now + request.lease // 500 if",
                ),
            ),
        ),
    ),
)

GATE = Storm(
    "the gate of a SQLite file",
    "tests/integration/test_sqlite_gate_storm.py",
    ("_sqlite",),
    (
        Mutant(
            "the lock is not waited for",
            "eight_processes",
            "two were inside at once",
            (("            file.lock(_BYTE)\n", "            file.try_lock(_BYTE)\n"),),
        ),
        Mutant(
            "a deleted file is not noticed",
            "deleted_again_and_again",
            "two were inside at once",
            (("if found is None or (found.st_dev, found.st_ino) != file.key:", "if found is None:"),),
        ),
        Mutant(
            "who was inside when it was killed stays inside",
            "hundred_kills",
            "it is stuck",
            (
                (
                    "                haste.begin()\n                self._wait_for(file)\n",
                    "                haste.begin()\n                self._wait_for(file)\n                while os.pread(file.fd, 1, 9) == b'x':\n                    time.sleep(POLL)\n",
                ),
                (
                    "        file.holder = threading.get_ident()\n",
                    "        file.holder = threading.get_ident()\n        os.pwrite(file.fd, b'x', 9)\n",
                ),
                (
                    "            file.holder = None\n",
                    "            file.holder = None\n            os.pwrite(file.fd, b'-', 9)\n",
                ),
            ),
        ),
        Mutant(
            "what looks like a deadlock between processes is an error",
            "takes_for_a_deadlock",
            "it was an error",
            (("if error.errno != errno.EDEADLK:", "if True:"),),
        ),
    ),
)

WAL = Storm(
    "writers and checkpoints of a SQLite file",
    "tests/integration/test_sqlite_wal_storm.py",
    ("_sqlite",),
    (
        Mutant(
            "a transaction is committed piece by piece",
            "a_storm_of_writers",
            "a transaction was torn",
            (
                ('connection.execute("BEGIN IMMEDIATE")\n                yield', "yield"),
                ('connection.execute("COMMIT")\n                transaction.committed', "transaction.committed"),
            ),
        ),
        Mutant(
            "a checkpoint throws away what it should move",
            "a_storm_of_writers",
            "lost a commit|that a worker commits something",
            (
                (
                    '_, frames, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()',
                    "frames = moved = os.truncate(self.path + '-wal', 0)",
                ),
            ),
        ),
        Mutant(
            "a commit that has returned is lost",
            "a_storm_of_writers",
            "a transaction was torn|lost a commit",
            (
                (
                    'connection.execute("COMMIT")\n                tr',
                    'connection.execute("COMMIT" if time.time_ns() % 100 else "ROLLBACK")\n                tr',
                ),
            ),
        ),
    ),
)

THREADS = Storm(
    "thread pools",
    "tests/stress/test_storm.py",
    ("local",),
    (
        Mutant(
            "a worker goes to sleep without another look at the queue",
            "lone_task",
            "workers slept beside tasks",
            (("                task = self.take()\n", "                raise IndexError\n"),),
        ),
        Mutant(
            "a worker leaves without a look at the queue",
            "closed_under",
            "nobody runs them|that all runs that was taken",
            (("if self.has_work_for(worker) and not self.runner.is_paused:", "if False:"),),
        ),
        Mutant(
            "what is cancelled runs all the same",
            "every_strategy",
            "a cancelled task ran|what was counted is not what was done",
            (
                (
                    "            fn = claim(task)\n            if fn is None:\n                return False\n            task._status = CANCELLED\n",
                    "            fn = task._fn\n            if fn is None:\n                return False\n            task._status = CANCELLED\n",
                ),
            ),
        ),
        Mutant(
            "what runs can be cancelled",
            "every_strategy",
            "a cancelled task ran|what was counted is not what was done",
            (
                (
                    "            fn, task._fn = task._fn, None  # whoever gets",
                    "            fn = task._fn  # whoever gets",
                ),
            ),
        ),
        Mutant(
            "a full pool takes one more",
            "full_pool",
            "tasks wait in a pool for 3|tasks were in a pool for 5",
            (
                (
                    "self._admitted < self._host.workers_that_count() + self.max_queued",
                    "self._admitted <= self._host.workers_that_count() + self.max_queued",
                ),
            ),
        ),
        Mutant(
            "the tasks of a key run anywhere",
            "options_weather",
            "did not run in their order",
            (
                (
                    "task.queue = queue = tasks.queue",
                    "task.queue = queue = self._normal[tasks.number % len(self._normal)]",
                ),
            ),
        ),
    ),
)

PROCESSES = Storm(
    "process pools",
    "tests/stress/test_process_storm.py",
    ("local/processes",),
    (
        Mutant(
            "a call that waited in a process that died is lost",
            "not map and not thousand",
            "tasks were lost",
            (("batch.requeue(position + 1, batch.count)", "batch.requeue(position + 2, batch.count)"),),
        ),
        Mutant(
            "a call that killed its process runs again",
            "not map and not thousand",
            "tasks ran twice",
            (("batch.requeue(position + 1, batch.count)", "batch.requeue(position, batch.count)"),),
        ),
        Mutant(
            "nobody reads what a dead process has noted",
            "not map and not thousand",
            "tasks failed by|tasks ran twice",
            (
                (
                    "    witness, back = settle_from_journal(worker)\n    started",
                    "    witness, back = None, []\n    started",
                ),
            ),
        ),
        Mutant(
            "a call of a stopped process runs elsewhere, too",
            "not map and not thousand",
            "tasks ran twice",
            (
                (
                    "batch.requeue(now[0] + 1 - batch.first, batch.count)",
                    "batch.requeue(now[0] - batch.first, batch.count)",
                ),
            ),
        ),
        Mutant(
            "nothing is tried again",
            "map",
            "WorkerDied",
            (("if tried < runner.workers.rules.retries:", "if tried < 0:"),),
        ),
    ),
)

STORMS = (KEYED, RESOURCES, TEMPORAL, GATE, WAL, THREADS, PROCESSES)


def place_of(text: str, storm: Storm, folder: Path = ROOT) -> Path:
    """Return the file of the product in which a text stands, once."""
    places = [folder / "src" / "millpond" / each for each in storm.product]
    files = [each for place in places for each in place.rglob("*") if each.suffix in (".py", ".lua", ".sql")]
    counts = {each: count for each in files if (count := each.read_text().count(text))}
    if list(counts.values()) != [1]:
        raise LookupError(f"this should stand in one place of {storm.product}: {text!r}; it stands in {counts}")
    return next(iter(counts))


def make(mutant: Mutant, storm: Storm, folder: Path) -> None:
    """Make a mutant of the last commit, and a Python that has it instead of what is installed here.

    PYTHONPATH would not do: companions and other programs of the product are started without it.
    """
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    for old, new in mutant.changes:
        file = place_of(old, storm, folder)
        file.write_text(file.read_text().replace(old, new))
    venv.create(folder / ".venv", symlinks=True)
    places = [folder / "src", folder / "conformance" / "src", *site.getsitepackages()]
    found = sysconfig.get_path("purelib", "venv", {"base": str(folder / ".venv")})
    Path(found, "mutant.pth").write_text("".join(f"{place}\n" for place in places))


def run(mutant: Mutant, storm: Storm, folder: Path) -> str:
    """Let a storm loose on a mutant, and tell whether it was seen."""
    command = [str(folder / ".venv" / "bin" / "python"), "-m", "pytest", "-x", "-q", "-s", "-m", "not soak"]
    command += ["-k", mutant.tests, "--basetemp", str(folder / "base"), storm.file]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where servers were installed
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    shutil.rmtree(folder / "base", ignore_errors=True)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    if done.returncode == 0:
        return "MISSED"
    said = [
        line[1:].strip()
        for line in done.stdout.splitlines()
        if line.startswith("E  ") and "faults, at first" not in line
    ]
    found = next((line for line in said if re.search(mutant.says, line)), None)
    print("   ", found or "; ".join(said)[-400:] or "nothing was said", flush=True)
    return "ASTRAY" if found is None else "seen"


def main() -> int:
    """Try the mutants, and return how many times one was not seen."""
    parser = argparse.ArgumentParser(description="Break the product on purpose, and see that the storms notice.")
    parser.add_argument("words", nargs="*", help="what stands in the names of storms or mutants")
    parser.add_argument("--times", type=int, default=1, help="how often each is tried")
    chosen = parser.parse_args()
    unseen = 0
    for storm in STORMS:
        for mutant in storm.mutants:
            name = f"{storm.name}: {mutant.name}"
            if chosen.words and not any(word in name for word in chosen.words):
                continue
            with tempfile.TemporaryDirectory(prefix="millpond-mutant-") as scratch:
                folder = Path(scratch, "clone")
                make(mutant, storm, folder)
                ends = [run(mutant, storm, folder) for _ in range(chosen.times)]
            times = f" {ends.count('seen')} of {len(ends)}" if len(ends) > 1 else ""
            print(f"{min(ends):6}{times} {name}", flush=True)
            unseen += sum(end != "seen" for end in ends)
    return unseen


if __name__ == "__main__":
    sys.exit(main() > 0)
