"""Malicious nodes chosen by an adversary that has seen all graphs of the run: the number of bad node-rounds.

Such an adversary can give a node-round any in-neighbours that it has, so "no bad node-round at all" can be promised only if f >= b. But it has only C(n, b)
choices for all rounds together: if for a fixed choice there are k bad node-rounds or more with probability P_k, then for the worst choice with probability
at most C(n, b) P_k. The number of bad node-rounds of a fixed choice is

    pull        binomial: all h T node-rounds are independent
    elsewhere   a sum over independent rounds of numbers between 0 and M with mean h p, M the most nodes that b nodes can reach f + 1 times each
                with s messages each; Hoeffding's inequality for bounded variables, with the relative entropy

On a static graph there is no such limit: M nodes may be bad in every round.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from epidemic.core.errors import BadInput, require_int, require_real
from epidemic.theory.malicious import Kind, check_malicious, malicious_law
from epidemic.theory.promises import first_s, log_limit, tolerate


def adaptive_bad(n: int, b: int, s: int, rounds: int, f: int, risk: float = 0.01, kind: Kind = "pull") -> int:
    """The most bad node-rounds of a run whose malicious nodes were chosen with all graphs in view.

    Args:
        n: Number of nodes.
        b: How many of them are malicious.
        s: Messages per node and round.
        rounds: Rounds of the run, T.
        f: Malicious models that every node tolerates.
        risk: Probability that the graphs allow more.
        kind: How graphs are drawn.

    Returns:
        A number that is exceeded with at most this probability.
    """
    check_malicious(n, b)
    require_int("rounds", rounds, 1)
    require_int("f", f, 0)
    require_real("risk", risk, 0, 1, above=0)
    log_p = malicious_law(n, b, s, kind).log_more_than(f)
    if log_p == -math.inf:
        return 0
    budget = math.log(risk) - _log_choose(n, b)  # each choice may have so much
    each = n - b if kind == "pull" else most_bad_nodes(n, b, s, f)
    most = each * rounds
    low, high = 0, most + 1  # "high or more" is unlikely enough, "low or more" is not
    while high - low > 1:
        k = (low + high) // 2
        if kind == "pull":
            log_tail = log_binomial_tail(most, log_p, k)
        else:
            log_tail = -rounds * relative_entropy(k / most, min(1.0, (n - b) * math.exp(log_p) / each))
        low, high = (low, k) if log_tail <= budget else (k, high)
    return high - 1


def most_bad_nodes(n: int, b: int, out_degrees: ArrayLike, f: ArrayLike) -> int:
    """The most honest nodes that b malicious ones can send more than f models each in a round, whoever they are.

    Args:
        n: Number of nodes.
        b: How many of them are malicious.
        out_degrees: Models that each node sends, or that all send.
        f: Models that each node tolerates, or that all tolerate.

    Returns:
        An upper bound, from counting messages: each of these nodes takes f + 1 of them.
    """
    check_malicious(n, b)
    sent = np.sort(np.broadcast_to(np.asarray(out_degrees), (n,)))[n - b :].sum()
    needed = np.sort(np.broadcast_to(np.asarray(f) + 1, (n,)))[: n - b]
    needed = needed[needed <= b]  # a malicious node sends each of them one model
    return int(np.count_nonzero(np.cumsum(needed) <= sent))


def log_binomial_tail(trials: int, log_p: float, k: int) -> float:
    """Logarithm of P(Bin(trials, p) >= k); 0, which is an upper bound, up to the mean."""
    p = math.exp(log_p)
    if k <= trials * p:
        return 0.0
    if k > trials or p == 0:
        return -math.inf
    if p == 1:
        return 0.0
    terms = min(trials - k, int(10 * math.sqrt(trials * p)) + 200)
    j = np.arange(terms)
    ratios = np.log((trials - k - j) / (k + 1 + j)) + (log_p - math.log1p(-p))
    rest = math.fsum(np.exp(np.cumsum(ratios)))
    return _log_choose(trials, k) + k * log_p + (trials - k) * math.log1p(-p) + math.log1p(rest)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def relative_entropy(a: float, c: float) -> float:
    """Relative entropy of a coin with chance a from one with chance c; nothing up to c."""
    if a <= c:
        return 0.0
    tails = (1 - a) * math.log((1 - a) / (1 - c)) if a < 1 else 0.0
    return a * math.log(a / c) + tails


# -- What the lemmas of RPEL ask for, to set beside the exact law ----------------------------------------------------
# Source: El Mrini, Farhadkhani, Guerraoui, "Robust and Efficient Collaborative Learning", arXiv 2510.08311: Algorithm 1 pulls s models and aggregates
# them with the own one, tolerating f (their b hat). All logarithms are natural; h = n - b honest nodes, T rounds, `risk` is one minus their confidence.


def rpel_lemma_4_1(n: int, b: int, rounds: int, risk: float) -> int:
    """The s that Lemma 4.1 asks for, so that some f of the order of s b / n is safe: often more than there are nodes."""
    _check(n, b, rounds, risk)
    factor = max(1 / (0.5 - b / n) ** 2, 3 * n / b)
    return math.ceil(factor * math.log(4 * rounds * (n - b) / risk) + 2)


def rpel_lemma_a4(n: int, b: int, rounds: int, risk: float) -> int:
    """The least s for which Lemma A.4 calls the largest possible f, floor(s / 2), safe: it bounds the tail by relative entropy."""
    _check(n, b, rounds, risk)
    needed = math.log(rounds * (n - b) / risk)
    for s in range(1, n - 1):
        distance = relative_entropy(s // 2 / s, b / (n - 1))
        if s * distance >= needed:
            return s
    return n - 1


def rpel_reduction(n: int, b: int, s: int, f: int) -> float:
    """The alpha of Lemma 5.2 for the trimmed mean, whose coefficient is exactly f / (m - 2 f); convergence is proved for less than 1."""
    check_malicious(n, b)
    require_int("s", s, 1, n - 1)
    if 2 * f >= s + 1:
        raise BadInput(f"f = {f} must be less than half of the s + 1 = {s + 1} models that a node aggregates")
    honest, kept = n - b, s + 1 - f
    if honest < 2:
        return 0.0
    return 6 * f / (s + 1 - 2 * f) + 6 * (honest - kept) / ((honest - 1) * kept)


def rpel_smallest_s(n: int, b: int, rounds: int, risk: float) -> tuple[int, int] | None:
    """The least s, with the f that the exact law gives it, for which Lemma 5.2 proves convergence of the trimmed mean; None if there is none."""
    _check(n, b, rounds, risk)

    def proved(s: int) -> int:
        """The largest f whose alpha is less than 1; -1 if there is none."""
        return next((f for f in range((s + 1) // 8, -1, -1) if rpel_reduction(n, b, s, f) < 1), -1)

    limit = log_limit(n, b, rounds, risk)
    found = first_s(n, b, (s for s in range(1, n) if proved(s) >= 0), limit, proved)
    return None if found is None else (found, tolerate(n, b, found, rounds, risk))


def _check(n: int, b: int, rounds: int, risk: float) -> None:
    check_malicious(n, b)
    require_int("malicious", b, 1)
    if 2 * b >= n:
        raise BadInput(f"malicious = {b} must be less than half of nodes = {n}")
    require_int("rounds", rounds, 1)
    require_real("risk", risk, 0, 1, above=0)
