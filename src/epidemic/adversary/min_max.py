"""Min-max: as far from the mean as honest models are from each other (Shejwalkar and Houmansadr, 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from epidemic.adversary.base import Informed, Scene

BISECTIONS, LARGEST = 20, 100.0


class MinMax(Informed, frozen=True, tag="min-max"):
    """The mean minus a multiple of the standard deviation, no farther from any honest model than these are from each other. It needs no knowledge of the rule."""

    def message(self, scene: Scene) -> Tensor:
        """Mu - g sd, by bisection.   # (d,)"""
        q = scene.honest.double()
        limit = float(torch.cdist(q, q, compute_mode="donot_use_mm_for_euclid_dist").max())
        mean, deviation = scene.mean.double(), scene.deviation.double()
        low, high = 0.0, LARGEST
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            near = float((q - (mean - middle * deviation)).norm(dim=1).max()) <= limit
            low, high = (middle, high) if near else (low, middle)
        return scene.mean - scene.deviation * low
