"""The trimmed mean, coordinate by coordinate (CWTM; Yin et al., 2018; BRIDGE)."""

from __future__ import annotations

from torch import Tensor

from epidemic.aggregation.base import Coordinatewise, total
from epidemic.aggregation.ordering import smallest
from epidemic.aggregation.tolerant import Mixable


class TrimmedMean(
    Mixable, Coordinatewise, frozen=True, tag_field="kind", tag="trimmed-mean", forbid_unknown_fields=True
):
    """For each coordinate the mean without the `f` smallest and the `f` largest inputs.

    Up to f inputs may be arbitrary: the result stays among the values of the others. f = 0 is the unweighted mean.
    """

    def reduce(self, inputs: list[Tensor]) -> Tensor:
        """The mean of the inputs that are not trimmed."""
        m = len(inputs)
        f = self.tolerated(m)
        return total(smallest(inputs, f, m - f - 1)).div_(m - 2 * f)
