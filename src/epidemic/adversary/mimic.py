"""Mimicry: all malicious nodes send the model of one honest node, which then counts too much (Karimireddy, He and Jaggi, 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from epidemic.adversary.base import Adversary, Scene, Sight
from epidemic.core.errors import require_choice, require_int

WHOM = ("first", "outlier")


class Mimic(Adversary, frozen=True, tag="mimic"):
    """The model of one honest node, exactly: no rule can take it for a lie."""

    whom: Literal["first", "outlier"] = "first"
    """first: the first honest node. outlier: the one farthest out in the direction in which honest models differ most."""
    warmup: int = 10
    """Rounds in which that direction is learnt; until then the first honest node is copied."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("adversary.whom", self.whom, WHOM)
        require_int("adversary.warmup", self.warmup, 1)

    def prepare(self, sight: Sight, memory: dict[str, Tensor]) -> dict[str, Tensor]:
        """Choose whom to copy; learn the direction, if that is asked for."""
        rows, t = sight.rows, sight.round - self.start
        if self.whom == "first":
            return {"copied": rows[0]}
        if t < self.warmup:
            self._learn(sight, memory, t)
            return {"copied": rows[0]}
        return {"copied": rows[int((rows @ memory["direction"]).abs().argmax())]}

    @staticmethod
    def _learn(sight: Sight, memory: dict[str, Tensor], t: int) -> None:
        """One step towards the direction of the largest variance, by Oja's rule.

        M <- ((t + 1) M + mean) / (t + 2), z <- unit((t + 1) z + unit(sum_j <x_j - M, z> (x_j - M)))
        """
        rows = sight.rows
        if "direction" not in memory:
            drawn = sight.streams("attack", sight.round).normals(rows.shape[1])
            memory["direction"] = unit(torch.from_numpy(drawn).to(rows.device, rows.dtype))
            memory["mean"] = rows.mean(0)
        memory["mean"] = ((t + 1) * memory["mean"] + rows.mean(0)) / (t + 2)
        apart = rows - memory["mean"]
        pulled = unit((apart @ memory["direction"]) @ apart)
        memory["direction"] = unit((t + 1) * memory["direction"] + pulled)

    def message(self, scene: Scene) -> Tensor:
        """Return the model of the honest node that is copied.   # (d,)"""
        return scene.notes["copied"]


def unit(vector: Tensor) -> Tensor:
    """The vector of length 1 in the same direction; of no length, itself.   # (d,)"""
    length = vector.norm()
    return vector / length if float(length) else vector
