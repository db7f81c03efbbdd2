"""Topologies that average exactly after finitely many rounds: the one-peer hypercube, and the Base-(k+1) graph.

Base-(k+1) (Takezawa et al., NeurIPS 2023) does so for any number of nodes, with at most k neighbours per node and round, in at most
2 log_{k+1}(n) + 2 rounds. Its links have their own weights.

A number is smooth here if all its prime factors are at most k + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, require_choice, require_int
from epidemic.core.graph import FloatArray, Graph
from epidemic.core.rng import Streams
from epidemic.topology.base import Topology
from epidemic.topology.regular import both_ways

Links = tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]
"""Undirected links of a round: one end, the other end, weight.   # (m,) each"""


class Hypercube(Topology, frozen=True, tag="hypercube"):
    """In round t nodes whose numbers differ in bit t mod log2(n) are paired: exact averaging after log2(n) rounds.

    Any log2(n) consecutive rounds suffice. The number of nodes must be a power of two.
    """

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    def check(self, n: int) -> None:
        super().check(n)
        if n & (n - 1):
            below = 1 << (n.bit_length() - 1)
            raise BadInput(
                f"nodes = {n} must be a power of two for a hypercube; use {below} or {2 * below},"
                ' or topology.kind = "base", which averages exactly with any number'
            )

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        bit = 1 << round % (n.bit_length() - 1)
        return Graph(n, np.arange(n + 1, dtype=np.int32), np.arange(n, dtype=np.int32) ^ np.int32(bit))


class Base(Topology, frozen=True, tag="base"):
    """The Base-(k+1) graph: exact averaging in a period of few rounds, with at most `k` neighbours in each.

    `relabel = "period"` places the nodes at random in every period, which removes the directions in which heterogeneous data is averaged badly; `"never"` keeps
    their positions. Round t is round t + `start` of the construction.
    """

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    natural_mixing: ClassVar[str] = "native"

    k: int = 1
    relabel: Literal["period", "never"] = "period"
    start: int = 0

    @classmethod
    def compared(cls, s: int, m: int | None) -> Mapping[str, Mapping[str, Any]]:
        return {"": {"k": s}}

    def __post_init__(self) -> None:
        require_int("topology.k", self.k, 1)
        require_choice("topology.relabel", self.relabel, ["period", "never"])
        require_int("topology.start", self.start, 0)

    def length(self, n: int) -> int:
        """Number of rounds in a period."""
        return 1 if self.k >= n - 1 else len(base_rounds(n, self.k))

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        if self.k >= n - 1:
            return Graph.complete(n)
        period, at = divmod(round + self.start, self.length(n))
        one, other, weight = base_rounds(n, self.k)[at]
        if self.relabel == "period":
            position = streams("topology", period).permutation(n)
            one, other = position[one], position[other]
        return Graph.from_edges(n, *both_ways(one, other), np.concatenate([weight, weight]))


@lru_cache(maxsize=16)
def base_rounds(n: int, k: int) -> tuple[Links, ...]:
    """The rounds of a period of Base-(k+1) on n nodes: the simple form, or groups and then columns, whichever is shorter."""
    simple = _simple(n, k)
    groups = _smooth_part(n, k)
    size = n // groups
    if groups == 1 or size == 1:
        return tuple(simple)
    inside = [_repeated(links, size * np.arange(groups)) for links in _simple(size, k)]
    across = [_repeated(links, np.arange(size), size) for links in _hyper_hypercube(groups, k)]
    both = inside + across
    return tuple(simple if len(simple) < len(both) else both)


def _simple(m: int, k: int) -> list[Links]:
    """Blocks average among themselves, then each block in turn meets all later ones and averages what it has received.

    Block l has a_l (k+1)^{p_l} nodes, the digits of m in base k + 1, and consists of a_l sub-blocks. No node idles if it can average with
    others, as in the authors' algorithm 2: blocks that have finished their rounds repeat them, and nodes that no later block meets
    form cliques. Neither the number of rounds nor their product changes, but models that train in between are mixed more.
    """
    if _smooth_part(m, k) == m:
        return _hyper_hypercube(m, k)
    blocks = _blocks(m, k)
    last = len(blocks) - 1
    whole = [_hyper_hypercube(count * size, k) for _, count, size in blocks]
    inside = [_hyper_hypercube(size, k) if size > 1 else own for (_, _, size), own in zip(blocks, whole, strict=True)]
    wait = len(whole[0])
    rounds = []
    for t in range(wait + 1 + len(inside[0])):
        parts: list[Links] = []
        for j, (at, count, size) in enumerate(blocks):
            met = t - wait - j  # rounds since its own meeting, or since its last one
            if t < wait:
                parts += _again(whole[j], t, np.array([at]))
            elif met == 0 and j < last:
                parts += _meeting(blocks[j:], k)
            elif met >= (0 if j == last else 1):
                since = met if j == last else met - 1
                parts += _again(inside[j], since, at + size * np.arange(count) if size > 1 else np.array([at]))
        rounds.append(_together(parts))
    return rounds


def _again(rounds: list[Links], t: int, begins: NDArray[np.int64]) -> list[Links]:
    """Round t of those that begin again when they are over, in several places; a single node has none."""
    return [_repeated(rounds[t % len(rounds)], begins)] if rounds else []


def _meeting(blocks: list[tuple[int, int, int]], k: int) -> list[Links]:
    """The first block meets all later ones: each of their nodes averages with a fresh node of each sub-block. Fresh nodes that are left form cliques."""
    at, count, size = blocks[0]
    late = np.concatenate([np.arange(begin, begin + many * each) for begin, many, each in reversed(blocks[1:])])
    subs = at + size * np.arange(count)
    partners = (subs + size - 1)[:, None] - np.arange(len(late))  # of each sub-block, from its end on
    share = size / (count * size + len(late))
    fresh = (subs[:, None] + np.arange(size - len(late))).ravel()
    cliques = [_clique(fresh[i : i + k + 1]) for i in range(0, len(fresh), k + 1)]
    return [(partners.ravel(), np.tile(late, count), np.full(partners.size, share)), *cliques]


def _clique(nodes: NDArray[np.int64]) -> Links:
    """Links among all of these nodes, with which they average exactly."""
    low, high = np.triu_indices(len(nodes), k=1)
    return nodes[low], nodes[high], np.full(len(low), 1 / len(nodes))


def _blocks(m: int, k: int) -> list[tuple[int, int, int]]:
    """Where each block begins, how many sub-blocks it has, and their size; the largest first."""
    size = 1
    while size * (k + 1) <= m:
        size *= k + 1
    found, at = [], 0
    while at < m:
        count = (m - at) // size
        if count:
            found.append((at, count, size))
        at, size = at + count * size, size // (k + 1)
    return found


def _hyper_hypercube(m: int, k: int) -> list[Links]:
    """H_k on m nodes, m being smooth: in each round the nodes that differ in one digit of mixed radix form a clique."""
    radices: list[int] = []
    left = m
    while left > 1:
        radices.append(next(f for f in range(min(k + 1, left), 1, -1) if left % f == 0))
        left //= radices[-1]
    rounds, stride = [], 1
    for f in reversed(radices):
        node = np.arange(m).reshape(-1, f, stride)  # the digit of this round in the middle
        low, high = np.triu_indices(f, k=1)
        pairs = node[:, low].ravel(), node[:, high].ravel()
        rounds.append((*pairs, np.full(len(pairs[0]), 1 / f)))
        stride *= f
    return rounds


def _smooth_part(n: int, k: int) -> int:
    """The largest divisor of n that is smooth."""
    left = n
    for f in range(2, min(k + 1, n) + 1):
        while left % f == 0:
            left //= f
    return n // left


def _repeated(links: Links, begins: NDArray[np.int64], stride: int = 1) -> Links:
    """The same links at several positions: node i is `stride` i beyond the start of each."""
    one, other, weight = links
    ends = [(begins[:, None] + stride * end).ravel() for end in (one, other)]
    return ends[0], ends[1], np.tile(weight, len(begins))


def _together(parts: list[Links]) -> Links:
    one, other, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
    return one, other, weight
