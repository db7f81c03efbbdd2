"""How near a robust rule comes to the honest mean, and which error no rule can avoid.

A rule R is (f, kappa)-robust if for all m inputs and every subset S of m - f of them |R - mean of S|^2 <= kappa * variance of S. A round of learning with
such a rule moves by at most the root of kappa times the spread of honest models, so that smaller spreads leave less to hide behind: that is what momentum
at the node is for.

Sources: Allouah et al., "Fixing by mixing", 2023 (the definition, its lower bound and the bounds on kappa, as recalled); Farhadkhani et al., "Robust
collaborative learning with linear gradient overhead", 2023 (MoNNA: momentum, the constants of its Theorem 1); Allouah et al., NeurIPS 2023 (breakdown, as
recalled). Exact worst cases, and the proof of the floor, are this project's.

Notation: m inputs of a receiver, f of them malicious; n nodes; G^2 the variance of honest gradients at a point, over nodes; sigma^2 that of a node's
stochastic gradient; beta the momentum.
"""

from __future__ import annotations

import math

from epidemic.core.errors import BadInput, require_int, require_real


def _checked(m: int, f: int) -> None:
    require_int("m", m, 1)
    require_int("f", f, 0)
    if m <= 2 * f:
        raise BadInput(
            f"f = {f} must be less than half of m = {m}: no rule can tell a majority of liars from honest nodes"
        )


def kappa_least(m: int, f: int) -> float:
    """The smallest kappa that any rule can have, f / (m - 2 f).

    Example:
        >>> kappa_least(8, 2)
        0.5
    """
    _checked(m, f)
    return f / (m - 2 * f)


def kappa_trimmed_mean(m: int, f: int) -> float:
    """The exact worst case of the trimmed mean: no rule is better."""
    return kappa_least(m, f)


def kappa_median(m: int, f: int) -> float:
    """The exact worst case of the coordinatewise median."""
    _checked(m, f)
    return (m - 1) / (m - 2 * f + 1) if m % 2 else (m - 2) / (m - 2 * f + 2)


def kappa_bound(rule: str, m: int, f: int) -> float:
    """The published upper bound on kappa of "trimmed-mean", "median", "geometric-median" or "krum"; "nnm+..." for one after nearest-neighbour mixing."""
    _checked(m, f)
    r = f / (m - 2 * f)
    inner, _, after = rule.partition("+")
    if inner == "nnm" and after:
        return 8 * f / (m - f) * (kappa_bound(after, m, f) + 1)
    known = {
        "trimmed-mean": 6 * r * (1 + r),
        "median": 4 * (1 + r) ** 2,
        "geometric-median": 4 * (1 + r) ** 2,
        "krum": 6 * (1 + r),
    }
    if rule not in known:
        raise BadInput(f"rule = {rule!r} has no published bound here; known: {', '.join(known)}, and nnm+ before each")
    return known[rule]


def impossible_floor(n: int, f: int, spread: float) -> float:
    """The squared gradient, at what any method learns, that no rule can go below on some problem: f / (n - 2 f) * G^2.

    Of n nodes, f have optimum 0, f have optimum 2 and the others 1; the malicious ones may be the first or the second, and nobody can tell which.

    Args:
        n: Number of nodes.
        f: How many of them may be malicious.
        spread: G^2, the variance of honest gradients over nodes.

    Returns:
        The floor of |grad F|^2, F the mean of the honest losses.
    """
    _checked(n, f)
    require_real("spread", spread, 0)
    return kappa_least(n, f) * spread


def breakdown(dissimilarity: float) -> float:
    """The share of malicious nodes from which on nothing can be promised, 1 / (2 + B^2), where honest gradients differ by at most G^2 + B^2 |grad F|^2."""
    require_real("dissimilarity", dissimilarity, 0)
    return 1 / (2 + dissimilarity**2)


def momentum_variance(beta: float, rounds: float = math.inf) -> float:
    """By how much momentum m = beta m + (1 - beta) g reduces the variance of the stochastic gradient: (1 - beta) / (1 + beta) in the long run.

    Args:
        beta: The momentum.
        rounds: After so many steps, m being 0 before the first.
    """
    require_real("beta", beta, 0, 1)
    if beta == 1:
        return 0.0
    return (1 - beta) / (1 + beta) * (1 - beta ** (2 * rounds) if rounds < math.inf else 1.0)


def momentum_lr(eta: float, beta: float) -> float:
    """The learning rate of v = beta v + g, x - lr v that makes the steps of m = beta m + (1 - beta) g, x - eta m."""
    require_real("eta", eta, above=0)
    require_real("beta", beta, 0, 1)
    return eta * (1 - beta)


def attacked_floor(n: int, f: int, spread: float, noise: float, beta: float = 0.0) -> float:
    """The order of the error that malicious nodes can cause, f / n * (G^2 + (1 - beta) / (1 + beta) sigma^2), constants left out.

    Without momentum all of the noise of the gradients is there to hide behind; with it a part.

    Args:
        n: Number of nodes.
        f: How many are malicious.
        spread: G^2.
        noise: sigma^2.
        beta: Momentum at the node.
    """
    _checked(n, f)
    require_real("spread", spread, 0)
    require_real("noise", noise, 0)
    return f / n * (spread + momentum_variance(beta) * noise)


def monna_constants(n: int, f: int) -> tuple[float, float]:
    """Alpha and lambda of MoNNA's Theorem 1, for all-to-all and n >= 11 f."""
    _checked(n, f)
    if n < 11 * f:
        raise BadInput(
            f"f = {f} must be at most n / 11 = {n / 11:.3g} for MoNNA's Theorem 1; use fewer liars or more nodes"
        )
    return 9.88 * f / (n - f), 9 * f / (n - f)
