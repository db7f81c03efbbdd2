"""Numbers and small tables for people, as words and as HTML for notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol

ROUNDING = 1e-12
"""Values that much smaller than their neighbours are rounding errors, and shown as 0."""

MOST_DIGITS = 6
"""After the point, of a mean and its interval; where more are needed, both have three significant ones."""

ABOUT_DISAGREEMENT = "D(X), disagreement: the mean squared distance of the nodes' models to their average"
"""The explanation of D(X) for readers of a table or figure."""


class HasMean(Protocol):
    """A value summarised over several nodes or seeds."""

    @property
    def mean(self) -> float:
        """The mean over everything that was summarised."""
        ...


class MeanOfSeeds(HasMean, Protocol):
    """A mean over seeds with the half-width of its confidence interval, if there are several seeds."""

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval; None for a single seed."""
        ...


def size(value: float) -> str:
    """Format bytes in binary units."""
    if value < 1024:
        return f"{value:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.2f} {unit}"
    return f"{value / 1024:,.2f} PiB"


def duration(seconds: float) -> str:
    """Format seconds, in s, min or h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def simulated(seconds: float) -> str:
    """Format simulated seconds, with more digits than `duration`, because they are results."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 or seconds == 0 else f"{1000 * seconds:.3g} ms"


def number(value: float | None) -> str:
    """Write a number for people, with separators; "-" for None."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def percent(value: float | None) -> str:
    """Write a share from 0 to 1 as a percentage; "-" for None."""
    return "-" if value is None else f"{decimals(100 * value if abs(value) > ROUNDING else 0.0)}%"


def score(accuracy: HasMean | None, loss: HasMean) -> str:
    """The quality of models in two words: accuracy, or loss if there are no classes."""
    return f"loss {loss.mean:.4f}" if accuracy is None else f"accuracy {percent(accuracy.mean)}"


def decimals(value: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """Format with `digits` decimals; with three significant digits if these would all be zeros. None and NaN are a dash."""
    if value is None or math.isnan(value):
        return "-"
    sign = "+" if signed else ""
    small = value != 0 and abs(value) < 0.5 * 10.0**-digits
    return f"{value:{sign}.3g}" if small or abs(value) >= 1e7 else f"{value:{sign}.{digits}f}"


def interval(
    value: MeanOfSeeds | None, factor: float = 1.0, digits: int = 2, *, signed: bool = False, between: str = "±"
) -> str:
    """Mean and half-width for people, with the same digits; the mean alone for a single seed, a dash where there is none."""
    if value is None or math.isnan(value.mean):
        return "-"
    mean = mean_alone(value, factor, digits, signed=signed)
    return mean if value.half_width is None else f"{mean}{between}{half_width(value, factor, digits)}"


def mean_alone(value: MeanOfSeeds, factor: float = 1.0, digits: int = 2, *, signed: bool = False) -> str:
    """The mean, with the digits that its interval asks for; nothing but rounding is 0."""
    mean, half = _sizes(value, factor)
    if half is None or not math.isfinite(half):
        return decimals(mean, digits, signed=signed)
    return _with(mean, interval_digits(half, digits, mean), signed=signed)


def half_width(value: MeanOfSeeds, factor: float = 1.0, digits: int = 2) -> str:
    """The half-width alone, with the digits of the mean beside it; nothing but rounding is 0."""
    mean, half = _sizes(value, factor)
    if half is None or not math.isfinite(half):
        return decimals(half or 0.0, digits)
    return _with(half, interval_digits(half, digits, mean))


def _with(value: float, places: int, *, signed: bool = False) -> str:
    """So many digits after the point; three significant ones where that would be too many, or the number too long."""
    sign = "+" if signed else ""
    return f"{value:{sign}.3g}" if abs(value) >= 1e7 or places > MOST_DIGITS else f"{value:{sign}.{places}f}"


def mean_and_half(mean: float, half: float | None) -> str:
    """A mean and its half-width where no digits are asked for: those of the interval; four significant ones of a mean without one."""
    if not half or not math.isfinite(half):
        return f"{mean:.4g}" + ("" if half is None else f" ± {half:.2g}")
    places = interval_digits(half, 0)
    return f"{_with(mean, places)} ± {_with(half, places)}"


def interval_digits(half: float, digits: int, mean: float = 0.0) -> int:
    """Digits after the point of a mean and its half-width: at least `digits`, and two significant ones of the half-width.

    A half-width of 0 says nothing of digits, and a small mean then has three significant ones.
    """
    if not math.isfinite(half):
        return digits
    if half == 0:
        small = mean != 0 and abs(mean) < 0.5 * 10.0**-digits
        return 2 - math.floor(math.log10(abs(mean))) if small else digits
    first = -math.floor(math.log10(half))  # where its first significant digit is
    return max(digits, first + 1)


def _sizes(value: MeanOfSeeds, factor: float) -> tuple[float, float | None]:
    """Mean and half-width, without what rounding has left of either."""
    mean, half = value.mean, value.half_width
    if half is None:
        return factor * mean, None
    return (
        0.0 if abs(mean) <= ROUNDING * half else factor * mean,
        0.0 if half <= ROUNDING * abs(mean) else factor * half,
    )


def count(how_many: int, what: str) -> str:
    """Write a number with its noun: "1 seed", "3 seeds", "2 classes"."""
    several = "es" if what.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{how_many:,} {what}{'' if how_many == 1 else several}"


def html_table(title: str, rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """A small HTML table for a notebook, with all text escaped; the first column has names, the others values."""
    head = "".join(f'<th style="text-align:{"right" if i else "left"}">{escape(h)}</th>' for i, h in enumerate(heads))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="text-align:{"right" if i and heads else "left"}">{escape(str(cell))}</td>'
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    heading = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<div><strong>{escape(title)}</strong><table>{heading}<tbody>{body}</tbody></table></div>"
