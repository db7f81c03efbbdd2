"""Aggregators: how received models become one, by kind.

One file each, listed here; `base.py` defines the interface. The room may import `core/` only: it knows no host, graph or algorithm. To add a rule: a frozen
Struct in a file of its own, derived from `Coordinatewise` (with `reduce`), `ByDistances` or `ByDistancesToOwn` (with `coefficients`), or `Aggregator` (with
`__call__`), and its row in `AGGREGATORS`. The round engine, the clock, ranks, deployed nodes and refusals follow from what it declares.
"""

from __future__ import annotations

from typing import Any

from epidemic.aggregation.base import Aggregator, Coordinatewise, Heard, Rowwise
from epidemic.aggregation.centred import Centred
from epidemic.aggregation.clipped import Clipped
from epidemic.aggregation.distances import ByDistances, ByDistancesToOwn
from epidemic.aggregation.geometric_median import GeometricMedian
from epidemic.aggregation.gts import GTS
from epidemic.aggregation.ios import IOS
from epidemic.aggregation.krum import Krum, MultiKrum
from epidemic.aggregation.meamed import MeaMed
from epidemic.aggregation.mean import Mean
from epidemic.aggregation.median import Median
from epidemic.aggregation.nearest import Nearest
from epidemic.aggregation.nnm import AfterMixing
from epidemic.aggregation.own import MISSING, PythonAggregator
from epidemic.aggregation.tolerant import Mixable, MixableMedian
from epidemic.aggregation.trimmed_mean import TrimmedMean
from epidemic.aggregation.w_msr import WMSR
from epidemic.core.config import build_kind

AGGREGATORS: dict[str, type[Any]] = {
    "mean": Mean,
    "trimmed-mean": TrimmedMean,
    "median": Median,
    "meamed": MeaMed,
    "geometric-median": GeometricMedian,
    "nearest": Nearest,
    "gts": GTS,
    "clipped": Clipped,
    "centred": Centred,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "ios": IOS,
    "w-msr": WMSR,
    "python": PythonAggregator,
}


def aggregator_from(table: object, where: str = "aggregation") -> Any:
    """The aggregator that a TOML table describes, for example {kind = "trimmed-mean", f = 2}."""
    return build_kind(table, AGGREGATORS, where)


def made(aggregator: Aggregator) -> Aggregator:
    """What a host calls: a user's own aggregator where a file names it, and one preceded by mixing where that is asked for."""
    if isinstance(aggregator, PythonAggregator):
        return aggregator.made
    if isinstance(aggregator, Mixable | MixableMedian) and aggregator.before is not None:
        return AfterMixing(aggregator)
    return aggregator


__all__ = [
    "AGGREGATORS",
    "GTS",
    "IOS",
    "MISSING",
    "WMSR",
    "AfterMixing",
    "Aggregator",
    "ByDistances",
    "ByDistancesToOwn",
    "Centred",
    "Clipped",
    "Coordinatewise",
    "GeometricMedian",
    "Heard",
    "Krum",
    "MeaMed",
    "Mean",
    "Median",
    "MultiKrum",
    "Nearest",
    "PythonAggregator",
    "Rowwise",
    "TrimmedMean",
    "aggregator_from",
    "made",
]
