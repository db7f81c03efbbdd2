"""Flipped labels: class y is learnt as class C - 1 - y of C classes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from epidemic.adversary.base import Informed, Scene
from epidemic.core.errors import BadInput, require_choice
from epidemic.data import Dataset, Samples

WHERE = ("data", "rows")


class LabelFlip(Informed, frozen=True, tag="label-flip"):
    """What is learnt from flipped labels, y -> C - 1 - y."""

    where: Literal["data", "rows"] = "data"
    """data: malicious nodes run the protocol on their own data, with flipped labels. rows: they hold none, and send the mean of what honest nodes
    would send, had they trained on flipped labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("adversary.where", self.where, WHERE)
        if self.where == "data" and self.knows != "receiver":
            raise BadInput(
                f'adversary.knows = "{self.knows}" has no effect on nodes that only learn from wrong labels; use where = "rows"'
            )

    @property
    def trains(self) -> bool:  # type: ignore[override]
        """On data of its own."""
        return self.where == "data"

    @property
    def lies(self) -> bool:  # type: ignore[override]
        """Only where it does not train."""
        return self.where == "rows"

    @property
    def imagines(self) -> bool:  # type: ignore[override]
        """What honest nodes would have learnt."""
        return self.where == "rows"

    def check_data(self, data: Dataset) -> None:
        """Refuse data whose targets are not classes."""
        if len(data.classes) < 2 or data.train.targets.ndim != 1:
            raise BadInput('adversary.kind = "label-flip" needs data with one class for each sample; use "sign-flip"')

    def poisoned(self, samples: Samples, data: Dataset) -> Samples | None:
        """The same inputs with flipped labels."""
        if self.where == "rows":
            return None
        return replace(samples, targets=len(data.classes) - 1 - samples.targets)

    def message(self, scene: Scene) -> Tensor:
        """The mean of what is imagined.   # (d,)"""
        return scene.mean
