"""Pictures of topologies: the graph of a round, how fast disagreement decays, and how the risk of malicious models falls with their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from epidemic import theory
from epidemic.core.formatting import count
from epidemic.core.graph import Graph
from epidemic.measure import TopologyReport
from epidemic.report.palette import LineStyle
from epidemic.report.style import line, line_of, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DRAWN_NODES = 300
"""Beyond this many nodes the links are not drawn one by one; degrees are shown instead."""

FLOOR = 1e-14
"""The lower end of the disagreement axis."""


def topology_figure(report: TopologyReport, graph: Graph) -> Figure:
    """The graph of the first round beside the decay of disagreement."""
    figure = new_figure(10.5, 4.8)
    left, right = figure.subplots(1, 2)
    if graph.n <= DRAWN_NODES:
        _draw_graph(left, graph, report.kind)
    else:
        _draw_degrees(left, graph, report.kind)
    _decay(right, [report], lambda r: np.arange(len(r.disagreement)))
    if report.contraction_predicted is not None and 0 < report.contraction_predicted < 1:
        t = np.arange(len(report.disagreement))
        right.semilogy(t, report.contraction_predicted**t, color="0.3", linestyle=":", label="predicted rate")
    polish(right, "Disagreement when models only average", "round", "D(X), relative to the start")
    if not report.disagreement:  # a single node has nobody to disagree with
        return figure
    right.set_xlim(0, next((t for t, d in enumerate(report.disagreement) if d < FLOOR), report.rounds))
    right.legend(frameon=False)
    return figure


def comparison_figure(reports: list[TopologyReport]) -> Figure:
    """All topologies: disagreement against rounds, and against what they cost."""
    figure = new_figure(12, 5.2)
    left, right = figure.subplots(1, 2, sharey=True)
    _decay(left, reports, lambda r: np.arange(len(r.disagreement)))
    polish(left, f"By rounds (n = {reports[0].nodes})", "round", "disagreement D(X), relative to the start")
    _decay(right, reports, lambda r: np.arange(len(r.disagreement)) * r.messages_per_node, drawstyle="steps-post")
    polish(right, "By cost", "models sent per node", "")
    right.set_xlim(0, 2.4 * _cost_to_agree(_reference(reports)))
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure


def _cost_to_agree(report: TopologyReport) -> float:
    """Models sent per node until the disagreement leaves the picture."""
    rounds = next((t for t, d in enumerate(report.disagreement) if d < FLOOR), len(report.disagreement) - 1)
    return max(rounds * report.messages_per_node, 1)


def _decay(axes: Any, reports: list[TopologyReport], x: Any, **options: Any) -> None:
    for report in reports:
        y = np.array(report.disagreement)
        if not len(y):
            continue
        shown = np.maximum(y, FLOOR / 10)  # exact agreement leaves the picture at the bottom
        axes.semilogy(x(report), shown, label=report.kind, **line(report.kind), **options)
    axes.set_ylim(FLOOR, 2)


def _draw_graph(axes: Any, graph: Graph, kind: str) -> None:
    from matplotlib.collections import LineCollection

    graph = graph.explicit()
    angle = 2 * math.pi * np.arange(graph.n) / graph.n
    place = np.column_stack([np.sin(angle), np.cos(angle)])
    segments = np.stack([place[graph.senders], place[graph.receivers]], axis=1)
    fade = float(np.clip(150 / max(graph.messages, 1), 0.04, 0.5))
    axes.add_collection(LineCollection(list(segments), colors=line(kind)["color"], linewidths=0.8, alpha=fade))
    axes.scatter(*place.T, s=float(np.clip(900 / graph.n, 6, 60)), c=graph.in_degree, cmap="viridis", zorder=2)
    axes.set_aspect("equal")
    axes.set_axis_off()
    degree = graph.in_degree
    heard = f"{degree.min()}" if degree.min() == degree.max() else f"{degree.min()} to {degree.max()}"
    axes.set_title(f"{kind}, {count(graph.n, 'node')}, round 0: every node receives {heard}", fontsize=11, loc="left")


def _draw_degrees(axes: Any, graph: Graph, kind: str) -> None:
    having = np.bincount(graph.in_degree)
    axes.bar(np.arange(len(having)), having, color=line(kind)["color"])
    polish(axes, f"{kind}, {count(graph.n, 'node')}, round 0", "models received", "nodes")


def _reference(reports: list[TopologyReport]) -> TopologyReport:
    """The topology whose cost sets the scale: EL-Local, which exists whenever any random one does."""
    return next((r for r in reports if r.kind == "el-local"), reports[0])


# -- The picture of `epidemic theory hostile`: how the risk of a run falls with the number of models that a node receives --


SHARES = (0.02, 0.05, 0.1, 0.2, 0.3)
LOWEST = 1e-9
"""The lower end of the axis of risk."""
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
