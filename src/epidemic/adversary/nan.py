"""Numbers that are none: a receiver must notice and drop them."""

from __future__ import annotations

import torch
from torch import Tensor

from epidemic.adversary.base import Adversary, Scene


class NotANumber(Adversary, frozen=True, tag="nan"):
    """A model of NaN. Receivers drop it and count it."""

    def message(self, scene: Scene) -> Tensor:
        """Return a model with NaN in every coordinate.   # (d,)"""
        return torch.full_like(scene.honest[0], float("nan"))
