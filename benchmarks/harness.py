"""How the benchmarks measure.

A benchmark file answers questions. A `Question` names its sides (us and the rivals), each a function that does the
work once and returns its figure; lower is better. Every side of every parameter set runs in a process of its own,
the sides take turns, and the best of all rounds counts (the median where it says so), since noise only ever adds.

A side that cannot run here raises `Skip`; the question is answered without it, and says so.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RIVALS = "the best rival"
"""A reference: whichever of the sides that are not ours comes out best."""


class Skip(Exception):
    """Raised by a side that cannot run on this machine, with the reason."""


@dataclass(frozen=True)
class Question:
    """One row of GOALS.md: what is measured, on which sides, and what must come out."""

    key: str
    title: str
    sides: dict[str, Callable[..., float]]
    unit: str
    reference: str
    subject: str = "millpond"
    params: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    score: str = "times"  # "times": reference / subject; "overhead": subject / reference - 1; "value": subject itself
    must: float | None = None
    aim: float | None = None
    take: str = "best"  # or "median"
    rounds: int = 3
    note: str = ""
    smoke: tuple[str, ...] = ()
    """The sides of a smoke run; if empty, all for the first question of a file, else ours and the reference."""
    free_threaded: bool = False
    """Asked only of a Python without the GIL (and by smoke runs)."""

    @property
    def more_is_better(self) -> bool:
        return self.score == "times"

    def result(self, figures: dict[str, float]) -> float | None:
        """Return what came out; None when a side that it needs was skipped."""
        subject = figures.get(self.subject)
        if subject is None or self.score == "value":
            return subject
        if self.reference == RIVALS:
            reference = min((value for side, value in figures.items() if not side.startswith("millpond")), default=None)
        else:
            reference = figures.get(self.reference)
        if reference is None:
            return None
        return reference / subject if self.score == "times" else subject / reference - 1

    def meets(self, value: float | None, goal: float | None) -> bool | None:
        if goal is None or value is None:
            return None
        return value >= goal if self.more_is_better else value <= goal


def has_gil() -> bool:
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def clock(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes, after a collection and a pause that lets threads of the last round end."""
    gc.collect()
    time.sleep(0.01)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def load(path: Path) -> list[Question]:
    sys.path.insert(0, str(HERE))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module.QUESTIONS


def ask(
    path: Path, question: Question, *, smoke: bool, is_first: bool = True, python: str = sys.executable
) -> list[dict[str, Any]]:
    """Measure every side of a question; a row for each parameter set. A smoke run has the last one only."""
    rows = []
    for params in question.params[-1:] if smoke else question.params:
        samples: dict[str, list[float]] = {side: [] for side in question.sides}
        details: dict[str, list[Any]] = {}
        skipped: dict[str, str] = {}
        if smoke and (question.smoke or not is_first):
            wanted = question.smoke or (question.subject, question.reference)
            skipped = {side: "not in a smoke run" for side in question.sides if side not in wanted}
        for turn in range(1 if smoke else question.rounds):
            for side in question.sides:
                if side in skipped:
                    continue
                answer = measure_once(path, question.key, side, params, smoke=smoke, turn=turn, python=python)
                if "skipped" in answer:
                    skipped[side] = answer["skipped"]
                else:
                    samples[side].append(answer["figure"])
                if "detail" in answer:
                    details.setdefault(side, []).append(answer["detail"])
        pick = statistics.median if question.take == "median" else min
        figures = {side: pick(values) for side, values in samples.items() if side not in skipped}
        value = question.result(figures)
        row = {
            "params": params,
            "figures": figures,
            "samples": samples,
            "result": value,
            "meets_must": question.meets(value, question.must),
            "meets_aim": question.meets(value, question.aim),
        }
        rows.append(row | ({"skipped": skipped} if skipped else {}) | ({"details": details} if details else {}))
    return rows


def measure_once(
    path: Path,
    key: str,
    side: str,
    params: dict[str, Any],
    *,
    smoke: bool = False,
    turn: int = 0,
    python: str = sys.executable,
    source: Path | None = None,
) -> dict[str, Any]:
    """Measure one side in a process of its own, with the library from another `source` folder if there is one."""
    command = [python, __file__, str(path), key, side, json.dumps(params), "smoke" if smoke else "full", str(turn)]
    env = os.environ | ({"PYTHONPATH": str(source)} if source else {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    if done.returncode:
        raise RuntimeError(f"{key} / {side} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def scale(number: int) -> int:
    """Return how often to do it: `number`, or a hundredth of it in a smoke run."""
    return max(10, number // 100) if _smoke else number


def shared(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure, or read what another side or question of this turn measured under that name; keep it for the results.

    For benchmarks of which one run gives several figures.
    """
    kept = Path(tempfile.gettempdir()) / f"millpond-bench-{os.getppid()}-{_turn}-{name}.json"
    if not kept.exists() or kept.stat().st_mtime < time.time() - 1800:  # process numbers come again
        kept.write_text(json.dumps(measure()))
    run: dict[str, Any] = json.loads(kept.read_text())
    keep(run)
    return run


def keep(run: dict[str, Any]) -> None:
    """Put into the results what a figure comes from; the last one counts."""
    _details.append(run)


def is_smoke() -> bool:
    return _smoke


_smoke = False
_turn = 0
_details: list[dict[str, Any]] = []

if __name__ == "__main__":
    file, key, side, params, mode, turn = sys.argv[1:]
    sys.modules["harness"] = sys.modules["__main__"]
    _smoke, _turn = mode == "smoke", int(turn)
    (question,) = [each for each in load(Path(file)) if each.key == key]
    times = 1 if _smoke or question.take == "median" else 3
    answer: dict[str, Any] = {}
    try:
        answer["figure"] = min(question.sides[side](**json.loads(params)) for _ in range(times))
    except Skip as reason:
        answer["skipped"] = str(reason)
    if _details:
        answer["detail"] = _details[-1]
    print(json.dumps(answer))
