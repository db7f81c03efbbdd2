"""Nearest-neighbour mixing before another rule (NNM; Allouah et al., "Fixing by mixing", 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from epidemic.aggregation.base import Coordinatewise, Rowwise
from epidemic.aggregation.distances import (
    WIDTH,
    ByDistances,
    Numbers,
    add_up,
    gram_of,
    nearest_of,
    one_thread,
    squared_distances,
)
from epidemic.core.workers import blocks


class Inner(Protocol):
    """A rule that may be preceded by mixing: of columns, or by distances."""

    @property
    def linear(self) -> bool:
        """Whether mixing makes all inputs the same."""

    @property
    def fewest(self) -> int:
        """The least number of inputs with which mixing tolerates f of them."""

    def tolerated(self, m: int) -> int:
        """How many of m inputs mixing leaves out."""


class AfterMixing(Rowwise):
    """Another rule, of inputs each of which is replaced by the mean of itself and the m - f - 1 nearest to it.

    The mixed models are never written down: a rule by distances gets the distances of them, which follow from those of the inputs,
    and a rule of coordinates a block of columns at a time.
    """

    __slots__ = ("fewest", "inner", "linear", "pairs")

    def __init__(self, inner: Inner) -> None:
        self.inner = inner
        self.linear, self.fewest, self.pairs = inner.linear, inner.fewest, False  # type: ignore[misc]

    def combine(self, own: Tensor, received: Sequence[Tensor], weights: Numbers, out: Tensor) -> None:
        """What the rule makes of the mixed models."""
        inputs, gram = [own, *received], gram_of(own, received)
        mixing = mixing_of(gram, self.inner.tolerated(len(inputs)))
        if isinstance(self.inner, ByDistances):
            differences = mixing - mixing[0]
            add_up(self.inner.coefficients(differences @ gram @ differences.T) @ mixing, inputs, out)
            return
        assert isinstance(self.inner, Coordinatewise)
        with one_thread():
            shares = torch.from_numpy(mixing).to(own)
            for columns in blocks(len(own), WIDTH):
                mixed = shares @ torch.stack([row[columns] for row in inputs])
                out[columns] = self.inner.reduce(list(mixed.unbind()))


def mixing_of(gram: Numbers, f: int) -> Numbers:
    """Coefficients of the mixed models: each the mean of the m - f nearest to an input, itself first.   # (m, m) -> (m, m)"""
    m = len(gram)
    squared = squared_distances(gram)
    np.fill_diagonal(squared, -1)
    found = np.zeros((m, m))
    for near, row in zip(squared, found, strict=True):
        row[nearest_of(near, m - f)] = 1 / (m - f)
    return found
