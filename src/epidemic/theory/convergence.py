"""The convergence theorem of Epidemic Learning: step sizes, bounds, transient rounds.

Source: de Vos et al., NeurIPS 2023 (theorem 1 and the appendix's constants). Notation as in `epidemic.theory`; division by zero means
infinity, as in the paper's minima.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np

from epidemic.core.errors import BadInput, require_choice, require_int, require_real
from epidemic.theory.contraction import (
    FloatArray,
    alpha,
    alpha_with_loss,
    beta,
    beta_with_loss,
    binomial,
    check_size,
    contraction_from_indegree,
)


class Problem(msgspec.Struct, frozen=True):
    """The constants of the paper's assumptions."""

    smoothness: float = 1.0  # L: every local loss is L-smooth
    initial_gap: float = 1.0  # Delta_0 >= F(x_0) - min F
    noise: float = 1.0  # sigma^2: variance of the stochastic gradients
    heterogeneity: float = 1.0  # H^2: mean squared distance of local gradients to the global one

    @property
    def constants(self) -> tuple[float, float, float, float]:
        """Return the constants L, Delta_0, sigma^2 and H^2 of the theorem, in this order."""
        return self.smoothness, self.initial_gap, self.noise, self.heterogeneity

    def __post_init__(self) -> None:
        most = 1e60  # beyond, cubes and products leave the range of floats
        require_real("smoothness", self.smoothness, above=0, high=most)
        require_real("initial-gap", self.initial_gap, above=0, high=most)
        require_real("noise", self.noise, 0, most)
        require_real("heterogeneity", self.heterogeneity, 0, most)


def _over(a: float, b: float) -> float:
    return a / b if b > 0 else math.inf


def lr_oracle(n: int, s: int, rounds: int, problem: Problem) -> float:
    """The step size of the theorem for EL-Oracle."""
    require_int("rounds", rounds, 1)
    smooth, gap, noise, het = problem.constants
    return min(
        math.sqrt(_over(n * gap, rounds * smooth * noise)),
        math.cbrt(_over(gap, 100 * rounds * alpha(n, s) * smooth**2 * (noise + het))),
        1 / (20 * smooth),
    )


def lr_local(n: int, s: int, rounds: int, problem: Problem) -> float:
    """The step size of the theorem for EL-Local."""
    require_int("rounds", rounds, 1)
    smooth, gap, noise, het = problem.constants
    b = beta(n, s)
    return min(
        math.sqrt(_over(n * gap, rounds * smooth * (211 * noise + 332 * b * het))),
        math.cbrt(_over(gap, 250 * rounds * b * smooth**2 * (noise + het))),
        1 / (20 * smooth),
    )


def terms_oracle(n: int, s: int, rounds: int, problem: Problem) -> tuple[float, float, float]:
    """The three terms of the theorem's bound for EL-Oracle."""
    require_int("rounds", rounds, 1)
    smooth, gap, noise, het = problem.constants
    return (
        8 * math.sqrt(smooth * gap * noise / (n * rounds)),
        38 * math.cbrt(alpha(n, s) * smooth**2 * gap**2 * (noise + het) / rounds**2),
        80 * smooth * gap / rounds,
    )


def terms_local(n: int, s: int, rounds: int, problem: Problem) -> tuple[float, float, float]:
    """The three terms of the theorem's bound for EL-Local."""
    require_int("rounds", rounds, 1)
    smooth, gap, noise, het = problem.constants
    b = beta(n, s)
    return (
        8 * math.sqrt(smooth * gap * (211 * noise + 332 * b * het) / (n * rounds)),
        51 * math.cbrt(b * smooth**2 * gap**2 * (noise + het) / rounds**2),
        80 * smooth * gap / rounds,
    )


def bound_oracle(n: int, s: int, rounds: int, problem: Problem) -> float:
    """Bound on the mean over nodes and rounds of E||grad F(x)||^2 with the theorem's step size, EL-Oracle."""
    return math.fsum(terms_oracle(n, s, rounds, problem))


def bound_local(n: int, s: int, rounds: int, problem: Problem) -> float:
    """Bound on the mean over nodes and rounds of E||grad F(x)||^2 with the theorem's step size, EL-Local."""
    return math.fsum(terms_local(n, s, rounds, problem))


def bound_oracle_at(n: int, s: int, rounds: int, problem: Problem, lr: float) -> float:
    """The same bound for any step size up to 1 / (20 L), EL-Oracle."""
    _check_lr(lr, problem)
    smooth, gap, noise, het = problem.constants
    drift = 400 * alpha(n, s) * smooth**2 * lr**2 * (noise + het)
    return 4 * gap / (lr * rounds) + drift + 4 * smooth * lr * noise / n


def bound_local_tight(n: int, s: int, rounds: int, problem: Problem, lr: float) -> float:
    """The same bound for any step size up to 1 / (20 L), EL-Local; at s = n - 1 it is the centralised one."""
    _check_lr(lr, problem)
    smooth, gap, noise, het = problem.constants
    b = beta(n, s)
    extra = 15 * b + 500 * b**2
    drift = 1000 * b * smooth**2 * lr**2 * (noise + het)
    return 4 * gap / (lr * rounds) + 4 * smooth * lr / n * (noise * (1 + extra) + het * extra) + drift


def drift_bound(eta: float, problem: Problem, lr: float) -> float:
    """Drift lemma: bound on (1/n^2) sum_ij E||x_i - x_j||^2 = 2 E[D(X)], eta being alpha or beta."""
    _check_lr(lr, problem)
    return 20 * (1 + 3 * eta) / (1 - eta) ** 2 * eta * lr**2 * (problem.noise + problem.heterogeneity)


def gradient_drift_bound(problem: Problem) -> float:
    """Drift lemma: bound on (1/n^2) sum_ij E||g_i - g_j||^2 for any step size up to 1 / (20 L)."""
    return 15 * (problem.noise + problem.heterogeneity)


def transient_oracle(n: int, s: int, problem: Problem) -> float:
    """Rounds until the first term of the bound dominates the second, order form (no constants), EL-Oracle."""
    smooth, gap, noise, het = problem.constants
    return _over(n**3 * alpha(n, s) ** 2 * smooth * gap * (noise + het) ** 2, noise**3)


def transient_local(n: int, s: int, problem: Problem) -> float:
    """Rounds until the first term of the bound dominates the second, order form (no constants), EL-Local."""
    smooth, gap, noise, het = problem.constants
    b = beta(n, s)
    return _over(n**3 * b**2 * smooth * gap * (noise + het) ** 2, (noise + b * het) ** 3)


def transient_oracle_exact(n: int, s: int, problem: Problem) -> float:
    """The same with the theorem's constants: here the first two terms are equal."""
    return (38 / 8) ** 6 * transient_oracle(n, s, problem)


def transient_local_exact(n: int, s: int, problem: Problem) -> float:
    """The same with the theorem's constants: here the first two terms are equal."""
    smooth, gap, noise, het = problem.constants
    b = beta(n, s)
    return _over((51 / 8) ** 6 * n**3 * b**2 * smooth * gap * (noise + het) ** 2, (211 * noise + 332 * b * het) ** 3)


def transient_dpsgd(n: int, p: float, problem: Problem) -> float:
    """Rounds until linear speed-up for D-PSGD on a matrix with E||Pi W X||^2 <= (1 - p) ||Pi X||^2, order form."""
    require_real("p", p, 0, 1)
    smooth, gap, noise, het = problem.constants
    return _over(n**3 * smooth * gap * (p * noise + het) ** 2, p**4 * noise**3)


def rounds_past_third_term(n: int, problem: Problem) -> float:
    """Rounds from which the first term of the bound dominates the third, order form: n L Delta_0 / sigma^2."""
    return _over(n * problem.smoothness * problem.initial_gap, problem.noise)


def rate_dpsgd(n: int, p: float, rounds: int, problem: Problem) -> float:
    """The reference rate of D-SGD on a matrix with parameter p, order form (no constants)."""
    require_real("p", p, 0, 1)
    smooth, gap, noise, het = problem.constants
    return (
        math.sqrt(smooth * gap * noise / (n * rounds))
        + math.cbrt(_over(smooth**2 * gap**2 * (p * noise + het), p**2 * rounds**2))
        + _over(smooth * gap, p * rounds)
    )


def suggested_s(problem: Problem) -> float:
    """The paper's guidance for EL-Local: s of about H^2 / sigma^2."""
    return _over(problem.heterogeneity, problem.noise)


def _check_lr(lr: float, problem: Problem) -> None:
    require_real("lr", lr, above=0)
    limit = 1 / (20 * problem.smoothness)
    if lr > limit * (1 + 1e-12):
        raise BadInput(f"lr = {lr:g} must be at most 1 / (20 L) = {limit:g} for the bound to hold")


# -- Exact contraction factors of rounds in which not all nodes take part, or messages carry only a part of the model --
# All are around the old mean: the expected mean squared distance to it after a round, in units of D(X). They follow from one identity: if a node's new model
# has weights w over itself and a uniformly random choice of others, its factor is E[(n sum(w^2) - 1) / (n - 1)]; for uniform weights over A others and itself
# that is E[(1 - A/(n-1)) / (A + 1)].


Fill = Literal["count", "own"]

# -- partial participation --------------------------------------------------------------------------------------------


def alpha_aware(n: int, s: int, m: int) -> float:
    """EL-Oracle among m of n nodes, drawn anew each round: around the old mean, which is also the new one."""
    _check_active(n, s, m)
    if m * s % 2:
        raise BadInput(f"s = {s} among m = {m} active nodes: m * s must be even; use m = {m + 1 if m < n else m - 1}")
    return 1 - m / n * (1 - alpha(n, s))


def beta_aware(n: int, s: int, m: int) -> float:
    """EL-Local among m of n nodes, drawn anew each round."""
    _check_active(n, s, m)
    return 1 - m / n * (1 - contraction_from_indegree(*binomial(m - 1, s, m - 1 - s), n))


def alpha_blind(n: int, s: int, p: float) -> float:
    """EL-Oracle among all nodes, each taking part with probability p; messages to the others are lost."""
    require_real("p", p, 0, 1)
    return 1 - p * (1 - alpha_with_loss(n, s, 1 - p))


def beta_blind(n: int, s: int, p: float) -> float:
    """EL-Local among all nodes, each taking part with probability p; messages to the others, a share 1 - p, are lost."""
    require_real("p", p, 0, 1)
    return 1 - p * (1 - beta_with_loss(n, s, 1 - p))


def alpha_blind_of(n: int, s: int, m: int) -> float:
    """EL-Oracle among all nodes, of which exactly m take part; messages to the others are lost."""
    check_size(n, s)
    require_int("m", m, 1, n)
    heard = range(max(0, s - (n - m)), min(s, m - 1) + 1)  # of the s neighbours of an active node, those who are active
    chance = [math.comb(m - 1, a) * math.comb(n - m, s - a) / math.comb(n - 1, s) for a in heard]
    counts = np.array(heard, dtype=np.float64)
    return 1 - m / n * (1 - contraction_from_indegree(counts, np.array(chance), n))


def beta_blind_of(n: int, s: int, m: int) -> float:
    """EL-Local among all nodes, of which exactly m take part; of their messages (n - m) / (n - 1) are lost."""
    check_size(n, s)
    require_int("m", m, 1, n)
    return 1 - m / n * (1 - contraction_from_indegree(*binomial(m - 1, s, n - 1 - s), n))


def _check_active(n: int, s: int, m: int) -> None:
    check_size(n, s)
    require_int("m", m, 2, n)
    if s > m - 1:
        raise BadInput(f"s = {s} must be at most m - 1 = {m - 1}, the other active nodes")


# -- masks ------------------------------------------------------------------------------------------------------------


def alpha_common_mask(n: int, s: int, phi: float) -> float:
    """EL-Oracle whose messages carry a share phi of the coordinates, in each round the same for all senders."""
    require_real("phi", phi, 0, 1)
    return 1 - phi * (1 - alpha(n, s))


def beta_common_mask(n: int, s: int, phi: float) -> float:
    """EL-Local whose messages carry a share phi of the coordinates, in each round the same for all senders."""
    require_real("phi", phi, 0, 1)
    return 1 - phi * (1 - beta(n, s))


def alpha_masked(n: int, s: int, phi: float, fill: Fill = "count") -> float:
    """EL-Oracle whose messages carry a random share phi of the coordinates, drawn by each sender for itself.

    `fill`: what a coordinate that a message lacks counts as. "count": nothing, the average is over the messages that have it.
    "own": the receiver's own value, so that weights stay 1 / (A + 1).
    """
    require_real("phi", phi, 0, 1)
    require_choice("fill", fill, ["count", "own"])
    if fill == "count":
        return alpha_with_loss(n, s, 1 - phi)
    check_size(n, s)
    return _filled(np.array([float(s)]), np.ones(1), n, phi)


def beta_masked(n: int, s: int, phi: float, fill: Fill = "count") -> float:
    """EL-Local whose messages carry a random share phi of the coordinates, drawn by each sender for itself; `fill` as above."""
    require_real("phi", phi, 0, 1)
    require_choice("fill", fill, ["count", "own"])
    if fill == "count":
        return beta_with_loss(n, s, 1 - phi)
    check_size(n, s)
    return _filled(*binomial(n - 1, s, n - 1 - s), n, phi)


def _filled(counts: FloatArray, probability: FloatArray, n: int, phi: float) -> float:
    """K ~ Bin(A, phi) of A messages have the coordinate; E[sum w^2] of (1 + A - K) / (A + 1) and K times 1 / (A + 1)."""
    own = (1 + counts * (1 - phi)) ** 2 + counts * phi * (1 - phi)
    squares = (own + counts * phi) / (counts + 1) ** 2
    return math.fsum(probability * (n * squares - 1)) / (n - 1)
