"""A little is enough: a message within the spread of the honest ones (Baruch, Baruch and Goldberg, 2019)."""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal

from torch import Tensor

from epidemic.adversary.base import Informed, Scene
from epidemic.adversary.line_search import check_factor, factor_in


def alie_factor(n: int, b: int) -> float:
    """The factor of the original attack, by which a majority of n nodes, b of them malicious, still seems farther out; 0 where there is none.

    With the few models that a node of Epidemic Learning hears it is next to nothing, so that a fixed 1.5 or the line search are the attack to measure.
    """
    supporters = n // 2 + 1 - b
    return NormalDist().inv_cdf((n - b - supporters) / (n - b))


class Alie(Informed, frozen=True, tag="alie"):
    """The mean of the honest models plus `factor` times their standard deviation, coordinate by coordinate."""

    factor: float | Literal["worst", "formula"] = 1.5
    """A number, of either sign; "worst": for each message the one that does most harm, by line search; "formula": that of the original attack."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self.factor, "worst", "formula")

    def message(self, scene: Scene) -> Tensor:
        """Return mu + z sd, coordinate by coordinate, with z the factor.   # (d,)"""
        if self.factor == "formula":
            b = len(scene.sight.malicious)
            z = alie_factor(scene.sight.graph.n, b)
        else:
            z = factor_in(self.factor, scene, lambda z: scene.mean + scene.deviation * z)
        return scene.mean + scene.deviation * z
