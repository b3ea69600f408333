"""The picture of the benchmarks: how many times faster, from results/*.json."""

from __future__ import annotations

import json

import matplotlib
from harness import HERE

matplotlib.use("svg")
from matplotlib import pyplot

BARS = [
    ("submit", "submit + result"),
    ("wait", "wait()"),
    ("as_completed", "as_completed()"),
    ("map", "map"),
    ("awaited_calls", "await in asyncio"),
    ("coroutines_map", "AsyncPool.map"),
    ("processes", "ProcessPool"),
]


def draw() -> None:
    labels, values, rivals = [], [], []
    for key, label in BARS:
        file = HERE / "results" / f"{key}-3.11.json"
        if not file.exists():
            continue
        document = json.loads(file.read_text())
        labels.append(label)
        values.append(min(row["result"] for row in document["rows"]))
        rivals.append(document["reference"])
    figure, axes = pyplot.subplots(figsize=(7.5, 0.48 * len(labels) + 0.9))
    places = range(len(labels))
    axes.barh(places, values, color="#2563eb")
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(1, max(values) * 4)
    for place, value, rival in zip(places, values, rivals, strict=True):
        axes.text(value * 1.06, place, f"{value:.0f}x {rival}", va="center", fontsize=9, color="#555")
    axes.set_xlabel("times faster, the weakest of its settings (log scale, Python 3.11, 2 cores)", fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    target = HERE.parent / "docs" / "img" / "local.svg"
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    draw()
