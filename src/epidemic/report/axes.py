"""What is around a chart: its box, its axes with round ticks, the grid and the labels."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

import msgspec


class Box(msgspec.Struct, frozen=True):
    """The size of a chart and the margins around what is drawn."""

    width: float = 640
    height: float = 360
    left: float = 62
    right: float = 22
    top: float = 12
    bottom: float = 46

    @property
    def end(self) -> float:
        """Where the drawing ends on the right."""
        return self.width - self.right

    @property
    def floor(self) -> float:
        """Where it ends at the bottom."""
        return self.height - self.bottom

    def inside(self, y: float) -> float:
        """The nearest height within the drawing."""
        return min(max(y, self.top), self.floor)


WHOLE = Box()
PANEL = Box(320, 210, 46, 12, 8, 40)
"""One of several charts beside each other."""


LARGEST = 1e300
SMALLEST = 1e-300
"""What is beyond these has no place of its own on an axis, so that no difference or power overflows."""


def drawable(value: float) -> float:
    """The number, or the nearest one that can be drawn."""
    bounded = min(max(value, -LARGEST), LARGEST)
    return 0.0 if abs(bounded) < SMALLEST else bounded


class Axis:
    """Numbers to positions, on a linear or logarithmic scale, with round ticks."""

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool = False) -> None:
        low, high = drawable(low), drawable(high)
        if log:
            low, high = max(low, SMALLEST), max(high, SMALLEST)
            low, high = math.log10(low), math.log10(high)
        if high <= low:
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self.start, self.end, self.log = low, high, start, end, log

    def __call__(self, value: float) -> float:
        """Return the position of a value on the axis, in units of the drawing."""
        value = drawable(value)
        value = math.log10(max(value, SMALLEST)) if self.log else value
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Some round values and how they are written."""
        found = self._log_ticks() if self.log else []
        if len(found) >= 2:
            return found
        if self.log:  # too narrow for round powers
            return [(v, t) for v, t in Axis(10**self.low, 10**self.high, 0, 1).ticks() if v > 0]
        step = 10 ** math.floor(math.log10(self.high - self.low))
        for factor in (1, 0.5, 0.2, 0.1):
            if (self.high - self.low) / (step * factor) >= 4:
                step *= factor
                break
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [(i * step, number(i * step)) for i in range(first, last + 1)]

    def _log_ticks(self) -> list[tuple[float, str]]:
        decades = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
        if len(decades) >= 2:
            every = max(1, math.ceil(len(decades) / 6))
            return [(10.0**d, _power(d)) for d in decades if d % every == 0]
        found = [m * 10.0**d for d in range(math.floor(self.low), math.ceil(self.high) + 1) for m in (1, 2, 3, 5, 7)]
        return [(v, number(v)) for v in found if self.low <= math.log10(v) <= self.high]


def number(value: float) -> str:
    """Write a number briefly enough to stand beside an axis."""
    if abs(value) >= 10_000 or (value and abs(value) < 1e-3):
        return f"{value:.3g}"
    return f"{round(value, 10):g}"


def _power(decade: int) -> str:
    if -3 <= decade <= 4:
        return f"{10.0**decade:g}"
    return f"10<tspan dy='-5' font-size='9'>{decade}</tspan>"


def roomy(values: Sequence[float], *, from_zero: bool = False) -> tuple[float, float]:
    """The range of an axis that shows these values."""
    low, high = drawable(min(values)), drawable(max(values))
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (0.0 if from_zero else low - room), high + room


def with_room(box: Box, y: Axis, label: str) -> Box:
    """The box with a margin that the texts beside the axis upwards have room in, on a small screen too."""
    longest = max((len(re.sub("<[^>]*>", "", text)) for _, text in y.ticks()), default=0)
    return msgspec.structs.replace(box, left=max(box.left, 30 + 9 * longest if label else 8 + 8 * longest))


def frame(box: Box, x: Axis, y: Axis, x_label: str, y_label: str, marks: Sequence[float] | None = None) -> str:
    """Grid, ticks and labels of both axes; `marks` are ticks of the first axis in place of round ones."""
    parts = [vertical_grid(x, box.top, box.floor, "", box.height, marks)]
    for value, text in y.ticks():
        at = y(value)
        parts.append(f'<line class="grid" x1="{box.left}" x2="{box.end}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{box.left - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    return "".join(parts) + labels(box, x_label, y_label)


def vertical_grid(
    x: Axis, top: float, bottom: float, label: str, height: float, marks: Sequence[float] | None = None
) -> str:
    """Lines at the ticks of the axis from left to right, and what they are."""
    parts = []
    found = x.ticks() if marks is None else [(value, number(value)) for value in sorted(marks)]
    for value, text in found if x.log and marks is None else _apart(x, found):
        at = x(value)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    if label:
        parts.append(
            f'<text class="label" x="{(x.start + x.end) / 2}" y="{height - 8}" text-anchor="middle">{escape(label)}</text>'
        )
    return "".join(parts)


def _apart(x: Axis, ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Those ticks whose texts do not touch on a small screen either."""
    kept: list[tuple[float, str]] = []
    reached = -math.inf
    for value, text in ticks:
        half = 4.5 * len(text)
        if x(value) - half > reached + 4:
            kept.append((value, text))
            reached = x(value) + half
    return kept


def labels(box: Box, x_label: str, y_label: str) -> str:
    """Return the SVG of both axes' names."""
    middle = (box.top + box.floor) / 2
    below = f'<text class="label" x="{(box.left + box.end) / 2}" y="{box.height - 8}" text-anchor="middle">{escape(x_label)}</text>'
    beside = f'<text class="label" transform="rotate(-90 14 {middle})" x="14" y="{middle}" text-anchor="middle">{escape(y_label)}</text>'
    return below + (beside if y_label else "")


def svg(name: str, title: str, description: str, content: str, box: Box = WHOLE) -> str:
    """The picture with its title and description; `name` must be the only one of the page."""
    panel = ' class="panel"' if box.width == PANEL.width else ""
    return (
        f'<svg{panel} viewBox="0 0 {box.width:g} {box.height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(description)}</desc>{content}</svg>'
    )
