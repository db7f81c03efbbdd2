"""The tables and the picture of a study (methods x learning rates x seeds), from its committed runs: `python results/studies.py results/fashion-mnist`.

A study is a directory of `lr-LR/METHOD/seed-N/summary.json`. What is compared is the accuracy after the last round on all test samples, mean of all nodes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from epidemic.report.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METHODS = ("complete", "EL-Oracle", "EL-Local", "8-U-EquiStatic", "7-regular static")
EPIDEMIC, RIVALS = METHODS[1:3], METHODS[4:2:-1]
BEST = "its own best"
FEWEST = 3
"""Seeds for which a lead is called one."""

Accuracies = dict[str, dict[str, dict[int, float]]]
"""By learning rate (as its directory has it, or `BEST`), method and seed; percent."""


def accuracies(study: Path) -> Accuracies:
    """Of the seeds of which all runs have come to their end: what is compared is compared on the same seeds."""
    found: Accuracies = {}
    for file in sorted(study.glob("lr-*/*/seed-*/summary.json")):
        summary = json.loads(file.read_text())
        rate = file.parts[-4].removeprefix("lr-")
        of_method = found.setdefault(rate, {}).setdefault(summary["name"], {})
        of_method[summary["seed"]] = 100 * summary["final_accuracy"]["mean"]
    runs = [of_rate.get(method, {}) for of_rate in found.values() for method in METHODS]
    seeds = sorted(set.intersection(*map(set, runs))) if runs else []
    if not seeds:
        sys.exit(f"error: {study} has no seed with which all methods have come to their end")
    return {rate: {method: {seed: found[rate][method][seed] for seed in seeds} for method in METHODS} for rate in found}


def best_rates(found: Accuracies) -> dict[str, str]:
    """The learning rate of each method whose mean over its seeds is the highest."""
    return {
        method: max(found, key=lambda rate: Interval.of(list(found[rate][method].values())).mean) for method in METHODS
    }


def with_best(found: Accuracies) -> Accuracies:
    """The same, and each method at its own best learning rate."""
    best = best_rates(found)
    return {**found, BEST: {method: found[best[method]][method] for method in METHODS}}


def ahead(found: Accuracies, rate: str, method: str, other: str) -> Interval:
    """By how many points a method is ahead of another one, seed by seed."""
    theirs = found[rate][other]
    return Interval.of([accuracy - theirs[seed] for seed, accuracy in found[rate][method].items()])


def shown(value: Interval, sign: str = "") -> str:
    """With two digits after the point."""
    half = "" if value.half_width is None else f" ± {value.half_width:.2f}"
    return f"{round(value.mean, 2) + 0.0:{sign}.2f}{half}"  # no -0.00


def is_lead(difference: Interval) -> bool:
    """Whether the interval does not hold zero, of seeds enough to have one worth the name."""
    return (
        difference.seeds >= FEWEST
        and difference.half_width is not None
        and abs(difference.mean) > difference.half_width
    )


def table_of_accuracies(found: Accuracies) -> list[str]:
    """Means over seeds with their intervals, in Markdown."""
    best = best_rates(found)
    lines = [f"| method | {' | '.join(found)} | best at |", "|---" * (len(found) + 2) + "|"]
    for method in METHODS:
        cells = [shown(Interval.of(list(found[rate][method].values()))) for rate in found]
        lines.append(f"| {method} | {' | '.join(cells)} | {best[method]} |")
    return lines


def table_of_leads(found: Accuracies) -> list[str]:
    """The differences that were asked for, in Markdown; those whose interval does not hold zero are bold."""
    rates = [*found, BEST]
    lines = [f"| ahead | {' | '.join(rates)} |", "|---" * (len(rates) + 1) + "|"]
    for method in EPIDEMIC:
        for other in RIVALS:
            differences = [ahead(with_best(found), rate, method, other) for rate in rates]
            cells = [shown(one, "+") for one in differences]
            bold = [f"**{cell}**" if is_lead(one) else cell for cell, one in zip(cells, differences, strict=True)]
            lines.append(f"| {method} of {other} | {' | '.join(bold)} |")
    return lines


def draw(found: Accuracies, file: Path) -> None:
    """Accuracies by learning rate, and the differences with their intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_accuracies(left, found)
    _draw_leads(right, with_best(found))
    figure.savefig(file, dpi=110, metadata={"Software": None})


def _draw_accuracies(axes: Axes, found: Accuracies) -> None:
    for i, method in enumerate(METHODS):
        means = [Interval.of(list(found[rate][method].values())) for rate in found]
        places = [j + 0.08 * (i - 2) for j in range(len(found))]
        halves = [one.half_width or 0.0 for one in means]
        axes.errorbar(places, [one.mean for one in means], halves, fmt="os^Dv"[i], capsize=3, label=method)
    axes.set_xticks(range(len(found)), list(found))
    axes.set(xlabel="learning rate", ylabel="accuracy after the last round (%)")
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.3)


def _draw_leads(axes: Axes, found: Accuracies) -> None:
    for i, (method, other) in enumerate((m, o) for m in EPIDEMIC for o in RIVALS):
        means = [ahead(found, rate, method, other) for rate in found]
        places = [j + 0.12 * (i - 1.5) for j in range(len(found))]
        halves = [one.half_width or 0.0 for one in means]
        axes.errorbar(places, [one.mean for one in means], halves, fmt="osoD"[i], capsize=3, label=f"{method} of {other}",
                      mfc="none" if i % 2 else None)  # fmt: skip
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(found)), list(found))
    axes.set(xlabel="learning rate", ylabel="ahead (points), with 95 % intervals")
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    axes.grid(alpha=0.3)


def main(study: Path) -> None:
    """Print the tables, and draw the picture into the study's directory."""
    found = accuracies(study)
    print(f"seeds: {', '.join(map(str, next(iter(next(iter(found.values())).values()))))}\n")
    print("\n".join([*table_of_accuracies(found), "", *table_of_leads(found)]))
    draw(found, study / "leads.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
