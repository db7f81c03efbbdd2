"""What may differ: between runs of one experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables within tables as one, with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return found


WITHOUT_INFLUENCE = ("seeds", "checkpoint", "runtime", "network")
"""What may differ between simulations of the same experiment."""


def same_experiment(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """The dotted keys in which two experiments' tables differ, leaving out what has no influence on results."""
    left, right = (flat({k: v for k, v in t.items() if k not in WITHOUT_INFLUENCE}) for t in (a, b))
    return sorted(key for key in {*left, *right} if left.get(key) != right.get(key))
