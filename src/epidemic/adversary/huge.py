"""Numbers that are too large: a receiver must notice and drop them."""

from __future__ import annotations

import torch
from torch import Tensor

from epidemic.adversary.base import Adversary, Scene
from epidemic.core.errors import require_real


class Huge(Adversary, frozen=True, tag="huge"):
    """A model of equal large numbers. Receivers drop it and count it where they are above `network.largest`."""

    magnitude: float = 1e7

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("adversary.magnitude", self.magnitude)

    def message(self, scene: Scene) -> Tensor:
        """The same number in every coordinate.   # (d,)"""
        return torch.full_like(scene.honest[0], self.magnitude)
