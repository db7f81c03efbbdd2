"""Dissensus: the message that drives a receiver away from its honest neighbours (He, Karimireddy and Jaggi, 2022)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from epidemic.adversary.base import Adversary, Scene
from epidemic.core.errors import require_real


class Dissensus(Adversary, frozen=True, tag="dissensus"):
    """Cancels `factor` times what the honest messages would move the receiver by; with 1, plain averaging leaves every receiver where it is."""

    personal: ClassVar[bool] = True

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("adversary.factor", self.factor)

    def message(self, scene: Scene) -> Tensor:
        """x_i - z * sum over honest j of W_ij (x_j - x_i), divided by the malicious weight.   # (d,)"""
        assert scene.own is not None
        assert scene.received is not None
        assert scene.weights is not None
        if not scene.malicious_weight:
            return scene.own
        share = torch.from_numpy(scene.weights[1:] / scene.malicious_weight).to(scene.own.device, scene.own.dtype)
        return scene.own - self.factor * (share @ (scene.received - scene.own))
