"""Codecs that send every number with fewer bits: half precision, or eight bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from epidemic.compression.base import Codec, Said, as_bytes, as_numbers, sane, torch_type
from epidemic.core.errors import RunFailed
from epidemic.core.rng import words_of

# -- Codecs that send all numbers, in fewer bits or unchanged, without randomness or memory --------------------------


class Cast(Codec, frozen=True):
    """Base: rounds every number to the nearest of another type."""

    sent_as: ClassVar[str | None] = None  # None: the type is unchanged

    def bytes(self, size: int, dtype: str) -> int:
        """The size of the numbers, without overhead."""
        return size * torch_type(self.sent_as or dtype).itemsize

    def encode(self, rows: Tensor, keys: Sequence[int], before: Tensor | None = None) -> Tensor:
        """Round to nearest, ties to even; raises if a finite number would become infinite."""
        if self.sent_as is None:
            return as_bytes(rows)
        sent = rows.to(torch_type(self.sent_as))
        infinite = sent.isinf()
        if infinite.any() and bool((infinite := infinite & rows.isfinite()).any()):
            largest, most = float(rows[infinite].abs().max()), torch.finfo(sent.dtype).max
            raise RunFailed(
                f'compression.kind = "{self.sent_as}": a model has a number of magnitude {largest:g}, and messages have none above {most:g}; use'
                ' kind = "int8" or "none", or lower algorithm.lr if models grow without bound'
            )
        return as_bytes(sent)

    def decode(self, raw: Tensor, size: int, dtype: str) -> Said:
        """Return the numbers exactly as sent."""
        return Said(as_numbers(raw, torch_type(self.sent_as or dtype)).to(torch_type(dtype)))

    def problem(self, raw: memoryview, size: int, dtype: str, largest: float) -> str | None:
        """Check the magnitude: any bits are numbers."""
        return None if sane(raw, self.sent_as or dtype, largest) else "insane"


class Uncompressed(Cast, frozen=True, tag="none"):
    """Sends every number unchanged."""

    exact: ClassVar[bool] = True


class Float16(Cast, frozen=True, tag="float16"):
    """Half precision: relative error at most 2^-11 between 6.1e-5 and 65504, absolute error at most 3e-8 below; nothing above."""

    sent_as: ClassVar[str | None] = "float16"


class BFloat16(Cast, frozen=True, tag="bfloat16"):
    """The upper half of single precision: relative error at most 2^-8, and the whole range."""

    sent_as: ClassVar[str | None] = "bfloat16"


# -- One byte per number: QSGD's stochastic rounding (Alistarh et al., 2017) with 127 levels of either sign, in buckets of 512 numbers --
# A bucket is sent as its step, the largest magnitude in it over 127, and an integer in -127..127 for each number: x / step, rounded up or down at random so
# that its expectation is x. The variance of a number is at most step^2 / 4, so that of a bucket is at most B / (4 L^2) times its squared norm: with B = 512
# and L = 127 that is 0.8 %. With one bucket for all numbers it would exceed 100 %.
#
# Layout: for each bucket its step as float32, then a byte for each number.


BUCKET, LEVELS = 512, 127
GRID = 2.0**-16
"""Rounding uses 16 random bits, at the centre of their interval: the expectation is off by at most 2^-17 of a step."""


class Int8(Codec, frozen=True, tag="int8"):
    """One byte per number and a step per 512 numbers, rounded at random without bias."""

    def bytes(self, size: int, dtype: str) -> int:
        """The size of the steps, and a byte for each number."""
        return 4 * _buckets(size) + size

    def encode(self, rows: Tensor, keys: Sequence[int], before: Tensor | None = None) -> Tensor:
        """Encode as steps and integers.   # (k, d) -> (k, b) uint8"""
        k, size = rows.shape
        whole = _buckets(size) * BUCKET
        x = torch.nn.functional.pad(rows.float(), (0, whole - size)).reshape(k, -1, BUCKET)
        step = x.abs().amax(2).mul_(1 / LEVELS)  # (k, buckets)
        drawn = words_of(keys, whole // 4).astype("<u8", copy=False).view("<u2").astype(np.float32)
        chance = torch.from_numpy(drawn).add_(0.5).mul_(GRID).to(rows.device).reshape(k, -1, BUCKET)
        level = chance.add_(x.div_(step[:, :, None]).nan_to_num_(0.0)).floor_().clamp_(-LEVELS, LEVELS).to(torch.int8)
        return torch.cat([as_bytes(step), as_bytes(level.reshape(k, -1)[:, :size])], dim=1)

    def decode(self, raw: Tensor, size: int, dtype: str) -> Said:
        """Multiply each integer by its step.   # (k, b) uint8 -> (k, d)"""
        k, buckets = len(raw), _buckets(size)
        step = as_numbers(raw[:, : 4 * buckets], torch.float32)
        level = raw[:, 4 * buckets :].contiguous().view(torch.int8).float()
        level = torch.nn.functional.pad(level, (0, buckets * BUCKET - size)).reshape(k, -1, BUCKET)
        return Said(level.mul_(step[:, :, None]).reshape(k, -1)[:, :size].to(torch_type(dtype)))

    def problem(self, raw: memoryview, size: int, dtype: str, largest: float) -> str | None:
        """Check the steps: finite, not negative and not too large; -128 is no level."""
        steps = raw[: 4 * _buckets(size)]
        if (np.frombuffer(raw[len(steps) :], np.int8) == -128).any() or np.signbit(np.frombuffer(steps, "<f4")).any():
            return "malformed"
        return None if sane(steps, "float32", largest / LEVELS) else "insane"


def _buckets(size: int) -> int:
    return -(-size // BUCKET)
