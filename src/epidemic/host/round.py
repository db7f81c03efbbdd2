"""What is decided about a round before anything is computed: the same on whatever host decides it.

Nothing here depends on which nodes are hosted, on models or on time, so a simulator and a deployed node plan alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from epidemic.experiment import Experiment
from epidemic.faults import Delivery
from epidemic.graph import IntArray
from epidemic.host.batches import Batches
from epidemic.mixing import Weights, weights
from epidemic.rng import Streams

__all__ = ["Batches", "Plan", "plan_round"]


@dataclass(frozen=True, eq=False)
class Plan:
    """The messages of a round, what happens to them, and how much each voice counts."""

    round: int
    delivery: Delivery
    weights: Weights
    returning: IntArray  # nodes that come back and take a model ...
    donors: IntArray  # ... from these


def plan_round(experiment: Experiment, streams: Streams, round: int) -> Plan:
    """Decide round `round`."""
    n = experiment.nodes
    intended = experiment.topology.graph(n, round, streams)
    delivery = experiment.faults.deliver(intended, round, streams)
    w = weights(experiment.mixing_rule, intended, delivery.graph)
    return Plan(round, delivery, w, *experiment.faults.adoptions(n, round, streams))
