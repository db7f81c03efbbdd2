"""Sign flipping: the mean of the honest models, with the opposite sign (Allouah et al., 2023; RPEL)."""

from __future__ import annotations

from torch import Tensor

from epidemic.adversary.base import Informed, Scene


class SignFlip(Informed, frozen=True, tag="sign-flip"):
    """Minus the mean of the honest models."""

    def message(self, scene: Scene) -> Tensor:
        """Return minus the mean of the honest models.   # (d,)"""
        return -scene.mean
