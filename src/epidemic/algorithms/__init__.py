"""What nodes do with models: every algorithm, by kind."""

from __future__ import annotations

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


def algorithm_from(table: object, where: str = "algorithm") -> Any:
    """The algorithm that a TOML table describes; without a kind it is local SGD."""
    if isinstance(table, dict) and "kind" not in table:
        table = {"kind": "local-sgd", **table}
    return build_kind(table, ALGORITHMS, where)


def check_algorithm(algorithm: Algorithm, topology: Any, mixing: str) -> None:
    """Raise BadInput if the algorithm says that it cannot work like this."""
    check = getattr(algorithm, "check", None)
    if check is not None:
        check(topology, mixing)


def cautions(algorithm: Algorithm, topology: Any) -> list[str]:
    """What a user should know about this algorithm on this topology, a line each."""
    warn = getattr(algorithm, "cautions", None)
    return [] if warn is None else list(warn(topology))


__all__ = [
    "ALGORITHMS",
    "MISSING",
    "SAMPLINGS",
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
