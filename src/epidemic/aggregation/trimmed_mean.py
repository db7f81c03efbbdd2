"""The trimmed mean, coordinate by coordinate (CWTM; Yin et al., 2018; BRIDGE)."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from epidemic.aggregation.base import Coordinatewise, total
from epidemic.aggregation.ordering import smallest
from epidemic.core.errors import require_choice, require_int
from epidemic.core.settings import Settings

FEW = ("own", "less")


class TrimmedMean(
    Coordinatewise, Settings, frozen=True, tag_field="kind", tag="trimmed-mean", forbid_unknown_fields=True
):
    """For each coordinate the mean without the `f` smallest and the `f` largest inputs.

    Up to f inputs may be arbitrary: the result stays among the values of the others. f = 0 is the unweighted mean.
    """

    pairs: ClassVar[bool] = False

    f: int = 1
    few: Literal["own", "less"] = "own"
    """What happens with 2 f inputs or fewer. own: the node keeps its own model. less: as many are left out as can be, which tolerates fewer than f."""

    def __post_init__(self) -> None:
        require_int("aggregation.f", self.f, 0)
        require_choice("aggregation.few", self.few, FEW)

    @property
    def linear(self) -> bool:  # type: ignore[override]
        """Whether nothing is trimmed, so that it is an average."""
        return self.f == 0

    @property
    def fewest(self) -> int:  # type: ignore[override]
        """One that is left when f are left out on either side."""
        return 2 * self.f + 1 if self.few == "own" else 1

    def reduce(self, inputs: list[Tensor]) -> Tensor:
        """The mean of the inputs that are not trimmed."""
        m = len(inputs)
        f = min(self.f, (m - 1) // 2)
        return total(smallest(inputs, f, m - f - 1)).div_(m - 2 * f)
