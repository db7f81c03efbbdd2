"""The mean around the median, coordinate by coordinate (MeaMed; Xie, Koyejo, Gupta, 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from epidemic.aggregation.base import Coordinatewise, total
from epidemic.aggregation.ordering import smallest
from epidemic.aggregation.tolerant import Mixable


class MeaMed(Mixable, Coordinatewise, frozen=True, tag_field="kind", tag="meamed", forbid_unknown_fields=True):
    """For each coordinate the mean of the m - `f` inputs that are nearest to their median; of two that are as near the smaller number."""

    def reduce(self, inputs: list[Tensor]) -> Tensor:
        """In order, those nearest to the median are next to each other: each of the f smallest is left out, or else one of the f largest."""
        m = len(inputs)
        f = self.tolerated(m)
        ordered = smallest(inputs, 0, m - 1)
        median = (ordered[(m - 1) // 2] + ordered[m // 2]).div_(2)
        ends = [
            torch.where(median - low > high - median, high, low)
            for low, high in zip(ordered[:f], ordered[m - f :], strict=True)
        ]
        return total([*ends, *ordered[f : m - f]]).div_(m - f)
