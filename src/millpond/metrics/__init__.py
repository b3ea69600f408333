"""Metrics of pools for Prometheus. `pip install "millpond[metrics]"`.

    from prometheus_client import REGISTRY
    from millpond import metrics

    measured = metrics.Histograms()                            # how long things wait and run, as they happen
    pool = ThreadPool(8, name="resize", on_event=measured)
    REGISTRY.register(metrics.Collector(pool, measured))       # how pools stand, read when somebody scrapes

Where to look:

    _families     every metric: its name, type, labels and meaning
    _readings     a pool of each kind, read into metrics
    Collector     pools of this process, for a registry         _collector
    Histograms    an observer of events                         _histograms
    Place(url)    all pools of a place, as text                 _place
    _worker       what `/metrics` of a worker says
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond._lazy import lazy

__all__ = ["Collector", "Histograms", "Place", "render"]

_find, __dir__ = lazy(
    __name__,
    {
        "Collector": "millpond.metrics._collector",
        "Histograms": "millpond.metrics._histograms",
        "Place": "millpond.metrics._place",
        "render": "millpond.metrics._place",
    },
)

if TYPE_CHECKING:
    from millpond.metrics._collector import Collector
    from millpond.metrics._histograms import Histograms
    from millpond.metrics._place import Place, render
else:  # a checker that saw this would take any name to be there
    __getattr__ = _find
