"""Pictures of topologies: the graph of a round, and how fast disagreement decays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from epidemic.core.graph import Graph
from epidemic.measure import TopologyReport
from epidemic.report.style import line, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN_NODES = 300
"""Beyond this many nodes the links are not drawn one by one; degrees are shown instead."""

FLOOR = 1e-14
"""Where the disagreement axis ends."""


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
    axes.set_title(f"{kind}, {graph.n} nodes, round 0: every node receives {heard}", fontsize=11, loc="left")


def _draw_degrees(axes: Any, graph: Graph, kind: str) -> None:
    count = np.bincount(graph.in_degree)
    axes.bar(np.arange(len(count)), count, color=line(kind)["color"])
    polish(axes, f"{kind}, {graph.n} nodes, round 0", "models received", "nodes")


def _reference(reports: list[TopologyReport]) -> TopologyReport:
    """The topology whose cost sets the scale: EL-Local, which exists wherever any random one does."""
    return next((r for r in reports if r.kind == "el-local"), reports[0])
