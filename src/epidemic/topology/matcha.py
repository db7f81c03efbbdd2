"""MATCHA (Wang et al. 2019): a fixed graph is cut into matchings, and each round uses some of them.

The links of the inner graph are cut into m matchings. Matching j is used with probability p_j, independently in each round; the p_j sum to at most
budget * m and maximise lambda_2, the second smallest eigenvalue of the mean Laplacian. A round's weights are W = I - alpha L, with the alpha that minimises
the spectral norm rho of E[W^T W] - J:

  E[W^T W] = I - 2 alpha Lbar + alpha^2 (Lbar^2 + 2 Ltilde),   Lbar = sum p_j L_j,   Ltilde = sum p_j (1 - p_j) L_j

A node's weight of its own model may be negative: 1 - alpha times the number of its links.

lambda_2 is concave in p, and so is the smooth soft minimum of all eigenvalues but the first: that one is maximised, with increasing sharpness. rho is convex
in alpha: its slope is bisected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, RunFailed, require_choice, require_real
from epidemic.core.graph import FloatArray, Graph
from epidemic.core.rng import Streams
from epidemic.topology.base import Expected, exchange_of, is_random, is_static, kind_of
from epidemic.topology.regular import one_way
from epidemic.topology.wrappers import Wrapper

# -- Edge colourings: the links of a graph as a few matchings, in each of which a node has at most one partner -------


def edge_colours(n: int, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each undirected link, links that meet having different ones: 0, 1, ..., at most the largest degree.   # (m,)

    Tried with as many colours as the largest degree first, which always succeeds in bipartite graphs; else with one more, by Misra
    and Gries (1992), which always succeeds.
    """
    degree = np.bincount(np.concatenate([one, other]), minlength=n)
    fewest = int(degree.max(initial=0))
    links = list(zip(one.tolist(), other.tolist(), strict=True))
    for colours in (fewest, fewest + 1):
        colouring = _Colouring(n, colours)
        if all(colouring.add(u, v) for u, v in links):
            break
    return np.array([colouring.colour[min(u, v), max(u, v)] for u, v in links], dtype=np.int64)


class _Colouring:
    """A proper colouring of the links so far. `spare` has a bit for each colour that a node has not used."""

    def __init__(self, n: int, colours: int) -> None:
        self.colour: dict[tuple[int, int], int] = {}
        self._partner: list[dict[int, int]] = [{} for _ in range(n)]  # by colour
        self._spare = [(1 << colours) - 1] * n
        self._colours = colours

    def add(self, u: int, v: int) -> bool:
        """Colour one more link, recolouring others if necessary; False if so few colours do not suffice."""
        both = self._spare[u] & self._spare[v]
        if both:
            self._set(u, v, _lowest(both))
            return True
        if self._swap_and_set(u, v):
            return True
        return self._by_fan(u, v)

    def _swap_and_set(self, u: int, v: int) -> bool:
        """Free a colour of u at v: the links from v in that colour and in one that v has to spare exchange the two."""
        for a in _bits(self._spare[u]):
            for b in _bits(self._spare[v]):
                path = self._path(v, a, b)
                if path[-1] != u:
                    self._exchange(path, a, b)
                    self._set(u, v, a)
                    return True
        return False

    def _by_fan(self, u: int, v: int) -> bool:
        """Misra and Gries: links of u pass their colours on until the new one can have its own."""
        fan = [v]
        while True:
            more = (self._partner[u].get(c) for c in _bits(self._spare[fan[-1]]))
            following = next((w for w in more if w is not None and w not in fan), None)
            if following is None:
                break
            fan.append(following)
        if not self._spare[u] or not self._spare[fan[-1]]:
            return False
        c, d = _lowest(self._spare[u]), _lowest(self._spare[fan[-1]])
        self._exchange(self._path(u, d, c), d, c)
        for last, w in enumerate(fan):
            if last and not self._spare[fan[last - 1]] >> self._of(u, w) & 1:
                return False  # the rest is no fan any more; cannot happen with one colour more than the largest degree
            if self._spare[w] >> d & 1:
                passed = [self._of(u, w) for w in fan[1 : last + 1]]
                for w in fan[1 : last + 1]:
                    self._unset(u, w)
                for w, colour in zip(fan[: last + 1], [*passed, d], strict=True):
                    self._set(u, w, colour)
                return True
        return False

    def _path(self, start: int, a: int, b: int) -> list[int]:
        """The nodes from `start` on along links coloured a, b, a, ..."""
        path, colour = [start], a
        while colour in self._partner[path[-1]]:
            path.append(self._partner[path[-1]][colour])
            colour = a + b - colour
        return path

    def _exchange(self, path: list[int], a: int, b: int) -> None:
        """Exchange the colours of a path that begins with a."""
        for u, v in pairwise(path):
            self._unset(u, v)
        for i, (u, v) in enumerate(pairwise(path)):
            self._set(u, v, a if i % 2 else b)

    def _of(self, u: int, v: int) -> int:
        return self.colour[min(u, v), max(u, v)]

    def _set(self, u: int, v: int, colour: int) -> None:
        self.colour[min(u, v), max(u, v)] = colour
        for here, there in ((u, v), (v, u)):
            self._partner[here][colour] = there
            self._spare[here] ^= 1 << colour

    def _unset(self, u: int, v: int) -> None:
        colour = self.colour.pop((min(u, v), max(u, v)))
        for here in (u, v):
            del self._partner[here][colour]
            self._spare[here] ^= 1 << colour


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _bits(bits: int) -> list[int]:
    found = []
    while bits:
        found.append(_lowest(bits))
        bits &= bits - 1
    return found


OPTIMAL_LIMIT = 300
"""Up to this many nodes the best probabilities are worked out, with dense matrices."""
SHARPNESS = (1e-1, 1e-2, 1e-3, 1e-4)
"""Temperatures of the soft minimum, in units of lambda_2."""
BETTER = 1e-6
"""Equal probabilities are kept unless others increase lambda_2 by more than this fraction."""
PROBABILITY_DIGITS, STEP_DIGITS = 5, 9
"""To so many digits machines which round differently agree."""


class Matcha(Wrapper, frozen=True, tag="matcha"):
    """A static graph whose links are cut into matchings; each round uses a random choice of these, a share `budget` of them on average.

    `inner` must be static and connected, with links that go both ways. `probabilities = "uniform"` gives all matchings the same one, which works for any number
    of nodes and is often as good.
    """

    symmetric: ClassVar[bool | None] = True
    doubly_stochastic: ClassVar[bool | None] = True

    natural_mixing: ClassVar[str] = "native"
    placed: ClassVar[bool] = True
    random: ClassVar[bool] = True
    static: ClassVar[bool] = False
    exchange: ClassVar[str] = "messages"

    budget: float = 0.5
    probabilities: Literal["optimal", "uniform"] = "optimal"

    @classmethod
    def compared(cls, s: int, m: int | None) -> Mapping[str, Mapping[str, Any]]:
        return {"": {"inner": {"kind": "regular", "s": s}, "probabilities": "uniform"}}

    def __post_init__(self) -> None:
        require_real("topology.budget", self.budget, above=0, high=1)
        require_choice("topology.probabilities", self.probabilities, ["optimal", "uniform"])
        super().__post_init__()
        if not is_static(self.inner):
            changes = "is drawn anew" if is_random(self.inner) else "changes"
            raise BadInput(
                f'topology.inner.kind = "{kind_of(self.inner)}" {changes} in every round, but MATCHA is made of a fixed graph;'
                " use a static one (ring, torus, regular, geometric, erdos-renyi)"
            )

    def check(self, n: int) -> None:
        super().check(n)
        if exchange_of(self.inner) != "messages":
            raise BadInput(
                "topology.inner of matcha says which pairs may talk, one by one: leave its cost out, and use no kind that asks"
            )
        if self.probabilities == "optimal" and n > OPTIMAL_LIMIT:
            raise BadInput(
                f'topology.probabilities = "optimal" with nodes = {n}: they are worked out for at most {OPTIMAL_LIMIT} nodes;'
                ' use probabilities = "uniform"'
            )

    def design(self, n: int, streams: Streams) -> Design:
        """The decisions for the whole run: matchings, probabilities and alpha."""
        self.check(n)
        graph = self.inner.graph(n, 0, streams)
        return _design(_Fixed(graph.digest(), graph), self.budget, self.probabilities)

    def draw(self, n: int, round: int, streams: Streams) -> Graph:
        design = self.design(n, streams)
        active = streams("topology", round).uniforms(len(design.probability)) < design.probability
        return design.graph.keep(active[design.matching])

    def expected(self, n: int, streams: Streams) -> Expected:
        return Expected(sigma2=self.design(n, streams).rho)


@dataclass(frozen=True, eq=False)
class Design:
    """Everything about a run of MATCHA that does not change from round to round."""

    graph: Graph  # all links, each with the weight alpha
    matching: NDArray[np.int64]  # (edges,) to which matching each belongs, in both directions
    probability: FloatArray  # (m,) that a matching is there
    alpha: float
    rho: float  # largest eigenvalue of E[W^T W] - J


@dataclass(frozen=True)
class _Fixed:
    """A graph that is identified by its content."""

    digest: str
    graph: Graph = field(compare=False)


@lru_cache(maxsize=16)
def _design(fixed: _Fixed, budget: float, probabilities: str) -> Design:
    graph = fixed.graph.explicit()
    if not graph.undirected:
        raise BadInput(
            "topology.inner has directed links, but MATCHA needs pairs; use a ring, torus, regular or geometric graph"
        )
    if not graph.connected:
        raise BadInput("topology.inner is disconnected, so MATCHA never agrees on it; use another seed or more links")
    one, other = one_way(graph)
    colour = edge_colours(graph.n, one, other)
    links = Matchings(graph.n, one, other, colour)
    p = np.full(links.count, budget)
    if probabilities == "optimal":
        p = best_probabilities(links, budget)
        laplacian = links.laplacian(p[colour]).toarray()
        spread = links.laplacian((p * (1 - p))[colour]).toarray()
        alpha, rho = best_step(np.eye(graph.n) - 1 / graph.n, laplacian, laplacian @ laplacian + 2 * spread)
    else:  # all matrices are functions of one Laplacian, and rho is that of its smallest or its largest eigenvalue
        ends = np.diag(budget * np.array(links.extreme_eigenvalues()))
        alpha, rho = best_step(np.eye(2), ends, ends @ ends + 2 * (1 - budget) * ends)
    low, high = np.minimum(graph.senders, graph.receivers), np.maximum(graph.senders, graph.receivers)
    keys = one * graph.n + other
    order = np.argsort(keys)
    at = order[np.searchsorted(keys, low.astype(np.int64) * graph.n + high, sorter=order)]
    weighted = Graph(graph.n, graph.indptr, graph.senders, np.full(graph.messages, alpha))
    return Design(weighted, colour[at], p, alpha, rho)


@dataclass(frozen=True, eq=False)
class Matchings:
    """The undirected links of a graph, and to which matching each belongs.   # (links,) each"""

    n: int
    one: NDArray[np.int64]
    other: NDArray[np.int64]
    colour: NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number of matchings."""
        return int(self.colour.max()) + 1

    def laplacian(self, weight: FloatArray) -> scipy.sparse.csr_array:
        """That of links with these weights.   # (links,) -> (n, n)"""
        a, b = self.one, self.other
        data = np.concatenate([weight, weight, -weight, -weight])
        places = (np.concatenate([a, b, a, b]), np.concatenate([a, b, b, a]))
        return scipy.sparse.csr_array((data, places), shape=(self.n, self.n))

    def across(self, vectors: FloatArray) -> FloatArray:
        """v^T L_j v for each vector and matching.   # (n, r) -> (r, m)"""
        squares = (vectors[self.one] - vectors[self.other]) ** 2  # (links, r)
        order = np.argsort(self.colour, kind="stable")
        starts = np.searchsorted(self.colour[order], np.arange(self.count))
        found: FloatArray = np.add.reduceat(squares[order], starts, axis=0).T
        return found

    def extreme_eigenvalues(self) -> tuple[float, float]:
        """The smallest but 0 and the largest eigenvalue of the whole graph's Laplacian."""
        whole = self.laplacian(np.ones(len(self.one)))
        if self.n <= OPTIMAL_LIMIT:
            values = np.linalg.eigvalsh(whole.toarray())
            return float(values[1]), float(values[-1])
        largest = _largest(self.n, lambda x: whole @ x)
        gap = _largest(self.n, lambda x: largest * (x - x.mean()) - whole @ x)
        return largest - gap, largest


def best_probabilities(links: Matchings, budget: float) -> FloatArray:
    """The probabilities, `budget` on average, that maximise lambda_2 of the mean Laplacian; equal ones if those are as good.   # (m,)"""
    from scipy.optimize import LinearConstraint, minimize  # takes a while to import, and few need it

    m = links.count
    equal = np.full(m, budget)
    if budget == 1 or m == 1:
        return equal
    p, scale = equal, lambda_2(links, equal)
    together = LinearConstraint(np.ones((1, m)), -np.inf, budget * m)
    for sharpness in SHARPNESS:

        def height(p: FloatArray, soft: float = sharpness * scale) -> tuple[float, FloatArray]:
            value, slope = soft_lambda_2(links, p, soft)
            return -value / scale, -slope / scale

        found = minimize(height, p, jac=True, method="SLSQP", bounds=[(0, 1)] * m, constraints=[together], tol=1e-9)
        p = np.clip(found.x, 0, 1)
    p = np.round(p, PROBABILITY_DIGITS)
    return p if lambda_2(links, p) > (1 + BETTER) * scale else equal


def lambda_2(links: Matchings, p: FloatArray) -> float:
    """The second smallest eigenvalue of the mean Laplacian."""
    return float(np.linalg.eigvalsh(links.laplacian(p[links.colour]).toarray())[1])


def soft_lambda_2(links: Matchings, p: FloatArray, soft: float) -> tuple[float, FloatArray]:
    """A smooth bound of lambda_2 from below, within soft * ln(n), and its gradient.   # float, (m,)"""
    values, vectors = np.linalg.eigh(links.laplacian(p[links.colour]).toarray())
    share = np.exp((values[1] - values[1:]) / soft)
    near = share > 1e-12
    share = share[near]
    slope: FloatArray = share @ links.across(vectors[:, 1:][:, near]) / share.sum()
    return float(values[1] - soft * np.log(share.sum())), slope


def best_step(start: FloatArray, first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """The step a > 0 for which the largest eigenvalue of start - 2 a first + a^2 second is smallest, and that eigenvalue.   # (d, d) each"""

    def top(a: float) -> tuple[float, float]:
        """The largest eigenvalue at a, and how it changes."""
        values, vectors = np.linalg.eigh(start - 2 * a * first + a * a * second)
        v = vectors[:, -1]
        return float(values[-1]), float(2 * v @ (a * (second @ v) - first @ v))

    low, high = 0.0, 1.0
    while top(high)[1] < 0:
        low, high = high, 2 * high
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if top(middle)[1] < 0 else (low, middle)
    step = round(high, STEP_DIGITS)
    return step, top(step)[0]


def _largest(n: int, product: object) -> float:
    """The largest eigenvalue of a symmetric matrix, by its products with vectors."""
    operator = scipy.sparse.linalg.LinearOperator((n, n), matvec=product, dtype=np.float64)
    start = np.cos(np.arange(n) * 0.7) + np.linspace(-1, 1, n)
    try:
        found = scipy.sparse.linalg.eigsh(
            operator, k=1, which="LA", ncv=min(n, 96), v0=start, return_eigenvectors=False, maxiter=400, tol=1e-11
        )
    except scipy.sparse.linalg.ArpackNoConvergence:
        raise RunFailed(
            f"matcha with nodes = {n}: the inner graph's smallest eigenvalue did not converge; use a denser one"
        ) from None
    return float(found[0])
