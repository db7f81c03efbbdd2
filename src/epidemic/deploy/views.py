"""Rounds as the nodes of a process see them; a graph is drawn once for all of them, if there is one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.experiment import Experiment
from epidemic.protocol.commitment import Chain
from epidemic.protocol.rounds import NodeView
from epidemic.runtime.plan import RoundView as Whole
from epidemic.runtime.plan import committed_targets, intended_graph, view_of

if TYPE_CHECKING:
    from epidemic.deploy.hosted import SynchronousNode

REMEMBERED = 40
"""Rounds for which graphs are remembered."""


class RoundViews(Protocol):
    """The view of each round for each node."""

    def __call__(self, node_id: int, round: int) -> NodeView:
        """A node's view of a round, for the protocol."""
        ...

    def whole(self, node_id: int, round: int) -> Whole:
        """The graph, or the part of it, that the mixing weights follow from."""
        ...

    def targets(self, node_id: int, round: int) -> tuple[int, ...]:
        """The node ids that a node sends to."""
        ...


class ByPartialView:
    """Rounds where nodes know only some of the peers: each draws its targets from its view when the round begins."""

    def __init__(self, nodes: Mapping[int, SynchronousNode]) -> None:
        self._nodes = nodes

    def __call__(self, node_id: int, round: int) -> NodeView:
        """A node's view of a round, for the protocol."""
        return self._nodes[node_id].member.view(round)

    def whole(self, node_id: int, round: int) -> Whole:
        """The graph, or the part of it, that the mixing weights follow from."""
        view = self(node_id, round)
        return Whole(round, None, view.graph, view.targets, None)

    def targets(self, node_id: int, round: int) -> tuple[int, ...]:
        """The node ids that a node sends to."""
        return self(node_id, round).targets


class ByChain:
    """Rounds with a committed coin: each node's targets follow from its hash chain."""

    def __init__(self, experiment: Experiment, chains: Mapping[int, Chain]) -> None:
        self._experiment = experiment
        self._chains = chains
        self._found = lru_cache(maxsize=1024)(self._drawn)

    def _drawn(self, node: int, round: int) -> Whole:
        link = self._chains[node].link(round)
        return Whole(round, None, link, committed_targets(self._experiment, node, round, link), None)

    def __call__(self, node_id: int, round: int) -> NodeView:
        """A node's view of a round, for the protocol."""
        found = self._found(node_id, round)
        return NodeView(found.targets, None, found.digest)

    def whole(self, node_id: int, round: int) -> Whole:
        """The graph, or the part of it, that the mixing weights follow from."""
        return self._found(node_id, round)

    def targets(self, node_id: int, round: int) -> tuple[int, ...]:
        """The node ids that a node sends to."""
        return self._found(node_id, round).targets


class ByGraph:
    """Rounds whose graphs all nodes can draw, or, with a private coin, each node its own part of."""

    def __init__(self, experiment: Experiment, streams: Streams, secrets: dict[int, Streams]) -> None:
        """Start; `secrets`: with a private coin, the secret streams of each node."""
        self._experiment = experiment
        self._streams = streams
        self._secrets = secrets
        self._graphs: OrderedDict[tuple[int | None, int], Graph] = OrderedDict()
        self._views: OrderedDict[tuple[int, int], tuple[Whole, NodeView]] = OrderedDict()
        self._lock = threading.RLock()

    def __call__(self, node_id: int, round: int) -> NodeView:
        """A node's view of a round, for the protocol."""
        return self._both(node_id, round)[1]

    def whole(self, node_id: int, round: int) -> Whole:
        """The graph, or the part of it, that the mixing weights follow from."""
        return self._both(node_id, round)[0]

    def targets(self, node_id: int, round: int) -> tuple[int, ...]:
        """The node ids that a node sends to."""
        return self._both(node_id, round)[1].targets

    def _both(self, node_id: int, round: int) -> tuple[Whole, NodeView]:
        with self._lock:
            found = self._views.get((node_id, round))
            if found is None:
                private = self._experiment.network.coin == "private"
                key = (node_id if private else None, round)
                graph = self._graphs.get(key)
                if graph is None:
                    streams = self._secrets[node_id] if private else self._streams
                    graph = self._graphs[key] = intended_graph(self._experiment, streams, round)
                    while len(self._graphs) > REMEMBERED * (len(self._secrets) or 1):
                        self._graphs.popitem(last=False)
                whole = view_of(graph, round, node_id, private=private)
                found = whole, NodeView(whole.targets, whole.expected, whole.digest)
                self._views[node_id, round] = found
                while len(self._views) > REMEMBERED * max(1, len(self._secrets)):
                    self._views.popitem(last=False)
            return found
