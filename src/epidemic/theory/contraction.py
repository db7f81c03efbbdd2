"""How much one round of averaging shrinks disagreement, and how many models a node receives: exact values where the paper has bounds.

Source: de Vos et al., NeurIPS 2023 (lemmas 1-3). Notation as in `epidemic.theory`.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from epidemic.core.errors import BadInput, require_int, require_real

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
    counts, probability = binomial(trials, s, rest)
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
        """The expected number of models that a node receives in a round."""
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
        """Return the probability that a node receives at most k models, P(A <= k)."""
        return math.fsum(self.probability[self.counts <= k])

    def more_than(self, k: int) -> float:
        """P(A > k), accurate in the tail."""
        return math.fsum(self.probability[self.counts > k])


def indegree(n: int, s: int) -> InDegree:
    """The in-degree law of EL-Local, over all counts of probability above about 1e-300."""
    check_size(n, s)
    return InDegree(*binomial(n - 1, s, n - 1 - s))


def p_empty_inbox(n: int, s: int) -> float:
    """Probability that an EL-Local node receives nothing in a round."""
    check_size(n, s)
    return math.exp((n - 1) * math.log1p(-s / (n - 1))) if s < n - 1 else 0.0


def binomial(trials: int, s: float, rest: float) -> tuple[FloatArray, FloatArray]:
    """Counts around the mode of Binomial(trials, s / (s + rest)) and their probabilities.

    Worked out from the ratios of neighbours, outward from the mode, so accurate for any number of trials.
    """
    if rest == 0 or s == 0:
        return np.array([float(trials) if s else 0.0]), np.array([1.0])
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


def alpha_with_loss(n: int, s: int, loss: float) -> float:
    """The exact contraction of EL-Oracle (around the old mean) if each message is lost, or comes too late, with this probability."""
    check_size(n, s)
    require_real("loss", loss, 0, 1)
    return contraction_from_indegree(*binomial(s, 1 - loss, loss), n)


def beta_with_loss(n: int, s: int, loss: float) -> float:
    """Return the contraction factor of EL-Local when every message is lost with probability `loss`."""
    check_size(n, s)
    require_real("loss", loss, 0, 1)
    kept = (1 - loss) * s
    return contraction_from_indegree(*binomial(n - 1, kept, n - 1 - kept), n)


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
