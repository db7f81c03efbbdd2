"""What the theory of Epidemic Learning says, as functions that simulation is checked against.

Source: de Vos et al., NeurIPS 2023 (theorem 1, lemmas 1-3 and the appendix's constants), with exact values where the
paper has bounds. Notation: n nodes, s messages a node and round, D(X) the mean squared distance of the models to their mean,
A the number of models that a node receives. Division by zero means infinity, as in the paper's minima.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from epidemic.errors import BadInput, require_int, require_real

FloatArray = NDArray[np.float64]


def check_size(n: int, s: int) -> None:
    """n >= 2 and 1 <= s <= n - 1."""
    require_int("nodes", n, 2)
    require_int("s", s, 1)
    if s > n - 1:
        raise BadInput(f"s = {s} must be at most nodes - 1 = {n - 1}")


# -- contraction ------------------------------------------------------------------------------------------------------


def alpha(n: int, s: int) -> float:
    """EL-Oracle: E[D(WX)] = alpha * D(X), exactly."""
    check_size(n, s)
    return (1 - s / (n - 1)) / (s + 1)


def beta(n: int, s: int) -> float:
    """EL-Local: the expected mean squared distance to the *old* mean is beta * D(X), exactly."""
    check_size(n, s)
    if s == n - 1:
        return 0.0
    return -math.expm1(n * math.log1p(-s / (n - 1))) / s - 1 / (n - 1)


def mean_drift(n: int, s: int) -> float:
    """EL-Local: E||new mean - old mean||^2 = mean_drift * D(X), exactly; the paper bounds it by beta / n.

    Equals v / (n - 1), v the variance of a column sum of W. Relative error at most 1e-8 up to n = 10^7 and s = 1000.
    """
    return column_variance(n, s) / (n - 1)


def column_variance(n: int, s: int) -> float:
    """v(n, s): the variance of a column sum of EL-Local's matrix.

    The sum over a column is W[0,0] + sum_i W[i,0]; v is the sum of the variances and covariances of its terms. Written
    so (instead of as E[c^2] - 1) nothing cancels but the final sum: every covariance is an integral over [0, 1]^2 of a
    difference of generating functions that differ by the tiny q2 - q^2 = -q (n-1-s) / ((n-1) (n-2)).
    """
    check_size(n, s)
    if s == n - 1:
        return 0.0
    q = s / (n - 1)
    q2 = s * (s - 1) / ((n - 1) * (n - 2))
    rest = n - 1 - s
    dq = -q * rest / ((n - 1) * (n - 2))  # q2 - q^2

    _, own_variance = _inverse_moments(n - 1, s, rest, 1)  # of 1 / (1 + B), B ~ Bin(n - 1, q)
    other_mean, other_variance = _inverse_moments(n - 2, s, rest, 2)  # of 1 / (2 + B), B ~ Bin(n - 2, q)

    a, weight = _nodes(s)  # distance to 1 of the integration variables u = 1 - a, w = 1 - b
    a, b = a[:, None], a[None, :]
    weight = weight[:, None] * weight[None, :]
    log_hh = np.log1p(-q * a) + np.log1p(-q * b)
    step = np.log1p(dq * a * b / np.exp(log_hh))  # log(g / (h(u) h(w)))

    # 2 (n-1) Cov(W[0,0], W[i,0]) and (n-1) (n-2) Cov(W[i,0], W[j,0])
    own_other = (1 - b) * np.exp((n - 2) * log_hh + np.log1p(-q * a)) * np.expm1((n - 2) * step)
    others = (1 - a) * (1 - b) * np.exp((n - 2) * log_hh) * (dq + q2 * np.expm1((n - 3) * step))
    return math.fsum(
        [
            own_variance,
            s * other_variance,
            s * rest / (n - 1) * other_mean**2,
            *(2 * s * weight * own_other).sum(axis=1),
            *((n - 1.0) * (n - 2.0) * weight * others).sum(axis=1),
        ]
    )


def _nodes(s: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights on [0, 1] for integrands that fall like exp(-s a): Gauss-Legendre panels that double in width.

    Exact for polynomials up to degree 39, and to rounding for all n. One rule of n / 2 + 3 nodes would be exact
    on paper, but its weights carry errors of 1e-11 in double precision; those of order 20 do not.
    """
    edges = np.array([0, *2.0 ** np.arange(-1, 7), 90]) / s  # exp(-90) is nothing
    edges = np.unique(np.minimum(edges, 1.0))
    x, weight = np.polynomial.legendre.leggauss(20)
    low, width = edges[:-1, None], np.diff(edges)[:, None]
    return (low + width * (x + 1) / 2).ravel(), (width * weight / 2).ravel()


def _inverse_moments(trials: int, s: int, rest: int, shift: int) -> tuple[float, float]:
    """Mean and variance of 1 / (shift + B), B ~ Binomial(trials, s / (s + rest))."""
    counts, probability = _binomial(trials, s, rest)
    value = 1 / (shift + counts)
    mean = math.fsum(probability * value)
    return mean, math.fsum(probability * (value - mean) ** 2)


# -- in-degree --------------------------------------------------------------------------------------------------------


class InDegree(msgspec.Struct, frozen=True):
    """The law of the number of models that an EL-Local node receives in a round: Binomial(n - 1, s / (n - 1))."""

    counts: FloatArray
    probability: FloatArray

    @property
    def mean(self) -> float:
        """Expected number of models received."""
        return math.fsum(self.counts * self.probability)

    @property
    def sd(self) -> float:
        """Standard deviation of the number of models received."""
        return math.sqrt(math.fsum(self.probability * (self.counts - self.mean) ** 2))

    def percentile(self, p: float) -> int:
        """The smallest k with P(A <= k) >= p."""
        require_real("percentile", p, 0, 1)
        reached = np.flatnonzero(np.cumsum(self.probability) >= p)
        return int(self.counts[reached[0]] if reached.size else self.counts[-1])

    def at_most(self, k: int) -> float:
        """P(A <= k)."""
        return math.fsum(self.probability[self.counts <= k])

    def more_than(self, k: int) -> float:
        """P(A > k), accurate in the tail."""
        return math.fsum(self.probability[self.counts > k])


def indegree(n: int, s: int) -> InDegree:
    """The in-degree law of EL-Local, over all counts of probability above about 1e-300."""
    check_size(n, s)
    return InDegree(*_binomial(n - 1, s, n - 1 - s))


def p_empty_inbox(n: int, s: int) -> float:
    """Probability that an EL-Local node receives nothing in a round."""
    check_size(n, s)
    return math.exp((n - 1) * math.log1p(-s / (n - 1))) if s < n - 1 else 0.0


def _binomial(trials: int, s: int, rest: int) -> tuple[FloatArray, FloatArray]:
    """Counts around the mode of Binomial(trials, s / (s + rest)) and their probabilities.

    Worked out from the ratios of neighbours, outward from the mode, so accurate for any number of trials.
    """
    if rest == 0:
        return np.array([float(trials)]), np.array([1.0])
    q = s / (s + rest)
    mode = min(int((trials + 1) * q), trials)
    width = int(40 * math.sqrt(trials * q * (1 - q)) + 80)
    low, high = max(0, mode - width), min(trials, mode + width)
    counts = np.arange(low, high + 1, dtype=np.float64)
    ratio = np.log((trials - counts[:-1]) / counts[1:] * (s / rest))  # log p(a + 1) / p(a)
    up = np.cumsum(ratio[mode - low :])
    down = np.cumsum(-ratio[: mode - low][::-1])[::-1]
    p = np.exp(np.concatenate([down, [0.0], up]))
    return counts, p / math.fsum(p)


def contraction_from_indegree(counts: FloatArray, probability: FloatArray, n: int) -> float:
    """eta of any scheme that treats all nodes alike and averages uniformly: E[(1 - A/(n-1)) / (A + 1)]."""
    require_int("nodes", n, 2)
    return math.fsum(probability * (1 - counts / (n - 1)) / (counts + 1))


class Cap(msgspec.Struct, frozen=True):
    """What a cap of k received models a round does without retries."""

    contraction: float
    lost: float  # expected fraction of messages refused


def cap(n: int, s: int, k: int) -> Cap:
    """The exact contraction (around the old mean) and loss of EL-Local with cap k and no retry."""
    require_int("cap", k, 0)
    law = indegree(n, s)
    kept = np.minimum(law.counts, k)
    lost = math.fsum(law.probability * (law.counts - kept)) / s
    return Cap(contraction_from_indegree(kept, law.probability, n), lost)


# -- convergence ------------------------------------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True):
    """The constants of the paper's assumptions."""

    smoothness: float = 1.0  # L: every local loss is L-smooth
    initial_gap: float = 1.0  # Delta_0 >= F(x_0) - min F
    noise: float = 1.0  # sigma^2: variance of the stochastic gradients
    heterogeneity: float = 1.0  # H^2: mean squared distance of local gradients to the global one

    @property
    def constants(self) -> tuple[float, float, float, float]:
        """L, Delta_0, sigma^2, H^2."""
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
    """The theorem's step size for EL-Oracle."""
    require_int("rounds", rounds, 1)
    smooth, gap, noise, het = problem.constants
    return min(
        math.sqrt(_over(n * gap, rounds * smooth * noise)),
        math.cbrt(_over(gap, 100 * rounds * alpha(n, s) * smooth**2 * (noise + het))),
        1 / (20 * smooth),
    )


def lr_local(n: int, s: int, rounds: int, problem: Problem) -> float:
    """The theorem's step size for EL-Local."""
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
