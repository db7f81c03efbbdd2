"""The number of malicious models that the receivers of a topology tolerate, by `epidemic.theory.hostile`.

A topology declares by its attribute `law` how the number of malicious models that a node receives is distributed. A static one without the attribute works
too: then the malicious nodes are the random choice. For others, f must be given by hand.
"""

from __future__ import annotations

from typing import Any

from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams
from epidemic.theory import Tolerance
from epidemic.theory.hostile import caution, resolve
from epidemic.topology.base import GivesGraphs, is_static, kind_of
from epidemic.topology.wrappers import Every


def tolerance(
    topology: GivesGraphs, nodes: int, malicious: int, rounds: int, risk: float, streams: Streams
) -> Tolerance:
    """Compute f of every receiver and round of a run from the number of malicious nodes.

    Args:
        topology: The topology.
        nodes: Number of nodes.
        malicious: How many of them may be malicious.
        rounds: Rounds of the run.
        risk: Accepted probability that any honest node receives more malicious models than it tolerates.
        streams: The streams of the run, from which a static graph is drawn.

    Returns:
        f by in-degree of the round's graph before faults: `each(graph.in_degree)`.

    Raises:
        BadInput: The promise cannot be kept, or the law of this topology is unknown.
    """
    kind, how = _law(topology, nodes, streams)
    if kind is None:
        raise BadInput(
            f'topology.kind = "{kind_of(topology)}" has no known law of malicious models; give aggregation.f instead of aggregation.malicious, or use'
            " el-oracle, pull, el-local without a view, or a graph that never changes"
        )
    return resolve(nodes, malicious, rounds, risk, kind, **how)


def tolerance_caution(
    topology: GivesGraphs, nodes: int, malicious: int, rounds: int, f: int, streams: Streams
) -> str | None:
    """A warning about an f given by hand if it is unsafe for so many malicious nodes; None if it is safe or the law is unknown."""
    kind, how = _law(topology, nodes, streams)
    return None if kind is None else caution(nodes, malicious, rounds, f, kind, **how)


def _law(topology: GivesGraphs, nodes: int, streams: Streams) -> tuple[Any, dict[str, Any]]:
    """The kind of law, and its arguments."""
    if is_static(topology):
        return "static", {"in_degrees": topology.graph(nodes, 0, streams).in_degree}
    held = 1
    while isinstance(topology, Every):
        held, topology = held * topology.period, topology.inner
    kind = getattr(topology, "law", None)
    return kind, {} if kind is None else {"s": topology.s, "held": held}  # type: ignore[attr-defined]
