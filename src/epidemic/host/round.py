"""What is decided about a round before anything is computed: the same on whatever host decides it.

Nothing here depends on which nodes are hosted, on models or on time, so a simulator and a deployed node plan alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epidemic.experiment import Experiment
from epidemic.faults import Delivery
from epidemic.graph import IntArray
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


def plan_round(experiment: Experiment, streams: Streams, round: int) -> Plan:
    """Decide round `round`."""
    n = experiment.nodes
    intended = experiment.topology.graph(n, round, streams)
    delivery = experiment.faults.deliver(intended, round, streams)
    w = weights(experiment.mixing_rule, intended, delivery.graph)
    return Plan(round, delivery, w, *experiment.faults.adoptions(n, round, streams))


class Batches:
    """Which samples the hosted nodes train on: uniformly with replacement from their own.

    One array of uniforms for all nodes and index = floor(u * size): whoever hosts a node draws the same, without
    knowing the sizes of the others.
    """

    def __init__(
        self, parts: list[NDArray[np.int64]], local_steps: int, batch_size: int, *, nodes: int, hosted: slice
    ) -> None:
        """`parts` has the samples of the hosted ones of all `nodes`."""
        self._size = np.array([len(part) for part in parts])
        self._start = np.cumsum(self._size) - self._size
        self._samples = np.concatenate(parts)
        self._shape = (nodes, local_steps, batch_size)
        self._hosted = hosted

    def index(self, streams: Streams, round: int) -> NDArray[np.int64]:
        """The sample numbers of round `round`.   # (k, r, b)"""
        u = streams("batches", round).uniforms(*self._shape)[self._hosted]
        own = (u * self._size[:, None, None]).astype(np.int64)
        return np.asarray(self._samples[own + self._start[:, None, None]])
