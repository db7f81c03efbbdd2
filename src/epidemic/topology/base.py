"""The interface of topologies: frozen values that give the graph of round t.

A user's own class needs just one method, `graph(n, round, streams)`; the rest has sensible defaults. Random topologies draw from the round's stream, static
ones from the run's, so any host can compute any round alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import msgspec

from epidemic.core.errors import BadInput, require_int
from epidemic.core.formatting import html_table
from epidemic.core.graph import Graph
from epidemic.core.rng import Stream, Streams
from epidemic.core.settings import Settings
from epidemic.peer_sampling import Control, PeerSampling, Reach
from epidemic.theory import Floors
from epidemic.theory.malicious import Kind

ATTEMPTS = 1000
"""How often a static topology is redrawn when it is disconnected, before giving up."""


Cost = Literal["all-to-all", "all-reduce"]
"""The cost of averaging over all nodes: n - 1 models per node, or the 2 (n - 1) / n models of an all-reduce."""

EXCHANGE = {"all-to-all": "messages", "all-reduce": "all-reduce"}
"""How models travel at that cost."""


@runtime_checkable
class GivesGraphs(Protocol):
    """What everything else asks of a topology."""

    def graph(self, n: int, round: int, streams: Streams) -> Graph:
        """The graph of a round of n nodes."""
        ...


class Expected(msgspec.Struct, frozen=True):
    """The theory of one round of a random topology with its natural weights."""

    sigma2: float | None = None
    """Largest eigenvalue of E[Pi W^T W Pi]: the worst-case factor on the squared distance to the old mean."""
    contraction: float | None = None
    """E[D(WX)] / D(X), where it is the same for every X."""
    floors: Floors | None = None
    """What stays of noise and bias, where there is a closed form."""


class Topology(Settings, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the built-in topologies."""

    natural_mixing: ClassVar[str] = "uniform"
    random: ClassVar[bool] = False  # whether each round has a graph of its own, drawn at random
    static: ClassVar[bool] = False  # whether all rounds have the same graph
    placed: ClassVar[bool] = (
        False  # whether its graphs belong together, so that nodes cannot change places between rounds
    )
    symmetric: ClassVar[bool | None] = None  # whether all links go both ways; None: unknown, so graphs are checked
    doubly_stochastic: ClassVar[bool | None] = None  # whether its natural weights count every node alike in every round
    exchange: ClassVar[str] = "messages"  # how models travel, as in graph.EXCHANGES; in some rounds at least
    law: ClassVar[Kind | None] = None  # of the malicious models that a node receives, where theory.malicious has one
    fewest_nodes: ClassVar[int] = 2

    @classmethod
    def compared(cls, s: int, m: int | None) -> Mapping[str, Mapping[str, Any]]:
        """Settings with which topologies of the same cost are compared: about `s` messages of each node in a round.

        Args:
            s: Messages of each node in a round.
            m: Offsets of an EquiTopo; None: as many as make s messages.

        Returns:
            A table of settings for each row of the comparison, by what is added to the kind's name: "", unless there are several. Empty: it is not
            compared, because it wraps others.
        """
        return {"": {"s": s} if "s" in cls.__struct_fields__ else {}}

    def check(self, n: int) -> None:
        """Raise BadInput if this topology does not exist for n nodes."""
        require_int("nodes", n, self.fewest_nodes)

    def graph(self, n: int, round: int, streams: Streams) -> Graph:
        """The graph of a round of n nodes."""
        self.check(n)
        return self.draw(n, round, streams)

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        """The graph of this round, n being valid."""
        raise NotImplementedError

    def graph_among(self, n: int, round: int, streams: Streams, reach: Reach | None) -> Graph:
        """The graph of a round; `reach` limits which nodes can talk, for topologies whose nodes find each other by messages."""
        return self.graph(n, round, streams)

    def control(self, n: int, round: int, streams: Streams, reach: Reach | None) -> Control | None:
        """What nodes send in this round to find each other; None: nothing."""
        return None

    def cautions(self, n: int) -> list[str]:
        """Warnings about settings that are allowed but unwise."""
        return []

    def expected(self, n: int, streams: Streams) -> Expected:
        """Theory for this topology, as far as there is a closed form."""
        return Expected()

    def _repr_html_(self) -> str:
        settings = [(name, getattr(self, name)) for name in self.__struct_fields__]
        about = [("the graph changes", self.changes), ("mixing", self.natural_mixing)]
        return html_table(f"{type(self).__name__} ({kind_of(self)})", [*settings, *about])

    @property
    def changes(self) -> str:
        """How its graph changes, in words."""
        return "never" if self.static else "at random, in every round" if self.random else "by a rule"


class StaticTopology(Topology, frozen=True):
    """A topology whose graph is the same in every round; recent graphs are cached."""

    static: ClassVar[bool] = True

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        return _remembered(self, n, streams)

    def build(self, n: int, stream: Stream) -> Graph:
        """Build the one graph of the run."""
        raise NotImplementedError


@lru_cache(maxsize=16)
def _remembered(topology: StaticTopology, n: int, streams: Streams) -> Graph:
    return topology.build(n, streams("topology"))


def graph_among(topology: GivesGraphs, n: int, round: int, streams: Streams, reach: Reach | None) -> Graph:
    """The graph of a round; `reach`: which nodes can talk; None: all."""
    if isinstance(topology, Topology):
        return topology.graph_among(n, round, streams, reach)
    return topology.graph(n, round, streams)


def control(topology: GivesGraphs, n: int, round: int, streams: Streams, reach: Reach | None) -> Control | None:
    """What nodes send in this round to find each other; None: nothing."""
    return topology.control(n, round, streams, reach) if isinstance(topology, Topology) else None


def topology_cautions(topology: GivesGraphs, n: int) -> list[str]:
    """What a topology allows but thinks worth knowing."""
    return topology.cautions(n) if isinstance(topology, Topology) else []


def peer_sampling(topology: object) -> PeerSampling | None:
    """The service whose views targets are drawn from, also inside a wrapper; None: nodes know all others."""
    while topology is not None:
        view = getattr(topology, "view", None)
        if isinstance(view, PeerSampling):
            return view
        topology = getattr(topology, "inner", None)
    return None


def natural_mixing(topology: GivesGraphs) -> str:
    """The mixing rule that a topology is meant to be used with."""
    return str(getattr(topology, "natural_mixing", "uniform"))


def is_random(topology: GivesGraphs) -> bool:
    """Whether each round has its own random graph."""
    return bool(getattr(topology, "random", False))


def is_static(topology: GivesGraphs) -> bool:
    """Whether all rounds have the same graph."""
    return bool(getattr(topology, "static", False))


def is_placed(topology: GivesGraphs) -> bool:
    """Whether nodes cannot change positions between rounds, because successive graphs belong together."""
    return bool(getattr(topology, "placed", False))


def exchange_of(topology: GivesGraphs) -> str:
    """How models travel over its graphs, one of `graph.EXCHANGES`; in some rounds at least."""
    return str(getattr(topology, "exchange", "messages"))


def is_symmetric(topology: GivesGraphs) -> bool | None:
    """Whether all links go both ways in every round; None if the topology does not say."""
    found: bool | None = getattr(topology, "symmetric", None)
    return found


def is_doubly_stochastic(topology: GivesGraphs) -> bool | None:
    """Whether its natural weights count all nodes equally in every round; None if the topology does not say."""
    found: bool | None = getattr(topology, "doubly_stochastic", None)
    return found


def kind_of(topology: GivesGraphs) -> str:
    """The kind by which a table names the topology; for a user's own class, the name of the class."""
    return str(topology.__struct_config__.tag) if isinstance(topology, Topology) else type(topology).__name__


def check_topology(topology: GivesGraphs, n: int) -> None:
    """Raise BadInput if the topology does not exist for n nodes."""
    check = getattr(topology, "check", None)
    if check is not None:
        check(n)


def expected(topology: GivesGraphs, n: int, streams: Streams) -> Expected:
    """Theory for a topology, empty where it has none to offer."""
    ask = getattr(topology, "expected", None)
    return ask(n, streams) if ask is not None else Expected()


def check_degree(n: int, s: int, *, even: bool) -> None:
    """Require 1 <= s <= n - 1, and n * s even if links go both ways."""
    require_int("nodes", n, 2)
    if s > n - 1:
        raise BadInput(f"topology.s = {s} must be at most nodes - 1 = {n - 1}")
    if even and n * s % 2:
        raise BadInput(
            f"topology.s = {s} with nodes = {n}: an undirected graph of equal degrees needs nodes * s even;"
            f" use s = {s - 1 or s + 1} or nodes = {n + 1}"
        )


def ceil_log2(n: int) -> int:
    """The smallest k with 2**k >= n; the paper's default for s."""
    return (n - 1).bit_length()
