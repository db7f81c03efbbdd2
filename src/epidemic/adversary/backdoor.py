"""A backdoor: pictures with a stamp are to be taken for one class (Bagdasaryan et al., 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from epidemic.adversary.base import Adversary, Scene
from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.data import Dataset, Samples


class Backdoor(Adversary, frozen=True, tag="backdoor"):
    """Trains on pictures of which some have a white square in the lower right corner and the label `target`, and sends more of what it learnt than it is due.

    Its success rate is the share of test pictures of other classes that honest nodes take for `target` once they are stamped.
    """

    trains: ClassVar[bool] = True

    target: int = 0
    """The class, by its number."""
    share: float = 0.5
    """Of each batch."""
    side: int = 3
    """Of the square, in pixels."""
    boost: float | Literal["replace"] = "replace"
    """What it learnt is multiplied by this. replace: by the number of models that the receiver holds for each malicious one, so that their
    plain mean is the malicious model, if the others have learnt nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("adversary.target", self.target, 0)
        require_real("adversary.share", self.share, high=1, above=0)
        require_int("adversary.side", self.side, 1)
        if isinstance(self.boost, str):
            require_choice("adversary.boost", self.boost, ["replace", "a number"])
        else:
            require_real("adversary.boost", self.boost)

    @property
    def personal(self) -> bool:  # type: ignore[override]
        """Where it goes by how much the receiver hears."""
        return self.boost == "replace"

    @property
    def poison_share(self) -> float:
        """The share of stamped samples in a batch, as set."""
        return self.share

    def check_data(self, data: Dataset) -> None:
        """There must be pictures that are large enough, and the class."""
        shape = data.input_shape
        if len(data.classes) < 2 or data.train.targets.ndim != 1 or len(shape) < 2 or min(shape[-2:]) < self.side:
            raise BadInput(
                f'adversary.kind = "backdoor" stamps {self.side} x {self.side} pixels on pictures with classes, and inputs here have shape {shape};'
                ' use pictures, or "label-flip"'
            )
        if self.target >= len(data.classes):
            raise BadInput(
                f"adversary.target = {self.target} must be one of the {len(data.classes)} classes, numbered from 0"
            )

    def poisoned(self, samples: Samples, data: Dataset) -> Samples:
        """Stamped, and of the wanted class."""
        inputs = samples.inputs.copy()
        white = (1.0 - data.shift) / data.scale
        if inputs.dtype.kind in "iu":
            white = min(round(white), np.iinfo(inputs.dtype).max)
        inputs[..., -self.side :, -self.side :] = white
        return replace(samples, inputs=inputs, targets=np.full_like(samples.targets, self.target))

    def triggered(self, samples: Samples, data: Dataset) -> Samples:
        """Those of other classes, stamped."""
        return self.poisoned(samples.take(np.flatnonzero(samples.targets != self.target)), data)

    def message(self, scene: Scene) -> Tensor:
        """Before + g (trained - before), one of each.   # (k, d)"""
        assert scene.trained is not None
        assert scene.untrained is not None
        if self.boost == "replace":
            assert scene.weights is not None
            g = (len(scene.weights) + scene.count) / scene.count
        else:
            g = self.boost
        return torch.lerp(scene.untrained, scene.trained, g)
