"""The geometric median (RFA; Pillutla, Kakade, Harchaoui, 2022), by Weiszfeld's method in coefficients."""

from __future__ import annotations

import numpy as np

from epidemic.aggregation.centred import squared_to
from epidemic.aggregation.distances import ByDistances, Numbers
from epidemic.aggregation.tolerant import MixableMedian

STEPS = 64
MOST_STEPS = 512
"""Steps while it still moves far, which it does where somebody sent something huge."""
CLOSE = 1e-6
"""Changes of coefficients that are too small to go on for."""
FAR = 1e-3
"""Moves, relative to the median distance, that are not."""
FLOOR = 1e-4
"""Distances count as at least this much of their median, so that no input attracts without bound."""


class GeometricMedian(
    MixableMedian, ByDistances, frozen=True, tag_field="kind", tag="geometric-median", forbid_unknown_fields=True
):
    """The point with the least sum of distances to all inputs, nearly.

    Weiszfeld's method begins at the mean. Begun at an input it would stay there, and begun at 0 it would be far from models that are close together.
    """

    def coefficients(self, gram: Numbers) -> Numbers:
        """Those of the inputs in that point."""
        return steps_of(gram)[0]


def steps_of(gram: Numbers) -> tuple[Numbers, int]:
    """Coefficients, and the steps that it took.   # (m, m) -> (m,)"""
    m = len(gram)
    found = np.full(m, 1 / m)
    for step in range(1, MOST_STEPS + 1):
        distances = np.sqrt(squared_to(found, gram))
        middle = float(np.median(distances))
        if middle == 0:
            return found, step
        inverse = 1 / np.maximum(distances, FLOOR * middle)
        new = inverse / inverse.sum()
        change, found = new - found, new
        far = change @ gram @ change > (FAR * middle) ** 2
        if not far and (step >= STEPS or np.abs(change).max() < CLOSE):
            return found, step
    return found, MOST_STEPS
