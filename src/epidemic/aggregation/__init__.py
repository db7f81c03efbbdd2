"""Aggregators: how received models become one, by kind.

One file each, listed here; `base.py` defines the interface. The room may import `core/` only: it knows no host, graph or algorithm. To add a rule: a frozen
Struct in a file of its own, derived from `Coordinatewise` (with `reduce`) or `Aggregator` (with `__call__`), and its row in `AGGREGATORS`. The round
engine, the clock, ranks, deployed nodes and refusals follow from what it declares.
"""

from __future__ import annotations

from typing import Any

from epidemic.aggregation.base import Aggregator, Coordinatewise, Heard
from epidemic.aggregation.mean import Mean
from epidemic.aggregation.median import Median
from epidemic.aggregation.own import MISSING, PythonAggregator
from epidemic.aggregation.trimmed_mean import TrimmedMean
from epidemic.core.config import build_kind

AGGREGATORS: dict[str, type[Any]] = {
    "mean": Mean,
    "trimmed-mean": TrimmedMean,
    "median": Median,
    "python": PythonAggregator,
}


def aggregator_from(table: object, where: str = "aggregation") -> Any:
    """The aggregator that a TOML table describes, for example {kind = "trimmed-mean", f = 2}."""
    return build_kind(table, AGGREGATORS, where)


def made(aggregator: Aggregator) -> Aggregator:
    """The aggregator itself, where a file names a user's own."""
    return aggregator.made if isinstance(aggregator, PythonAggregator) else aggregator


__all__ = [
    "AGGREGATORS",
    "MISSING",
    "Aggregator",
    "Coordinatewise",
    "Heard",
    "Mean",
    "Median",
    "PythonAggregator",
    "TrimmedMean",
    "aggregator_from",
    "made",
]
