"""Charts as inline SVG: no script, no outside reference, colours by CSS so that they follow light and dark.

Every chart has a title and a description for readers who do not see it, and each mark a hover text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import msgspec

from epidemic.errors import plain

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 62, 22, 12, 46
POINTS = 240
"""More points of a line than this are thinned out."""

DASHES = ("", "7 4", "2 3", "9 3 2 3", "5 2 1 2 1 2")
SHADES = (100, 65, 40)


class Look(msgspec.Struct, frozen=True):
    """How a run is drawn everywhere on the page: the colour of its method, and what tells it from others of the same."""

    kind: str
    variant: int = 0

    @property
    def style(self) -> str:
        """Sets the colour that marks of this run use."""
        shade = SHADES[self.variant // len(DASHES) % len(SHADES)]
        base = f"var(--{colour_name(self.kind)})"
        return f"--c:{base if shade == 100 else f'color-mix(in srgb, {base} {shade}%, var(--page))'}"

    @property
    def dash(self) -> str:
        """As an attribute."""
        dash = DASHES[self.variant % len(DASHES)]
        return f' stroke-dasharray="{dash}"' if dash else ""


class Series(msgspec.Struct, frozen=True):
    """A line with an optional band around it."""

    name: str
    look: Look
    x: list[float]
    y: list[float]
    half_width: list[float] = []


KINDS = (
    "el-oracle", "el-local", "complete", "regular", "unlucky", "u-equistatic", "d-equistatic", "od-equidyn", "ou-equidyn",
    "exponential", "one-peer-exponential", "erdos-renyi", "ring", "torus", "none",
)  # fmt: skip


def colour_name(kind: str) -> str:
    """The CSS variable of a method's colour."""
    return f"m-{kind}" if kind in KINDS else "m-other"


# -- axes -------------------------------------------------------------------------------------------------------------


class Axis:
    """Numbers to positions, on a linear or logarithmic scale, with round ticks."""

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool = False) -> None:
        if log:
            low, high = math.log10(low), math.log10(high)
        if high <= low:
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self.start, self.end, self.log = low, high, start, end, log

    def __call__(self, value: float) -> float:
        """Where a value is."""
        value = math.log10(value) if self.log else value
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Some round values and how they are written."""
        if self.log:
            return self._log_ticks()
        step = 10 ** math.floor(math.log10(self.high - self.low))
        for factor in (1, 0.5, 0.2, 0.1):
            if (self.high - self.low) / (step * factor) >= 4:
                step *= factor
                break
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [(i * step, _number(i * step)) for i in range(first, last + 1)]

    def _log_ticks(self) -> list[tuple[float, str]]:
        decades = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
        if len(decades) >= 2:
            every = max(1, math.ceil(len(decades) / 6))
            return [(10.0**d, _power(d)) for d in decades if d % every == 0]
        found = [m * 10.0**d for d in range(math.floor(self.low), math.ceil(self.high) + 1) for m in (1, 2, 3, 5, 7)]
        return [(v, _number(v)) for v in found if self.low <= math.log10(v) <= self.high]


def _number(value: float) -> str:
    if abs(value) >= 10_000 or (value and abs(value) < 1e-3):
        return f"{value:.3g}"
    return f"{round(value, 10):g}"


def _power(decade: int) -> str:
    if -3 <= decade <= 4:
        return f"{10.0**decade:g}"
    return f"10<tspan dy='-5' font-size='9'>{decade}</tspan>"


# -- charts -----------------------------------------------------------------------------------------------------------


def line_chart(name: str, title: str, description: str, series: Sequence[Series], x_label: str, y_label: str, *,
               log_x: bool = False, log_y: bool = False, target: float | None = None, from_zero: bool = False) -> str:  # fmt: skip
    """Lines with bands. What a logarithm has no place for is left out."""
    shown = [_kept(s, log_x=log_x, log_y=log_y) for s in series]
    shown = [s for s in shown if s.x]
    if not shown:
        return _nothing(name, title, description)
    xs = [v for s in shown for v in s.x]
    ys = [v for s in shown for v in s.y] + ([target] if target is not None else [])
    low, high = (min(ys), max(ys)) if log_y else _roomy(ys, from_zero=from_zero)
    x = Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT, log=log_x)
    y = Axis(low, high, HEIGHT - BOTTOM, TOP, log=log_y)
    parts = [_frame(x, y, x_label, y_label)]
    if target is not None:
        parts.append(
            f'<line class="target" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(target):.1f}" y2="{y(target):.1f}"/>'
        )
    for one in shown:
        points = [(x(a), y(b)) for a, b in zip(one.x, one.y, strict=True)]
        if any(one.half_width) and not log_y:
            edge = [(x(a), _inside(y(b + h))) for a, b, h in zip(one.x, one.y, one.half_width, strict=True)]
            edge += [(x(a), _inside(y(b - h))) for a, b, h in zip(one.x, one.y, one.half_width, strict=True)][::-1]
            parts.append(f'<polygon class="band" style="{one.look.style}" points="{_points(edge)}"/>')
        last = f"{_number(one.x[-1])}: {one.y[-1]:.4g}"
        parts.append(
            f'<polyline class="line" style="{one.look.style}"{one.look.dash} points="{_points(points)}">'
            f"<title>{escape(one.name)}, last {last}</title></polyline>"
        )
        if len(points) == 1:
            parts.append(
                f'<circle class="dot" style="{one.look.style}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3"/>'
            )
    return _svg(name, title, description, "".join(parts))


def strip_chart(
    name: str, title: str, description: str, rows: Sequence[tuple[str, Look, list[float]]], x_label: str
) -> str:
    """One row for each run, a dot for each node, a bar at the mean."""
    height = TOP + BOTTOM + 34 * len(rows)
    values = [v for _, _, row in rows for v in row]
    x = Axis(*_roomy(values), 178, WIDTH - RIGHT)
    parts = [_vertical_grid(x, TOP, height - BOTTOM, x_label, height)]
    for i, (label, look, row) in enumerate(rows):
        middle = TOP + 34 * i + 17
        shown = row[:: max(1, len(row) // 400)]
        dots = "".join(f'<circle cx="{x(v):.1f}" cy="{middle + _jitter(j):.1f}" r="2.2"/>' for j, v in enumerate(shown))
        mean = sum(row) / len(row)
        parts.append(
            f'<text class="tick name" x="170" y="{middle + 4}" text-anchor="end">{escape(_short(label))}</text>'
        )
        parts.append(f'<g class="dots" style="{look.style}">{dots}</g>')
        parts.append(
            f'<line class="mean" x1="{x(mean):.1f}" x2="{x(mean):.1f}" y1="{middle - 13}" y2="{middle + 13}">'
            f"<title>{escape(label)}: mean {mean:.4g}, from {min(row):.4g} to {max(row):.4g}</title></line>"
        )
    return _svg(name, title, description, "".join(parts), height)


def bar_chart(
    name: str, title: str, description: str, rows: Sequence[tuple[str, Look, float | None]], x_label: str
) -> str:
    """One bar for each run; None: it never got there."""
    height = TOP + BOTTOM + 30 * len(rows)
    x = Axis(0, (max((v for _, _, v in rows if v is not None), default=0) or 1.0) * 1.12, 178, WIDTH - RIGHT)
    parts = [_vertical_grid(x, TOP, height - BOTTOM, x_label, height)]
    for i, (label, look, value) in enumerate(rows):
        top = TOP + 30 * i + 5
        parts.append(f'<text class="tick name" x="170" y="{top + 14}" text-anchor="end">{escape(_short(label))}</text>')
        if value is None:
            parts.append(f'<text class="tick" x="184" y="{top + 14}">not reached</text>')
            continue
        parts.append(
            f'<rect class="bar" style="{look.style}" x="178" y="{top}" width="{max(x(value) - 178, 1):.1f}" height="20">'
            f"<title>{escape(label)}: {value:.4g}</title></rect>"
            f'<text class="tick" x="{x(value) + 5:.1f}" y="{top + 14}">{_number(float(f"{value:.4g}"))}</text>'
        )
    return _svg(name, title, description, "".join(parts), height)


def heat_chart(name: str, title: str, description: str, counts: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    """Nodes from left to right, classes from bottom to top; the darker, the larger a class's share of the node's samples."""
    n, names = len(counts), [plain(one, 20) for one in classes]
    left = LEFT + 7 * max(0, max(map(len, names)) - 5)
    x, y = Axis(0, n, left, WIDTH - RIGHT), Axis(0, len(classes), HEIGHT - BOTTOM, TOP)
    wide, tall = (WIDTH - RIGHT - left) / n, (HEIGHT - BOTTOM - TOP) / len(classes)
    cells = []
    for i, row in enumerate(counts):
        total = sum(row) or 1
        for k, count in enumerate(row):
            if count:
                cells.append(
                    f'<rect x="{x(i):.2f}" y="{y(k + 1):.2f}" width="{wide:.2f}" height="{tall:.2f}" '
                    f'fill-opacity="{0.08 + 0.92 * count / total:.2f}"/>'
                )
    sides = _labels("node", "class")
    ticks = "".join(
        f'<text class="tick" x="{x(v):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{t}</text>'
        for v, t in x.ticks()
    ) + "".join(
        f'<text class="tick" x="{left - 6}" y="{y(k + 0.5) + 4:.1f}" text-anchor="end">{escape(names[k])}</text>'
        for k in range(0, len(classes), max(1, len(classes) // 12))
    )
    frame = f'<rect class="box" x="{left}" y="{TOP}" width="{WIDTH - RIGHT - left}" height="{HEIGHT - BOTTOM - TOP}"/>'
    return _svg(name, title, description, f'<g class="heat">{"".join(cells)}</g>{frame}{ticks}{sides}')


# -- parts ------------------------------------------------------------------------------------------------------------


def _kept(series: Series, *, log_x: bool, log_y: bool) -> Series:
    """Only what can be drawn, thinned out."""
    half = series.half_width or [0.0] * len(series.x)
    rows = [
        (a, b, h)
        for a, b, h in zip(series.x, series.y, half, strict=True)
        if math.isfinite(a) and math.isfinite(b) and (a > 0 or not log_x) and (b > 0 or not log_y)
    ]
    step = max(1, math.ceil(len(rows) / POINTS))
    rows = rows[::step] + ([rows[-1]] if rows and (len(rows) - 1) % step else [])
    return Series(series.name, series.look, [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def _roomy(values: Sequence[float], *, from_zero: bool = False) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (0.0 if from_zero else low - room), high + room


def _inside(value: float) -> float:
    return min(max(value, TOP), HEIGHT - BOTTOM)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)


def _jitter(i: int) -> float:
    """Spreads dots up and down, always in the same way."""
    return ((i * 7) % 17 - 8) * 1.1


def _short(label: str) -> str:
    return label if len(label) <= 24 else label[:11] + "…" + label[-12:]


def _frame(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    parts = [_vertical_grid(x, TOP, HEIGHT - BOTTOM, "", HEIGHT)]
    for value, text in y.ticks():
        at = y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    return "".join(parts) + _labels(x_label, y_label)


def _vertical_grid(x: Axis, top: float, bottom: float, label: str, height: float) -> str:
    parts = []
    for value, text in x.ticks():
        at = x(value)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    if label:
        parts.append(
            f'<text class="label" x="{(x.start + x.end) / 2}" y="{height - 8}" text-anchor="middle">{escape(label)}</text>'
        )
    return "".join(parts)


def _labels(x_label: str, y_label: str) -> str:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return (
        f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text class="label" transform="rotate(-90 14 {middle})" x="14" y="{middle}" text-anchor="middle">{escape(y_label)}</text>'
    )


def _svg(name: str, title: str, description: str, content: str, height: float = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(description)}</desc>{content}</svg>'
    )


def _nothing(name: str, title: str, description: str) -> str:
    return _svg(
        name,
        title,
        description,
        f'<text class="label" x="{WIDTH / 2}" y="60" text-anchor="middle">nothing to show</text>',
        110,
    )
