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


FAIR = [("resources_fairness", "100 waiters, 10 resources"), ("resources_lock_fairness", "8 processes, one lock")]


def draw_resources() -> None:
    """How evenly grants are given, ours beside the rivals'."""
    figure, panels = pyplot.subplots(1, len(FAIR), figsize=(7.5, 2.6))
    for axes, (key, title) in zip(panels, FAIR, strict=True):
        file = HERE / "results" / f"{key}-3.11.json"
        if not file.exists():
            return
        figures = json.loads(file.read_text())["rows"][0]["figures"]
        places = range(len(figures))
        colours = ["#2563eb" if side.startswith("millpond") else "#9ca3af" for side in figures]
        axes.barh(places, figures.values(), color=colours)
        axes.set_yticks(places, figures, fontsize=8)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(0.9, max(figures.values()) * 6)
        for place, value in zip(places, figures.values(), strict=True):
            axes.text(
                value * 1.1,
                place,
                f"{value:,.2f}" if value < 10 else f"{value:,.0f}",
                va="center",
                fontsize=8,
                color="#555",
            )
        axes.set_title(title, fontsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.supxlabel("most : fewest grants per waiter (log scale; 1 is fair; Python 3.11, 2 cores)", fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE.parent / "docs" / "img" / "resources.svg", metadata={"Date": None})


TEMPORAL = [
    ("resources_temporal_workflows", "200 workflows, 50 resources"),
    ("resources_temporal_clients", "200 tasks of one process, 50 resources"),
    ("resources_temporal_processes", "100 tasks of 4 processes, 10 resources"),
]


def draw_temporal() -> None:
    """How many cycles a second pools on Temporal make, ours beside the sample's protocol."""
    figure, panels = pyplot.subplots(1, 2, figsize=(7.5, 2.6), sharex=True, sharey=True)
    for axes, server in zip(panels, ("stock", "tuned"), strict=True):
        for place, (key, _) in enumerate(TEMPORAL):
            file = HERE / "results" / f"{key}-3.11.json"
            if not file.exists():
                return
            [row] = [one for one in json.loads(file.read_text())["rows"] if one["params"]["server"] == server]
            for offset, side in ((-0.2, "resource_pool sample"), (0.2, "millpond")):
                rate = 1000 / row["figures"][side]
                axes.barh(place + offset, rate, 0.38, color="#2563eb" if side == "millpond" else "#9ca3af")
                axes.text(rate * 1.12, place + offset, f"{rate:,.0f}", va="center", fontsize=8, color="#555")
        axes.set_yticks(range(len(TEMPORAL)), [label for _, label in TEMPORAL], fontsize=8)
        axes.set_xscale("log")
        axes.set_xlim(1, 30_000)
        axes.set_title(f"{server} development server", fontsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].invert_yaxis()
    label = "acquire + release per second (log scale): the protocol of Temporal's sample, and Millpond; 2 cores"
    figure.supxlabel(label, fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE.parent / "docs" / "img" / "temporal.svg", metadata={"Date": None})


if __name__ == "__main__":
    draw()
    draw_resources()
    draw_temporal()
