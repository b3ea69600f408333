"""The names of prometheus_client that are used here; or, where it is missing, the error that says how to get it."""

from __future__ import annotations

try:
    from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
        Metric,
    )
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        'millpond.metrics needs prometheus-client: pip install "millpond[metrics]"', name="prometheus_client"
    ) from _error

__all__ = [
    "REGISTRY",
    "CollectorRegistry",
    "CounterMetricFamily",
    "GaugeMetricFamily",
    "HistogramMetricFamily",
    "InfoMetricFamily",
    "Metric",
    "generate_latest",
]
