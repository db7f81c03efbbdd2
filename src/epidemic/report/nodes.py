"""Tables and figures of single nodes, from records that hold them (`eval.per_node = true`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epidemic.record import NodeNumbers, Record
from epidemic.report.style import BLUE, RED, new_figure, polish

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def values_of(found: NodeNumbers, what: str) -> list[float | None]:
    """The accuracies, losses or values of a metric, in the order of the nodes."""
    if what == "accuracy":
        return list(found.accuracy or ())
    return list(found.loss) if what == "loss" else found.metrics[what]


def rows_of(record: Record) -> list[dict[str, Any]]:
    """One table row for each node with values in a record."""
    found = record.per_node
    if found is None:
        return []
    when = {"round": record.round, **({} if record.time is None else {"seconds": record.time.seconds})}
    named: dict[str, list[Any]] = {"accuracy": found.accuracy or [None] * len(found.nodes), "loss": found.loss}
    named |= {f"metric.{name}": values for name, values in found.metrics.items()}
    return [
        {**when, "node": node, **{name: values[i] for name, values in named.items()}}
        for i, node in enumerate(found.nodes)
    ]


def nodes_figure(by_seed: Mapping[int, list[Record]], title: str, what: str, against: str) -> Figure:
    """A panel for each seed: a thin curve for each node, those that end lowest and highest named, and the mean over nodes.

    Args:
        by_seed: Records that hold single nodes.
        title: What is drawn.
        what: "accuracy", "loss" or the name of a metric.
        against: "rounds" or "seconds".
    """
    figure = new_figure(max(6.4, 4.9 * len(by_seed)), 4.6)
    factor = 100.0 if what == "accuracy" else 1.0
    panels = figure.subplots(1, len(by_seed), squeeze=False, sharey=True)[0]
    for axes, (seed, records) in zip(panels, by_seed.items(), strict=True):
        curves: dict[int, list[tuple[float, float]]] = {}
        means = []
        for record in records:
            found = record.per_node
            assert found is not None
            at = record.time.seconds if against == "seconds" and record.time is not None else float(record.round)
            known = {n: factor * v for n, v in zip(found.nodes, values_of(found, what), strict=True) if v is not None}
            for node, value in known.items():
                curves.setdefault(node, []).append((at, value))
            if known:
                means.append((at, sum(known.values()) / len(known)))
        last = sorted(curves, key=lambda node: curves[node][-1][1])
        for node in sorted(curves):
            axes.plot(*zip(*curves[node], strict=True), color="0.6", linewidth=0.7, alpha=0.6, zorder=1)
        for node, colour, place in zip(last[:1] + last[1:][-1:], (RED, BLUE), ("lowest", "highest"), strict=False):
            label = f"node {node} ({place} at the end)"
            axes.plot(*zip(*curves[node], strict=True), color=colour, linewidth=1.2, label=label)
        if means:
            axes.plot(*zip(*means, strict=True), color="black", linewidth=2, label="mean over nodes")
        across = "simulated time (s)" if against == "seconds" else "round"
        name = {"accuracy": "accuracy of each node (%)", "loss": "loss of each node"}.get(what, what)
        polish(axes, title if len(by_seed) == 1 else f"{title}, seed {seed}", across, name)
        axes.legend(frameon=False, fontsize=8)
    return figure
