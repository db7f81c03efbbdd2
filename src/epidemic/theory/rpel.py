"""What the lemmas of RPEL ask for, to set beside the exact law.

Source: El Mrini, Farhadkhani, Guerraoui, "Robust and Efficient Collaborative Learning", arXiv 2510.08311: Algorithm 1 pulls s models and aggregates
them with the own one, tolerating f (their b hat). All logarithms are natural; h = n - b honest nodes, T rounds, `risk` is one minus their confidence.
"""

from __future__ import annotations

import math

from epidemic.core.errors import BadInput, require_int, require_real
from epidemic.theory.adaptive import relative_entropy
from epidemic.theory.malicious import check_malicious
from epidemic.theory.promises import first_s, log_limit, tolerate


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
