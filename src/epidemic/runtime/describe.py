"""A description of a run's network if it is the same in every round, stored with the results; and a warning if it is disconnected."""

from __future__ import annotations

from typing import Any

from epidemic.core.errors import RunFailed
from epidemic.core.graph import Graph, IntArray
from epidemic.core.rng import Streams
from epidemic.experiment import Experiment
from epidemic.mixing import spectrum, weights
from epidemic.topology import is_static

SIGMA_LIMIT = 10_000
"""Number of nodes above which the spectrum of the matrix is not computed."""

_NAMED = 5


def describe_network(experiment: Experiment, seed: int, samples: IntArray | None = None) -> dict[str, Any]:
    """Whether the graph is static; if so, whether it is connected, and sigma of its matrix (None if it is not computed).

    If aggregation weights depend on `samples`, sigma needs those of all nodes; a deployed node does not know them.   # (n,)
    """
    graph = _static_graph(experiment, seed)
    if graph is None:
        return {"static": False}
    sigma: float | None = None
    known = samples is not None or experiment.mixing_rule != "samples"
    if known and experiment.nodes <= SIGMA_LIMIT:
        try:
            sigma = spectrum(weights(experiment.mixing_rule, graph, None, samples)).sigma
        except RunFailed:  # not converged, which is no reason not to run
            sigma = None
    return {"static": True, "connected": graph.connected, "sigma": sigma}


def disconnection(experiment: Experiment, seed: int) -> str | None:
    """A line that says which nodes are cut off for the whole run; None if there are none, or if no messages were intended."""
    graph = _static_graph(experiment, seed)
    if graph is None or graph.messages == 0 or graph.connected:
        return None
    alone = graph.closed_part()
    named = ", ".join(map(str, alone[:_NAMED])) + (", ..." if len(alone) > _NAMED else "")
    whose = f"the model of node {named} never reaches" if len(alone) == 1 else f"models of nodes {named} never reach"
    return (
        f"the static graph of seed {seed} is disconnected: {whose} the other {experiment.nodes - len(alone)};"
        " use another seed or a topology with more links if this is not meant"
    )


def _static_graph(experiment: Experiment, seed: int) -> Graph | None:
    """The graph of all rounds; None if it changes."""
    return experiment.topology.graph(experiment.nodes, 0, Streams(seed)) if is_static(experiment.topology) else None
