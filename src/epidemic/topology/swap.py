"""PeerSwap (arXiv 2408.03829): nodes that walk about on the positions of a fixed graph."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from threading import Lock
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import require_int
from epidemic.core.graph import Graph
from epidemic.core.rng import Streams
from epidemic.topology.base import Topology, check_topology
from epidemic.topology.regular import Regular, one_way

MOST_SWAPS = 10_000_000
"""Most swaps per round; more take longer than seconds to draw and change nothing, because the nodes are well mixed long before."""

STRIDE = 16
"""The positions are cached for one in so many rounds, so that an earlier round is not computed from the start."""
REMEMBERED = 64
"""Most cached rounds."""


class PeerSwap(Topology, frozen=True, tag="peer-swap"):
    """A random connected graph of equal degrees `s`; after each round, the nodes at a random link swap positions, `swaps` times.

    With many swaps a node can be anywhere in the next round, as in EL-Oracle; with none the graph is static. By default there are as many swaps as nodes. Swaps
    are drawn from the run's seed; messages to agree on them are not counted.
    """

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    placed: ClassVar[bool] = True

    s: int
    swaps: int | None = None

    def __post_init__(self) -> None:
        require_int("topology.s", self.s, 1)
        if self.swaps is not None:
            require_int("topology.swaps", self.swaps, 0, MOST_SWAPS)

    @property
    def random(self) -> bool:  # type: ignore[override]
        return not self.static

    @property
    def static(self) -> bool:  # type: ignore[override]
        return self.swaps == 0

    def check(self, n: int) -> None:
        check_topology(Regular(self.s), n)

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        fixed = Regular(self.s).graph(n, 0, streams)
        if self.static or fixed.clique is not None:
            return fixed
        position = _walk(fixed, n if self.swaps is None else self.swaps, streams).positions(round)
        heard = np.empty((n, self.s), dtype=np.int32)
        heard[position] = position[fixed.senders.reshape(n, self.s)]
        return Graph.from_targets(heard)  # links go both ways: heard by means heard


class _Walk:
    """The positions of nodes in each round, computed from the latest cached round before it."""

    def __init__(self, fixed: Graph, swaps: int, streams: Streams) -> None:
        self._ends = one_way(fixed)
        self._swaps = swaps
        self._streams = streams
        self._known: OrderedDict[int, NDArray[np.int32]] = OrderedDict()
        self._start = self._last = (0, np.arange(fixed.n, dtype=np.int32))
        self._lock = Lock()

    def positions(self, round: int) -> NDArray[np.int32]:
        """The node at each position of the fixed graph.   # (n,)"""
        with self._lock:
            known = [self._start, self._last, *self._known.items()]
            before, position = max((one for one in known if one[0] <= round), key=lambda one: one[0])
            for t in range(before, round):
                position = self._swapped(position, t)
                if (t + 1) % STRIDE == 0:
                    self._remember(t + 1, position)
            self._last = (round, position)
            return position

    def _swapped(self, position: NDArray[np.int32], round: int) -> NDArray[np.int32]:
        """After the swaps that follow a round, one after the other."""
        one, other = self._ends
        links = self._streams("topology-swaps", round).integers(len(one), self._swaps)
        sits: list[int] = position.tolist()
        for a, b in zip(one[links].tolist(), other[links].tolist(), strict=True):
            sits[a], sits[b] = sits[b], sits[a]
        return np.array(sits, dtype=np.int32)

    def _remember(self, round: int, position: NDArray[np.int32]) -> None:
        self._known[round] = position
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


@lru_cache(maxsize=8)
def _walk(fixed: Graph, swaps: int, streams: Streams) -> _Walk:
    """That of this very graph, which is remembered as long as its topology is in use."""
    return _Walk(fixed, swaps, streams)
