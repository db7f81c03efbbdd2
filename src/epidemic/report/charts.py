"""Charts as inline SVG: no scripts, no external references, colours by CSS so that they follow light and dark mode.

Every function is pure: it takes values and returns the text of one `<svg>` element for a page with the style `page.css`. `name` is the element's own in the
page, `title` and `description` are for readers who cannot see it; all texts are plain and escaped here. A `LineStyle` says how a run is drawn;
`looks_of` assigns one to each run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

import msgspec

from epidemic.core.errors import plain
from epidemic.core.formatting import mean_and_half
from epidemic.report.palette import LineStyle, colour_name

# -- What is around a chart: its box, its axes with round ticks, the grid and the labels -----------------------------


class Box(msgspec.Struct, frozen=True):
    """The size of a chart and its margins."""

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
        """The lower edge of the drawing."""
        return self.height - self.bottom

    def inside(self, y: float) -> float:
        """The nearest height within the drawing."""
        return min(max(y, self.top), self.floor)


WHOLE = Box()
PANEL = Box(320, 210, 46, 12, 8, 40)
"""One of several charts beside each other."""


LARGEST = 1e300
SMALLEST = 1e-300
"""Values outside these limits have no position on an axis, so that no difference or power overflows."""


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
    """The ticks whose labels do not overlap on a small screen."""
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


__all__ = ["Axis", "ChartPoint", "LineStyle", "Series", "bar_chart", "colour_name", "heat_chart", "line_chart", "range_of", "rows_chart", "strip_chart", "value_chart"]  # fmt: skip

POINTS = 240
"""More points of a line than this are thinned out."""
ALL_POINTS = 6000
"""Of all lines of a chart together."""
BANDS = 8
"""More lines than this have no bands, which would hide them."""
ALL_DOTS = 6000
"""Dots of all rows of a strip chart together."""
MARKS = 10
"""As many values of a setting are written below a chart; of more, round numbers are."""
NAMES = 216
"""Where the drawing begins beside names of runs."""


class Series(msgspec.Struct, frozen=True):
    """A line with an optional band around it."""

    name: str
    look: LineStyle
    x: list[float]
    y: list[float]
    half_width: list[float] = []


class ChartPoint(msgspec.Struct, frozen=True):
    """A result at a value of a setting: mean, and half-width of its interval (None for a single seed)."""

    name: str
    look: LineStyle
    x: float
    y: float
    half_width: float | None = None


# -- lines ------------------------------------------------------------------------------------------------------------


def line_chart(name: str, title: str, description: str, series: Sequence[Series], x_label: str, y_label: str, *,
               log_x: bool = False, log_y: bool = False, target: float | None = None, from_zero: bool = False,
               box: Box = WHOLE, ranges: tuple[tuple[float, float], tuple[float, float]] | None = None) -> str:  # fmt: skip
    """A chart of lines with bands. Values without a logarithm are left out on logarithmic axes.

    Lines may have different lengths. `target` is a marked level. `box` is the size, `axes.PANEL` for one of several small charts; these share their axes if all
    get the same `ranges` (from `range_of`).
    """
    share = box.width / WHOLE.width
    most = max(20, int(share * min(POINTS, ALL_POINTS // max(len(series), 1))))
    kept = [one for s in series if (one := _kept(s, most, log_x=log_x, log_y=log_y)).x]
    if not kept:
        return _nothing(name, title, description, box)
    across, up = ranges or range_of(kept, log_y=log_y, target=target, from_zero=from_zero)
    y = Axis(*up, box.floor, box.top, log=log_y)
    box = with_room(box, y, y_label)
    x = Axis(*across, box.left, box.end, log=log_x)
    parts = [frame(box, x, y, x_label, y_label)]
    if target is not None:
        parts.append(f'<line class="target" x1="{box.left}" x2="{box.end}" y1="{y(target):.1f}" y2="{y(target):.1f}"/>')
    if len(kept) <= BANDS and not log_y:
        parts += [_band(one, x, y, box) for one in kept if any(one.half_width)]
    for one in kept:
        points = [(x(a), y(b)) for a, b in zip(one.x, one.y, strict=True)]
        last = f"{number(one.x[-1])}: {one.y[-1]:.4g}"
        parts.append(
            f'<polyline class="line" style="{one.look.style}"{one.look.dash} points="{_points(points)}">'
            f"<title>{escape(one.name)}, last {last}</title></polyline>"
        )
        if len(points) == 1:
            parts.append(_dot(one.look, *points[0]))
    return svg(name, title, description, "".join(parts), box)


def range_of(
    series: Sequence[Series], *, log_y: bool = False, target: float | None = None, from_zero: bool = False
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The ranges of both axes that show all of some lines."""
    xs = [v for s in series for v in s.x if math.isfinite(v)] or [0.0, 1.0]
    ys = [v for s in series for v in s.y if math.isfinite(v) and (v > 0 or not log_y)] or [0.1, 1.0]
    ys += [] if target is None else [target]
    return (min(xs), max(xs)), (min(ys), max(ys)) if log_y else roomy(ys, from_zero=from_zero)


def value_chart(name: str, title: str, description: str, points: Sequence[ChartPoint], x_label: str, y_label: str, *,
                log_x: bool = False, log_y: bool = False, joined: bool = True) -> str:  # fmt: skip
    """A chart of results against the values of a setting: a dot at the mean with its interval; dots are joined by default."""
    kept = [p for p in sorted(points, key=lambda p: p.x) if math.isfinite(p.y) and (p.y > 0 or not log_y)]
    if not kept:
        return _nothing(name, title, description, WHOLE)
    xs, ys = [p.x for p in kept], [p.y for p in kept]
    # the wide intervals of few seeds may not squeeze what matters
    room = max(max(ys) - min(ys), 0.02 * max(map(abs, ys)))
    reach = [p.y + sign * min(p.half_width or 0.0, room) for p in kept for sign in (-1, 1)]
    y = Axis(*((min(ys), max(ys)) if log_y else roomy(reach)), WHOLE.floor, WHOLE.top, log=log_y)
    edge = 0.03 * (xs[-1] - xs[0])
    box = with_room(WHOLE, y, y_label)
    x = Axis(*((xs[0], xs[-1]) if log_x else (xs[0] - edge, xs[-1] + edge)), box.left + 12, box.end - 12, log=log_x)
    marks = sorted(set(xs))
    parts = [frame(box, x, y, x_label, y_label, marks if len(marks) <= MARKS else None)]
    if joined:
        parts.append(f'<polyline class="joint" points="{_points([(x(p.x), y(p.y)) for p in kept])}"/>')
    for p in kept:
        said = f"{p.name}: {mean_and_half(p.y, p.half_width)}"
        bar = ""
        if p.half_width:
            top = box.inside(y(p.y + p.half_width))
            bottom = box.floor if log_y and p.half_width >= p.y else box.inside(y(p.y - p.half_width))
            bar = f'<line class="line" x1="{x(p.x):.1f}" x2="{x(p.x):.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
        parts.append(
            f'<g style="{p.look.style}"><title>{escape(said)}</title>{bar}<circle class="dot" cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="5"/></g>'
        )
    return svg(name, title, description, "".join(parts), box)


# -- rows -------------------------------------------------------------------------------------------------------------


def rows_chart(
    name: str,
    title: str,
    description: str,
    rows: Sequence[tuple[str, LineStyle, float, float | None]],
    x_label: str,
) -> str:
    """One row for each word of a setting: a dot at the mean, with its interval (None for a single seed)."""
    box = _rows_box(len(rows))
    ends = [mean + sign * (half or 0.0) for _, _, mean, half in rows for sign in (-1, 1)]
    x = Axis(*roomy(ends), NAMES + 8, box.end)
    parts = [vertical_grid(x, box.top, box.floor, x_label, box.height)]
    for i, (label, look, mean, half) in enumerate(rows):
        middle = box.top + 34 * i + 17
        said = f"{label}: {mean_and_half(mean, half)}"
        bar = ""
        if half:
            bar = (
                f'<line class="line" x1="{x(mean - half):.1f}" x2="{x(mean + half):.1f}" y1="{middle}" y2="{middle}"/>'
            )
        parts.append(
            f'{_row_name(label, middle + 4)}<g style="{look.style}"><title>{escape(said)}</title>{bar}'
            f'<circle class="dot" cx="{x(mean):.1f}" cy="{middle}" r="5"/></g>'
        )
    return svg(name, title, description, "".join(parts), box)


def strip_chart(
    name: str, title: str, description: str, rows: Sequence[tuple[str, LineStyle, list[float]]], x_label: str
) -> str:
    """One row for each run, a dot for each node, a bar at the mean."""
    box = _rows_box(len(rows))
    values = [v for _, _, row in rows for v in row]
    x = Axis(*roomy(values), NAMES, box.end)
    most = max(20, min(400, ALL_DOTS // len(rows)))
    parts = [vertical_grid(x, box.top, box.floor, x_label, box.height)]
    for i, (label, look, row) in enumerate(rows):
        middle = box.top + 34 * i + 17
        few = row[:: max(1, math.ceil(len(row) / most))]
        dots = "".join(f'<circle cx="{x(v):.1f}" cy="{middle + _jitter(j):.1f}" r="2.2"/>' for j, v in enumerate(few))
        mean = sum(row) / len(row)
        parts.append(_row_name(label, middle + 4))
        parts.append(f'<g class="dots" style="{look.style}">{dots}</g>')
        parts.append(
            f'<line class="mean" x1="{x(mean):.1f}" x2="{x(mean):.1f}" y1="{middle - 13}" y2="{middle + 13}">'
            f"<title>{escape(label)}: mean {mean:.4g}, from {min(row):.4g} to {max(row):.4g}</title></line>"
        )
    return svg(name, title, description, "".join(parts), box)


def bar_chart(
    name: str, title: str, description: str, rows: Sequence[tuple[str, LineStyle, float | None]], x_label: str
) -> str:
    """One bar for each run; None: it never got there."""
    box = _rows_box(len(rows), 30)
    x = Axis(0, (max((v for _, _, v in rows if v is not None), default=0) or 1.0) * 1.22, NAMES, box.end)
    parts = [vertical_grid(x, box.top, box.floor, x_label, box.height)]
    for i, (label, look, value) in enumerate(rows):
        top = box.top + 30 * i + 5
        parts.append(_row_name(label, top + 14))
        if value is None:
            parts.append(f'<text class="tick" x="{NAMES + 6}" y="{top + 14}">not reached</text>')
            continue
        parts.append(
            f'<rect class="bar" style="{look.style}" x="{NAMES}" y="{top}" width="{max(x(value) - NAMES, 1):.1f}" height="20">'
            f"<title>{escape(label)}: {value:.4g}</title></rect>"
            f'<text class="tick" x="{x(value) + 5:.1f}" y="{top + 14}">{number(float(f"{value:.4g}"))}</text>'
        )
    return svg(name, title, description, "".join(parts), box)


# -- classes ----------------------------------------------------------------------------------------------------------


def heat_chart(name: str, title: str, description: str, counts: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    """Nodes from left to right, classes from bottom to top by name; the darker, the larger a class's share of the node's samples."""
    n, names = len(counts), [_short(plain(text), 18) for text in classes]
    box = Box(left=max(WHOLE.left, 30 + 8 * max(map(len, names))))
    x, y = Axis(0, n, box.left, box.end), Axis(0, len(classes), box.floor, box.top)
    wide, tall = (box.end - box.left) / n, (box.floor - box.top) / len(classes)
    cells = []
    for i, row in enumerate(counts):
        total = sum(row) or 1
        for k, count in enumerate(row):
            if count:
                cells.append(
                    f'<rect x="{x(i):.2f}" y="{y(k + 1):.2f}" width="{wide:.2f}" height="{tall:.2f}" '
                    f'fill-opacity="{0.08 + 0.92 * count / total:.2f}"/>'
                )
    ticks = "".join(
        f'<text class="tick" x="{x(v):.1f}" y="{box.floor + 16}" text-anchor="middle">{t}</text>' for v, t in x.ticks()
    ) + "".join(
        f'<text class="tick" x="{box.left - 6}" y="{y(k + 0.5) + 4:.1f}" text-anchor="end">{escape(names[k])}</text>'
        for k in range(0, len(classes), max(1, math.ceil(len(classes) / 12)))
    )
    edge = (
        f'<rect class="box" x="{box.left}" y="{box.top}" width="{box.end - box.left}" height="{box.floor - box.top}"/>'
    )
    content = f'<g class="heat">{"".join(cells)}</g>{edge}{ticks}{labels(box, "node", "class")}'
    return svg(name, title, description, content, box)


# -- parts ------------------------------------------------------------------------------------------------------------


def _kept(series: Series, most: int, *, log_x: bool, log_y: bool) -> Series:
    """Only what can be drawn, thinned out."""
    half = series.half_width or [0.0] * len(series.x)
    rows = [
        (a, b, h)
        for a, b, h in zip(series.x, series.y, half, strict=True)
        if math.isfinite(a) and math.isfinite(b) and (a > 0 or not log_x) and (b > 0 or not log_y)
    ]
    step = max(1, math.ceil(len(rows) / most))
    rows = rows[::step] + ([rows[-1]] if rows and (len(rows) - 1) % step else [])
    return Series(series.name, series.look, [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def _band(one: Series, x: Axis, y: Axis, box: Box) -> str:
    rows = list(zip(one.x, one.y, one.half_width, strict=True))
    upper = [(x(a), box.inside(y(b + h))) for a, b, h in rows]
    lower = [(x(a), box.inside(y(b - h))) for a, b, h in reversed(rows)]
    return f'<polygon class="band" style="{one.look.style}" points="{_points([*upper, *lower])}"/>'


def _dot(look: LineStyle, x: float, y: float) -> str:
    return f'<circle class="dot" style="{look.style}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)


def _rows_box(rows: int, each: float = 34) -> Box:
    return Box(height=WHOLE.top + WHOLE.bottom + each * rows)


def _row_name(label: str, y: float) -> str:
    return f'<text class="tick name" x="{NAMES - 8}" y="{y}" text-anchor="end">{escape(_short(label))}</text>'


def _jitter(i: int) -> float:
    """A fixed vertical offset for the i-th dot, to separate dots."""
    return ((i * 7) % 17 - 8) * 1.1


def _short(label: str, most: int = 24) -> str:
    """A long name with its middle left out."""
    head = (most - 1) // 2
    return label if len(label) <= most else label[:head] + "…" + label[head + 1 - most :]


def _nothing(name: str, title: str, description: str, box: Box) -> str:
    text = f'<text class="label" x="{box.width / 2}" y="60" text-anchor="middle">nothing to show</text>'
    return svg(name, title, description, text, msgspec.structs.replace(box, height=110))
