"""Guarantees for a run with malicious nodes: f for a given risk, and the least s that allows it.

A robust rule that tolerates f of m > 2 f models works at a node and round in which at most f of them are malicious. A node-round with more is *bad*. All
statements are about the h = n - b honest nodes in T rounds, and follow from the laws of `epidemic.theory.malicious`:

    expected number of bad node-rounds   h T p, p the probability of more than f malicious models at a node
    a run without any                    (1 - p)^(h T) in pull, where all node-rounds are independent; at least (1 - min(1, h p))^T elsewhere
    f of a risk                          the least with P(some bad node-round) <= risk; it has to leave m > 2 f

EL-Local receives a varying number of models, so its f depends on that number; a node whose f leaves no honest majority keeps its own model in that round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.theory.contraction import check_size, indegree, p_empty_inbox
from epidemic.theory.malicious import Kind, check_malicious, malicious_among, malicious_law

IntArray = NDArray[np.int64]

ENOUGH = 0.5
"""Share of the node-rounds that have to be able to aggregate, where the number of models received is random."""


def expected_bad(n: int, b: int, s: int, rounds: int, f: int, kind: Kind = "pull") -> float:
    """Return the expected number of bad node-rounds of a run in which every node tolerates f malicious models."""
    check_run(n, b, rounds, f)
    return (n - b) * rounds * malicious_law(n, b, s, kind).more_than(f)


def expected_bad_nodes(n: int, b: int, in_degrees: ArrayLike, f: ArrayLike) -> float:
    """Expected number of bad honest nodes on a graph that is given, where the malicious nodes are drawn at random.

    Args:
        n: Number of nodes.
        b: How many of them are malicious, every set equally likely.
        in_degrees: Models that each node receives, (n,), or (graphs, n) to add up over several graphs.
        f: Malicious models that each node tolerates, or that all tolerate.
    """
    check_malicious(n, b)
    degrees = np.asarray(in_degrees, dtype=np.int64)
    pairs = np.stack([degrees, np.broadcast_to(np.asarray(f, dtype=np.int64), degrees.shape)]).reshape(2, -1)
    values, counts = np.unique(pairs, axis=1, return_counts=True)
    p = [malicious_among(n, b, int(a)).more_than(int(x)) for a, x in values.T]
    return (n - b) / n * math.fsum(counts * np.array(p))


def p_clean(n: int, b: int, s: int, rounds: int, f: int, kind: Kind = "pull") -> float:
    """Return the probability of a run without any bad node-round; a lower bound of it unless the kind is "pull"."""
    check_run(n, b, rounds, f)
    return math.exp(log_clean(n, b, rounds, malicious_law(n, b, s, kind).more_than(f), kind))


def p_some_bad(n: int, b: int, s: int, rounds: int, f: int, kind: Kind = "pull") -> float:
    """Return 1 - `p_clean`, accurate where it is tiny."""
    check_run(n, b, rounds, f)
    return -math.expm1(log_clean(n, b, rounds, malicious_law(n, b, s, kind).more_than(f), kind))


def log_clean(n: int, b: int, rounds: int, p: float, kind: str) -> float:
    """Logarithm of the probability of no bad node-round, p being that of a node in a round.

    Nodes of one round are independent in pull; elsewhere the probabilities of the nodes of a round are added.
    """
    if kind == "pull":
        return (n - b) * rounds * math.log1p(-p) if p < 1 else -math.inf
    round = min(1.0, (n - b) * p)
    return rounds * math.log1p(-round) if round < 1 else -math.inf


def log_limit(n: int, b: int, rounds: int, risk: float, kind: str = "pull") -> float:
    """Logarithm of the probability that a node may have of a bad round, so that a run has some with at most this risk."""
    check_malicious(n, b)
    require_int("rounds", rounds, 1)
    require_real("risk", risk, above=0)
    if risk >= 1:
        raise BadInput(f"risk = {risk:g} must be less than 1; 0.01 is usual")
    if kind == "pull":
        return math.log(-math.expm1(math.log1p(-risk) / ((n - b) * rounds)))
    return math.log(risk) - math.log((n - b) * rounds)


def tolerate(n: int, b: int, s: int, rounds: int, risk: float, kind: Kind = "pull") -> int:
    """The least f with which a run has a bad node-round with at most this risk, whether s + 1 models allow it or not.

    Args:
        n: Number of nodes.
        b: How many of them are malicious.
        s: Messages per node and round.
        rounds: Rounds of the run, T.
        risk: Accepted probability that any honest node receives more than f malicious models in any round.
        kind: "pull", "el-oracle", or "el-local" for one f whatever a node receives.

    Returns:
        f. A rule needs m > 2 f models.
    """
    return malicious_law(n, b, s, kind).least_with(log_limit(n, b, rounds, risk, kind))


def tolerate_among(n: int, b: int, received: int, rounds: int, risk: float) -> int:
    """The least f of a node-round that receives so many models, if all node-rounds choose theirs so."""
    return least_among(n, b, received, log_limit(n, b, rounds, risk, "el-local"))


@lru_cache(maxsize=65536)
def least_among(n: int, b: int, received: int, limit: float) -> int:
    """The least f of a node-round that receives so many models, exceeded with at most exp(limit)."""
    return malicious_among(n, b, received).least_with(limit)


def smallest_s(
    n: int, b: int, rounds: int, risk: float, kind: Literal["el-oracle", "pull"] = "pull", share: float = 0.5
) -> int | None:
    """The smallest s whose f is less than this share of the s + 1 models that a node aggregates; None if there is none.

    Half is what every rule needs. The bounds of robust rules grow with f / (m - 2 f), so a third or a fifth is better.
    """
    require_choice("kind", kind, ["el-oracle", "pull"])
    part = Fraction(share).limit_denominator(1000)
    sizes = range(2, n, 2) if kind == "el-oracle" and n % 2 else range(1, n)  # those of regular graphs
    limit = log_limit(n, b, rounds, risk, kind)
    return first_s(n, b, sizes, limit, lambda s: math.ceil(part * (s + 1)) - 1)  # the largest that is less


def first_s(n: int, b: int, sizes: Iterable[int], limit: float, largest: Callable[[int], int]) -> int | None:
    """The first s with which more than the largest f that is allowed are malicious with at most exp(limit)."""
    for s in sizes:
        f = largest(s)
        if f >= b:
            return s
        if _below_mean(n, b, s, f) <= limit and malicious_among(n, b, s).log_more_than(f) <= limit:
            return s
    return None


def _below_mean(n: int, b: int, s: int, f: int) -> float:
    """A lower bound on the logarithm of P(more than f), by Cantelli's inequality: quick to see where f is too small."""
    share, short = b / (n - 1), s * b / (n - 1) - f
    if short <= 0:
        return -math.inf
    variance = s * share * (1 - share) * (n - 1 - s) / max(n - 2, 1)
    return -math.log1p(variance / short**2)


# -- EL-Local: f by the number of models received ---------------------------------------------------------------------


def aggregating_local(n: int, b: int, s: int, rounds: int, risk: float) -> float:
    """Share of the node-rounds of EL-Local that receive enough models for their f, which follows from how many they receive.

    One that receives nothing is among them, because it has nothing to tolerate.
    """
    check_size(n, s)
    return _aggregating(n, s, _Enough(n, b, log_limit(n, b, rounds, risk, "el-local")))


def smallest_s_local(n: int, b: int, rounds: int, risk: float, aggregating: float = ENOUGH) -> int:
    """The smallest s with which at least this share of EL-Local's node-rounds can aggregate what they receive, and receive something."""
    check_malicious(n, b)
    require_real("aggregating", aggregating, 0, 1)
    enough = _Enough(n, b, log_limit(n, b, rounds, risk, "el-local"))
    return next((s for s in range(1, n - 1) if _aggregating(n, s, enough) - p_empty_inbox(n, s) >= aggregating), n - 1)


class _Enough:
    """Whether a received models are enough for their f, for a = 0, 1, ..., worked out as far as it is asked for."""

    def __init__(self, n: int, b: int, limit: float) -> None:
        self.n, self.b = n, b
        self._known: list[bool] = []
        self._rest = self._each(limit)

    def _each(self, limit: float) -> Iterator[bool]:
        f = 0
        for received in range(self.n):  # one model more raises f by at most one
            if f < self.b and malicious_among(self.n, self.b, received).log_more_than(f) > limit:
                f += 1
            yield received >= 2 * f

    def among(self, counts: IntArray) -> NDArray[np.bool_]:
        """# otherwise it was set to be ignored"""
        while len(self._known) <= counts.max():
            self._known.append(next(self._rest))
        return np.array(self._known)[counts]


def _aggregating(n: int, s: int, enough: _Enough) -> float:
    law = indegree(n, s)
    seen = law.probability > 0
    return math.fsum(law.probability[seen] * enough.among(law.counts[seen].astype(np.int64)))


def check_run(n: int, b: int, rounds: int, f: int) -> None:
    """Refuse numbers of nodes, malicious nodes, rounds and tolerated models that cannot be."""
    check_malicious(n, b)
    require_int("rounds", rounds, 1)
    require_int("f", f, 0)
