"""Centred clipping (Karimireddy, He, Jaggi, 2021), begun from the own model."""

from __future__ import annotations

import numpy as np

from epidemic.aggregation.distances import ByDistances, Numbers
from epidemic.core.errors import require_int, require_real
from epidemic.core.settings import Settings


class Centred(ByDistances, Settings, frozen=True, tag_field="kind", tag="centred", forbid_unknown_fields=True):
    """A centre that moves from the own model by the mean of the differences to all inputs, cut to length `tau` if they are longer, `steps` times."""

    tau: float = 1.0
    steps: int = 3
    """With one it is `clipped` with equal weights."""

    def __post_init__(self) -> None:
        require_real("aggregation.tau", self.tau, 0.0)
        require_int("aggregation.steps", self.steps, 1, 1000)

    def coefficients(self, gram: Numbers) -> Numbers:
        """Return the weight of each input in the final centre."""
        m = len(gram)
        found = np.zeros(m)
        found[0] = 1.0
        for _ in range(self.steps):
            distances = np.sqrt(squared_to(found, gram))
            kept = np.where(distances > self.tau, self.tau / np.where(distances > 0, distances, 1), 1)
            found = found * (1 - kept.mean()) + kept / m
        return found


def squared_to(coefficients: Numbers, gram: Numbers) -> Numbers:
    """Squared distances of all inputs to a weighted sum of them.   # (m,), (m, m) -> (m,)"""
    products = gram @ coefficients
    return np.asarray(np.maximum(np.diag(gram) - 2 * products + coefficients @ products, 0))
