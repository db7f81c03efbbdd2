"""Iterative outlier scissor (IOS; Wu, Chen, Ling, 2023)."""

from __future__ import annotations

import numpy as np

from epidemic.aggregation.distances import ByDistances, Numbers, mean_of
from epidemic.aggregation.tolerant import Tolerant


class IOS(Tolerant, ByDistances, frozen=True, tag_field="kind", tag="ios", forbid_unknown_fields=True):
    """The mean of what is left when `f` times the received model farthest from the mean of those left is left out."""

    def coefficients(self, gram: Numbers) -> Numbers:
        """All that are left count alike."""
        left = np.arange(len(gram))
        for _ in range(self.tolerated(len(gram))):
            these = gram[np.ix_(left, left)]
            squared = len(left) * np.diag(these) - 2 * these.sum(
                1
            )  # times as many, but for a number that is the same for all
            last = len(left) - 1 - int(np.argmax(squared[:0:-1])) if len(left) > 1 else 0
            left = np.delete(left, last)
        return mean_of(left, len(gram))
