"""Fall of empires, or inner product manipulation (Xie, Koyejo and Gupta, 2020)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from epidemic.adversary.base import Informed, Scene
from epidemic.adversary.line_search import check_factor, factor_in


class Foe(Informed, frozen=True, tag="foe"):
    """(1 - factor) times the mean of the honest models: 3 reverses and doubles it, 1.1 is hard to see."""

    factor: float | Literal["worst"] = 3.0
    """A number, or "worst": for each message the one that does most harm, by line search."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factor(self.factor, "worst")

    def message(self, scene: Scene) -> Tensor:
        """Return (1 - z) mu, the honest mean shrunk or reversed.   # (d,)"""
        return scene.mean * (1 - factor_in(self.factor, scene, lambda z: scene.mean * (1 - z)))
