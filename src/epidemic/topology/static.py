"""Fixed networks that Epidemic Learning is compared with, and the two extremes: complete and isolated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.core.graph import FloatArray, Graph
from epidemic.core.rng import Stream, Streams
from epidemic.topology.base import EXCHANGE, Cost, StaticTopology, Topology, ceil_log2
from epidemic.topology.regular import both_ways, redraw_until_connected


class Ring(StaticTopology, frozen=True, tag="ring"):
    """Every node exchanges with its two neighbours on a ring."""

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    def build(self, n: int, stream: Stream) -> Graph:
        return Graph.circulant(n, np.array([1, -1]))


class Torus(StaticTopology, frozen=True, tag="torus"):
    """A grid that wraps around at its edges; every node has four neighbours.

    Without `rows`, the grid is as square as the number of nodes allows.
    """

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    rows: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            require_int("topology.rows", self.rows, 3)

    def check(self, n: int) -> None:
        require_int("nodes", n, 9)
        self.shape(n)

    def shape(self, n: int) -> tuple[int, int]:
        """Rows and columns of the grid."""
        rows = self.rows or max(r for r in range(1, math.isqrt(n) + 1) if n % r == 0)
        if n % rows:
            raise BadInput(f"topology.rows = {rows} must divide nodes = {n}")
        if min(rows, n // rows) < 3:
            raise BadInput(
                f"nodes = {n} makes a torus of {rows} x {n // rows}, but both sides must be at least 3;"
                f" use nodes = {3 * math.ceil(n / 3)} or another topology"
            )
        return rows, n // rows

    def build(self, n: int, stream: Stream) -> Graph:
        rows, columns = self.shape(n)
        row, column = np.divmod(np.arange(n), columns)
        down = (row + 1) % rows * columns + column
        right = row * columns + (column + 1) % columns
        here = np.arange(n)
        return Graph.from_edges(n, *both_ways(np.concatenate([here, here]), np.concatenate([down, right])))


class Complete(StaticTopology, frozen=True, tag="complete", omit_defaults=True):
    """Every node sends to all others: each round ends with the exact average.

    `cost` changes what is counted, not the models: "all-to-all" n - 1 models a node and round, "all-reduce" 2 (n - 1) / n of a model, what the best all-reduce
    sends (Patarasuk and Yuan 2009), in 2 (n - 1) messages.
    """

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    cost: Cost = "all-to-all"

    @classmethod
    def compared(cls, s: int, m: int | None) -> Mapping[str, Mapping[str, Any]]:
        return {"": {}, " (all-reduce)": {"cost": "all-reduce"}}

    def __post_init__(self) -> None:
        require_choice("topology.cost", self.cost, EXCHANGE)

    @property
    def exchange(self) -> str:  # type: ignore[override]
        return EXCHANGE[self.cost]

    def build(self, n: int, stream: Stream) -> Graph:
        return Graph.complete(n, exchange=self.exchange)


class Isolated(StaticTopology, frozen=True, tag="none"):
    """No messages: local training only. The only topology for a single node."""

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    fewest_nodes: ClassVar[int] = 1

    def build(self, n: int, stream: Stream) -> Graph:
        return Graph.empty(n)


class ErdosRenyi(StaticTopology, frozen=True, tag="erdos-renyi"):
    """Every pair is linked with probability (1 + c) ln(n) / n, drawn again until connected."""

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    natural_mixing: ClassVar[str] = "metropolis-hastings"

    c: float = 1.0

    def __post_init__(self) -> None:
        require_real("topology.c", self.c, above=0)

    def probability(self, n: int) -> float:
        """The probability that two given nodes are linked."""
        return (1 + self.c) * math.log(n) / n

    def check(self, n: int) -> None:
        super().check(n)
        if self.probability(n) > 1:
            raise BadInput(
                f"topology.c = {self.c:g} with nodes = {n} asks for links of probability {self.probability(n):.3g};"
                f" c must be at most {n / math.log(n) - 1:.4g}"
            )

    def build(self, n: int, stream: Stream) -> Graph:
        return redraw_until_connected(
            lambda: Graph.from_edges(n, *both_ways(*random_pairs(n, self.probability(n), stream))),
            f"erdos-renyi with nodes = {n}, c = {self.c:g}",
        )


def random_pairs(n: int, q: float, stream: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each of the n (n - 1) / 2 pairs with probability q, by drawing the gaps between chosen ones."""
    pairs = n * (n - 1) // 2
    chosen: list[NDArray[np.int64]] = []
    last = -1
    while last < pairs:
        count = int(q * (pairs - last) + 6 * math.sqrt(q * pairs)) + 16
        if q == 1:
            gaps = np.ones(count, dtype=np.int64)
        else:
            gap = np.log1p(-stream.uniforms(count)) / math.log1p(-q)
            gaps = 1 + np.minimum(gap, pairs).astype(np.int64)  # 1 + geometric
        where = last + np.cumsum(gaps)
        chosen.append(where)
        last = int(where[-1])
    index = np.concatenate(chosen)
    index = index[index < pairs]
    # Pair (a, b), a > b, has index a (a - 1) / 2 + b.
    a = ((1 + np.sqrt(1 + 8.0 * index)) / 2).astype(np.int64)
    a += (a + 1) * a // 2 <= index  # mend the rounding of the square root
    a -= a * (a - 1) // 2 > index
    return a, index - a * (a - 1) // 2


class Geometric(StaticTopology, frozen=True, tag="geometric"):
    """Random points in the unit square, linked if they are at most `radius` apart, redrawn until connected.

    Without `radius` it is sqrt(2 ln(n) / (pi n)). `torus` joins opposite sides, so that no node is at an edge; a node then has (n - 1) pi radius^2 neighbours on
    average.
    """

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    natural_mixing: ClassVar[str] = "metropolis-hastings"

    radius: float | None = None
    torus: bool = False

    def __post_init__(self) -> None:
        if self.radius is not None:
            require_real("topology.radius", self.radius, above=0, high=math.sqrt(2))

    def reach(self, n: int) -> float:
        """How far apart linked nodes may be."""
        return math.sqrt(2 * math.log(n) / (math.pi * n)) if self.radius is None else self.radius

    def build(self, n: int, stream: Stream) -> Graph:
        reach = self.reach(n)
        return redraw_until_connected(
            lambda: Graph.from_edges(n, *both_ways(*near_pairs(stream.uniforms(n, 2), reach, torus=self.torus))),
            f"geometric with nodes = {n}, radius = {reach:.4g}",
        )


def near_pairs(points: FloatArray, reach: float, *, torus: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each pair of points of the unit square that are at most so far apart, once.   # (n, 2)"""
    from scipy.spatial import cKDTree  # takes a while to import, and few need it

    pairs = cKDTree(points, boxsize=1.0 if torus else None).query_pairs(reach, output_type="ndarray")
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)


class Exponential(StaticTopology, frozen=True, tag="exponential"):
    """Node i receives from the nodes at distance 1, 2, 4, ... ahead of it (Ying et al. 2021)."""

    symmetric: ClassVar[bool | None] = False
    doubly_stochastic: ClassVar[bool | None] = True

    def build(self, n: int, stream: Stream) -> Graph:
        return Graph.circulant(n, 2 ** np.arange(ceil_log2(n)))


class OnePeerExponential(Topology, frozen=True, tag="one-peer-exponential"):
    """The exponential graph, one distance a round in turn; exact averaging every log2(n) rounds at powers of two."""

    symmetric: ClassVar[bool | None] = False
    doubly_stochastic: ClassVar[bool | None] = True

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        return Graph.circulant(n, np.array([2 ** (round % ceil_log2(n))]))
