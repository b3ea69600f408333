"""How the benchmarks measure.

A benchmark file answers questions. A `Question` names its sides (us and the rivals), each a function that does the
work once and returns its figure; lower is better. Every side of every parameter set runs in a process of its own,
the sides take turns, and the best of all rounds counts (the median where it says so), since noise only ever adds.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


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

    @property
    def more_is_better(self) -> bool:
        return self.score == "times"

    def result(self, figures: dict[str, float]) -> float:
        subject = figures[self.subject]
        if self.score == "value":
            return subject
        return figures[self.reference] / subject if self.score == "times" else subject / figures[self.reference] - 1

    def meets(self, value: float, goal: float | None) -> bool | None:
        if goal is None:
            return None
        return value >= goal if self.more_is_better else value <= goal


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


def ask(path: Path, question: Question, *, smoke: bool, python: str = sys.executable) -> list[dict[str, Any]]:
    """Measure every side of a question; a row for each parameter set. A smoke run has the last one only."""
    rows = []
    for params in question.params[-1:] if smoke else question.params:
        samples: dict[str, list[float]] = {side: [] for side in question.sides}
        for _ in range(1 if smoke else question.rounds):
            for side in question.sides:
                samples[side].append(_in_a_process(python, path, question.key, side, params, smoke))
        pick = statistics.median if question.take == "median" else min
        figures = {side: pick(values) for side, values in samples.items()}
        value = question.result(figures)
        rows.append(
            {
                "params": params,
                "figures": figures,
                "samples": samples,
                "result": value,
                "meets_must": question.meets(value, question.must),
                "meets_aim": question.meets(value, question.aim),
            }
        )
    return rows


def _in_a_process(python: str, path: Path, key: str, side: str, params: dict[str, Any], smoke: bool) -> float:
    command = [python, __file__, str(path), key, side, json.dumps(params), "smoke" if smoke else "full"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{key} / {side} failed:\n{done.stderr}")
    return float(done.stdout.strip().splitlines()[-1])


def scale(number: int) -> int:
    """Return how often to do it: `number`, or a hundredth of it in a smoke run."""
    return max(10, number // 100) if _smoke else number


_smoke = False

if __name__ == "__main__":
    file, key, side, params, mode = sys.argv[1:]
    sys.modules["harness"] = sys.modules["__main__"]
    _smoke = mode == "smoke"
    (question,) = [each for each in load(Path(file)) if each.key == key]
    times = 1 if _smoke or question.take == "median" else 3
    print(min(question.sides[side](**json.loads(params)) for _ in range(times)))
