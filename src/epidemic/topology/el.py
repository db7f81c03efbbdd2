"""The two topologies of Epidemic Learning (de Vos et al., NeurIPS 2023, section 3)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from epidemic import theory
from epidemic.errors import require_choice, require_int
from epidemic.graph import Graph
from epidemic.rng import Streams, distinct
from epidemic.topology.base import Expected, Topology, check_degree
from epidemic.topology.regular import random_regular_edges


class ELOracle(Topology, frozen=True, tag="el-oracle"):
    """Each round a random graph in which every node exchanges models with exactly `s` others.

    `base = "permuted"` relabels a fixed s-regular graph at random, `"fresh"` draws a new random s-regular graph. Every
    pair is linked with probability s / (n - 1) either way, and the contraction is the same. A round's graph need not
    be connected, and is never "repaired".
    """

    random: ClassVar[bool] = True

    s: int
    base: Literal["permuted", "fresh"] = "permuted"

    def __post_init__(self) -> None:
        require_int("topology.s", self.s, 1)
        require_choice("topology.base", self.base, ["permuted", "fresh"])

    def check(self, n: int) -> None:
        check_degree(n, self.s, even=True)

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        if self.s == n - 1:
            return Graph.complete(n)
        stream = streams("topology", round)
        if self.base == "fresh":
            return Graph.from_edges(n, *random_regular_edges(n, self.s, stream))
        seat = stream.permutation(n).astype(np.int32)  # seat[i]: the node on seat i of a fixed circulant graph
        round_table = np.concatenate([seat, seat])
        half = range(1, self.s // 2 + 1)
        offsets = [*half, *(n - o for o in half), *([n // 2] if self.s % 2 else [])]
        heard = np.empty((n, self.s), dtype=np.int32)
        heard[seat] = np.stack([round_table[o : o + n] for o in offsets], axis=1)
        return Graph.from_targets(heard)

    def expected(self, n: int, streams: Streams) -> Expected:
        alpha = theory.alpha(n, self.s)
        return Expected(sigma2=alpha, contraction=alpha)


class ELLocal(Topology, frozen=True, tag="el-local"):
    """Every node sends to `s` distinct others, chosen uniformly and independently anew each round."""

    random: ClassVar[bool] = True

    s: int

    def __post_init__(self) -> None:
        require_int("topology.s", self.s, 1)

    def check(self, n: int) -> None:
        check_degree(n, self.s, even=False)

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        if self.s == n - 1:
            return Graph.complete(n)
        others = distinct(streams("topology", round), n, n - 1, self.s)  # (n, s)
        return Graph.from_targets(others + (others >= np.arange(n, dtype=others.dtype)[:, None]))  # skip oneself

    def expected(self, n: int, streams: Streams) -> Expected:
        beta = theory.beta(n, self.s)
        return Expected(sigma2=beta, contraction=beta - theory.mean_drift(n, self.s))
