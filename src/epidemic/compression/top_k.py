"""Top-k with error feedback: of each model the coordinates that have changed most since they were last sent, as they are now.

A sender remembers what it has last said of each coordinate, from the initial model on, which everybody has. What was not said is not lost: its change grows
until it is among the largest. Receivers take the values for what they are, a sample of the sender's model, and need to remember nothing,
so messages may get lost and neighbours may change. (Top-k of differences that receivers add up is CHOCO, which needs the same neighbours for ever.)

Layout, whichever is smaller: an int32 for each coordinate that is sent, ascending, then the values; or a bit for each coordinate (the lowest bit of
the first byte is coordinate 0), then the values by ascending coordinate.
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
        """Which coordinates, and their values."""
        return self._where_bytes(size) + self.kept(size) * torch_type(dtype).itemsize

    def encode(self, rows: Tensor, keys: Sequence[int], before: Tensor | None = None) -> Tensor:
        """Coordinates and values; of equal changes the first coordinates."""
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
        """Values where the message says."""
        front = self._where_bytes(size)
        values = as_numbers(raw[:, front:], torch_type(dtype))
        if self._bitmap(size):
            bits = np.unpackbits(raw[:, :front].cpu().numpy(), axis=1, count=size, bitorder="little")
            where = torch.from_numpy(columns_of(bits.view(np.bool_))).to(raw.device)
        else:
            where = as_numbers(raw[:, :front], torch.int32).long()
        return spread(values, where, size)

    def problem(self, raw: memoryview, size: int, dtype: str, largest: float) -> str | None:
        """As many coordinates as there are values, all of them in the model, in the one order that there is."""
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
    """Which columns have the largest magnitudes of each row, ascending; of equal ones the first; what is no number counts as infinite.   # (k, kept)

    Magnitudes are compared as whole numbers, which have their order. `change` is overwritten.
    """
    exact = (change if change.dtype == torch.float64 else change.float()).cpu()
    whole = torch.int64 if exact.dtype == torch.float64 else torch.int32
    infinite = int(torch.tensor(math.inf, dtype=exact.dtype).view(whole))
    magnitude = exact.contiguous().view(whole).bitwise_and_(torch.iinfo(whole).max).clamp_(max=infinite)
    return smallest(magnitude.neg_().numpy(), kept)
