"""The median of received models, coordinate by coordinate."""

from __future__ import annotations

from torch import Tensor

from epidemic.aggregation.base import Coordinatewise, total
from epidemic.aggregation.ordering import smallest
from epidemic.aggregation.tolerant import MixableMedian


class Median(MixableMedian, Coordinatewise, frozen=True, tag_field="kind", tag="median", forbid_unknown_fields=True):
    """For each coordinate the middle one of all inputs; for an even number the mean of the two middle ones.

    Fewer than half of the inputs may be arbitrary: the result stays among the values of the others.
    """

    def reduce(self, inputs: list[Tensor]) -> Tensor:
        """The one or two in the middle."""
        m = len(inputs)
        middle = smallest(inputs, (m - 1) // 2, m // 2)
        return total(middle).div_(len(middle))
