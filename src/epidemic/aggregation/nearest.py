"""Nearest-neighbour averaging (NNA; Farhadkhani et al., "Robust collaborative learning with linear gradient overhead", 2023: MoNNA)."""

from __future__ import annotations

import numpy as np

from epidemic.aggregation.distances import ByDistancesToOwn, Numbers, mean_of, nearest_of
from epidemic.aggregation.tolerant import Tolerant


class Nearest(Tolerant, ByDistancesToOwn, frozen=True, tag_field="kind", tag="nearest", forbid_unknown_fields=True):
    """The mean of the own model and all received ones but the `f` farthest from it."""

    def coefficients(self, squared: Numbers, weights: Numbers) -> Numbers:
        """All that are left count alike."""
        m = 1 + len(squared)
        kept = 1 + nearest_of(squared, m - 1 - self.tolerated(m))
        return mean_of(np.array([0, *kept]), m)
