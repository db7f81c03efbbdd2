"""Numbers for people: as many digits as asked for, but never 0 for what is not 0."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epidemic.report.statistics import Interval


def shown(value: float | None, digits: int = 2) -> str:
    """With so many digits after the point; three significant ones where these would all be zeros. None and NaN are a dash."""
    if value is None or math.isnan(value):
        return "-"
    small = value != 0 and abs(value) < 0.5 * 10.0**-digits
    return f"{value:.3g}" if small or abs(value) >= 1e7 else f"{value:.{digits}f}"


def shown_interval(value: Interval | None, factor: float = 1.0, digits: int = 2, *, between: str = " ± ") -> str:
    """Mean and half-width of an interval; the mean alone for a single seed."""
    if value is None:
        return "-"
    mean = shown(factor * value.mean, digits)
    return mean if value.half_width is None else f"{mean}{between}{half_width(value, factor, digits)}"


def half_width(value: Interval, factor: float = 1.0, digits: int = 2) -> str:
    """The half-width alone; nothing but rounding is 0."""
    half = value.half_width or 0.0
    return shown(0.0 if half <= 1e-12 * abs(value.mean) else factor * half, digits)
