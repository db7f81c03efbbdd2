"""Gossip by the trimmed sum of differences (GTS; Gaucher, Dieuleveut, Hendrikx, 2025)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from epidemic.aggregation.distances import ByDistancesToOwn, Numbers, nearest_of
from epidemic.aggregation.tolerant import Tolerant


class GTS(Tolerant, ByDistancesToOwn, frozen=True, tag_field="kind", tag="gts", forbid_unknown_fields=True):
    """The weighted average, where the `f` models farthest from the own one are replaced by it.

    With equal weights it is (m - f) / m of the step that `nearest` makes.
    """

    weighted: ClassVar[bool] = True

    def coefficients(self, squared: Numbers, weights: Numbers) -> Numbers:
        """The own model counts for those left out, too."""
        m = 1 + len(squared)
        kept = 1 + nearest_of(squared, m - 1 - self.tolerated(m))
        found = np.zeros(m)
        found[kept] = weights[kept]
        found[0] = 1 - found.sum()
        return found
