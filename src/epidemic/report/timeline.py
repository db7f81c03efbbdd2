"""A timeline: a lane for each node with training, sending and absence, and the trips of messages as thin lines.

A pure function of what a clock has recorded (`simulator/trace.py`): seconds go in, a figure comes out. In a lane, the upper part is the processor and the
strip below it the uplink, because both may be busy at once. What is neither training nor offline is waiting.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from epidemic.core.graph import FloatArray, IntArray
from epidemic.core.rng import Streams
from epidemic.experiment import Experiment
from epidemic.report.style import BLUE, ORANGE, RED, SKY, new_figure
from epidemic.runtime.plan import plan_round
from epidemic.simulator.trace import Span, Trip

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KINDS: dict[str, tuple[str, float, float]] = {  # colour, and which part of the lane: from, height
    "waiting": ("#E8EDF2", 0.0, 0.62),
    "training": (SKY, 0.0, 0.62),
    "sending": (ORANGE, 0.62, 0.2),
    "offline": ("#8C8C8C", 0.0, 0.82),
}
FATES: dict[str, tuple[str, Any]] = {"arrived": ("0.15", "-"), "lost": (RED, (0, (3, 2)))}
"""What became of a message: colour and dashes."""

LANES = 60
"""Number of nodes shown by default."""
TRAININGS = 8
"""By default the picture ends when the median node has completed so many trainings."""
FEW_LINES, MANY_LINES = 150, 4000
"""Messages from which on their lines grow paler, and as many as are drawn: more would be one grey area."""


@dataclass(frozen=True)
class TimelineChart:
    """The part of a timeline that is drawn: the first nodes and seconds."""

    nodes: int
    seconds: float
    spans: list[Span]
    trips: list[Trip]

    @staticmethod
    def of(spans: Iterable[Span], trips: Iterable[Trip], *, nodes: int, seconds: float) -> TimelineChart:
        """The recorded spans of these nodes in this time, and the messages between them."""
        kept = [
            replace(span, end=min(span.end, seconds)) for span in spans if span.node < nodes and span.start < seconds
        ]
        flown = [t for t in trips if max(t.sender, t.receiver) < nodes and t.left < seconds]
        return TimelineChart(nodes, seconds, kept, flown)

    def shares(self) -> dict[str, float]:
        """The shares of the nodes' time by activity; sending is concurrent with the others, which sum to 1."""
        total = self.nodes * self.seconds
        spent = {kind: sum(s.end - s.start for s in self.spans if s.kind == kind) / total for kind in KINDS}
        return {**spent, "waiting": max(0.0, 1.0 - spent["training"] - spent["offline"])}


def enough(spans: Sequence[Span], nodes: int) -> float | None:
    """When the median of these nodes has ended its `TRAININGS`-th training; None if it never did."""
    ends: list[list[float]] = [[] for _ in range(nodes)]
    for span in spans:
        if span.kind == "training" and span.node < nodes:
            ends[span.node].append(span.end)
    times = sorted(sorted(mine)[TRAININGS - 1] if len(mine) >= TRAININGS else float("inf") for mine in ends)
    found = median(times) if times else float("inf")
    return found if found < float("inf") else None


def timeline_figure(line: TimelineChart, title: str) -> Figure:
    """The picture: lanes from top to bottom, time from left to right."""
    from matplotlib.patches import Patch

    tall = 0.34 if line.nodes <= 20 else 0.2 if line.nodes <= 40 else 0.155
    figure = new_figure(12.0, min(1.5 + tall * max(line.nodes, 4), 24.0))
    axes = figure.subplots()
    for node in range(line.nodes):
        _bars(axes, node, [(0.0, line.seconds)], "waiting")
    by_lane = sorted(line.spans, key=lambda s: (list(KINDS).index(s.kind), s.node))
    for (kind, node), spans in itertools.groupby(by_lane, key=lambda s: (s.kind, s.node)):
        _bars(axes, node, [(s.start, s.end - s.start) for s in spans], kind)
    drawn = _messages(axes, line)
    every = 1 if line.nodes <= 24 else 5 if line.nodes <= 70 else 10
    axes.set_yticks(
        [node + 0.41 for node in range(0, line.nodes, every)], [str(i) for i in range(0, line.nodes, every)]
    )
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, line.seconds)
    axes.set_ylim(line.nodes, -0.18)
    axes.set_xlabel("simulated time (s)")
    axes.set_ylabel("node")
    axes.set_title(title, fontsize=11, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    share = line.shares()
    keys: list[Any] = [
        Patch(color=KINDS[kind][0], label=f"{kind} {100 * share[kind]:.0f} %")
        for kind in ("training", "waiting", "sending", "offline")
        if share[kind] > 0 or kind != "offline"
    ]
    figure.legend(handles=[*keys, *drawn], loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def _bars(axes: Any, node: int, pieces: Sequence[tuple[float, float]], kind: str) -> None:
    colour, start, height = KINDS[kind]
    # a fine gap tells one training from the next
    edge = {"edgecolor": "white", "linewidth": 0.5} if kind in ("training", "sending") else {"linewidth": 0}
    level = 1 if kind == "waiting" else 2
    axes.broken_barh(pieces, (node + start, height), facecolors=colour, zorder=level, **edge)


def _messages(axes: Any, line: TimelineChart) -> list[Any]:
    """Thin lines from the sender's uplink to the receiver's lane; what their looks mean."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    step = -(-len(line.trips) // MANY_LINES) or 1
    shown = line.trips[::step]
    pale = max(0.15, min(0.8, 0.8 * (FEW_LINES / max(len(shown), 1)) ** 0.5))
    keys = []
    for fate, (colour, dashes) in FATES.items():
        mine = [[(t.left, t.sender + 0.72), (t.arrived, t.receiver + 0.31)] for t in shown if t.fate == fate]
        if not mine:
            continue
        alpha = pale if fate == "arrived" else min(1.0, 2 * pale)
        axes.add_collection(
            LineCollection(
                mine,
                colors=colour,
                linewidths=0.5,
                linestyles=[dashes],
                alpha=alpha,
                zorder=3,
            )
        )
        if len(shown) <= 3 * FEW_LINES:  # where it came
            axes.scatter(*zip(*(ends[1] for ends in mine), strict=True), s=4, color=colour, linewidth=0, zorder=4)
        count = sum(t.fate == fate for t in line.trips)
        some = f", one of {step} drawn" if step > 1 else ""
        label = f"message{'' if count == 1 else 's'}{' lost' if fate == 'lost' else ''} ({count:,}{some})"
        keys.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=0.9, label=label))
    return keys


# -- How what one node knows spreads: whose model contains something of node 0's first model after 1, 2, 3, ... rounds --
# Nothing is trained. The share that node 0's first model has in every other model follows from the graphs of the rounds alone: it is column 0 of the
# product of their weights, W(t-1) ... W(1) W(0).


DRAWN_NODES = 300
"""More nodes than so many are not drawn one by one."""
DRAWN_METHODS = 4
ROUNDS = (0, 1, 2, 3, 4, 6, 10)
"""After how many rounds the network is shown."""


@dataclass(frozen=True, eq=False)
class FollowedModel:
    """Where the first model of node 0 has got to under one method."""

    name: str
    shares: tuple[FloatArray, ...]
    """After 0, 1, 2, ... rounds: the share of node 0's first model in each model.   # (n,) each"""
    links: tuple[tuple[IntArray, IntArray], ...]
    """Of each round, the messages that carried something of it: senders and receivers.   # (m,) each"""

    def reached(self, rounds: int) -> int:
        """How many models contain something of node 0's after so many rounds, its own among them."""
        return int((self.shares[rounds] > 0).sum())


def spread_of(name: str, experiment: Experiment, rounds: int) -> FollowedModel:
    """Follow node 0's first model through the graphs of an experiment's first seed.

    Args:
        name: What the method is called in the figure.
        experiment: Topology, faults, participation and mixing rule decide; nothing is trained.
        rounds: How many rounds to follow it.
    """
    streams, n = Streams(experiment.seeds[0]), experiment.nodes
    share = np.zeros(n)
    share[0] = 1.0
    shares, links = [share], []
    for t in range(rounds):
        plan = plan_round(experiment, streams, t, np.ones(n, dtype=np.int64))
        arrived = plan.delivery.graph.explicit()
        carries = share[arrived.senders] > 0
        links.append((arrived.senders[carries], arrived.receivers[carries]))
        share = plan.weights @ share[:, None]
        share = np.asarray(share)[:, 0]
        shares.append(share)
    return FollowedModel(name, tuple(shares), tuple(links))


def spreads_of(methods: Mapping[str, Experiment]) -> list[FollowedModel]:
    """Those methods that a picture can show: with rounds, few enough nodes, and one graph for the whole model.

    Complete networks are left out: there is nothing to see after one round.
    """
    found: list[FollowedModel] = []
    for name, experiment in methods.items():
        if len(found) == DRAWN_METHODS or experiment.free is not None or experiment.nodes > DRAWN_NODES:
            continue
        plan = plan_round(experiment, Streams(experiment.seeds[0]), 0, np.ones(experiment.nodes, dtype=np.int64))
        if plan.delivery.intended.clique is None and not plan.further:
            found.append(spread_of(name, experiment, min(max(ROUNDS), experiment.rounds)))
    return found


def spreading_figure(spreads: Sequence[FollowedModel]) -> Figure:
    """A strip of pictures for each method: nodes on a circle, the darker the more of node 0's first model theirs contains."""
    rounds = [t for t in ROUNDS if t < len(spreads[0].shares)]
    figure = new_figure(2.0 * len(rounds) + 1.2, 2.35 * len(spreads) + 0.5)
    for row, (spread, panels) in enumerate(
        zip(spreads, figure.subplots(len(spreads), len(rounds), squeeze=False), strict=True)
    ):
        for axes, t in zip(panels, rounds, strict=True):
            _draw(axes, spread, t)
            if row == 0:
                axes.set_title(
                    "at the start" if t == 0 else f"after {t} {'round' if t == 1 else 'rounds'}", fontsize=10
                )
        panels[0].set_ylabel(spread.name, fontsize=11, fontweight="bold")
    figure.suptitle("Whose model contains something of what one node knew at the start", fontsize=12, x=0.01, ha="left")
    return figure


def _draw(axes: Any, spread: FollowedModel, t: int) -> None:
    share = spread.shares[t]
    n = len(share)
    angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    x, y = np.cos(angle), np.sin(angle)
    if t:
        senders, receivers = spread.links[t - 1]
        axes.plot(
            np.stack([x[senders], x[receivers]]), np.stack([y[senders], y[receivers]]),
            color=BLUE, alpha=min(0.5, 12 / max(1, len(senders))), linewidth=0.8, zorder=1,
        )  # fmt: skip
    reached = share > 0
    size = 900 / n
    axes.scatter(x[~reached], y[~reached], s=size, facecolor="white", edgecolor="0.75", linewidth=0.6, zorder=2)
    axes.scatter(
        x[reached], y[reached], s=2.2 * size, color=BLUE, alpha=_strength(share[reached], n), linewidth=0, zorder=3
    )
    axes.scatter(x[:1], y[:1], s=3.4 * size, facecolor="none", edgecolor="black", linewidth=1.0, zorder=4)
    axes.text(0, 0, f"{spread.reached(t)}", ha="center", va="bottom", fontsize=13, fontweight="bold", zorder=5)
    axes.text(0, -0.05, f"of {n} nodes", ha="center", va="top", fontsize=8, color="0.35", zorder=5)
    axes.set(xlim=(-1.12, 1.12), ylim=(-1.12, 1.12), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _strength(share: FloatArray, n: int) -> FloatArray:
    """How dark a node is: full from an equal share, 1 / n, on; lighter by the logarithm below it."""
    return np.clip(1 + 0.2 * np.log2(np.minimum(1.0, n * share)), 0.25, 1.0)
