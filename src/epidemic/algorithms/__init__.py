"""What nodes do with models: every algorithm, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epidemic.algorithms.base import (
    SAMPLINGS,
    WIDTH,
    Algorithm,
    Column,
    Defaults,
    Heard,
    Inbox,
    LocalTraining,
    Rows,
    Turn,
    cautions,
    check_algorithm,
)
from epidemic.algorithms.local_sgd import LocalSGD
from epidemic.algorithms.own import MISSING, PythonAlgorithm
from epidemic.algorithms.push_sum import PushSum
from epidemic.config import build_kind

ALGORITHMS: dict[str, type[Any]] = {
    "local-sgd": LocalSGD,
    "push-sum": PushSum,
    "python": PythonAlgorithm,
}

UNSAID_KIND = "local-sgd"
"""What a table without a kind means; files written before there were several have none."""


def algorithm_from(table: object, where: str = "algorithm") -> Any:
    """The algorithm that a TOML table describes; without a kind it is local SGD."""
    if isinstance(table, Mapping) and "kind" not in table:
        table = {"kind": UNSAID_KIND, **table}
    return build_kind(table, ALGORITHMS, where)


__all__ = [
    "ALGORITHMS",
    "MISSING",
    "SAMPLINGS",
    "UNSAID_KIND",
    "WIDTH",
    "Algorithm",
    "Column",
    "Defaults",
    "Heard",
    "Inbox",
    "LocalSGD",
    "LocalTraining",
    "PushSum",
    "PythonAlgorithm",
    "Rows",
    "Turn",
    "algorithm_from",
    "cautions",
    "check_algorithm",
]
