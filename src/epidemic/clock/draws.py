"""Time units and keyed draws shared by the parts of a clock. The clock counts whole microseconds; files use seconds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from epidemic.core.rng import Stream

FloatArray = NDArray[np.float64]
TimeArray = NDArray[np.int64]

SECOND = 1_000_000
"""One second in microseconds."""
LONGEST = 10**15
"""Microseconds (32 years): the upper limit of any drawn step, session or pause."""
MOST_SECONDS = 1e8
"""The largest time in settings (three years), so that draws around it fit a clock of 64 bits."""
BLOCK = 64
"""Draws of one node made at a time."""
MBIT = 0.125
"""Bytes per microsecond of one Mbit/s."""


def microseconds(seconds: float) -> int:
    """Convert seconds to whole microseconds."""
    return round(seconds * SECOND)


def whole(times: FloatArray) -> TimeArray:
    """Round drawn microseconds to integers between 1 and LONGEST."""
    return np.clip(np.rint(times), 1, LONGEST).astype(np.int64)


def normals_by_node(stream: Stream, n: int) -> FloatArray:
    """A standard normal draw for each node, independent of the number of nodes.   # (n,)"""
    u = stream.uniforms(n, 2)
    normals: FloatArray = np.sqrt(-2.0 * np.log1p(-u[:, 0])) * np.cos(2.0 * math.pi * u[:, 1])
    return normals


def normal_of(key: int) -> float:
    """The standard normal draw of a 128-bit key, for single draws that are not worth a block."""
    first, second = key >> 75, (key >> 11) & (2**53 - 1)  # 53 bits from each half
    return math.sqrt(-2.0 * math.log1p(-first * 2.0**-53)) * math.cos(2.0 * math.pi * second * 2.0**-53)
