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

from epidemic.core.errors import require_int, require_real
from epidemic.theory.malicious import Kind, check_malicious, malicious_law


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
