"""Participation: which nodes take part in a round, all or a drawn set. Like faults, a frozen value that acts on graphs.

Nodes that take no part neither train nor send nor receive; their models stay as they are. The links of a round are drawn in one of two ways:
  aware   among those that take part: all nodes know them, because the draw is keyed
  blind   among all; messages to those that take no part are lost, and paid for
Sources: Liu et al., OPT 2022 (a uniform choice of m nodes); Teleportation, arXiv 2501.15259.

A drawn node that has crashed takes no part either; it is not replaced.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from epidemic.core.config import build_kind
from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.core.formatting import count
from epidemic.core.graph import Graph, IntArray
from epidemic.core.rng import Streams
from epidemic.core.settings import Settings
from epidemic.faults import Absence, Faults, Reach
from epidemic.topology import GivesGraphs, check_topology, exchange_of, graph_among, is_placed, is_static, peer_sampling

NOBODY: IntArray = np.zeros(0, dtype=np.int64)


class Participation(Settings, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the kinds: `positions` is all that most of them differ in."""

    partial: ClassVar[bool] = True  # whether some may take no part
    live_only: ClassVar[bool] = False  # whether only those that took part in the last round have a model that counts

    @property
    def aware(self) -> bool:
        """Whether links are drawn among those that take part."""
        return getattr(self, "links", "aware") == "aware"

    def positions(self, n: int, round: int, streams: Streams) -> IntArray:
        """Those who take part, in the order in which a graph among them numbers them.   # (m,)"""
        raise NotImplementedError

    def check(self, n: int, topology: GivesGraphs) -> None:
        """Raise BadInput if it does not work with this topology."""

    def graph(
        self, topology: GivesGraphs, n: int, round: int, streams: Streams, reach: Reach | None = None, part: int = 0
    ) -> Graph:
        """The intended graph of a round; `reach`: which nodes can talk, for nodes that find each other by messages."""
        if not self.aware:
            return graph_among(topology, n, round, streams.of_part(part), reach)
        positions = self.positions(n, round, streams)
        return _at_positions(_drawn(topology, len(positions), round, streams.of_part(part)), positions, n)

    def absence(self, n: int, round: int, streams: Streams) -> Absence | None:
        """The nodes that take no part, and whether the others know; None if all take part."""
        away = np.ones(n, dtype=bool)
        away[self.positions(n, round, streams)] = False
        return Absence(away, known=self.aware) if away.any() else None

    def adoptions(self, faults: Faults, n: int, round: int, streams: Streams) -> tuple[IntArray, IntArray]:
        """The nodes that take a model before they train, and those that give it.

        After a crash a node takes one in the round of its return, if it and the other take part in it.
        """
        returning, donors = faults.adoptions(n, round, streams)
        absence = self.absence(n, round, streams) if len(returning) else None
        if absence is None:
            return returning, donors
        both = ~absence.who[returning] & ~absence.who[donors]
        return returning[both], donors[both]


class Everybody(Participation, frozen=True, tag="everybody"):
    """All nodes take part in every round."""

    partial: ClassVar[bool] = False

    def graph(
        self, topology: GivesGraphs, n: int, round: int, streams: Streams, reach: Reach | None = None, part: int = 0
    ) -> Graph:
        """Return the topology's own graph of the round, because all nodes take part."""
        return graph_among(topology, n, round, streams.of_part(part), reach)

    def absence(self, n: int, round: int, streams: Streams) -> Absence | None:
        """Return None: no node is absent in any round."""
        return None


class UniformParticipation(Participation, frozen=True, tag="uniform"):
    """Exactly `m` nodes take part in a round, every choice of them equally likely."""

    m: int
    links: Literal["aware", "blind"] = "aware"

    def __post_init__(self) -> None:
        require_int("participation.m", self.m, 1)
        require_choice("participation.links", self.links, ["aware", "blind"])

    def positions(self, n: int, round: int, streams: Streams) -> IntArray:
        """The m nodes that take part, ascending.   # (m,)"""
        return np.sort(streams("participation", round).permutation(n)[: self.m])

    def check(self, n: int, topology: GivesGraphs) -> None:
        """Raise BadInput unless m is possible and, if links are drawn among those that take part, the topology exists for m nodes."""
        _check_number(self.m, n)
        if self.aware and self.m < n:
            _check_renumbered(topology, self.m)
            _check_among(topology, self.m, 'use another m, or participation.links = "blind"')


class BernoulliParticipation(Participation, frozen=True, tag="bernoulli"):
    """Every node takes part in a round with probability `p`, independently of all others."""

    p: float
    links: Literal["aware", "blind"] = "aware"

    def __post_init__(self) -> None:
        require_real("participation.p", self.p, high=1, above=0)
        require_choice("participation.links", self.links, ["aware", "blind"])

    def positions(self, n: int, round: int, streams: Streams) -> IntArray:
        """However many are drawn, ascending.   # (m,)"""
        return np.flatnonzero(streams("participation", round).uniforms(n) < self.p)

    def check(self, n: int, topology: GivesGraphs) -> None:
        """Raise BadInput unless the topology exists for any number of nodes, if links are drawn among those that take part."""
        if not self.aware or self.p == 1:
            return
        _check_renumbered(topology, n)
        for m in range(2, n + 1):  # any number of nodes may take part
            if m - 1 > _sent(topology):
                _check_among(topology, m, 'use kind = "uniform" with an m that does, or participation.links = "blind"')


class Teleportation(Participation, frozen=True, tag="teleportation"):
    """There are only `m` models; each round other nodes hold them, and first fetch them from those of the round before.

    The model at position k moves from node to node, so that a static topology of m positions stays what it is. Fetches are never lost; if the node of a position
    is down, the model of another position is taken. If all m = n take part, nodes keep their positions.
    """

    live_only: ClassVar[bool] = True

    m: int

    def __post_init__(self) -> None:
        require_int("participation.m", self.m, 1)

    def positions(self, n: int, round: int, streams: Streams) -> IntArray:
        """The node that holds each model, by position.   # (m,)"""
        return np.arange(n) if self.m == n else streams("participation", round).permutation(n)[: self.m]

    def check(self, n: int, topology: GivesGraphs) -> None:
        """That the topology exists among m nodes."""
        _check_number(self.m, n)
        _check_among(topology, self.m, "use another m, or another topology")

    def adoptions(self, faults: Faults, n: int, round: int, streams: Streams) -> tuple[IntArray, IntArray]:
        """Each model, from the node that held it to the one that holds it now."""
        if round == 0:
            return NOBODY, NOBODY
        before, now = self.positions(n, round - 1, streams), self.positions(n, round, streams)
        was_up, up = faults.alive(n, round - 1, streams), faults.alive(n, round, streams)
        links = faults.links(n, round, up)
        gives = was_up[before] & up[before]  # it held a model, and can be asked
        wants = up[now] & ~(gives & (before == now))
        direct = wants & gives & links.open(before, now)
        takers, donors = list(now[direct]), list(before[direct])
        chance = streams("teleportation", round).uniforms(len(now))
        for k in np.flatnonzero(wants & ~direct):
            others = before[gives & links.open(before, np.full(len(before), now[k]))]
            if len(others):
                takers.append(now[k])
                donors.append(others[int(chance[k] * len(others))])
        return np.array(takers, dtype=np.int64), np.array(donors, dtype=np.int64)


PARTICIPATIONS: dict[str, type[Participation]] = {
    "everybody": Everybody,
    "uniform": UniformParticipation,
    "bernoulli": BernoulliParticipation,
    "teleportation": Teleportation,
}


def participation_from(table: object) -> Participation:
    """The participation that a TOML table describes, for example {kind = "uniform", m = 10}."""
    return build_kind(table, PARTICIPATIONS, "participation")


# -- graphs among a part of the nodes ---------------------------------------------------------------------------------


def _sent(topology: GivesGraphs) -> int:
    """To how many a node sends, where that is a setting of the topology, or of the one that it wraps."""
    while (inner := getattr(topology, "inner", None)) is not None:
        topology = inner
    s = getattr(topology, "s", 0)
    return s if isinstance(s, int) else 0


def _drawn(topology: GivesGraphs, m: int, round: int, streams: Streams) -> Graph:
    """A graph of m nodes; complete if so few nodes would all send to each other."""
    if m < 2:
        return Graph.empty(m)
    if m - 1 > _sent(topology):
        return topology.graph(m, round, streams)
    return Graph.complete(m, exchange="requests" if exchange_of(topology) == "requests" else "messages")


def _at_positions(graph: Graph, positions: IntArray, n: int) -> Graph:
    """The same graph with node ids in place of positions."""
    if len(positions) == n and (positions == np.arange(n)).all():
        return graph
    if graph.clique is not None:
        return Graph.complete(n, positions[graph.clique], graph.exchange)
    seated = Graph.from_edges(n, positions[graph.senders], positions[graph.receivers], graph.native)
    return seated if graph.exchange == "messages" else dataclasses.replace(seated, exchange=graph.exchange)


def _check_number(m: int, n: int) -> None:
    if m > n:
        raise BadInput(f"participation.m = {m} must be at most nodes = {n}")


def _check_among(topology: GivesGraphs, m: int, instead: str) -> None:
    """That the topology exists among m nodes."""
    if peer_sampling(topology) is not None:
        raise BadInput(
            'participation: views are drawn among all nodes, not among some of them; use links = "blind", or leave topology.view out'
        )
    try:
        check_topology(topology, m)
    except BadInput as problem:
        raise BadInput(
            f"among {count(m, 'node')} that take part the topology does not exist ({problem}); {instead}"
        ) from None


def _check_renumbered(topology: GivesGraphs, m: int) -> None:
    """That a topology can be drawn among other nodes in each round: a graph that is to stay cannot, unless all nodes are alike in it."""
    if is_placed(topology) or not _alike(topology, m):
        raise BadInput(
            'participation.links = "aware" draws links among other nodes in every round, and this topology has graphs that stay;'
            ' use links = "blind", kind = "teleportation", or a topology that is drawn anew'
        )


def _alike(topology: GivesGraphs, m: int) -> bool:
    """Whether positions do not matter: the graph is drawn anew in each round, or complete, or empty."""
    if not is_static(topology):
        inner = getattr(topology, "inner", None)
        return inner is None or _alike(inner, m)
    try:
        return topology.graph(m, 0, Streams(0)).messages in (0, m * (m - 1))
    except BadInput:  # there is none, static or not
        return False
