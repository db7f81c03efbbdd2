"""Codecs that send all numbers, in fewer bits or unchanged, without randomness or memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from epidemic.compression.base import Codec, Said, as_bytes, as_numbers, sane, torch_type
from epidemic.core.errors import RunFailed


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
