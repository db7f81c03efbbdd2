"""Krum and multi-Krum (Blanchard et al., 2017), with the m - f - 1 nearest others as later papers have it; the original takes one fewer, and is not robust at m = 2f + 1."""

from __future__ import annotations

import numpy as np

from epidemic.aggregation.distances import ByDistances, Numbers, mean_of, nearest_of, squared_distances
from epidemic.aggregation.tolerant import Mixable


class Krum(Mixable, ByDistances, frozen=True, tag_field="kind", tag="krum", forbid_unknown_fields=True):
    """The one input whose m - `f` - 1 nearest others are nearest to it, by the sum of squared distances."""

    @property
    def linear(self) -> bool:  # type: ignore[override]
        """It takes one even if nobody lies, but all are alike after mixing."""
        return self.f == 0 and self.before is not None

    def coefficients(self, gram: Numbers) -> Numbers:
        """One of them is 1."""
        return best(gram, self.tolerated(len(gram)), 1)


class MultiKrum(Mixable, ByDistances, frozen=True, tag_field="kind", tag="multi-krum", forbid_unknown_fields=True):
    """The mean of the m - `f` inputs that are best by Krum's sum."""

    def coefficients(self, gram: Numbers) -> Numbers:
        """All that are left count alike."""
        f = self.tolerated(len(gram))
        return best(gram, f, len(gram) - f)


def best(gram: Numbers, f: int, count: int) -> Numbers:
    """Coefficients of the mean of the so many inputs with the least sum of squared distances to their m - f - 1 nearest others.   # (m, m) -> (m,)"""
    m = len(gram)
    return mean_of(nearest_of(scores(squared_distances(gram), m - f - 1), count), m)


def scores(squared: Numbers, nearest: int) -> Numbers:
    """The sum of squared distances of each input to so many nearest others.   # (m, m) -> (m,)"""
    others = squared.copy()
    np.fill_diagonal(others, np.inf)
    return np.asarray(np.sort(others, axis=1)[:, :nearest].sum(1))
