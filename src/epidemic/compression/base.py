"""The interface of codecs: how the numbers of a model become the bytes of a message, and back.

    encode(rows, keys, before) -> raw     every row becomes exactly `bytes(d)` bytes
    decode(raw, size, dtype)   -> Said    the decoded values, and of which coordinates
    problem(raw, ...)          -> why received bytes are refused; None if they are valid

A codec is a frozen value: its randomness comes from the given keys, one for each sender and round, and a sender's memory is given to it. Rows are
independent of each other, so a host of one node and a host of all nodes make the same bytes.

Shapes: k rows, d numbers of a row, b bytes of an encoded row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from epidemic.core.errors import require_choice, require_real
from epidemic.core.settings import Settings

Fill = Literal["count", "own", "zero"]
FILLS = ("count", "own")
"""How a receiver treats coordinates that a message does not contain. count: it averages over the messages that do. own: its own value is used
instead. (zero, for algorithms that send differences: they count as zero.)
"""


LONG, SAMPLE = 1 << 14, 1 << 11
"""In rows of this many numbers, a sample of about this many estimates the bounds of the smallest."""

Bounds = tuple[Any, Any]
"""Two integers, of the type that they are compared with."""


@dataclass(frozen=True, eq=False)
class Said:
    """The numbers of decoded messages."""

    rows: Tensor  # (k, d), zero where a message has no value
    mask: Tensor | None = None  # (k, d) bool: the coordinates with values; None: all


class Codec(Settings, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the codecs."""

    remembers: ClassVar[bool] = False
    """Whether a sender remembers the last value that it sent of each coordinate."""
    exact: ClassVar[bool] = False
    """Whether the codec is lossless."""
    partial: ClassVar[bool] = False
    """Whether messages contain only some coordinates."""

    def bytes(self, size: int, dtype: str) -> int:
        """The encoded size of a row of so many numbers of this type."""
        raise NotImplementedError

    def encode(self, rows: Tensor, keys: Sequence[int], before: Tensor | None = None) -> Tensor:
        """Encode each row as bytes.   # (k, d) -> (k, b) uint8

        `before`: for codecs with memory, the values last sent of each coordinate; updated in place.
        """
        raise NotImplementedError

    def decode(self, raw: Tensor, size: int, dtype: str) -> Said:
        """Decode bytes to numbers of this type.   # (k, b) uint8 -> (k, d)"""
        raise NotImplementedError

    def problem(self, raw: memoryview, size: int, dtype: str, largest: float) -> str | None:
        """Why received bytes are not a row of this codec ("malformed") or not a valid one ("insane"); None if they are valid.

        They have the right length. `largest`: the greatest magnitude of a number in a valid model.
        """
        raise NotImplementedError


class Partial(Codec, frozen=True):
    """Base of the codecs that send only some coordinates."""

    partial: ClassVar[bool] = True

    share: float
    """The share of coordinates that are sent."""
    fill: Literal["count", "own"] = "count"

    def __post_init__(self) -> None:
        require_real("compression.share", self.share, high=1, above=0)
        require_choice("compression.fill", self.fill, FILLS)

    def kept(self, size: int) -> int:
        """The number of coordinates sent of so many; at least one."""
        return max(1, int(self.share * size + 1e-9))  # 0.29 * 100 is 28.999999999999996


def spread(values: Tensor, where: Tensor, size: int) -> Said:
    """Write values at their coordinates.   # (k, kept), (k, kept) int64 -> (k, d)"""
    rows = torch.zeros(len(values), size, dtype=values.dtype, device=values.device)
    mask = torch.from_numpy(marked(where.cpu().numpy(), size)).to(values.device)
    return Said(rows.scatter_(1, where, values), mask)


def marked(where: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    """A mask that is True at these columns of each row.   # (k, kept) -> (k, d)"""
    k = len(where)
    mask = np.zeros(k * size, dtype=np.bool_)
    mask[(where if k == 1 else where + size * np.arange(k)[:, None]).ravel()] = True
    return mask.reshape(k, size)


def columns_of(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The True columns of each row, ascending; all rows have equally many.   # (k, d) -> (k, kept)"""
    k, size = mask.shape
    found = np.flatnonzero(mask).reshape(k, -1)
    return np.asarray(found if k == 1 else found - size * np.arange(k)[:, None])


def smallest(rows: NDArray[Any], kept: int, bounds: Bounds | None = None) -> NDArray[np.int64]:
    """The columns of the `kept` smallest of each row, ascending; the first of equal ones.   # (k, d) integers -> (k, kept)

    `bounds`: two numbers that almost certainly enclose the largest of them; None: estimated from a sample of each long row.
    """
    if rows.shape[1] >= LONG:
        found = [_smallest_of_long(row, kept, *(bounds or _bounds(row, kept))) for row in rows]
        return found[0][None] if len(found) == 1 else np.stack(found)
    last = np.partition(rows, kept - 1, axis=1)[:, kept - 1 : kept]
    mask = rows <= last
    if np.count_nonzero(mask) > kept * len(rows):
        for row, least, one in zip(rows, last[:, 0], mask, strict=True):
            equal = np.flatnonzero(row == least)
            one[equal[len(equal) - (np.count_nonzero(one) - kept) :]] = False
    return columns_of(mask)


def _bounds(row: NDArray[Any], kept: int) -> Bounds:
    """Two numbers of a sample that almost certainly enclose the largest of the `kept` smallest."""
    sample = row[:: len(row) // SAMPLE]
    share = kept / len(row)
    middle, around = share * len(sample), 4 * math.sqrt(share * (1 - share) * len(sample)) + 1
    low, high = max(0, int(middle - around)), min(len(sample) - 1, int(middle + around) + 1)
    sample = np.partition(sample, (low, high))
    return sample[low], sample[high]


def _smallest_of_long(row: NDArray[Any], kept: int, low: Any, high: Any) -> NDArray[np.int64]:
    """The same for one row, correct for any bounds: numbers up to the upper one are read twice, those between them three times.

    Uses indices instead of masks, which take three times as long if they are random.
    """
    where = np.flatnonzero(row <= high)
    if len(where) < kept:  # the upper bound was too low
        where = np.arange(len(row))
    found = row[where]
    near = found[np.flatnonzero(found >= low)]
    at = kept - 1 - (len(found) - len(near))
    if at < 0:  # the lower bound was too high
        near, at = found, kept - 1
    least = np.partition(near, at)[at]
    if len(where) > kept:
        where = where[np.flatnonzero(found <= least)]
    if len(where) > kept:
        equal = np.flatnonzero(row[where] == least)
        where = np.delete(where, equal[kept - len(where) :])
    return where


def torch_type(dtype: str) -> torch.dtype:
    """The number type in PyTorch."""
    found: torch.dtype = getattr(torch, dtype)
    return found


def as_bytes(numbers: Tensor) -> Tensor:
    """A view of the same memory as bytes.   # (k, m) -> (k, bytes of m)"""
    return numbers.reshape(-1).view(torch.uint8).reshape(len(numbers), -1)


def as_numbers(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """A view of bytes as numbers.   # (k, bytes of m) -> (k, m)"""
    flat = raw.reshape(-1)
    if flat.storage_offset() % dtype.itemsize or flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).reshape(len(raw), -1)


def sane(raw: memoryview, dtype: str, largest: float) -> bool:
    """Whether all numbers are finite and of at most this magnitude."""
    if dtype == "bfloat16":
        wide = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        return bool((np.abs(wide) <= largest).all() and np.isfinite(wide).all())
    x: Any = np.frombuffer(raw, np.dtype(dtype).newbyteorder("<"))
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype in ("float32", "float64") and float(np.dot(x, x)) <= min(largest, 1e18) ** 2:
            return True  # no single number can be too large; infinities and NaN would show in the sum
        return bool(np.isfinite(x).all() and (np.abs(x) <= largest).all())
