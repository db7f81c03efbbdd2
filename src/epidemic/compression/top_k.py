"""Top-k with error feedback: the coordinates of each model that have changed most since they were last sent, with their current values.

A sender remembers the last sent value of each coordinate, from the common initial model on. What was not sent is not lost: its change grows until it is
among the largest. Receivers treat the values as a sample of the sender's model and need no memory, so messages may get lost and neighbours may change.
(Top-k of differences that receivers add up is CHOCO, which needs the same neighbours for ever.)

Layout, whichever is smaller: an int32 for each coordinate that is sent, ascending, then the values; or a bit for each coordinate (the lowest bit of the
first byte is coordinate 0), then the values by ascending coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.compression.base import (
    Partial,
    Said,
    as_bytes,
    as_numbers,
    columns_of,
    marked,
    sane,
    smallest,
    spread,
    torch_type,
)


class TopK(Partial, frozen=True, tag="top-k"):
    """The `share` of the coordinates that have changed most since they were last sent."""

    remembers: ClassVar[bool] = True

    def bytes(self, size: int, dtype: str) -> int:
        """The size of the coordinates and their values."""
        return self._where_bytes(size) + self.kept(size) * torch_type(dtype).itemsize

    def encode(self, rows: Tensor, keys: Sequence[int], before: Tensor | None = None) -> Tensor:
        """Encode as coordinates and values; of equal changes the first coordinates.   # (k, d) -> (k, b) uint8"""
        size = rows.shape[1]
        columns = _largest(rows.clone() if before is None else rows - before, self.kept(size))
        where = torch.from_numpy(columns).to(rows.device)
        values = rows.gather(1, where)
        if before is not None:
            before.scatter_(1, where, values)
        if self._bitmap(size):
            told = torch.from_numpy(np.packbits(marked(columns, size), axis=1, bitorder="little")).to(rows.device)
        else:
            told = as_bytes(where.to(torch.int32))
        return torch.cat([told, as_bytes(values)], dim=1)

    def decode(self, raw: Tensor, size: int, dtype: str) -> Said:
        """Put the values at their coordinates.   # (k, b) uint8 -> (k, d)"""
        front = self._where_bytes(size)
        values = as_numbers(raw[:, front:], torch_type(dtype))
        if self._bitmap(size):
            bits = np.unpackbits(raw[:, :front].cpu().numpy(), axis=1, count=size, bitorder="little")
            where = torch.from_numpy(columns_of(bits.view(np.bool_))).to(raw.device)
        else:
            where = as_numbers(raw[:, :front], torch.int32).long()
        return spread(values, where, size)

    def problem(self, raw: memoryview, size: int, dtype: str, largest: float) -> str | None:
        """Check that the coordinates are distinct, valid and in canonical order, and the magnitude of the values."""
        front = self._where_bytes(size)
        if self._bitmap(size):
            bits = np.unpackbits(np.frombuffer(raw[:front], np.uint8), bitorder="little")
            orderly = not bits[size:].any() and int(bits.sum()) == self.kept(size)
        else:
            where = np.frombuffer(raw[:front], "<i4")
            orderly = bool(where[0] >= 0 and where[-1] < size and (where[1:] > where[:-1]).all())
        if not orderly:
            return "malformed"
        return None if sane(raw[front:], dtype, largest) else "insane"

    def _bitmap(self, size: int) -> bool:
        return -(-size // 8) < 4 * self.kept(size)

    def _where_bytes(self, size: int) -> int:
        return -(-size // 8) if self._bitmap(size) else 4 * self.kept(size)


def _largest(change: Tensor, kept: int) -> NDArray[np.int64]:
    """The columns of the largest magnitudes of each row, ascending; the first of equal ones; NaN counts as infinite.   # (k, kept)

    Magnitudes are compared as integers, which have the same order. `change` is overwritten.
    """
    exact = (change if change.dtype == torch.float64 else change.float()).cpu()
    whole = torch.int64 if exact.dtype == torch.float64 else torch.int32
    infinite = int(torch.tensor(math.inf, dtype=exact.dtype).view(whole))
    magnitude = exact.contiguous().view(whole).bitwise_and_(torch.iinfo(whole).max).clamp_(max=infinite)
    return smallest(magnitude.neg_().numpy(), kept)
