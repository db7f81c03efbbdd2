"""Times and keyed draws that the kinds of a clock share. The clock counts whole microseconds; files have seconds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from epidemic.core.rng import Stream

FloatArray = NDArray[np.float64]
TimeArray = NDArray[np.int64]

SECOND = 1_000_000
"""Microseconds."""
LONGEST = 10**15
"""Microseconds (32 years): no step, session or pause lasts longer, whatever is drawn."""
MOST_SECONDS = 1e8
"""The largest time that a setting may be (three years), so that what is drawn around it fits a clock of 64 bits."""
BLOCK = 64
"""Draws of one node are made so many at a time."""
MBIT = 0.125
"""Bytes per microsecond of one Mbit/s."""


def microseconds(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(seconds * SECOND)


def whole(times: FloatArray) -> TimeArray:
    """Drawn microseconds as whole ones, at least 1 and at most LONGEST."""
    return np.clip(np.rint(times), 1, LONGEST).astype(np.int64)


def normals_by_node(stream: Stream, n: int) -> FloatArray:
    """A standard normal number for each node, the same for a node however many there are.   # (n,)"""
    u = stream.uniforms(n, 2)
    normals: FloatArray = np.sqrt(-2.0 * np.log1p(-u[:, 0])) * np.cos(2.0 * math.pi * u[:, 1])
    return normals


def normal_of(key: int) -> float:
    """The standard normal number of a 128-bit key, for single draws too many to keep and too few to be made in blocks."""
    first, second = key >> 75, (key >> 11) & (2**53 - 1)  # 53 bits of either half
    return math.sqrt(-2.0 * math.log1p(-first * 2.0**-53)) * math.cos(2.0 * math.pi * second * 2.0**-53)
