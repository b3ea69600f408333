"""Write the figures of the README from the committed results of the benchmarks. `--check` only compares.

A row of the table is a question, our figure, and those of others. Run it after `make bench`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
NAMES = {
    "dramatiq, 2 threads": "dramatiq (tuned)",
    "redis-py Lock 0.01": "redis-py Lock (polls every 10 ms)",
    "rq": "RQ",
    "saq": "SAQ",
}
BLOCK = re.compile(r"(<!-- figures: [^\n]*-->\n)(.*?)(<!-- end of figures -->)", re.S)


def row(name: str, **params: Any) -> dict[str, float]:
    """Return the figures of one row of a result."""
    found = json.loads((RESULTS / f"{name}-3.11.json").read_text())["rows"]
    (one,) = [each["figures"] for each in found if params.items() <= each["params"].items()]
    return dict(one)


def others(figures: dict[str, float], limit: float = float("inf")) -> str:
    """Return the rivals, the best first."""
    rivals = [(value, name) for name, value in figures.items() if not name.startswith("millpond")]
    more = {value: "> " if value >= limit else "" for value, _ in rivals}
    return ", ".join(f"{NAMES.get(name, name)} {more[value]}{number(value)}" for value, name in sorted(rivals))


def number(value: float) -> str:
    """Return three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table() -> str:
    """Return the table."""
    death, drain, bulk = row("keyed_death"), row("keyed_drain", per_key=60), row("keyed_bulk", per_key=60)
    submit, processes, lock = row("submit", workers=4), row("processes", workers=2), row("resources_lock_fairness")
    freed, sqlite = row("resources_death"), row("keyed_sqlite", synchronous="NORMAL")
    rows = [
        ("kill -9 of a worker, Redis: until all it ran has begun elsewhere, s", death["millpond"], others(death, 75)),
        ("drain jobs that do nothing, 60 per key, Redis, one worker: µs per job", drain["millpond"], others(drain)),
        ("put many jobs, 60 per key, Redis: µs per job", bulk["millpond"], others(bulk)),
        ("put and run jobs between two processes, SQLite: µs per job", sqlite["millpond"], ""),
        ("`submit` 100,000 no-ops and take each result, 4 threads: µs per task", submit["millpond"], others(submit)),
        ("20,000 small tasks in 2 processes: µs per task", processes["millpond"], others(processes)),
        ("kill -9 of a lock's holder, SQLite: until the next process has it, ms", freed["millpond"], ""),
        ("8 processes at one lock, SQLite: most grants of one : fewest of another", lock["millpond"], others(lock)),
    ]
    lines = ["| what (each row is one run, all sides in turn) | Millpond | others |", "|---|---|---|"]
    lines += [f"| {what} | **{number(ours)}** | {rivals or 'not measured'} |" for what, ours, rivals in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    text = README.read_text()
    assert BLOCK.search(text), "the README has no place for figures"
    made = BLOCK.sub(lambda found: found[1] + "\n" + table() + "\n" + found[3], text)
    if "--check" in sys.argv:
        return int(made != text)
    README.write_text(made)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
