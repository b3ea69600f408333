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
KEYED = Path("src", "millpond", "keyed")


class Mutant(NamedTuple):
    name: str
    tests: str
    changes: tuple[tuple[str, str], ...]
    """What stands somewhere, once, and what stands there instead."""


MUTANTS = (
    Mutant(
        "redis: a claim forgets running keys",
        "kills_among and redis",
        (("      recover(slot, take.mailbox, is_lost, worker)\n", ""),),
    ),
    Mutant(
        "sqlite: a claim forgets running keys",
        "kills_among and sqlite",
        (("        if box.depth:\n            self.make_ready(box, first=True)\n", ""),),
    ),
    Mutant(
        "redis: a claim ignores the lease, now and then",
        "kills_among and redis",
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
        (
            ("if not run or sub(run, 1, #token + 1) ~= token .. ':' then", "if not run then"),
            ("\n                self._lost(", "\n                print("),
            ("return not self.is_over and self.left() > 0", "return not self.is_over"),
        ),
    ),
    Mutant(
        "no dead-man's switch",
        "connections",
        (
            ("\n                self._lost(", "\n                print("),
            ("return not self.is_over and self.left() > 0", "return not self.is_over"),
        ),
    ),
    Mutant(
        "a worker that lost its lease lets its handlers run on",
        "past_its_lease",
        (("        self._runner.give_up(", "        print("),),
    ),
    Mutant(
        "a worker that lost its lease does not join again",
        "past_its_lease",
        (("                elif self.is_leaving:\n", "                elif True:\n"),),
    ),
    Mutant(
        "redis: a dispatch that comes twice is done twice",
        "connections",
        (("if before and tonumber(sub(before, 1, 16)) > now and", "if false and"),),
    ),
    Mutant(
        "redis: jobs enter at the front",
        "kills_among and redis",
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
        (("if known >= 0 and number >= tonumber(mine[2]) then", "if known >= 0 then"),),
    ),
    Mutant(
        "a worker leaves without waiting for its handlers",
        "rolling",
        (("is_idle = await runner.idle(grace)\n", "is_idle = await runner.idle(0.0)\n"),),
    ),
    Mutant(
        "strict does not end the process",
        "strict",
        (("signal.setitimer(signal.ITIMER_REAL, left)", "pass"),),
    ),
)


def place_of(text: str, folder: Path = ROOT) -> Path:
    """Return the file of keyed pools in which a text stands, once."""
    files = [each for each in (folder / KEYED).rglob("*") if each.suffix in (".py", ".lua")]
    counts = {each: count for each in files if (count := each.read_text().count(text))}
    if list(counts.values()) != [1]:
        raise LookupError(f"this should stand in one place of {KEYED}: {text!r}; it stands in {counts}")
    return next(iter(counts))


def run(mutant: Mutant, folder: Path) -> bool:
    """Tell whether the storms see it."""
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    for old, new in mutant.changes:
        file = place_of(old, folder)
        file.write_text(file.read_text().replace(old, new))
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
