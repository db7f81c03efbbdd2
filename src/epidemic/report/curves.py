"""Figures of learning: accuracy against rounds, simulated time and bytes, disagreement, and how classes fall on the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import plain
from epidemic.counting import TRAININGS, without_rounds
from epidemic.record import Record
from epidemic.report.palette import LineStyle
from epidemic.report.settings import looks_of, method_of
from epidemic.report.statistics import Interval, along, curve, mean_cost
from epidemic.report.style import line_of, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GIB = 2**30
MIB = 2**20


class MethodCurve:
    """One method in a figure: its name, the kind that decides its colour, and its records by seed.

    Lines of the same kind have the same colour; `variant` 0, 1, ... distinguishes them by dashes. A `look` replaces both. `free` methods are asynchronous.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        by_seed: list[list[Record]],
        variant: int = 0,
        look: LineStyle | None = None,
        *,
        free: bool = False,
    ) -> None:
        self.name = name
        self.free = free
        self.by_seed = by_seed
        self.style = line_of(look or LineStyle(kind, variant))

    @property
    def timed(self) -> bool:
        """Whether all records have simulated times."""
        return all(record.time is not None for records in self.by_seed for record in records)


def lines_of(runs: Sequence[tuple[str, Mapping[str, Any], list[list[Record]]]]) -> list[MethodCurve]:
    """Runs as lines of a figure, coloured by what differs between them, as in the report.

    Args:
        runs: For each its name, the tables of its experiment (`Experiment.table()`, or those of its file), and its records by seed.
    """
    scores = [Interval.of([_score(records[-1]) for records in by_seed]).mean for _, _, by_seed in runs]
    found = looks_of([table for _, table, _ in runs], scores)
    return [
        MethodCurve(name, method_of(table), by_seed, look=look, free=without_rounds(table))
        for (name, table, by_seed), look in zip(runs, found, strict=True)
    ]


def _score(record: Record) -> float:
    return record.loss.mean if record.accuracy is None else record.accuracy.mean


CLOCKED = ("seconds", "steps")
AXES = ("rounds", *CLOCKED, "bytes")
"""What accuracy can be drawn against; CLOCKED ones under the simulated clock only."""


def learning_figure(
    lines: list[MethodCurve], title: str, target: float | None = None, what: str = "accuracy"
) -> Figure:
    """Accuracy, loss or metric.NAME (`what`) against rounds, bytes and (under the clock) simulated time, and disagreement, with 95 % bands over seeds."""
    axes = ["rounds", *(["seconds"] if all(entry.timed for entry in lines) else []), "bytes"]
    figure = new_figure(4.8 * len(axes) + 4.9, 4.6)
    *learnt, spread = figure.subplots(1, len(axes) + 1)
    titles = {"rounds": title, "seconds": "By simulated time", "bytes": "By traffic"}
    for part, against in zip(learnt, axes, strict=True):
        _learnt(part, lines, against, titles[against], what)
    for entry in lines:
        apart = curve(entry.by_seed, "disagreement")
        shown = [(t, d) for t, d in zip(apart.rounds, apart.mean, strict=True) if d > 1e-12]
        if shown:
            spread.semilogy(*zip(*shown, strict=True), label=entry.name, **entry.style)
    if target is not None:
        for part in learnt:
            part.axhline(100 * target, color="0.4", linewidth=0.9, linestyle=":")
    polish(spread, "Disagreement", _round_label(lines), "D(X)")
    _legend_below(figure, learnt[0], len(lines))
    return figure


def axis_figure(
    lines: list[MethodCurve],
    title: str,
    against: str,
    target: float | None = None,
    what: str = "accuracy",
) -> Figure:
    """Accuracy, loss or metric.NAME (`what`) against one of `AXES`."""
    figure = new_figure(7.2, 4.6)
    axes = figure.subplots()
    _learnt(axes, lines, against, title, what)
    if target is not None:
        axes.axhline(100 * target, color="0.4", linewidth=0.9, linestyle=":")
    _legend_below(figure, axes, len(lines))
    return figure


def panels_figure(panels: list[tuple[str, list[MethodCurve], str]]) -> Figure:
    """Accuracies side by side, each panel with a title, its lines, and one of `AXES`."""
    figure = new_figure(4.9 * len(panels), 4.6)
    for axes, (title, lines, against) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _learnt(axes, lines, against, title, "accuracy")
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def race_figure(lines: list[MethodCurve], title: str, target: float, baseline: str, claim: tuple[str, float]) -> Figure:
    """Accuracy against simulated time and bytes, and how many times faster than a baseline every accuracy is reached.

    Bands need three seeds: eight wide ones of two hide everything.

    Args:
        lines: The methods, all under the clock.
        title: Of the first panel.
        target: An accuracy that is marked.
        baseline: The name of the one that the others are compared with.
        claim: How many times faster somebody claims to be, and what that is called; marked as well.
    """
    figure = new_figure(15.5, 5.2)
    by_time, by_traffic, ratio = figure.subplots(1, 3)
    bands = all(len(entry.by_seed) > 2 for entry in lines)
    _learnt(by_time, lines, "seconds", title, "accuracy", bands=bands)
    _learnt(by_traffic, lines, "bytes", "By traffic", "accuracy", bands=bands)
    for part in (by_time, by_traffic):
        part.axhline(100 * target, color="0.4", linewidth=0.9, linestyle=":")
    slow = next(entry for entry in lines if entry.name == baseline)
    top = max(curve(slow.by_seed, "accuracy").mean)
    levels = np.linspace(0.4 * top, top, 25)
    for entry in lines:
        times = [(mean_cost(slow.by_seed, a)[0].seconds, mean_cost(entry.by_seed, a)[0].seconds) for a in levels]
        times_faster = [np.nan if not theirs or not mine else theirs / mine for theirs, mine in times]
        ratio.plot(100 * levels, [v if v > 0 else np.nan for v in times_faster], label=entry.name, **entry.style)
    words, claimed = claim
    ratio.axhline(claimed, color="0.4", linewidth=0.9, linestyle=":")
    ratio.annotate(
        f"{words}: {claimed:g}",
        (0.02, claimed),
        xycoords=("axes fraction", "data"),
        va="bottom",
        fontsize=8,
        color="0.3",
    )
    ratio.set_yscale("log")
    ratio.yaxis.set_major_formatter("{x:g}")
    ratio.yaxis.set_minor_formatter("{x:g}")
    polish(
        ratio, f"To every accuracy: times faster than {baseline}", "accuracy to be reached (%)", "times faster (log)"
    )
    ratio.grid(True, which="minor", axis="y", color="0.93", linewidth=0.5)
    _legend_below(figure, by_time, (len(lines) + 1) // 2)
    return figure


def _learnt(axes: Any, lines: list[MethodCurve], against: str, title: str, what: str, *, bands: bool = True) -> None:
    largest = max(max(curve(entry.by_seed, "bytes").mean) for entry in lines)
    unit, name = (GIB, "GiB") if largest >= GIB else (MIB, "MiB")
    factor, most = (100, 100.0) if what == "accuracy" else (1, None)
    starts: list[float] = []
    tops: list[float] = []
    for entry in lines:
        found = curve(entry.by_seed, what)
        spent = np.array(along(curve(entry.by_seed, against), found))
        if against == "bytes":
            paid = spent > 0  # a logarithm has no place for what was free
            _band(axes, spent / unit, found, factor, entry.name, entry.style, paid, bands=bands, most=most)
        else:
            _band(axes, spent, found, factor, entry.name, entry.style, bands=bands, most=most)
        if not found.mean:  # a metric that has no value anywhere
            continue
        starts.append(found.mean[len(found.mean) // 8])
        tops.append(max(found.mean))
    across = {
        "rounds": _round_label(lines),
        "seconds": "simulated time (s)",
        "steps": "local steps of a node",
        "bytes": f"sent per node ({name}, log)",
    }
    measured = (
        "accuracy over nodes (%)" if what == "accuracy" else f"{shown_name(what.removeprefix('metric.'))} over nodes"
    )
    polish(axes, title, across[against], measured)
    if against == "bytes" and largest > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")  # all nine would overlap
    if what == "accuracy":  # neither the first steep rise nor the wide bands of few seeds may squeeze what matters
        axes.set_ylim(max(0.0, 100 * min(starts) - 5), min(100 * max(tops) + 5, 101))


def shown_name(name: str) -> str:
    """A user's name, escaped for Matplotlib, which hides names that begin with an underscore and reads $...$ as a formula."""
    shown = plain(name, 30).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _round_label(lines: list[MethodCurve]) -> str:
    free = [entry.free for entry in lines]
    return "round" if not any(free) else TRAININGS if all(free) else "round (without rounds: trainings)"


def _legend_below(figure: Figure, axes: Any, entries: int) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=min(entries, 6), frameon=False)


def _band(
    axes: Any,
    x: Any,
    values: Any,
    factor: float,
    name: str,
    style: dict[str, Any],
    kept: Any = slice(None),
    *,
    bands: bool = True,
    most: float | None = None,
) -> None:
    """A line with its band, which ends at 0 and `most` where no value can be beyond these."""
    x, mean, half = np.array(x)[kept], factor * np.array(values.mean)[kept], factor * np.array(values.half_width)[kept]
    axes.plot(x, mean, label=name, **style)
    if bands:
        low, high = mean - half, mean + half
        if most is not None:
            low, high = np.clip(low, 0.0, most), np.clip(high, 0.0, most)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.13, linewidth=0)


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
        labels = [shown_name(name) for name in classes]
        figure.legend(bars[::-1], labels[::-1], loc="outside right center", frameon=False, fontsize=8)
    return figure
