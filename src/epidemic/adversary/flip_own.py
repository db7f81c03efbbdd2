"""Bit flipping: every malicious node sends what it has trained, with the opposite sign (He, Karimireddy and Jaggi, 2022)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from epidemic.adversary.base import Adversary, Scene


class FlipOwn(Adversary, frozen=True, tag="flip-own"):
    """Minus what the node itself would send. It needs to know nothing."""

    trains: ClassVar[bool] = True

    def message(self, scene: Scene) -> Tensor:
        """Return minus what each node has trained.   # (k, d)"""
        assert scene.trained is not None
        return -scene.trained
