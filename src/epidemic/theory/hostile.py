"""The question of an experiment to the law of malicious models: f for every receiver and round, or a refusal with the least s that would do.

    [aggregation]
    malicious = 5     how many of all nodes may be malicious
    risk = 0.01       accepted probability that the run has any bad node-round

`resolve` turns these into f: one value if every node receives equally many models; otherwise f depends on the number that a node was meant to receive,
which is the in-degree of the round's graph and not what arrived: otherwise lost honest messages would lower f below the number of malicious ones that may
be there. `caution` returns the warning for an f given by hand.

On a static or periodic graph the malicious nodes are a random set, drawn once. If an adversary chooses them knowing the graph, see
`epidemic.theory.adaptive`.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.theory.contraction import indegree, p_empty_inbox
from epidemic.theory.malicious import KINDS, malicious_among, malicious_law
from epidemic.theory.promises import (
    ENOUGH,
    IntArray,
    aggregating_local,
    check_run,
    expected_bad,
    expected_bad_nodes,
    least_among,
    log_clean,
    log_limit,
    p_some_bad,
    smallest_s,
    smallest_s_local,
    tolerate,
)

Drawn = Literal["el-oracle", "el-local", "pull", "static"]
"""How the graph of a round is drawn; "static": not at random, one for all rounds or several that return in turn."""


class Tolerance(msgspec.Struct, frozen=True):
    """How many malicious models every node-round of a run tolerates, and the resulting guarantee."""

    nodes: int
    malicious: int
    f: int | None
    """That of all node-rounds; None where it follows from how many models a node was meant to receive."""
    log_limit: float
    """Logarithm of the probability with which a node-round may be bad."""
    risk: float
    """An upper bound on the probability that the run has any bad node-round."""
    expected: float
    """Expected number of bad node-rounds."""
    aggregating: float
    """Share of the node-rounds that can aggregate; the others keep their own model."""

    def each(self, in_degrees: ArrayLike) -> IntArray:
        """f of nodes that were meant to receive so many models, whatever arrived.   # (k,) -> (k,)"""
        degrees = np.asarray(in_degrees, dtype=np.int64)
        if self.f is not None:
            return np.full(degrees.shape, self.f, dtype=np.int64)
        values, where = np.unique(degrees, return_inverse=True)
        found = [least_among(self.nodes, self.malicious, int(a), self.log_limit) for a in values]
        return np.array(found, dtype=np.int64)[where].reshape(degrees.shape)


def resolve(
    nodes: int,
    malicious: int,
    rounds: int,
    risk: float,
    kind: Drawn,
    *,
    s: int | None = None,
    in_degrees: ArrayLike | None = None,
    held: int = 1,
) -> Tolerance:
    """How many malicious models each receiver tolerates in each round, so that the run keeps its promise.

    Args:
        nodes: Number of nodes, n.
        malicious: How many of them may be malicious, b.
        rounds: Rounds of the run, T.
        risk: Accepted probability that any honest node receives more malicious models than it tolerates in any round.
        kind: How the round's graph is drawn: "el-oracle", "el-local", "pull", or "static" where it is not drawn in every round.
        s: Messages per node and round, of the first three.
        in_degrees: Models that each node receives, of "static": one row for all rounds, or one for each graph that returns in turn.
        held: Rounds for which a random graph is held.

    Returns:
        f by receiver and round (`Tolerance.each`), with what it promises.

    Raises:
        BadInput: The promise cannot be kept; the message has the smallest s, or number of neighbours, that would do.
    """
    require_int("aggregation.malicious", malicious, 0)
    if 2 * malicious >= nodes:
        raise BadInput(
            f"aggregation.malicious = {malicious} must be less than half of nodes = {nodes}: no rule can tell a majority of liars from honest nodes"
        )
    require_real("aggregation.risk", risk, above=0)
    require_choice("kind", kind, [*KINDS, "static"])
    require_int("rounds", rounds, 1)
    require_int("held", held, 1)
    if kind == "static":
        return _resolved_static(nodes, malicious, rounds, risk, _of_graphs(nodes, rounds, in_degrees))
    s = _given(s, kind)
    graphs = math.ceil(rounds / held)
    if kind == "el-local":
        return _resolved_local(nodes, malicious, rounds, graphs, risk, s)
    limit = log_limit(nodes, malicious, graphs, risk, kind)
    f = malicious_law(nodes, malicious, s, kind).least_with(limit)
    if 2 * f > s:
        needed = smallest_s(nodes, malicious, graphs, risk, kind)
        assert needed is not None, "with all other nodes, f = malicious < nodes / 2 will do"
        expected = expected_bad(nodes, malicious, s, rounds, s // 2, kind)
        raise BadInput(
            f"{_asked(malicious, nodes, risk, rounds)} needs f = {f} with topology.s = {s}, and of {s + 1} models at most {s // 2} can be tolerated;"
            f" use s = {needed}, or f = {s // 2} itself and expect {about(expected)} bad node-rounds"
        )
    expected = expected_bad(nodes, malicious, s, rounds, f, kind)
    return Tolerance(nodes, malicious, f, limit, p_some_bad(nodes, malicious, s, graphs, f, kind), expected, 1.0)


def about(expected: float) -> str:
    """Write an expected number with three digits."""
    return f"{expected:,.0f}" if expected >= 100 else f"{expected:.3g}"


def _given(s: int | None, kind: str) -> int:
    if s is None:
        raise BadInput(f"s = None: {kind} needs the number of messages per node and round")
    return s


def _of_graphs(n: int, rounds: int, in_degrees: ArrayLike | None) -> IntArray:
    """In-degrees of the graphs that a run sees.   # (graphs, n)"""
    if in_degrees is None:
        raise BadInput("in_degrees = None: a static graph needs the number of models that each node receives")
    found = np.atleast_2d(np.asarray(in_degrees, dtype=np.int64))[:rounds]
    if found.shape[1] != n:
        raise BadInput(f"in_degrees = {found.shape[1]} numbers must be one for each of the {n} nodes")
    return found


def _asked(malicious: int, nodes: int, risk: float, rounds: int) -> str:
    return f"aggregation.malicious = {malicious} of {nodes:,} nodes at risk = {risk:g} in {rounds:,} rounds"


def _resolved_local(n: int, b: int, rounds: int, graphs: int, risk: float, s: int) -> Tolerance:
    limit = log_limit(n, b, graphs, risk, "el-local")
    share = aggregating_local(n, b, s, graphs, risk)
    if share - p_empty_inbox(n, s) < ENOUGH and s < n - 1:
        needed, regular = smallest_s_local(n, b, graphs, risk), smallest_s(n, b, graphs, risk, "el-oracle")
        raise BadInput(
            f"{_asked(b, n, risk, rounds)} lets only {share:.0%} of the node-rounds of el-local with topology.s = {s} aggregate, the others receive too few"
            f" models for their f; use s = {needed} ({aggregating_local(n, b, needed, graphs, risk):.0%}), or el-oracle with s = {regular} (all of them)"
        )
    law = indegree(n, s)
    seen = law.probability > 0
    counts = law.counts[seen].astype(np.int64)
    bad = [malicious_among(n, b, int(a)).more_than(least_among(n, b, int(a), limit)) for a in counts]
    p = math.fsum(law.probability[seen] * np.array(bad))
    return Tolerance(
        n, b, None, limit, -math.expm1(log_clean(n, b, graphs, p, "el-local")), (n - b) * rounds * p, share
    )


def _resolved_static(n: int, b: int, rounds: int, risk: float, in_degrees: IntArray) -> Tolerance:
    """The malicious nodes are a random set; each of the graphs that return in turn is one chance of a node to be unlucky."""
    graphs = len(in_degrees)
    limit = log_limit(n, b, graphs, risk, "static")
    values, counts = np.unique(in_degrees, return_counts=True)
    f = np.array([least_among(n, b, int(a), limit) for a in values])
    if (2 * f > values).any():
        worst = int(np.flatnonzero(2 * f > values)[0])
        fewest = next(a for a in range(n) if a >= 2 * least_among(n, b, a, limit) and a > values[worst])
        share = counts[2 * f > values].sum() / counts.sum()
        needed = smallest_s(n, b, rounds, risk, "el-oracle")
        raise BadInput(
            f"{_asked(b, n, risk, rounds)} needs f = {f[worst]} at nodes that receive {values[worst]} models, which tolerate {values[worst] // 2} ({share:.0%}"
            f" of the nodes could never aggregate); use a graph on which every node receives {fewest}, or el-oracle with s = {needed}"
        )
    unlucky = expected_bad_nodes(n, b, in_degrees, f[np.searchsorted(values, in_degrees)])
    return Tolerance(n, b, None, limit, min(1.0, unlucky), unlucky * rounds / graphs, 1.0)


def caution(
    nodes: int,
    malicious: int,
    rounds: int,
    f: int,
    kind: Drawn,
    *,
    s: int | None = None,
    in_degrees: ArrayLike | None = None,
    held: int = 1,
    risk: float = 0.01,
) -> str | None:
    """What to say of an f that was given by hand: the expected number of bad node-rounds, and the least s that would have none.

    Args:
        nodes: Number of nodes, n.
        malicious: How many of them may be malicious, b.
        rounds: Rounds of the run, T.
        f: What every node tolerates.
        kind: How the round's graph is drawn, as for `resolve`; so are `s`, `in_degrees` and `held`.
        s: Messages per node and round.
        in_degrees: Models that each node receives, of "static".
        held: Rounds for which a random graph is held.
        risk: Nothing is said if a run has a bad node-round with at most this probability.

    Returns:
        One line, or None.
    """
    check_run(nodes, malicious, rounds, f)
    require_choice("kind", kind, [*KINDS, "static"])
    graphs = math.ceil(rounds / held)
    if kind == "static":
        degrees = _of_graphs(nodes, rounds, in_degrees)
        unlucky = expected_bad_nodes(nodes, malicious, degrees, f)
        if unlucky <= risk:
            return None
        found, expected = f"some node receives more than f = {f} malicious models", unlucky * rounds / len(degrees)
    else:
        s = _given(s, kind)
        if p_some_bad(nodes, malicious, s, graphs, f, kind) <= risk:
            return None
        found = f"a node can receive more than f = {f} malicious models with topology.s = {s}"
        expected = expected_bad(nodes, malicious, s, rounds, f, kind)
    regular: Literal["el-oracle", "pull"] = "pull" if kind == "pull" else "el-oracle"
    needed = smallest_s(nodes, malicious, graphs, risk, regular) if 2 * malicious < nodes else None
    said = f"{found}, if {malicious} of {nodes:,} nodes are malicious: expect {about(expected)} bad node-rounds in {rounds:,} rounds"
    if needed is None:
        return said
    where = "" if kind == regular else f" of {regular}"
    return f"{said}; s = {needed}{where} with f = {tolerate(nodes, malicious, needed, graphs, risk, regular)} has none at risk {risk:g}"
