"""The picture of the benchmarks: how many times faster, from results/*.json."""

from __future__ import annotations

import json
from typing import Any

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


def draw_keyed() -> None:
    """Jobs a second beside the rivals, how long a job waits, and what it costs against keys, backlog and workers."""
    keys = ("drain", "latency_p50", "latency_p99", "hot", "backlog", "workers")
    files = {key: HERE / "results" / f"keyed_{key}-3.11.json" for key in keys}
    if not all(file.exists() for file in files.values()):
        return
    rows = {key: json.loads(file.read_text())["rows"] for key, file in files.items()}
    figure, panels = pyplot.subplots(2, 2, figsize=(7.5, 5.4))
    _keyed_bars(panels[0, 0], rows["drain"])
    _keyed_waits(panels[0, 1], rows["latency_p50"][0]["figures"], rows["latency_p99"][0]["figures"])
    _keyed_lines(panels[1, 0], rows["hot"], rows["backlog"])
    _keyed_workers(panels[1, 1], rows["workers"])
    for axes in panels.flat:
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.supxlabel("keyed pools on Redis without persistence; jobs that do nothing; Python 3.11, 2 cores", fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE.parent / "docs" / "img" / "keyed.svg", metadata={"Date": None})


def _colour(side: str) -> str:
    return "#2563eb" if side.startswith("millpond") else "#9ca3af"


def _keyed_bars(axes: Any, rows: list[dict[str, Any]]) -> None:
    bars = [(side, 1e6 / value) for side, value in rows[0]["figures"].items() if not side.startswith("millpond")]
    for row in rows:
        per_key = row["params"]["per_key"]
        for side, value in row["figures"].items():
            if side.startswith("millpond"):
                kept = ", kept" if "kept" in side else ""
                bars.append((f"millpond, {per_key} job{'s' if per_key > 1 else ''}/key{kept}", 1e6 / value))
    bars.sort(key=lambda bar: -bar[1])
    for place, (side, rate) in enumerate(bars):
        axes.barh(place, rate, color=_colour(side))
        axes.text(rate * 1.1, place, f"{rate:,.0f}", va="center", fontsize=8, color="#555")
    axes.set_yticks(range(len(bars)), [side for side, _ in bars])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(min(rate for _, rate in bars) / 3, max(rate for _, rate in bars) * 12)
    axes.set_title("drained by one worker, jobs/s (log)", fontsize=9)


def _keyed_waits(axes: Any, medians: dict[str, float], worst: dict[str, float]) -> None:
    sides = sorted(medians, key=lambda side: medians[side])
    for place, side in enumerate(sides):
        axes.plot([medians[side], worst[side]], [place, place], color=_colour(side), linewidth=5, solid_capstyle="butt")
        text = " / ".join(f"{value:.2f}" if value < 10 else f"{value:,.0f}" for value in (medians[side], worst[side]))
        axes.text(worst[side] * 1.15, place, text, va="center", fontsize=8, color="#555")
    axes.set_yticks(range(len(sides)), [side.replace("AsyncKeyedPool", "asyncio") for side in sides])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(min(medians.values()) / 1.5, max(worst.values()) * 8)
    axes.set_title("dispatch to start, p50 / p99, ms (log)", fontsize=9)


def _keyed_lines(axes: Any, hot: list[dict[str, Any]], backlog: list[dict[str, Any]]) -> None:
    held = sorted((row["params"]["held"], row["figures"]["millpond"]) for row in hot)
    held.insert(0, (100, hot[0]["figures"]["millpond, none held"]))  # the hot ones alone
    waiting = sorted((row["params"]["per_key"], row["figures"]["millpond"]) for row in backlog)
    axes.plot(*zip(*held, strict=True), marker="o", markersize=4, color="#2563eb", label="other keys held")
    axes.plot(*zip(*waiting, strict=True), marker="o", markersize=4, color="#f59e0b", label="backlog, jobs/key")
    axes.set_xscale("log")
    axes.set_ylim(0, max(value for _, value in held + waiting) * 1.25)
    axes.legend(fontsize=8, frameon=False)
    axes.set_title("cost of a job, µs", fontsize=9)


def _keyed_workers(axes: Any, rows: list[dict[str, Any]]) -> None:
    points = sorted((row["params"]["workers"], 1e6 / row["figures"]["millpond"]) for row in rows)
    places = range(len(points))
    axes.bar(places, [rate for _, rate in points], color="#2563eb", width=0.6)
    for place, (_, rate) in zip(places, points, strict=True):
        axes.text(place, rate * 1.02, f"{rate:,.0f}", ha="center", va="bottom", fontsize=8, color="#555")
    axes.set_xticks(places, [f"{number} worker{'s' if number > 1 else ''}" for number, _ in points])
    axes.set_ylim(0, max(rate for _, rate in points) * 1.2)
    axes.set_title("drained by several workers, jobs/s", fontsize=9)


if __name__ == "__main__":
    draw()
    draw_resources()
    draw_temporal()
    draw_keyed()
