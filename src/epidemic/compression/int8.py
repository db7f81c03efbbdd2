"""One byte per number: QSGD's stochastic rounding (Alistarh et al., 2017) with 127 levels of either sign, in buckets of 512 numbers.

A bucket is sent as its step, the largest magnitude in it over 127, and an integer in -127..127 for each number: x / step, rounded up or down at random so
that its expectation is x. The variance of a number is at most step^2 / 4, so that of a bucket is at most B / (4 L^2) times its squared norm: with B = 512
and L = 127 that is 0.8 %. With one bucket for all numbers it would exceed 100 %.

Layout: for each bucket its step as float32, then a byte for each number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from epidemic.compression.base import Codec, Said, as_bytes, as_numbers, sane, torch_type
from epidemic.core.rng import words_of

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
