"""The decisions about a round before anything is computed.

Nothing here depends on which nodes are hosted, on models or on time, so a simulator and a deployed node plan alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epidemic.aggregation import made
from epidemic.core.errors import BadInput
from epidemic.core.graph import FloatArray, Graph, IntArray
from epidemic.core.rng import Stream, Streams
from epidemic.experiment import Experiment, said_of
from epidemic.faults import Delivery, Reach
from epidemic.mixing import Weights, weights
from epidemic.peer_sampling import Control
from epidemic.protocol.closing_rules import Close
from epidemic.protocol.commitment import draw_key
from epidemic.topology import ELLocal, control, fragments_of, is_static, require_keyed

LOOKED_AT = 4
"""Rounds inspected to see how many models nodes receive."""


@dataclass(frozen=True, eq=False)
class Passage:
    """The graph and weights of one part of the models."""

    delivery: Delivery
    weights: Weights


@dataclass(frozen=True, eq=False)
class Plan:
    """The messages of a round, the faults, and the weights."""

    round: int
    delivery: Delivery
    weights: Weights
    returning: IntArray  # nodes that take another node's model before they train ...
    donors: IntArray  # ... and the donors
    control: Control | None = None  # messages that nodes send to find peers
    further: tuple[Passage, ...] = ()
    """If each part of the models has its own graph: the passages of all parts but the first."""

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages of all parts."""
        return (Passage(self.delivery, self.weights), *self.further)


def intended_graph(experiment: Experiment, streams: Streams, round: int, part: int = 0) -> Graph:
    """The intended graph of a round, before faults; `part`: of the models, if parts go separate ways."""
    reach = Reach.of(experiment.faults, experiment.nodes, streams)
    return experiment.participation.graph(experiment.topology, experiment.nodes, round, streams, reach, part)


def plan_round(experiment: Experiment, streams: Streams, round: int, samples: IntArray | None = None) -> Plan:
    """Plan a round with all its faults, for a host of all nodes.

    `samples`: training samples of each node, if aggregation weights depend on them.   # (n,)
    """
    first, *further = (
        _passage(experiment, streams, round, samples, part) for part in range(fragments_of(experiment.topology))
    )
    n = experiment.nodes
    adoptions = experiment.participation.adoptions(experiment.faults, n, round, streams)
    asked = control(experiment.topology, n, round, streams, Reach.of(experiment.faults, n, streams))
    return Plan(round, first.delivery, first.weights, *adoptions, asked, tuple(further))


def check_first_round(experiment: Experiment) -> None:
    """Raise BadInput if a round cannot be planned: graphs that cannot be drawn or are not reproducible, or weights that do not fit them."""
    streams = Streams(experiment.seeds[0])
    require_keyed(experiment.topology, lambda: intended_graph(experiment, streams, 0))
    if experiment.free is None:
        plan_round(experiment, streams, 0, np.ones(experiment.nodes, dtype=np.int64))
    _check_inputs(experiment)


def share_of_few(experiment: Experiment, seed: int) -> tuple[float, int]:
    """Over the first rounds: (share of aggregates with too few models, most models that any node gets); (0, 0) if unknown."""
    rule = made(experiment.aggregation)
    if rule.linear or rule.fewest <= 1 or (experiment.free is not None and not is_static(experiment.topology)):
        return 0.0, 0
    found, streams = [], Streams(seed)
    for round in range(1 if is_static(experiment.topology) else LOOKED_AT):
        if experiment.free is not None:
            found.append(1 + intended_graph(experiment, streams, round).in_degree)
            continue
        plan = plan_round(experiment, streams, round, np.ones(experiment.nodes, dtype=np.int64))
        found += [1 + one.delivery.graph.in_degree[one.delivery.alive] for one in plan.passages]
    inputs = np.concatenate(found)
    return float((inputs < rule.fewest).mean()), int(inputs.max(initial=0))


def _check_inputs(experiment: Experiment) -> None:
    """Refuse an aggregator for which no node ever has enough models."""
    share, most = share_of_few(experiment, experiment.seeds[0])
    if share == 1:
        raise BadInput(
            f"{said_of(experiment)} needs {made(experiment.aggregation).fewest} models, and no node has more than {most} here, its own included:"
            " all would keep their own; let nodes receive more models (topology.s), or trim fewer"
        )


def _passage(experiment: Experiment, streams: Streams, round: int, samples: IntArray | None, part: int) -> Passage:
    intended = intended_graph(experiment, streams, round, part)
    absence = experiment.participation.absence(experiment.nodes, round, streams)
    delivery = experiment.faults.deliver(intended, round, streams, absence, part)
    return Passage(delivery, weights(experiment.mixing_rule, intended, delivery.graph, samples))


@dataclass(frozen=True, eq=False)
class RoundView:
    """A round as one deployed node knows it in advance."""

    round: int
    intended: Graph | None  # None if each node draws its own targets: nobody knows the graph
    digest: bytes  # of the graph, 8 bytes; with a committed coin, the link that gives the targets
    targets: tuple[int, ...]  # node ids that it sends to
    expected: frozenset[int] | None  # in-neighbours; None: unknown

    @property
    def complete(self) -> bool:
        """Whether all nodes are meant to receive from all others, as far as known."""
        return self.intended is not None and self.intended.clique is not None


def view_of(graph: Graph, round: int, node_id: int, *, private: bool = False) -> RoundView:
    """One node's view of a round's graph; with a private coin the graph is its own secret."""
    targets = tuple(graph.out_of(node_id).tolist())
    if private:
        return RoundView(round, None, bytes(8), targets, None)
    return RoundView(round, graph, bytes.fromhex(graph.digest()), targets, frozenset(graph.into(node_id).tolist()))


def committed_targets(experiment: Experiment, node: int, round: int, link: bytes) -> tuple[int, ...]:
    """The targets of a node in a round whose message reveals this link of its chain (`network.coin = "committed"`)."""
    topology = experiment.topology
    assert isinstance(topology, ELLocal)
    return topology.targets_of(experiment.nodes, node, Stream(draw_key(link, experiment.seeds[0], round)))


def weights_by_age(close: Close, ages: Sequence[int]) -> FloatArray:
    """The weights of messages of which some are of earlier rounds, own weight first.   # (1 + h,)

    Args:
        close: The closing rule, which sets the weight of late messages.
        ages: How many rounds old each message is.
    """
    counts = np.array([1.0, *map(close.weight_at, ages)])
    return np.asarray(counts / counts.sum())


def shares(
    experiment: Experiment, view: RoundView, node_id: int, senders: list[int], samples: Sequence[int] = ()
) -> FloatArray:
    """The weights for one node that received messages from `senders` (ascending), own weight first.   # (1 + h,)

    `samples`: training samples by node, own first, if weights depend on them.
    """
    if experiment.mixing_rule == "uniform":
        return np.full(1 + len(senders), 1 / (1 + len(senders)))
    samples_of_all: IntArray | None = None
    if experiment.mixing_rule == "samples":
        told = np.array(samples, dtype=np.int64)
        if view.complete:
            return np.asarray(told / told.sum())
        samples_of_all = np.ones(experiment.nodes, dtype=np.int64)
        samples_of_all[[node_id, *senders]] = told
    arrived = Graph.from_edges(experiment.nodes, np.array(senders, dtype=np.int64), np.full(len(senders), node_id))
    intended = arrived if view.intended is None else view.intended
    matrix = weights(experiment.mixing_rule, intended, arrived, samples_of_all).matrix
    assert matrix is not None
    found: FloatArray = matrix.data[matrix.indptr[node_id] : matrix.indptr[node_id + 1]]
    return found
