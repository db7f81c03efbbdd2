"""Codecs that send some of the numbers: random ones (random-k), or the largest (top-k)."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
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
from epidemic.core.rng import words_of

# -- Random-k: a random share of the coordinates, drawn by each sender anew in each round, unchanged -----------------
# A receiver draws the same subset from the key in the message, so no index is sent. Each sender has its own mask: a coordinate is then received by as many
# nodes as if messages had been lost with probability 1 - share, and mixes far better than with one mask for all (0.267 against 0.566 a round for half of
# the coordinates, n = 96, s = 7).
#
# Layout: the key, 8 bytes; then the values by ascending coordinate.


KEY_BYTES = 8
REMEMBERED_BYTES = 1 << 24
"""Size of the cache of recent subsets, in bytes."""


class RandomK(Partial, frozen=True, tag="random-k"):
    """A random `share` of the coordinates, another one in each message."""

    def bytes(self, size: int, dtype: str) -> int:
        """The size of the key and the values."""
        return KEY_BYTES + self.kept(size) * torch_type(dtype).itemsize

    def encode(self, rows: Tensor, keys: Sequence[int], before: Tensor | None = None) -> Tensor:
        """Encode as key and values.   # (k, d) -> (k, b) uint8"""
        short = np.array([key % 2**64 for key in keys], dtype=np.uint64)
        values = rows.gather(1, self._coordinates(short, rows.shape[1]).to(rows.device))
        marks = torch.from_numpy(short.astype("<u8").view(np.uint8).reshape(len(short), KEY_BYTES))
        return torch.cat([marks.to(rows.device), as_bytes(values)], dim=1)

    def decode(self, raw: Tensor, size: int, dtype: str) -> Said:
        """Put the values at the coordinates of the key.   # (k, b) uint8 -> (k, d)"""
        keys = raw[:, :KEY_BYTES].contiguous().cpu().numpy().view("<u8").ravel()
        return spread(
            as_numbers(raw[:, KEY_BYTES:], torch_type(dtype)), self._coordinates(keys, size).to(raw.device), size
        )

    def problem(self, raw: memoryview, size: int, dtype: str, largest: float) -> str | None:
        """Check the magnitude of the values; every key is valid."""
        return None if sane(raw[KEY_BYTES:], dtype, largest) else "insane"

    def _coordinates(self, keys: NDArray[np.uint64], size: int) -> Tensor:
        """The coordinates that belong to each key, ascending.   # (k, kept)"""
        return torch.from_numpy(_remembered(keys.astype(np.uint64).tobytes(), size, self.kept(size)))


class _Memory:
    """A cache of recent subsets: a process that encodes rows usually decodes them as well."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bytes, int, int], NDArray[np.int32]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __call__(self, keys: bytes, size: int, kept: int) -> NDArray[np.int64]:
        """The coordinates that belong to each key, ascending.   # (k, kept)"""
        asked = keys, size, kept
        with self._lock:
            known = self._known.get(asked)
            if known is not None:
                self._known.move_to_end(asked)
                return known.astype(np.int64)
        found = _subsets(keys, size, kept)
        with self._lock:
            if asked not in self._known:
                self._known[asked] = found.astype(np.int32)
                self._bytes += 4 * found.size
            while self._bytes > REMEMBERED_BYTES:
                self._bytes -= self._known.popitem(last=False)[1].nbytes
        return found


_remembered = _Memory()


def _subsets(keys: bytes, size: int, kept: int) -> NDArray[np.int64]:
    """The positions of the smallest of `size` random words, the first of equal ones.   # (k, kept)"""
    words = words_of(np.frombuffer(keys, np.uint64).tolist(), -(-size // 2)).astype("<u8", copy=False)
    return smallest(words.view("<u4")[:, :size], kept, _bounds(size, kept))


def _bounds(size: int, kept: int) -> tuple[np.uint32, np.uint32]:
    """Words that almost certainly enclose the largest of the `kept` smallest: they are uniform, so no sample is needed."""
    share = kept / size
    around = 5 * math.sqrt(share * (1 - share) / size)
    low, high = (min(max(int(bound * 2**32), 0), 2**32 - 1) for bound in (share - around, share + around))
    return np.uint32(low), np.uint32(high)


# -- Top-k with error feedback: the coordinates of each model that have changed most since they were last sent, with their current values --
# A sender remembers the last sent value of each coordinate, from the common initial model on. What was not sent is not lost: its change grows until it is
# among the largest. Receivers treat the values as a sample of the sender's model and need no memory, so messages may get lost and neighbours may change.
# (Top-k of differences that receivers add up is CHOCO, which needs the same neighbours for ever.)
#
# Layout, whichever is smaller: an int32 for each coordinate that is sent, ascending, then the values; or a bit for each coordinate (the lowest bit of the
# first byte is coordinate 0), then the values by ascending coordinate.


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
