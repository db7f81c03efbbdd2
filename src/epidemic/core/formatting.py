"""Numbers and small tables for people, as words and as HTML for notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol

ROUNDING = 1e-12
"""Values that much smaller than their neighbours are rounding errors, and shown as 0."""


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
    """Mean and half-width; the mean alone for a single seed, a dash if there is none."""
    if value is None or math.isnan(value.mean):
        return "-"
    rounding = abs(value.mean) <= ROUNDING * (value.half_width or 0.0)
    mean = decimals(0.0 if rounding else factor * value.mean, digits, signed=signed)
    return mean if value.half_width is None else f"{mean}{between}{half_width(value, factor, digits)}"


def half_width(value: MeanOfSeeds, factor: float = 1.0, digits: int = 2) -> str:
    """The half-width alone; 0 if it is only rounding."""
    half = value.half_width or 0.0
    return decimals(0.0 if half <= ROUNDING * abs(value.mean) else factor * half, digits)


def count(how_many: int, what: str) -> str:
    """Write a number with its noun: "1 seed", "3 seeds"."""
    return f"{how_many:,} {what}{'' if how_many == 1 else 's'}"


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
