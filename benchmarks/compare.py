"""Measure this working tree beside another revision, in one run: is anything slower than it was?

usage: python benchmarks/compare.py REVISION [--rounds N] [--to NAME] [FILE-OR-KEY ...]

Our own sides of the named questions (those of local pools, unless told) run in turn on the source of both; the best of
all rounds counts. Writes results/before_after-3.11.json, or results/NAME-3.11.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from harness import HERE, Question, load, measure_once
from run import FILES, RESULTS, machine, number

LOCAL = ("submit", "submit_context", "map", "map_lazy", "local_processes", "options", "local_asyncio")
THEIRS = ("ThreadPoolExecutor", "ProcessPoolExecutor", "multiprocessing", "run_in_executor", "gather")
THEIRS += ("redis-py", "filelock", "portalocker")


def unpack(revision: str, folder: Path) -> Path:
    """Put the source of a revision into a folder."""
    archive = subprocess.run(["git", "archive", revision, "src"], cwd=HERE.parent, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"


def our_sides(question: Question) -> list[str]:
    return [side for side in question.sides if not side.startswith(THEIRS)]


def compare(path: Path, question: Question, before: Path, rounds: int) -> list[dict[str, Any]]:
    rows = []
    sources = {"before": before, "after": HERE.parent / "src"}
    for params in question.params:
        for side in our_sides(question):
            samples: dict[str, list[float]] = {when: [] for when in sources}
            for turn in range(rounds):
                for when, source in sources.items():
                    answer = measure_once(path, question.key, side, params, turn=turn, source=source)
                    if "figure" in answer:
                        samples[when].append(answer["figure"])
            if not all(samples.values()):
                continue
            best = {when: min(values) for when, values in samples.items()}
            row = {"question": question.key, "side": side, "params": params, "unit": question.unit, **best}
            rows.append(row | {"ratio": best["after"] / best["before"], "samples": samples})
            setting = ", ".join(f"{key}={value}" for key, value in params.items())
            figures = f"{number(best['before']):>8} -> {number(best['after']):>8} {question.unit}"
            print(f"{question.key:18} {side[:36]:36} {setting:12} {figures}  {rows[-1]['ratio']:.3f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--to", metavar="NAME", default="before_after")
    chosen = parser.parse_intermixed_args()
    names = chosen.names or LOCAL
    with tempfile.TemporaryDirectory() as folder:
        before = unpack(chosen.revision, Path(folder))
        rows = [
            row
            for path in FILES
            for question in load(path)
            if path.stem in names or question.key in names
            for row in compare(path, question, before, chosen.rounds)
        ]
    commit = subprocess.run(["git", "rev-parse", "--short", chosen.revision], cwd=HERE, capture_output=True, text=True)
    document = {"before": commit.stdout.strip(), "machine": machine(), "rounds": chosen.rounds, "rows": rows}
    python = ".".join(platform.python_version_tuple()[:2])
    (RESULTS / f"{chosen.to}-{python}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    slower = [row for row in rows if row["ratio"] > 1.03]
    print(f"{len(rows)} figures, {len(slower)} slower by more than 3 %")


if __name__ == "__main__":
    main()
