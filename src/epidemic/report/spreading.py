"""How what one node knows spreads: whose model contains something of node 0's first model after 1, 2, 3, ... rounds.

Nothing is trained. The share that node 0's first model has in every other model follows from the graphs of the rounds alone: it is column 0 of the
product of their weights, W(t-1) ... W(1) W(0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from epidemic.core.graph import FloatArray, IntArray
from epidemic.core.rng import Streams
from epidemic.experiment import Experiment
from epidemic.report.style import BLUE, new_figure
from epidemic.runtime.plan import plan_round

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """Those of the methods that a picture can show: in rounds, of few enough nodes, one graph for the whole model.

    Networks in which everybody hears everybody are left out: after one round there is nothing more to see.
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
                axes.set_title("at the start" if t == 0 else f"after {t} round{'s' * (t > 1)}", fontsize=10)
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
