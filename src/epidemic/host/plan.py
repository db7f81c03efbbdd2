"""What is decided about a round before anything is computed: the same on whatever host decides it.

Nothing here depends on which nodes are hosted, on models or on time, so a simulator and a deployed node plan alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epidemic.experiment import Experiment
from epidemic.faults import Delivery
from epidemic.graph import FloatArray, Graph, IntArray
from epidemic.mixing import Weights, weights
from epidemic.rng import Streams


@dataclass(frozen=True, eq=False)
class Plan:
    """The messages of a round, what happens to them, and how much each voice counts."""

    round: int
    delivery: Delivery
    weights: Weights
    returning: IntArray  # nodes that come back and take a model ...
    donors: IntArray  # ... from these


def intended_graph(experiment: Experiment, streams: Streams, round: int) -> Graph:
    """Who means to send to whom in this round."""
    graph: Graph = experiment.topology.graph(experiment.nodes, round, streams)
    return graph


def plan_round(experiment: Experiment, streams: Streams, round: int, samples: IntArray | None = None) -> Plan:
    """Decide round `round` with everything that goes wrong in it, for a host of all nodes.

    `samples`: how many training samples each has, for voices that count by it.   # (n,)
    """
    n = experiment.nodes
    intended = intended_graph(experiment, streams, round)
    delivery = experiment.faults.deliver(intended, round, streams)
    w = weights(experiment.mixing_rule, intended, delivery.graph, samples)
    return Plan(round, delivery, w, *experiment.faults.adoptions(n, round, streams))


@dataclass(frozen=True, eq=False)
class View:
    """A round, as one deployed node sees it before it happens."""

    round: int
    intended: Graph | None  # None with a private coin: nobody knows it
    digest: bytes  # of the graph, 8 bytes
    targets: tuple[int, ...]  # whom it sends to
    expected: frozenset[int] | None  # whom it hears; None: not known

    @property
    def complete(self) -> bool:
        """Whether everybody is meant to hear everybody, as far as that is known."""
        return self.intended is not None and self.intended.clique is not None


def view_of(graph: Graph, round: int, place: int, *, private: bool = False) -> View:
    """What a round's graph has in store for one place; with a private coin the graph is its own secret, and nobody else knows."""
    targets = tuple(graph.out_of(place).tolist())
    if private:
        return View(round, None, bytes(8), targets, None)
    return View(round, graph, bytes.fromhex(graph.digest()), targets, frozenset(graph.into(place).tolist()))


def shares(
    experiment: Experiment, view: View, place: int, senders: list[int], samples: Sequence[int] = ()
) -> FloatArray:
    """How much each voice counts for one node that heard these (ascending), its own first.   # (1 + h,)

    `samples`: how many training samples each voice has, its own first, where they count by it.
    """
    if experiment.mixing_rule == "uniform":
        return np.full(1 + len(senders), 1 / (1 + len(senders)))
    everyones: IntArray | None = None
    if experiment.mixing_rule == "samples":
        told = np.array(samples, dtype=np.int64)
        if view.complete:
            return np.asarray(told / told.sum())
        everyones = np.ones(experiment.nodes, dtype=np.int64)
        everyones[[place, *senders]] = told
    arrived = Graph.from_edges(experiment.nodes, np.array(senders, dtype=np.int64), np.full(len(senders), place))
    intended = arrived if view.intended is None else view.intended
    matrix = weights(experiment.mixing_rule, intended, arrived, everyones).matrix
    assert matrix is not None
    found: FloatArray = matrix.data[matrix.indptr[place] : matrix.indptr[place + 1]]
    return found
