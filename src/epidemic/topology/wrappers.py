"""Topologies that are made of another one, their `inner`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from epidemic.core.errors import BadInput, require_choice, require_int
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.peer_sampling import Control, Reach, ReachableLinks
from epidemic.topology.base import (
    EXCHANGE,
    Cost,
    Expected,
    GivesGraphs,
    Topology,
    check_topology,
    control,
    exchange_of,
    expected,
    graph_among,
    is_doubly_stochastic,
    is_placed,
    is_random,
    is_static,
    is_symmetric,
    kind_of,
    natural_mixing,
    topology_cautions,
)


class Wrapper(Topology, frozen=True):
    """A topology made of another one, which a table may describe."""

    inner: Any

    @classmethod
    def compared(cls, s: int, m: int | None) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def __post_init__(self) -> None:
        if isinstance(self.inner, dict):
            from epidemic.topology import topology_from  # the registry lists these classes too

            msgspec.structs.force_setattr(self, "inner", topology_from(self.inner, "topology.inner"))
        if not isinstance(self.inner, GivesGraphs):
            raise BadInput(f"topology.inner = {self.inner!r} must be a topology, for example {{kind = 'ring'}}")

    @property
    def natural_mixing(self) -> str:  # type: ignore[override]
        return natural_mixing(self.inner)

    @property
    def random(self) -> bool:  # type: ignore[override]
        return is_random(self.inner)

    @property
    def static(self) -> bool:  # type: ignore[override]
        return is_static(self.inner)

    @property
    def symmetric(self) -> bool | None:  # type: ignore[override]
        return is_symmetric(self.inner)

    @property
    def doubly_stochastic(self) -> bool | None:  # type: ignore[override]
        return is_doubly_stochastic(self.inner)

    @property
    def exchange(self) -> str:  # type: ignore[override]
        return exchange_of(self.inner)

    @property
    def placed(self) -> bool:  # type: ignore[override]
        return is_placed(self.inner)

    def check(self, n: int) -> None:
        check_topology(self.inner, n)

    def cautions(self, n: int) -> list[str]:
        return topology_cautions(self.inner, n)


class Every(Wrapper, frozen=True, tag="every"):
    """Another topology, each of whose graphs is held for `period` rounds."""

    period: int

    def __post_init__(self) -> None:
        require_int("topology.period", self.period, 1)
        super().__post_init__()

    def cautions(self, n: int) -> list[str]:
        said = super().cautions(n)
        if self.static:
            said.append(
                f'topology.period = {self.period} has no effect: topology.inner.kind = "{kind_of(self.inner)}" has the same graph in all rounds'
            )
        return said

    @property
    def placed(self) -> bool:  # type: ignore[override]
        return (self.period > 1 and not self.static) or is_placed(self.inner)

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        graph: Graph = self.inner.graph(n, round // self.period, streams)
        return graph

    def graph_among(self, n: int, round: int, streams: Streams, reach: Reach | None) -> Graph:
        return graph_among(self.inner, n, round // self.period, streams, _held(reach, self.period))

    def control(self, n: int, round: int, streams: Streams, reach: Reach | None) -> Control | None:
        inner, rest = divmod(round, self.period)
        return None if rest else control(self.inner, n, inner, streams, _held(reach, self.period))

    def expected(self, n: int, streams: Streams) -> Expected:
        inner = expected(self.inner, n, streams)
        return (
            inner if self.period == 1 else Expected(sigma2=inner.sigma2)
        )  # a graph held on meets what it mixed itself

    @property
    def changes(self) -> str:
        """How its graph changes, in words."""
        return "never" if self.static else f"as its inner one does, every {self.period} rounds"


class Periodic(Wrapper, frozen=True, tag="periodic"):
    """Another topology, and in every `period`-th round the average of all (Gossip-PGA, Chen et al. 2021).

    Rounds period - 1, 2 period - 1, ... are complete. Over `none` this is local SGD with periodic averaging.
    """

    period: int
    cost: Cost = "all-to-all"

    def __post_init__(self) -> None:
        require_int("topology.period", self.period, 1)
        require_choice("topology.cost", self.cost, EXCHANGE)
        super().__post_init__()

    @property
    def static(self) -> bool:  # type: ignore[override]
        return self.period == 1

    @property
    def exchange(self) -> str:  # type: ignore[override]
        return exchange_of(self.inner) if self.cost == "all-to-all" else EXCHANGE[self.cost]

    def check(self, n: int) -> None:
        require_int("nodes", n, 2)
        super().check(n)

    def cautions(self, n: int) -> list[str]:
        if self.period > 1:
            return super().cautions(n)
        return [
            f'topology.period = 1 makes every round complete: topology.inner.kind = "{kind_of(self.inner)}" has no effect; topology.kind ='
            ' "complete" is the same'
        ]

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        return self.graph_among(n, round, streams, None)

    def graph_among(self, n: int, round: int, streams: Streams, reach: Reach | None) -> Graph:
        if (round + 1) % self.period == 0:
            return Graph.complete(n, exchange=EXCHANGE[self.cost])
        return graph_among(self.inner, n, round, streams, reach)

    def control(self, n: int, round: int, streams: Streams, reach: Reach | None) -> Control | None:
        return control(self.inner, n, round, streams, reach)

    @property
    def changes(self) -> str:
        """How its graph changes, in words."""
        return "never" if self.static else f"as its inner one does, and is complete in one of {self.period} rounds"


@dataclass(frozen=True)
class _Held:
    """Which nodes can talk when graphs are drawn that are held for some rounds."""

    reach: Reach
    period: int

    def __call__(self, round: int) -> ReachableLinks:
        return self.reach(round * self.period)


def _held(reach: Reach | None, period: int) -> Reach | None:
    return None if reach is None else _Held(reach, period)


# -- Fragments ("Mosaic", arXiv 2602.04352): every part of the models is mixed over a graph of its own ---------------
# The coordinates of a model are cut into k parts by a keyed permutation, the same for all nodes. In each round every part is sent over its own graph of the same
# topology, drawn from streams of its own. So a node sends as many numbers as before, in k times as many messages; each coordinate contracts
# as before, but no two parts by the same graph, and nobody receives a whole model.


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
