"""Noise: numbers drawn from a normal distribution around 0 instead of a model."""

from __future__ import annotations

import torch
from torch import Tensor

from epidemic.adversary.base import Adversary, Scene
from epidemic.core.errors import require_real


class Gaussian(Adversary, frozen=True, tag="gaussian"):
    """Noise of every malicious node's own, the same to all receivers."""

    sigma: float = 1.0
    """Standard deviation of each number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("adversary.sigma", self.sigma, above=0)

    def message(self, scene: Scene) -> Tensor:
        """N(0, sigma^2) in every coordinate, one of each.   # (k, d)"""
        sight, like = scene.sight, scene.honest
        drawn = [sight.streams("attack", sight.round, node).normals(like.shape[1]) for node in scene.senders.tolist()]
        return torch.stack([torch.from_numpy(row) for row in drawn]).to(like.device, like.dtype) * self.sigma
