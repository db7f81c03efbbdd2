"""Removing extreme values around one's own (W-MSR; LeBlanc et al., 2013)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from epidemic.aggregation.base import Rowwise
from epidemic.aggregation.distances import WIDTH, Numbers
from epidemic.aggregation.ordering import smallest
from epidemic.core.errors import require_int
from epidemic.core.settings import Settings
from epidemic.core.workers import blocks


class WMSR(Rowwise, Settings, frozen=True, tag_field="kind", tag="w-msr", forbid_unknown_fields=True):
    """For each coordinate the mean of the own value and the received ones, without the `f` largest of those above it and the `f` smallest of those below it.

    Where f or fewer are above or below it, all of those are left out.
    """

    pairs: ClassVar[bool] = False

    f: int = 1

    def __post_init__(self) -> None:
        require_int("aggregation.f", self.f, 0)

    @property
    def linear(self) -> bool:  # type: ignore[override]
        """Whether no input is left out, so that the rule is an average."""
        return self.f == 0

    def combine(self, own: Tensor, received: Sequence[Tensor], weights: Numbers, out: Tensor) -> None:
        """Aggregate block by block of coordinates."""
        h = len(received)
        for columns in blocks(len(own), WIDTH):
            mine = own[columns]
            ordered = smallest([row[columns].clone() for row in received], 0, h - 1) if h else []
            found, count = mine.clone(), torch.ones_like(mine)
            for i, row in enumerate(ordered):
                kept = torch.ones_like(row, dtype=torch.bool)
                if i < self.f:
                    kept &= row >= mine
                if i >= h - self.f:
                    kept &= row <= mine
                found += torch.where(kept, row, 0)
                count += kept
            torch.div(found, count, out=out[columns])
