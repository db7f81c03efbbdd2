"""The factor of an attack that does most harm, by the line search of RPEL's program, with 16 evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from epidemic.adversary.base import Scene
from epidemic.core.errors import require_choice, require_real

EVALUATIONS = 16
SHRINK = 0.8

Factor = float | Literal["worst"]


def check_factor(factor: object, *words: str) -> None:
    """Refuse what is neither a number nor one of these words."""
    if isinstance(factor, str):
        require_choice("adversary.factor", factor, [*words, "a number"])
    require_real("adversary.factor", 0.0 if isinstance(factor, str) else factor)


def worst_factor(harm: Callable[[float], float], evaluations: int = EVALUATIONS) -> float:
    """The z of those that are tried, z >= 0, for which the harm is largest.

    It first expands, with steps that double as long as it gets worse; then it contracts, with steps that shrink by a fifth.

    Args:
        harm: How much harm a factor does.
        evaluations: How many factors are tried, 0 among them.
    """
    best, most, step = 0.0, harm(0.0), 1.0
    tried, expanding = 0.0, True
    for _ in range(evaluations - 1):
        if expanding:
            tried = best + step
        elif tried < best:
            tried += step
        else:
            further = tried - step
            while further < 0:
                further = (further + tried) / 2
            tried = further
        found = harm(tried)
        better = found > most
        if better:
            best, most = tried, found
        if expanding and better:
            step *= 2
        else:
            step *= SHRINK
            expanding = False
    return best


def factor_in(factor: Factor, scene: Scene, message: Callable[[float], Tensor]) -> float:
    """The factor itself, or the one that moves what the receiver makes of it farthest from the honest mean."""
    if not isinstance(factor, str):
        return factor
    honest, k, mean = scene.honest, scene.count, scene.mean

    def harm(z: float) -> float:
        made = scene.aggregate(torch.cat([honest, message(z).expand(k, -1)]))
        return float((made - mean).double().norm())

    return worst_factor(harm)
