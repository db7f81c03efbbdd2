"""Scaled flipping: what makes the plain mean of what a receiver holds 0."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from epidemic.adversary.base import Informed, Scene


class ScaledFlip(Informed, frozen=True, tag="scaled-flip"):
    """Minus the sum of the honest models, shared among the malicious messages: the plain mean of all is 0."""

    personal: ClassVar[bool] = True

    def message(self, scene: Scene) -> Tensor:
        """Return -(q / k) mu, which makes the mean of all messages 0.   # (d,)"""
        return scene.mean * -(len(scene.honest) / scene.count)
