"""Curves in a terminal: dots of braille, eight to a character, in the colours of the methods."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epidemic.cli.show import plain_table, simulated, size
from epidemic.cli.statuses import HEADS, delivery_cells
from epidemic.core.errors import plain
from epidemic.core.formatting import ABOUT_DISAGREEMENT
from epidemic.counting import of_planned, without_rounds
from epidemic.report.parts import shown
from epidemic.report.settings import looks_of
from epidemic.report.statistics import along, curve
from epidemic.report.style import BLUE, GREEN, ORANGE, ORDERED, PURPLE, RED, SKY, YELLOW, line_of

if TYPE_CHECKING:
    from epidemic.report.results import Result, Results

COLOURS = {
    "#000000": "bright_white",
    ORDERED[0]: "#8467e6",
}  # what is nearly black cannot be seen on a dark terminal
PALETTE = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, YELLOW)
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column


TALL = 40
"""Lines of a terminal from which disagreement is drawn as well."""


def screen(results: Results, width: int, height: int) -> Group:
    """Accuracy (or loss) against rounds, disagreement if there is room, and a table of the progress of each run."""
    runs = results.runs
    classes = all(r.accuracy is not None for run in runs for records in run.by_seed for r in records)
    what = "accuracy" if classes else "loss"
    columns = max(30, min(width, 110))
    colours = _colours(results)
    both = height >= TALL
    rows = max(6, min(18, (height - len(runs) - 8 - both) // (2 if both else 1) - 2 * both))
    timed = all(r.time is not None for run in runs for records in run.by_seed for r in records)
    axis = "seconds" if timed else "rounds"
    against = "simulated seconds" if timed else "rounds"
    title = f"{'accuracy over nodes (%)' if classes else 'loss over nodes'} against {against}"
    parts: list[RenderableType] = [Text(title, style="bold")]
    parts.append(
        plot(
            [_line(run, what, colours[run.label], lambda v: 100 * v if classes else v, axis) for run in runs],
            columns,
            rows,
        )
    )
    apart = [_line(run, "disagreement", colours[run.label], math.log10, above=0.0) for run in runs]
    if both and any(x for x, _, _ in apart):
        parts += [
            Text("disagreement D(X), power of ten", style="bold"),
            Text(ABOUT_DISAGREEMENT, style="dim"),
            plot([a for a in apart if a[0]], columns, rows),
        ]
    free = [run.label for run in runs if without_rounds(run.experiment)]
    said = [Text(f"without rounds, which are trainings per node there: {', '.join(free)}", style="dim")] if free else []
    return Group(*parts, _standing(runs, what, colours), *said, *_reasons(runs))


def _line(
    run: Result, what: str, colour: str, scale: Callable[[float], float], axis: str = "rounds", above: float = -math.inf
) -> tuple[list[float], list[float], str]:
    found = curve(run.by_seed, what, partial=True)
    xs = along(curve(run.by_seed, axis, partial=True), found)
    shown = [(float(t), scale(v)) for t, v in zip(xs, found.mean, strict=True) if v > above]
    return [t for t, _ in shown], [v for _, v in shown], colour


def plot(lines: Sequence[tuple[list[float], list[float], str]], width: int, rows: int) -> Text:
    """Lines of (x, y, colour) as text of so many columns and rows, with both axes written out."""
    xs = [v for x, _, _ in lines for v in x]
    ys = [v for _, y, _ in lines for v in y]
    low_x, high_x, low_y, high_y = min(xs), max(max(xs), min(xs) + 1), min(ys), max(ys)
    if high_y - low_y < 1e-9:
        low_y, high_y = low_y - 0.5, high_y + 0.5
    margin = 8
    columns = width - margin - 1
    cells = [[0] * columns for _ in range(rows)]
    colours = [[""] * columns for _ in range(rows)]
    for x, y, colour in lines:
        for px, py in _trace(x, y, (low_x, high_x, low_y, high_y), 2 * columns, 4 * rows):
            row, column = py // 4, px // 2
            cells[row][column] |= DOTS[py % 4][px % 2]
            colours[row][column] = colour
    text = Text()
    for r in range(rows):
        value = high_y - (high_y - low_y) * r / max(rows - 1, 1)
        shown = f"{value:7.4g}" if r in (0, rows // 2, rows - 1) else " " * 7
        text.append(f"{shown} ┤" if shown.strip() else f"{shown} │", style="dim")
        for c in range(columns):
            text.append(chr(0x2800 + cells[r][c]) if cells[r][c] else " ", style=colours[r][c])
        text.append("\n")
    left, right = f"{low_x:g}", f"{high_x:g}"
    text.append(" " * margin + "└" + "─" * (columns - 1) + "\n", style="dim")
    text.append(" " * (margin + 1) + left + right.rjust(columns - len(left) - 1), style="dim")
    return text


def _trace(
    x: list[float], y: list[float], frame: tuple[float, float, float, float], wide: int, tall: int
) -> list[tuple[int, int]]:
    """The dots of a line, without gaps."""
    low_x, high_x, low_y, high_y = frame
    places = [
        ((a - low_x) / (high_x - low_x) * (wide - 1), (high_y - b) / (high_y - low_y) * (tall - 1))
        for a, b in zip(x, y, strict=True)
    ]
    dots = [(round(a), round(b)) for a, b in places]
    for (a, b), (c, d) in itertools.pairwise(places):
        steps = int(max(abs(c - a), abs(d - b))) + 1
        dots += [(round(a + (c - a) * i / steps), round(b + (d - b) * i / steps)) for i in range(steps)]
    return dots


def _standing(runs: Sequence[Result], what: str, colours: dict[str, str]) -> Table:
    timed = any(run.seeds[-1].records[-1].time is not None for run in runs)
    deployed = any(run.seeds[-1].records[-1].delivery is not None for run in runs)
    heads = [*(["simulated"] if timed else []), what, "D(X)", "sent per node", *(HEADS if deployed else ())]
    table = plain_table("", "run", "round", *heads, "state")
    table.columns[-1].no_wrap = False
    for run in runs:
        records = run.seeds[-1].records
        last = records[-1]
        value = curve(run.by_seed, what, partial=True).mean[-1]
        found = f"{shown(100 * value)}%" if what == "accuracy" else shown(value, 4)
        seeds = len(run.experiment.get("seeds", [])) or len(run.seeds)
        ended = sum(seed.summary is not None for seed in run.seeds)
        now = next((seed.state.state for seed in run.seeds if seed.summary is None), "unknown")
        now = "unfinished" if now == "unknown" else now
        state = "finished" if ended >= seeds else f"{ended} of {seeds} seeds done, {now}" if seeds > 1 else now
        name = Text("━━ ", style=colours[run.label]) + Text(run.label)
        table.add_row(
            name,
            of_planned(last.round, run.experiment),
            *(["-" if last.time is None else simulated(last.time.seconds)] if timed else []),
            found,
            "-" if last.disagreement is None else f"{last.disagreement:.2e}",
            size(last.bytes.total.mean),
            *(delivery_cells(last.delivery) if deployed else []),
            state,
        )
    return table


def _reasons(runs: Sequence[Result]) -> list[Text]:
    """Why seeds ended that did not finish, a line each."""
    return [
        Text(f"{run.label}, seed {seed.seed} {plain(seed.state.state, 40)}: {plain(seed.state.why, 300)}", style="red")
        for run in runs
        for seed in run.seeds
        if seed.summary is None and seed.state.over and seed.state.why
    ]


def _colours(results: Results) -> dict[str, str]:
    """By label: the method's colour, that of a setting's value in a sweep or, where these are alike, another one for each."""
    runs = results.runs
    found = [str(line_of(look)["color"]) for look in looks_of([run.experiment for run in runs])]
    if len(set(found)) < len(found) and results.design.comparison:
        found = [PALETTE[i % len(PALETTE)] for i in range(len(runs))]
    return {run.label: COLOURS.get(colour, colour) for run, colour in zip(runs, found, strict=True)}
