"""Two methods seed by seed, round by round, from their committed records: `python results/paired.py results/cifar10-seeds`.

What is compared while they train is the accuracy on the test samples that are evaluated then, mean of all nodes; after the last round that on all
test samples, if all runs have come to it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from epidemic.report.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, THEIRS = "EL-Oracle", "7-regular static"
PLACES = {OURS: "el-oracle", THEIRS: "7-regular-static"}
COLOURS = {OURS: "#c44e1b", THEIRS: "#5b6fa8"}
EVERY = 50
"""Rounds between two lines of the table."""

Curves = dict[str, dict[int, dict[int, float]]]
"""By method, seed and round; percent."""


def curves(study: Path) -> Curves:
    """Up to the last round that all runs have come to."""
    found: Curves = {
        method: {
            int(file.parent.name[5:]): _read(file) for file in sorted((study / place).glob("seed-*/records.jsonl"))
        }
        for method, place in PLACES.items()
    }
    common = set.intersection(*(set(of_seed) for of_method in found.values() for of_seed in of_method.values()))
    return {
        method: {seed: {r: of_seed[r] for r in sorted(common)} for seed, of_seed in of_method.items()}
        for method, of_method in found.items()
    }


def _read(file: Path) -> dict[int, float]:
    records = map(json.loads, file.read_text().splitlines())
    return {record["round"]: 100 * record["accuracy"]["mean"] for record in records}


def finals(study: Path) -> dict[str, dict[int, float]]:
    """The accuracy on all test samples after the last round, by method and seed; of the runs that have come to it."""
    return {
        method: {
            int(file.parent.name[5:]): 100 * json.loads(file.read_text())["final_accuracy"]["mean"]
            for file in sorted((study / place).glob("seed-*/summary.json"))
        }
        for method, place in PLACES.items()
    }


def lines(study: Path) -> list[str]:
    """The table, in Markdown."""
    found, last = curves(study), finals(study)
    seeds = sorted(found[OURS])
    rows = [
        f"| round | {OURS} (%) | {THEIRS} (%) | ahead, seeds {', '.join(map(str, seeds))} | ahead, mean with 95 % interval |"
    ]
    rows.append("|---|---|---|---|---|")
    shown = [r for r in found[OURS][seeds[0]] if r and r % EVERY == 0]
    rows += [_line(str(r), *({s: found[m][s][r] for s in seeds} for m in (OURS, THEIRS))) for r in shown]
    if all(set(of_method) == set(seeds) for of_method in last.values()):
        rows.append(_line("the last, all test images", last[OURS], last[THEIRS]))
    return rows


def _line(name: str, ours: dict[int, float], theirs: dict[int, float]) -> str:
    ahead = [ours[seed] - theirs[seed] for seed in sorted(ours)]
    means = [f"{Interval.of(list(values.values())).mean:.1f}" for values in (ours, theirs)]
    found = Interval.of(ahead)
    return f"| {name} | {' | '.join(means)} | {', '.join(f'{a:+.1f}' for a in ahead)} | {found.mean:+.1f} ± {found.half_width or 0:.1f} |"


def draw(study: Path, file: Path) -> None:
    """The accuracies of all seeds, and by how much one method is ahead."""
    from matplotlib.figure import Figure

    found = curves(study)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for method, of_method in found.items():
        for i, of_seed in enumerate(of_method.values()):
            left.plot(
                list(of_seed), list(of_seed.values()), color=COLOURS[method], alpha=0.7, label=None if i else method
            )
    left.set(xlabel="round", ylabel="accuracy (%), mean of the nodes", title="each seed")
    left.legend()
    _draw_ahead(right, found)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110, metadata={"Software": None})


def _draw_ahead(axes: Axes, found: Curves) -> None:
    seeds = sorted(found[OURS])
    rounds = [r for r in found[OURS][seeds[0]] if r]
    ahead = [[found[OURS][seed][r] - found[THEIRS][seed][r] for seed in seeds] for r in rounds]
    means = [Interval.of(values) for values in ahead]
    for i in range(len(seeds)):
        axes.plot(rounds, [values[i] for values in ahead], ".", color="grey", label=None if i else "each seed")
    halves = [one.half_width or 0.0 for one in means]
    axes.errorbar(
        rounds,
        [one.mean for one in means],
        halves,
        color=COLOURS[OURS],
        marker="o",
        markersize=4,
        capsize=3,
        label="mean, 95 %",
    )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel="round", ylabel=f"{OURS} ahead (points)", title="paired by seed")
    axes.legend()


def main(study: Path) -> None:
    """Print the table, and draw the picture into the study's directory."""
    print("\n".join(lines(study)))
    draw(study, study / "paired.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
