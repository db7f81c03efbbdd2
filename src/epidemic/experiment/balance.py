"""Algorithms that are exact only where everybody counts as much as everybody else, in every round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epidemic.errors import BadInput
from epidemic.faults import Faults
from epidemic.mixing import weights
from epidemic.rng import Streams
from epidemic.topology import is_static, kind_of

if TYPE_CHECKING:
    from epidemic.experiment.spec import Experiment

LOOKED_AT = 4
"""Rounds of each seed. Graphs that go one way and are balanced so often by chance do not exist beyond a handful of nodes."""

CLOSE = 1e-9


def check_balance(experiment: Experiment) -> None:
    """Raise BadInput where an algorithm needs doubly stochastic weights and does not get them."""
    algorithm = experiment.algorithm
    if not getattr(algorithm, "balanced", False):
        return
    needs = f"{called(experiment)} needs weights that add up to 1 for every sender, too"
    faults = experiment.faults
    unlike = [name for name in Faults.__struct_fields__ if getattr(faults, name) != getattr(Faults(), name)]
    if unlike and faults != Faults(max_retries=faults.max_retries, on_return=faults.on_return):
        lossy = [name for name in unlike if name not in ("max_retries", "on_return")]
        raise BadInput(
            f"faults.{lossy[0]}: {needs}, and they do not where letters are missing; leave it out, or use"
            ' algorithm.kind = "push-pull", whose senders keep what does not arrive'
        )
    if experiment.mixing_rule == "samples":
        raise BadInput(f'mixing = "samples": {needs}; leave it out, or use algorithm.kind = "local-sgd"')
    for seed in experiment.seeds:
        streams = Streams(seed)
        for round in range(1 if is_static(experiment.topology) else LOOKED_AT):
            graph = experiment.topology.graph(experiment.nodes, round, streams)
            given = weights(experiment.mixing_rule, graph).transpose @ np.ones((experiment.nodes, 1))
            if np.abs(given - 1).max() > CLOSE:
                raise BadInput(
                    f'topology.kind = "{kind_of(experiment.topology)}" with mixing = "{experiment.mixing_rule}": {needs}, and on graphs like'
                    ' these all would agree on a wrong point; use algorithm.kind = "push-pull", or el-oracle, ring, regular or another'
                    " topology whose nodes are heard as much as they hear"
                )


def called(experiment: Experiment) -> str:
    """The algorithm as a message names it."""
    kind = getattr(experiment.algorithm, "called", type(experiment.algorithm).__name__)
    return f'algorithm.kind = "{kind}"'
