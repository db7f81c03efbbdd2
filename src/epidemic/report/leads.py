"""A figure of many methods beside one: by how much each is ahead at equal rounds and at equal bytes, and what its mixing leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from epidemic.measure import FoundFloors
from epidemic.report.statistics import Interval
from epidemic.report.style import BLUE, GREEN, GREY, RED, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALLEST, LARGEST = 1e-2, 1e2
"""Floors beyond these are drawn at the edge, and written out."""
REACH = 30.0
"""Leads of more points than this are drawn at the edge, as triangles, and written out."""


class MethodLead(msgspec.Struct, frozen=True):
    """A method: its leads in percentage points, and its floors."""

    name: str
    at_equal_rounds: Interval
    at_equal_bytes: Interval
    floors: FoundFloors


def leads_figure(
    entries: Sequence[MethodLead], titles: tuple[str, str, str], baseline: str, own: FoundFloors
) -> Figure:
    """Three panels with a line for each method: two of leads over the baseline with their intervals, one of floors.

    Green is ahead, red behind, grey where the interval has zero in it or there is none.
    """
    figure = new_figure(14.5, 1.6 + 0.27 * len(entries))
    rounds, traffic, floors = figure.subplots(1, 3, sharey=True, width_ratios=(4, 4, 3))
    for i, entry in enumerate(entries):
        _lead(rounds, i, entry.at_equal_rounds)
        _lead(traffic, i, entry.at_equal_bytes)
        for value, colour, marker in ((entry.floors.noise, GREY, "o"), (entry.floors.bias, BLUE, "D")):
            floors.plot(min(max(value, SMALLEST), LARGEST), i, marker, color=colour, markersize=5)
        if not SMALLEST <= entry.floors.bias <= LARGEST:
            small = entry.floors.bias < SMALLEST
            words, side = f"{entry.floors.bias:.3g}".replace("inf", "∞"), "left" if small else "right"
            floors.annotate(
                words, (1.3 * SMALLEST if small else LARGEST / 1.3, i), ha=side, va="center", fontsize=8, color=BLUE
            )
    for axes, title in zip((rounds, traffic), titles, strict=False):
        axes.axvline(0, color="0.4", linewidth=0.9)
        axes.set_xlim(-REACH, REACH)
        polish(axes, title, f"points ahead of {baseline}", "")
    floors.set_xscale("log")
    floors.axvline(own.noise, color=GREY, linewidth=0.9, linestyle=":")
    floors.axvline(own.bias, color=BLUE, linewidth=0.9, linestyle=":")
    floors.plot([], [], "o", color=GREY, label="noise floor F_N")
    floors.plot([], [], "D", color=BLUE, label="bias floor F_B")
    polish(floors, titles[2], f"log; dotted: {baseline}", "")
    floors.legend(frameon=False, fontsize=8, loc="center right")
    rounds.set_yticks(range(len(entries)), [entry.name for entry in entries], fontsize=9)
    rounds.invert_yaxis()
    return figure


def _lead(axes: Any, place: int, found: Interval) -> None:
    if math.isnan(found.mean):
        return
    half = found.half_width
    sure = half is not None and abs(found.mean) > half
    colour = GREY if not sure else GREEN if found.mean > 0 else RED
    if abs(found.mean) > REACH:
        side = math.copysign(1, found.mean)
        axes.plot(0.97 * side * REACH, place, ">" if side > 0 else "<", color=colour, markersize=6)
        axes.annotate(f"{found.mean:+.0f}", (0.94 * side * REACH, place), ha="right" if side > 0 else "left", va="center", fontsize=8, color=colour)  # fmt: skip
        return
    axes.errorbar(found.mean, place, xerr=half, fmt="o", color=colour, markersize=5, capsize=2.5, elinewidth=1.2)
