"""EquiTopo (Song et al., NeurIPS 2022): graphs of a few random offsets, with their own weights.

The basis matrix A_u gives weight (n - 1) / n to the node u positions ahead and 1 / n to the node itself; the mean of all of them is exact averaging. A
`native` weight per edge holds these numbers; the rest of a row to 1 is the weight of the node's own model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, require_int, require_real
from epidemic.core.graph import Graph
from epidemic.core.rng import Stream, Streams, distinct
from epidemic.topology.base import ATTEMPTS, Expected, StaticTopology, Topology

OUEQUIDYN_LIMIT = 2000
"""Up to this many nodes the exact factor of OU-EquiDyn (all n offsets, O(n**2)) is worked out."""


def _offsets(n: int, m: int, stream: Stream) -> NDArray[np.int64]:
    """m offsets of 1..n-1, with replacement, as in the paper of origin."""
    return 1 + stream.integers(n - 1, m).astype(np.int64)


def _strict_offsets(n: int, m: int, stream: Stream, *, classes: bool) -> NDArray[np.int64]:
    """m distinct offsets (with `classes`, no two of them opposite or n / 2) whose graph is connected."""
    available = (n + 1) // 2 - 1 if classes else n - 1
    for _ in range(ATTEMPTS):
        drawn: NDArray[np.int64] = 1 + distinct(stream, 1, available, m)[0].astype(np.int64)
        if math.gcd(n, *map(int, drawn)) == 1:
            return drawn
    raise BadInput(f"topology.m = {m} with nodes = {n}: no connected draw in {ATTEMPTS} attempts; use a larger m")


class DEquiStatic(StaticTopology, frozen=True, tag="d-equistatic"):
    """Node i receives from the nodes `m` random offsets ahead, the same offsets for all nodes and rounds.

    Offsets are drawn with replacement; `strict` makes them distinct and the graph connected.
    """

    symmetric: ClassVar[bool | None] = False
    doubly_stochastic: ClassVar[bool | None] = True

    natural_mixing: ClassVar[str] = "native"

    m: int
    strict: bool = False

    @classmethod
    def compared(cls, s: int, m: int | None) -> Mapping[str, Mapping[str, Any]]:
        return {"": {"m": s if m is None else m}}

    def __post_init__(self) -> None:
        require_int("topology.m", self.m, 1)

    def check(self, n: int) -> None:
        super().check(n)
        if self.strict and self.m > n - 1:
            raise BadInput(f"topology.m = {self.m} must be at most nodes - 1 = {n - 1} for distinct offsets")

    def build(self, n: int, stream: Stream) -> Graph:
        draw = _strict_offsets(n, self.m, stream, classes=False) if self.strict else _offsets(n, self.m, stream)
        return d_equistatic(n, draw)


class UEquiStatic(StaticTopology, frozen=True, tag="u-equistatic"):
    """D-EquiStatic made symmetric: up to 2m neighbours, `m` random offsets ahead and behind.

    Offsets are drawn with replacement, so some may coincide or the graph may fall apart; `strict` rules that out.
    """

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    natural_mixing: ClassVar[str] = "native"

    m: int
    strict: bool = False

    @classmethod
    def compared(cls, s: int, m: int | None) -> Mapping[str, Mapping[str, Any]]:
        return {"": {"m": (s + 1) // 2 if m is None else m}}

    def __post_init__(self) -> None:
        require_int("topology.m", self.m, 1)

    def check(self, n: int) -> None:
        super().check(n)
        available = (n + 1) // 2 - 1
        if self.strict and self.m > available:
            raise BadInput(f"topology.m = {self.m} must be at most {available} for distinct offsets with nodes = {n}")

    def build(self, n: int, stream: Stream) -> Graph:
        draw = _strict_offsets(n, self.m, stream, classes=True) if self.strict else _offsets(n, self.m, stream)
        return u_equistatic(n, draw)


def d_equistatic(n: int, offsets: NDArray[np.int64]) -> Graph:
    """The directed graph of these offsets with EquiTopo's weights."""
    m = len(offsets)
    return Graph.circulant(n, offsets, np.full(m, (n - 1) / n / m))


def u_equistatic(n: int, offsets: NDArray[np.int64]) -> Graph:
    """The undirected graph of these offsets with EquiTopo's weights."""
    m = len(offsets)
    return Graph.circulant(n, np.concatenate([offsets, -offsets]), np.full(2 * m, (n - 1) / n / (2 * m)))


def offsets_for(n: int, sigma: float, failure: float) -> int:
    """The number of offsets m for which sigma is below the given value except with probability `failure`.

    Song et al.'s guarantee, 8 ln(2 n / failure) / (3 sigma^2), rounded up. It asks for far more than practice needs.
    """
    require_int("nodes", n, 2)
    require_real("sigma", sigma, above=0, high=1)
    require_real("failure", failure, above=0, high=1)
    return math.ceil(8 * math.log(2 * n / failure) / (3 * sigma**2))


class _EquiDyn(Topology, frozen=True):
    """One offset a round, from all 1..n-1 or (with `m`) from m offsets drawn once per run; `eta` is the length of the step."""

    natural_mixing: ClassVar[str] = "native"
    random: ClassVar[bool] = True

    eta: float = 0.5
    m: int | None = None

    def __post_init__(self) -> None:
        require_real("topology.eta", self.eta, above=0, high=1)
        if self.m is not None:
            require_int("topology.m", self.m, 1)


class ODEquiDyn(_EquiDyn, frozen=True, tag="od-equidyn"):
    """Each round one random offset: node i receives from the node u positions ahead and takes the share `eta` of the step A_u.

    The offset comes from all 1..n-1 or, with `m`, from m offsets drawn once per run.
    """

    symmetric: ClassVar[bool | None] = False
    doubly_stochastic: ClassVar[bool | None] = True

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        u = _round_offset(n, self.m, round, streams)
        return Graph.circulant(n, np.array([u]), np.array([self.eta * (n - 1) / n]))

    def expected(self, n: int, streams: Streams) -> Expected:
        if self.m is None:
            factor = 1 - 2 * self.eta + 2 * self.eta**2 * (n - 1) / n  # the same for every direction
            return Expected(sigma2=factor, contraction=factor)
        wave = np.exp(2j * np.pi * np.outer(np.arange(1, n), _basis(n, self.m, streams)) / n)  # (n - 1, m)
        eigenvalues = 1 - self.eta + self.eta * (1 / n + (n - 1) / n * wave)
        return Expected(sigma2=float((np.abs(eigenvalues) ** 2).mean(axis=1).max()))


class OUEquiDyn(_EquiDyn, frozen=True, tag="ou-equidyn"):
    """Each round one random offset u and a random start: going round from there, free nodes u apart are paired.

    Pairs take the share `eta` of a step towards each other's model; the unpaired keep theirs and send nothing.
    """

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        u = _round_offset(n, self.m, round, streams)
        start = int(streams("topology-start", round).integers(n, 1)[0])
        one, other = matching(n, u, start)
        weight = np.full(2 * len(one), self.eta * (n - 1) / n)
        return Graph.from_edges(n, np.concatenate([one, other]), np.concatenate([other, one]), weight)

    def expected(self, n: int, streams: Streams) -> Expected:
        if n > OUEQUIDYN_LIMIT:
            return Expected()
        # W = (1 - e) I + e P with P a symmetric permutation, so W^2 = ((1-e)^2 + e^2) I + 2 e (1-e) P; the mean of P over the
        # start is circulant, and the number of pairs does not depend on the start.
        row = np.zeros(n)
        offsets = range(1, n) if self.m is None else [int(u) for u in _basis(n, self.m, streams)]
        for u in offsets:
            pairs = len(matching(n, u, 0)[0])
            row[u] += pairs / n / len(offsets)
            row[n - u] += pairs / n / len(offsets)
            row[0] += (1 - 2 * pairs / n) / len(offsets)
        e = self.eta * (n - 1) / n
        largest = float(np.fft.fft(row).real[1:].max())
        return Expected(sigma2=(1 - e) ** 2 + e**2 + 2 * e * (1 - e) * largest)


def matching(n: int, u: int, start: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs (i, i + u mod n), taken greedily in the order start, start + 1, ... (mod n) while both are free."""
    free = [True] * n
    one: list[int] = []
    other: list[int] = []
    for i in [*range(start, n), *range(start)]:
        j = (i + u) % n
        if free[i] and free[j] and i != j:
            free[i] = free[j] = False
            one.append(i)
            other.append(j)
    return np.array(one, dtype=np.int64), np.array(other, dtype=np.int64)


def _basis(n: int, m: int, streams: Streams) -> NDArray[np.int64]:
    return _offsets(n, m, streams("topology"))


def _round_offset(n: int, m: int | None, round: int, streams: Streams) -> int:
    stream = streams("topology", round)
    if m is None:
        return 1 + int(stream.integers(n - 1, 1)[0])
    return int(_basis(n, m, streams)[stream.integers(m, 1)[0]])
