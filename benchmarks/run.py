"""Run the benchmarks, write results/*.json, and make the table (README.md) and the picture from them.

usage: python benchmarks/run.py [--smoke] [--table] [FILE-OR-KEY ...]
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import HERE, Question, ask, has_gil, load

RESULTS = HERE / "results"
FILES = sorted([*HERE.glob("local_*.py"), *HERE.glob("resources_*.py")])
FILES += [HERE / "keyed_redis.py", HERE / "keyed_scale.py", HERE / "web_pages.py"]


def machine() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return {
        "python": platform.python_version() + ("" if has_gil() else ", free-threaded"),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[0], 1),
    }


def name_of_python() -> str:
    return ".".join(platform.python_version_tuple()[:2]) + ("" if has_gil() else "t")


def show(value: float | None, question: Question) -> str:
    if value is None:
        return "—"
    if question.score == "overhead":
        return f"{value:+.0%}"
    if question.score == "value":
        return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
    return f"{value:.2f}x" if value < 2 else f"{value:.1f}x" if value < 20 else f"{value:.0f}x"


def number(value: float) -> str:
    return f"{value:,.3f}" if value < 1 else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def measure(path: Path, wanted: list[str], smoke: bool) -> None:
    chosen = [one for one in load(path) if not wanted or path.stem in wanted or one.key in wanted]
    for question in chosen:
        if question.free_threaded and has_gil() and not smoke:
            print(f"{question.key:18} skipped: this Python has the GIL", flush=True)
            continue
        rows = ask(path, question, smoke=smoke, is_first=question is chosen[0])
        for row in rows:
            figures = ", ".join(f"{side} {number(value)}" for side, value in row["figures"].items())
            mark = {True: "ok", False: "MISSED", None: ""}[row["meets_must"]]
            params = ", ".join(f"{key}={value}" for key, value in row["params"].items())
            print(f"{question.key:18} {params:12} {show(row['result'], question):>8} {mark:7} {figures}", flush=True)
            if row.get("skipped") and not smoke:
                print(*(f"{'':18} skipped: {side}: {reason}" for side, reason in row["skipped"].items()), sep="\n")
        if not smoke:
            target = RESULTS / f"{question.key}-{name_of_python()}.json"
            document = {
                "question": question.title,
                "unit": question.unit,
                "score": question.score,
                "reference": question.reference,
                "must": question.must,
                "aim": question.aim,
                "take": question.take,
                "note": question.note,
                "machine": machine(),
                "rows": rows,
            }
            target.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def table() -> str:
    """Return the README of the benchmarks, made from the newest results."""
    lines = [(HERE / "README.head.md").read_text().rstrip(), ""]
    pythons = sorted({path.stem.rsplit("-", 1)[1] for path in RESULTS.glob("*.json")})
    for python in pythons:
        lines += _table_of(python)
    options = RESULTS / "options-3.11.json"
    if options.exists():
        document = json.loads(options.read_text())
        lines += ["", "## What each option costs", "", document["question"] + " (3.11).", "", "| option | µs/task |"]
        lines += ["|---|---|"]
        lines += [f"| {side} | {number(value)} |" for side, value in document["rows"][0]["figures"].items()]
    return "\n".join(lines) + "\n"


def _table_of(python: str) -> list[str]:
    lines: list[str] = []
    for path in FILES:
        for question in load(path):
            file = RESULTS / f"{question.key}-{python}.json"
            if question.key == "options" or not file.exists():
                continue
            document = json.loads(file.read_text())
            if not lines:
                where = document["machine"]
                heading = f"## Python {where['python']}, {where['cores']} cores, {where['system']}, {where['date']}"
                if where.get("load", 0) > where["cores"]:
                    heading += f", a busy machine (load {where['load']:.0f})"
                lines += ["", heading]
                lines += ["", "| question | setting | result | must | aim | figures |", "|---|---|---|---|---|---|"]
            for row in document["rows"]:
                figures = ", ".join(f"{side} {number(value)}" for side, value in row["figures"].items())
                params = ", ".join(f"{value} {key}" for key, value in row["params"].items())
                figures += "".join(f", {side} skipped" for side in row.get("skipped", {}))
                goals = [
                    _goal(question, each, row[key])
                    for each, key in ((question.must, "meets_must"), (question.aim, "meets_aim"))
                ]
                cells = [question.title, params, f"**{show(row['result'], question)}**", *goals]
                lines.append(f"| {' | '.join(cells)} | {figures} {question.unit} |")
    return lines


def _goal(question: Question, goal: float | None, met: bool | None) -> str:
    if goal is None:
        return ""
    sign = "≥" if question.more_is_better else "≤"
    if met is None:
        return f"{sign} {show(goal, question)}"
    return f"{sign} {show(goal, question)} {'yes' if met else 'no'}"


def main(arguments: list[str]) -> None:
    smoke = "--smoke" in arguments
    wanted = [each for each in arguments if not each.startswith("--")]
    RESULTS.mkdir(exist_ok=True)
    if "--table" not in arguments:
        named = [path for path in FILES if path.stem in wanted]
        for path in named if len(named) == len(wanted) > 0 else FILES:  # loading all of them takes a while
            measure(path, wanted, smoke)
    for leftover in Path(tempfile.gettempdir()).glob(f"millpond-bench-{os.getpid()}-*"):
        leftover.unlink()
    if not smoke:
        try:
            page = table()
        except ImportError as missing:  # a free-threaded build has not all that the benchmarks' files need
            print(f"no table: {missing}; make it with another Python: run.py --table")
            return
        (HERE / "README.md").write_text(page)
        try:
            from plot import draw, draw_keyed, draw_resources, draw_temporal
        except ImportError:
            print("no picture: matplotlib is not installed")
        else:
            draw()
            draw_resources()
            draw_temporal()
            draw_keyed()


if __name__ == "__main__":
    main(sys.argv[1:])
