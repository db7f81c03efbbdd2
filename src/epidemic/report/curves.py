"""Figures of learning: accuracy against rounds and bytes, disagreement, and how classes fall on the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from epidemic.errors import plain
from epidemic.record import Record
from epidemic.report.looks import Look
from epidemic.report.schemes import looks_of
from epidemic.report.settings import method_of
from epidemic.report.statistics import Interval, curve
from epidemic.report.style import line_of, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GIB = 2**30
MIB = 2**20


class Line:
    """One method in a figure: its name, the kind that decides its colour, and its records by seed.

    Lines of the same kind have the same colour; `variant` 0, 1, ... tells them apart by dashes. A `look` takes the place of both.
    """

    def __init__(
        self, name: str, kind: str, by_seed: list[list[Record]], variant: int = 0, look: Look | None = None
    ) -> None:
        self.name = name
        self.by_seed = by_seed
        self.style = line_of(look or Look(kind, variant))


def lines_of(runs: Sequence[tuple[str, Mapping[str, Any], list[list[Record]]]]) -> list[Line]:
    """Runs as lines of a figure, coloured by what differs between them, as in the report.

    Args:
        runs: For each its name, the tables of its experiment (`Experiment.table()`, or those of its file), and its records by seed.
    """
    scores = [Interval.of([_score(records[-1]) for records in by_seed]).mean for _, _, by_seed in runs]
    found = looks_of([table for _, table, _ in runs], scores)
    return [
        Line(name, method_of(table), by_seed, look=look)
        for (name, table, by_seed), look in zip(runs, found, strict=True)
    ]


def _score(record: Record) -> float:
    return record.loss.mean if record.accuracy is None else record.accuracy.mean


def learning_figure(
    lines: list[Line], title: str, target: float | None = None, what: Literal["accuracy", "loss"] = "accuracy"
) -> Figure:
    """Accuracy (or loss) against rounds, against bytes, and disagreement, side by side, with 95 % bands over seeds."""
    figure = new_figure(14.5, 4.6)
    rounds, traffic, spread = figure.subplots(1, 3)
    _learnt(rounds, lines, "round", title, what)
    _learnt(traffic, lines, "bytes", "By traffic", what)
    for entry in lines:
        apart = curve(entry.by_seed, "disagreement")
        shown = [(t, d) for t, d in zip(apart.rounds, apart.mean, strict=True) if d > 1e-12]
        if shown:
            spread.semilogy(*zip(*shown, strict=True), label=entry.name, **entry.style)
    if target is not None:
        for axes in (rounds, traffic):
            axes.axhline(100 * target, color="0.4", linewidth=0.9, linestyle=":")
    polish(spread, "Disagreement", "round", "D(X)")
    _legend_below(figure, rounds, len(lines))
    return figure


def panels_figure(panels: list[tuple[str, list[Line], str]]) -> Figure:
    """Accuracies side by side, each panel with a title, its lines, and `round` or `bytes` as its axis."""
    figure = new_figure(4.9 * len(panels), 4.6)
    for axes, (title, lines, against) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _learnt(axes, lines, against, title, "accuracy")
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _learnt(axes: Any, lines: list[Line], against: str, title: str, what: Literal["accuracy", "loss"]) -> None:
    largest = max(max(curve(entry.by_seed, "bytes").mean) for entry in lines)
    unit, name = (GIB, "GiB") if largest >= GIB else (MIB, "MiB")
    factor = 100 if what == "accuracy" else 1
    starts: list[float] = []
    tops: list[float] = []
    for entry in lines:
        found, sent = (curve(entry.by_seed, value) for value in (what, "bytes"))
        style = entry.style
        if against == "round":
            _band(axes, found.rounds, found, factor, entry.name, style)
        else:
            paid = np.array(sent.mean) > 0  # a logarithm has no place for what was free
            _band(axes, np.array(sent.mean) / unit, found, factor, entry.name, style, paid)
        starts.append(found.mean[len(found.mean) // 8])
        tops.append(max(found.mean))
    across = "round" if against == "round" else f"sent per node ({name}, log)"
    polish(axes, title, across, "accuracy over nodes (%)" if what == "accuracy" else "loss over nodes")
    if against == "bytes" and largest > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")  # all nine would overlap
    if what == "accuracy":  # neither the first steep rise nor the wide bands of few seeds may squeeze what matters
        axes.set_ylim(max(0.0, 100 * min(starts) - 5), 100 * max(tops) + 5)


def _legend_below(figure: Figure, axes: Any, entries: int) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=min(entries, 6), frameon=False)


def _band(
    axes: Any, x: Any, values: Any, factor: float, name: str, style: dict[str, Any], kept: Any = slice(None)
) -> None:
    x, mean, half = np.array(x)[kept], factor * np.array(values.mean)[kept], factor * np.array(values.half_width)[kept]
    axes.plot(x, mean, label=name, **style)
    axes.fill_between(x, mean - half, mean + half, color=style["color"], alpha=0.13, linewidth=0)


def classes_figure(counts: NDArray[np.int64], classes: tuple[str, ...], title: str) -> Figure:
    """How many samples of each class every node holds.   # counts (n, classes)"""
    n = len(counts)
    figure = new_figure(min(4.5 + 0.09 * n, 15), 4.6)
    from matplotlib import colormaps

    axes = figure.subplots()
    colours = colormaps["viridis"](np.linspace(0, 1, max(len(classes), 2)))
    bottom = np.zeros(n)
    bars: list[Any] = []
    for k in range(len(classes)):
        bars.append(
            axes.bar(
                np.arange(n),
                counts[:, k],
                bottom=bottom,
                width=1.0,
                color=colours[k],
                edgecolor="white",
                linewidth=0.2,
            )
        )
        bottom += counts[:, k]
    polish(axes, title, "node", "training samples")
    axes.set_xlim(-0.5, n - 0.5)
    if len(classes) <= 20:
        # Matplotlib leaves out labels that begin with an underscore, and reads $...$ as a formula.
        labels = [plain(name, 30).replace("$", r"\$") for name in classes]
        labels = [f" {label}" if label.startswith("_") else label for label in labels]
        figure.legend(bars[::-1], labels[::-1], loc="outside right center", frameon=False, fontsize=8)
    return figure
