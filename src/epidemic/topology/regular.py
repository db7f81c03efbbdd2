"""Random regular graphs, and the static topologies made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, require_int
from epidemic.core.graph import Graph
from epidemic.core.rng import Stream
from epidemic.topology.base import ATTEMPTS, StaticTopology, check_degree

Edges = tuple[NDArray[np.int64], NDArray[np.int64]]


class Regular(StaticTopology, frozen=True, tag="regular"):
    """A random connected graph in which every node has `s` neighbours, the same in all rounds."""

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    s: int

    def __post_init__(self) -> None:
        require_int("topology.s", self.s, 1)

    def check(self, n: int) -> None:
        check_degree(n, self.s, even=True)
        if self.s == 1 and n > 2:
            raise BadInput(f"topology.s = 1 with nodes = {n}: pairs are never connected; use s >= 2")

    def build(self, n: int, stream: Stream) -> Graph:
        if self.s == n - 1:
            return Graph.complete(n)
        return connected_regular(n, self.s, stream)


class Unlucky(StaticTopology, frozen=True, tag="unlucky"):
    """An s-regular graph of bad luck: two random s-regular halves joined by only two links."""

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    s: int

    def __post_init__(self) -> None:
        require_int("topology.s", self.s, 2)

    def check(self, n: int) -> None:
        require_int("nodes", n, 6)  # two triangles
        if n % 2:
            raise BadInput(f"nodes = {n} must be even for two equal halves; use {n - 1} or {n + 1}")
        half = n // 2
        if self.s > half - 1:
            raise BadInput(f"topology.s = {self.s} must be at most nodes / 2 - 1 = {half - 1}")
        if half * self.s % 2:
            raise BadInput(
                f"topology.s = {self.s} with nodes = {n}: two joining links need nodes / 2 * s even;"
                f" use s = {self.s + 1 if self.s + 1 < half else self.s - 1} or nodes = {n + 2}"
            )

    def build(self, n: int, stream: Stream) -> Graph:
        half = n // 2
        for _ in range(ATTEMPTS):
            left = connected_regular(half, self.s, stream)
            right = connected_regular(half, self.s, stream)
            u, v = one_way(left)
            x, y = one_way(right)
            i, j = stream.integers(len(u), 1)[0], stream.integers(len(x), 1)[0]
            a, b, c, d = u[i], v[i], x[j] + half, y[j] + half  # cut a-b and c-d, join a-c and b-d
            one = np.concatenate([np.delete(u, i), np.delete(x, j) + half, [a, b]])
            other = np.concatenate([np.delete(v, i), np.delete(y, j) + half, [c, d]])
            label = stream.permutation(n)
            graph = Graph.from_edges(n, *both_ways(label[one], label[other]))
            if graph.connected:
                return graph
        raise BadInput(
            f"unlucky with nodes = {n}, s = {self.s}: no connected draw in {ATTEMPTS} attempts; use a larger s"
        )


def connected_regular(n: int, s: int, stream: Stream) -> Graph:
    """A random s-regular graph, drawn again until it is connected."""
    return redraw_until_connected(
        lambda: Graph.from_edges(n, *random_regular_edges(n, s, stream)), f"regular with nodes = {n}, s = {s}"
    )


def redraw_until_connected(draw: Callable[[], Graph], what: str) -> Graph:
    """The first connected graph that `draw` returns; raises BadInput after the attempt limit."""
    for _ in range(ATTEMPTS):
        graph = draw()
        if graph.connected:
            return graph
    raise BadInput(f"{what}: no connected draw in {ATTEMPTS} attempts; use a denser graph")


def random_regular_edges(n: int, s: int, stream: Stream) -> Edges:
    """The directed edges, both ways, of a random s-regular graph (Steger and Wormald 1999).

    Stubs are paired at random; pairs that would make a loop or a double edge are paired again, and if no valid pair is left everything starts anew. Dense graphs
    are drawn as complements. All labels are treated alike.
    """
    if s > n - 1 - s:
        one, other = random_regular_edges(n, n - 1 - s, stream)
        absent = ~np.eye(n, dtype=bool)
        absent[one, other] = False
        rows, columns = np.nonzero(absent)
        return rows.astype(np.int64), columns.astype(np.int64)
    while True:
        keys = _pair_stubs(n, s, stream)
        if keys is not None:
            return both_ways(keys // n, keys % n)


def _pair_stubs(n: int, s: int, stream: Stream) -> NDArray[np.int64] | None:
    """Undirected edges as keys low * n + high, or None if the drawing got stuck."""
    keys = np.zeros(0, dtype=np.int64)
    stubs = np.repeat(np.arange(n), s)
    while stubs.size:
        stubs = stubs[stream.permutation(stubs.size)]
        low, high = np.minimum(stubs[::2], stubs[1::2]), np.maximum(stubs[::2], stubs[1::2])
        pair = low * n + high
        first = np.zeros(pair.size, dtype=bool)
        first[np.unique(pair, return_index=True)[1]] = True
        proper = first & (low != high) & ~np.isin(pair, keys)
        keys = np.concatenate([keys, pair[proper]])
        stubs = stubs.reshape(-1, 2)[~proper].ravel()
        if not proper.any() and not _some_pair_left(np.unique(stubs), keys, n):
            return None
    return np.sort(keys)


def _some_pair_left(nodes: NDArray[np.int64], keys: NDArray[np.int64], n: int) -> bool:
    """Whether any two of these nodes are not linked yet."""
    low, high = np.triu_indices(len(nodes), k=1)
    return not bool(np.isin(nodes[low] * n + nodes[high], keys).all())


def both_ways(one: NDArray[np.int64], other: NDArray[np.int64]) -> Edges:
    """Undirected edges as directed ones in both directions."""
    return np.concatenate([one, other]), np.concatenate([other, one])


def one_way(graph: Graph) -> Edges:
    """Each undirected edge once, as (low, high)."""
    once = graph.senders < graph.receivers
    return graph.senders[once].astype(np.int64), graph.receivers[once].astype(np.int64)
