"""What the examples ask of Prometheus: the dashboard, the alerts and the scaler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text()))


def dashboard() -> dict[str, Any]:
    """Return the dashboard of Grafana."""
    found: dict[str, Any] = json.loads((EXAMPLES / "grafana" / "millpond.json").read_text())
    return found


def shown() -> list[str]:
    """Return the expressions of the dashboard."""
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def alerting() -> list[str]:
    """Return the expressions of the alerts."""
    [rules] = documents(EXAMPLES / "prometheus" / "alerts.yaml")
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def scaling() -> list[str]:
    """Return the expressions of the scaler."""
    [scaled] = documents(EXAMPLES / "kubernetes" / "keda.yaml")
    return [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
