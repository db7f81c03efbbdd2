"""Clipped gossip: received models count as far as they are near (self-centred clipping, ClippedGossip: He, Karimireddy, Jaggi, 2022; CS+: Gaucher et al., 2025)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from epidemic.aggregation.distances import ByDistancesToOwn, Numbers, nearest_of
from epidemic.aggregation.tolerant import Few
from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.core.settings import Settings

ROUNDING = 1e-12
"""What weights that should be as large may be less."""


class Clipped(ByDistancesToOwn, Settings, frozen=True, tag_field="kind", tag="clipped", forbid_unknown_fields=True):
    """The weighted average, where the difference of a received model to the own one is cut to length `tau` if it is longer."""

    weighted: ClassVar[bool] = True

    tau: float | Literal["adaptive", "cs+"] = "cs+"
    """A length; adaptive: from the root of the mean square of those that are kept if the f farthest are left out; cs+: the 2f-th largest."""
    f: int | None = None
    """How many received models may be anything; 1, if not given. A tau that is a number knows none."""
    few: Few = "own"
    """What happens with 2 f inputs or fewer. own: the node keeps its own model. less: as many are tolerated as can be, which is fewer than f."""

    def __post_init__(self) -> None:
        require_choice("aggregation.few", self.few, ("own", "less"))
        if self.f is not None:
            require_int("aggregation.f", self.f, 0)
        if isinstance(self.tau, str):
            require_choice("aggregation.tau", self.tau, ("adaptive", "cs+"))
            return
        require_real("aggregation.tau", self.tau, 0.0)
        for name, given in {"f": self.f, "few": None if self.few == "own" else self.few}.items():
            if given is not None:
                raise BadInput(
                    f"aggregation.{name} = {given!r} has no meaning with aggregation.tau = {self.tau:g}, which is the same whoever lies: leave it"
                    ' out, or use tau = "cs+" or "adaptive"'
                )

    @property
    def _f(self) -> int:
        if not isinstance(self.tau, str):
            return 0
        return 1 if self.f is None else self.f

    @property
    def linear(self) -> bool:  # type: ignore[override]
        """Nothing is cut where nobody lies."""
        return isinstance(self.tau, str) and self._f == 0

    @property
    def pairs(self) -> bool:  # type: ignore[override]
        """One received model can be cut to a given length, and to no other."""
        return not isinstance(self.tau, str)

    @property
    def fewest(self) -> int:  # type: ignore[override]
        """More good ones than f."""
        return 2 * self._f + 1 if self.few == "own" else 1

    def coefficients(self, squared: Numbers, weights: Numbers) -> Numbers:
        """What is cut off, the own model counts instead."""
        distances = np.sqrt(squared)
        tau = self.length(distances, weights[1:])
        found = np.empty(1 + len(squared))
        found[1:] = weights[1:] * np.where(distances > tau, tau / np.where(distances > 0, distances, 1), 1)
        found[0] = 1 - found[1:].sum()
        return found

    def length(self, distances: Numbers, weights: Numbers) -> float:
        """Tau for models at these distances, with these weights.   # (h,), (h,)"""
        if not isinstance(self.tau, str):
            return self.tau
        h = len(distances)
        f = min(self._f, h // 2)
        if f == 0:
            return np.inf
        lies = np.sort(weights)[::-1][:f].sum()  # at most
        if self.tau == "adaptive":
            kept = nearest_of(distances, h - f)
            return float(np.sqrt((weights[kept] * distances[kept] ** 2).sum() / lies))
        farthest = np.argsort(-distances, kind="stable")
        enough = np.flatnonzero(np.cumsum(weights[farthest]) >= 2 * lies * (1 - ROUNDING))
        return float(distances[farthest[enough[0]]]) if len(enough) else 0.0
