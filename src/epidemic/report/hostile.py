"""The picture of `epidemic theory hostile`: how the risk of a run falls with the number of models that a node receives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from epidemic import theory
from epidemic.report.palette import LineStyle
from epidemic.report.style import line_of, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3)
LOWEST = 1e-9
"""Where the axis of risk ends."""
MOST_S = 400
"""Where the axis of s ends at the latest."""


def several(nodes: int, malicious: int) -> list[int]:
    """Numbers of malicious nodes to compare: the one that is asked for among usual shares of the nodes, ascending."""
    usual = [round(share * nodes) for share in SHARES]
    far = [b for b in usual if b >= 1 and not malicious / 1.3 < b < 1.3 * malicious]
    return sorted({malicious, *far})


def risk_figure(nodes: int, malicious: Sequence[int], rounds: int, risk: float, marked: int) -> Figure:
    """The risk of a run against s, and how much of EL-Local aggregates, for several numbers of malicious nodes."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    ends = [theory.smallest_s(nodes, b, rounds, risk) or nodes - 1 for b in malicious]
    last = min(nodes - 1, MOST_S, max(ends) + 4)
    for i, b in enumerate(malicious):
        look: dict[str, Any] = line_of(LineStyle(place=i / max(len(malicious) - 1, 1)))
        look["linewidth"] = 2.8 if b == marked else 1.6
        label = f"b = {b:,} ({b / nodes:.0%})"
        s, chance = _risks(nodes, b, rounds, last)
        left.semilogy(s, np.maximum(chance, LOWEST / 100), label=label, marker="o", markersize=3, **look)
        steps = np.unique(np.linspace(1, last, min(last, 60)).astype(int))
        shares = [_anything(nodes, b, int(x), rounds, risk) for x in steps]
        right.plot(steps, shares, label=label, marker="o", markersize=3, **look)
    left.axhline(risk, color="0.4", linestyle=":", linewidth=1.2, label=f"risk {risk:g}")
    left.set_ylim(LOWEST, 2)
    polish(
        left,
        f"Risk of {rounds:,} rounds with f = s / 2",
        "s, models received (even)",
        "probability of a bad node-round",
    )
    right.axhline(theory.promises.ENOUGH, color="0.4", linestyle=":", linewidth=1.2)
    right.set_ylim(0, 1.03)
    polish(
        right, f"EL-Local with f by models received, risk {risk:g}", "s, models sent", "node-rounds that can aggregate"
    )
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside right center", frameon=False, title=f"of {nodes:,} nodes"
    )
    return figure


def _anything(n: int, b: int, s: int, rounds: int, risk: float) -> float:
    """Share of EL-Local's node-rounds that aggregate more than their own model."""
    return theory.aggregating_local(n, b, s, rounds, risk) - theory.p_empty_inbox(n, s)


def _risks(n: int, b: int, rounds: int, last: int) -> tuple[list[int], list[float]]:
    """Risk of pull and EL-Oracle by s with the largest f, s / 2; it ends where it is 0 or leaves the picture."""
    s, chance = [], []
    for even in range(2, last + 1, 2 * math.ceil(last / 200)):
        s.append(even)
        chance.append(theory.p_some_bad(n, b, even, rounds, even // 2))
        if chance[-1] < LOWEST:
            break
    return s, chance
