"""Break keyed pools on purpose, one way at a time, and see that the storms notice: `python tests/chaos/keyed_mutants.py`.

Each mutant is the last commit in a folder of its own, with one change. What the storms do not see is printed as MISSED.
Names after the program choose mutants.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
KEYED = "src/millpond/keyed/"
LUA = KEYED + "stores/redis/lua/"


class Mutant(NamedTuple):
    name: str
    tests: str
    changes: tuple[tuple[str, str, str], ...]
    """File, what is there, what stands there instead."""


MUTANTS = (
    Mutant(
        "redis: a claim forgets running keys",
        "kills_among and redis",
        ((LUA + "claim.lua", "      recover(slot, runs[j], is_lost)\n", ""),),
    ),
    Mutant(
        "sqlite: a claim forgets running keys",
        "kills_among and sqlite",
        ((KEYED + "rules/mailboxes.py", "        if box.depth:\n            self.make_ready(box, first=True)\n", ""),),
    ),
    Mutant(
        "redis: a claim ignores the lease, now and then",
        "kills_among and redis",
        (
            (
                LUA + "claim.lua",
                "if not (now < lease and lease <= now + length) then dismiss(worker) end",
                "dismiss(worker)",
            ),
            (
                KEYED + "rules/plan.py",
                "if each.is_dead or (is_over",
                "if hash((end, each.id)) % 20 == 0 or each.is_dead or (is_over",
            ),
        ),
    ),
    Mutant(
        "redis: work ignores the token, and there is no dead-man's switch",
        "past_its_lease or kills_among",
        (
            (LUA + "work.lua", "if not run or sub(run, 1, #token + 1) ~= token .. ':' then", "if not run then"),
            (KEYED + "worker/heartbeat.py", "            if left <= 0:\n", "            if False:\n"),
            (KEYED + "worker/membership.py", "return not self.is_over and self.left() > 0", "return not self.is_over"),
        ),
    ),
    Mutant(
        "no dead-man's switch",
        "connections",
        (
            (KEYED + "worker/heartbeat.py", "            if left <= 0:\n", "            if False:\n"),
            (KEYED + "worker/membership.py", "return not self.is_over and self.left() > 0", "return not self.is_over"),
        ),
    ),
    Mutant(
        "a worker that lost its lease lets its handlers run on",
        "past_its_lease",
        ((KEYED + "worker/worker.py", '        self._runner.give_up(membership, "lease")\n', ""),),
    ),
    Mutant(
        "a worker that lost its lease does not join again",
        "past_its_lease",
        (
            (
                KEYED + "worker/heartbeat.py",
                "                    if self.is_leaving:\n",
                "                    if True:\n",
            ),
        ),
    ),
    Mutant(
        "redis: a dispatch that comes twice is done twice",
        "connections",
        ((LUA + "dispatch.lua", "if before and tonumber(sub(before, 1, 16)) > now then", "if false then"),),
    ),
    Mutant(
        "redis: jobs enter at the front",
        "kills_among and redis",
        (
            (
                LUA + "dispatch.lua",
                "    if call('RPUSH', boxes .. mailbox, stamp",
                "    if call('LPUSH', boxes .. mailbox, stamp",
            ),
        ),
    ),
    Mutant(
        "redis: a late claim recovers what runs",
        "connections",
        ((LUA + "claim.lua", "if known >= 0 and number >= tonumber(mine[2]) then", "if known >= 0 then"),),
    ),
    Mutant(
        "a worker leaves without waiting for its handlers",
        "rolling",
        ((KEYED + "worker/worker.py", "is_idle = await runner.idle(grace)\n", "is_idle = await runner.idle(0.0)\n"),),
    ),
    Mutant(
        "strict does not end the process",
        "strict",
        ((KEYED + "worker/membership.py", "signal.setitimer(signal.ITIMER_REAL, left)", "pass"),),
    ),
)


def run(mutant: Mutant, folder: Path) -> bool:
    """Tell whether the storms see it."""
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    for name, old, new in mutant.changes:
        text = (folder / name).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{mutant.name}: {name} has {text.count(old)} times {old!r}")
        (folder / name).write_text(text.replace(old, new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-s", "-m", "slow and not soak", "-k", mutant.tests]
    command += ["--basetemp", str(folder / "base"), "tests/chaos/test_keyed_chaos.py"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    for line in done.stdout.splitlines():
        if line.startswith("E  ") and "faults, at first" not in line:
            print("   ", line[1:].strip()[:200])
            break
    return done.returncode == 1


if __name__ == "__main__":
    missed = 0
    for mutant in MUTANTS:
        if len(sys.argv) > 1 and not any(word in mutant.name for word in sys.argv[1:]):
            continue
        with tempfile.TemporaryDirectory(prefix="millpond-mutant-") as scratch:
            is_seen = run(mutant, Path(scratch) / "clone")
        print("seen  " if is_seen else "MISSED", mutant.name, flush=True)
        missed += not is_seen
    sys.exit(missed > 0)
