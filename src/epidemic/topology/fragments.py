"""Fragments ("Mosaic", arXiv 2602.04352): every part of the models is mixed over a graph of its own.

The coordinates of a model are cut into k parts by a keyed permutation, the same for all nodes. In each round every part is sent over its own graph of the same
topology, drawn from streams of its own. So a node sends as many numbers as before, in k times as many messages; each coordinate contracts
as before, but no two parts by the same graph, and nobody receives a whole model.
"""

from __future__ import annotations

from epidemic.core.errors import require_int
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.peer_sampling import Control, Reach
from epidemic.topology.base import Expected, GivesGraphs, control, expected, graph_among
from epidemic.topology.wrappers import Wrapper


class Fragments(Wrapper, frozen=True, tag="fragments"):
    """Another topology, of which each of `k` parts of the models has its own graphs. One part is that topology itself."""

    k: int = 4

    def __post_init__(self) -> None:
        require_int("topology.k", self.k, 1)
        super().__post_init__()

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        """The graph of the first part."""
        return self.graph_among(n, round, streams, None)

    def graph_among(self, n: int, round: int, streams: Streams, reach: Reach | None) -> Graph:
        return graph_among(self.inner, n, round, streams, reach)

    def control(self, n: int, round: int, streams: Streams, reach: Reach | None) -> Control | None:
        return control(self.inner, n, round, streams, reach)

    def expected(self, n: int, streams: Streams) -> Expected:
        """Of each coordinate; the parts do not know of each other."""
        return expected(self.inner, n, streams)


def fragments_of(topology: GivesGraphs) -> int:
    """The number of parts, with a graph each, that a topology cuts the models into."""
    return topology.k if isinstance(topology, Fragments) else 1
