"""The best of several repetitions: on a shared machine the fastest one is the least disturbed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.sizes import SMALLEST, sized


def best(work: Callable[[], object], repeat: int = 30) -> float:
    """Seconds of the fastest of `repeat` calls."""
    fastest = float("inf")
    for _ in range(sized(repeat, 1)):
        start = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def interleaved(*works: Callable[[], object], repeat: int = 30) -> list[float]:
    """The best of each, called in turn so that a disturbance hits all alike."""
    fastest = [float("inf")] * len(works)
    for _ in range(sized(repeat, 1)):
        for i, work in enumerate(works):
            fastest[i] = min(fastest[i], best(work, 1))
    return fastest


FOUND: list[dict[str, Any]] = []
"""Every ratio that was judged in this process, in order."""


def verdict(what: str, ratio: float, limit: float, *, at_most: bool) -> bool:
    """Print a ratio beside its target, and say whether it is reached; ratios of the smallest form say nothing."""
    if SMALLEST:
        FOUND.append({"what": what.strip(), "ratio": ratio})
        print(f"{what}: {ratio:.2f}")
        return True
    reached = ratio <= limit if at_most else ratio >= limit
    limit_said = {"limit": limit, "at_most": at_most, "reached": reached}
    FOUND.append({"what": what.strip(), "ratio": ratio, **limit_said})
    sign = "<=" if at_most else ">="
    print(f"{what}: {ratio:.2f} (target {sign} {limit:g}) {'reached' if reached else 'MISSED'}")
    return reached
