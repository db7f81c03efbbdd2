"""Reflection: what undoes the progress of the round."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from epidemic.adversary.base import Informed, Scene
from epidemic.core.errors import require_real


class Reflect(Informed, frozen=True, tag="reflect"):
    """Goes `factor` times as far back from where honest models were before the round's training as they have moved ahead."""

    looks_back: ClassVar[bool] = True

    factor: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_real("adversary.factor", self.factor)

    def message(self, scene: Scene) -> Tensor:
        """p - z (mu - p), where p is the mean of the honest models before training.   # (d,)"""
        before = scene.sight.before
        assert before is not None
        return before - self.factor * (scene.mean - before)
